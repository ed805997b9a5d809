"""Results of load generators, ours and those of other tools, in our names.

A tool is data (``tools.yaml``). A file holds one run or more, as JSON documents one after the
other, as a list of them, or as a table: runs under one load are repeats, runs under several are a
curve.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.base import BadInput, Json, JsonObject, MalformedFile, beside, by_key
from autotune.engines.entry import parse_yaml
from autotune.engines.expression import evaluate

from .table import METRICS, is_number

_DATA = parse_yaml(beside(__file__, "tools.yaml"))
_TOOLS = _DATA["tools"]
_FORM = f"not a result of {', '.join(tool['name'] for tool in _TOOLS[:-1])}"
_SUMMED = re.compile(r"num_prompts|completed|failed|duration|total_(input|output)_tokens")
_METRIC = "Metric,"
_MALFORMED = (ValueError, RecursionError, LookupError, csv.Error)
LOAD = ("load", "sent")
"""Roles of keys that tell loads apart."""
_OF_ONE = ("fact", "")
"""Roles of keys that tell configurations apart."""
_BLANK = re.compile(r"\s*")


def number(value: object) -> float | None:
    """Return a finite number of a result, else None."""
    if not is_number(value):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond every float
        return None


def read(path: Path) -> Json:
    """Read a result file; raises `BadInput` or `MalformedFile` if it is none, or holds several
    configurations."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "no UTF-8 text")
        raise BadInput(
            f"{path}: cannot be read ({why}); give two result files, or two studies"
        ) from error
    found = of_one_configuration(path, runs(path, text))
    loads = by_key(
        (tuple(value for key, value in run.items() if role_of(key) in LOAD), run) for run in found
    )
    if len(loads) == 1:
        return _joined(found)
    points = [_joined(group) for group in loads.values()]
    told = [
        key
        for key in found[0]
        if (key == "num_prompts" or role_of(key) == "sent") and len(_differing(points, key)) > 1
    ]
    listed = [
        {
            "load": ", ".join([load_of(one), *(f"{key} {one.get(key)}" for key in told)]),
            "metrics": one,
        }
        for one in points
    ]
    return {**_joined(found), "load": f"{len(points)} loads", "points": listed}


def of_one_configuration(path: Path, found: list[Json]) -> list[Json]:
    """Return the runs of a file; raises `BadInput` if they differ in more than their loads."""
    for key in dict.fromkeys(key for run in found for key in run):
        values = _differing(found, key)
        if len(values) > 1 and role_of(key) in _OF_ONE:
            raise BadInput(
                f"{path}: its {len(found)} runs differ in {key} ({', '.join(values)}), which is no load; "
                "give one file for each configuration"
            )
    return found


def _differing(found: Iterable[JsonObject], key: str) -> list[str]:
    return list(dict.fromkeys(str(run.get(key)) for run in found))


def _joined(repeats: Sequence[Json]) -> Json:
    """Return repeats as one result: counts are summed, other figures are means."""
    if len(repeats) == 1:
        return repeats[0]
    joined = dict(repeats[0])
    for key in joined:
        values = [value for run in repeats if (value := number(run.get(key))) is not None]
        summed = _SUMMED.fullmatch(key)
        if values and (summed or role_of(key) == "result"):
            joined[key] = math.fsum(values) / (1 if summed else len(values))
    doubts = [doubt for run in repeats for doubt in run["doubts"]]
    return {**joined, "repeats": list(repeats), "doubts": list(dict.fromkeys(doubts))}


def load_of(result: JsonObject) -> str:
    """Describe the load in the words of `Arrival.describe`, from vLLM's keys if ours are missing;
    empty if nothing tells it."""
    if isinstance(result.get("load"), str):
        return str(result["load"])
    concurrency = number(result.get("max_concurrency"))
    rate = number(result.get("request_rate"))
    limit = f"{concurrency:g} at a time" if concurrency else ""
    arrivals = f"{rate:g} requests per second" if rate else ""
    if ramp := result.get("ramp_up_strategy"):
        ends = [result.get(f"ramp_up_{end}_rps") for end in ("start", "end")]
        arrivals = f"{ends[0]} to {ends[1]} requests per second, {ramp} ramp"
    words = ", ".join(part for part in (arrivals, limit) if part)
    told = result.keys() & {"max_concurrency", "request_rate", "strategy"}
    return words or ("all at once" if told else "")


def role_of(key: str) -> str:
    """Return what a key of a result is, by ``roles`` in ``tools.yaml``; empty: a setting of the
    server."""
    roles = (role for role, pattern in _DATA["roles"].items() if re.fullmatch(pattern, key))
    return "result" if key in METRICS else next(roles, "")


def tool_of(text: str) -> str:
    """Return the name of the tool that wrote a text, by the keys of its first run; empty if none is
    known."""
    with suppress(*_MALFORMED, AttributeError, StopIteration):
        return str(_recognised(next(_documents(text)))[0]["name"])
    return ""


def runs(path: Path, text: str) -> list[Json]:
    """Read each run of a result file by our names; raises `MalformedFile`.

    ``tool`` names who wrote it, ``definitions`` has the metrics that are not ours with the row of
    ``tools.yaml``, ``doubts`` what its own figures say against it. Ours are as they stand.
    """
    try:
        found = [run for document in _documents(text.strip()) for run in _runs(path, document)]
    except _MALFORMED as error:
        raise MalformedFile(path, _FORM) from error
    if not found:
        raise MalformedFile(path, _FORM)
    return found


def _documents(text: str) -> Iterator[Any]:
    """List the documents of a text: JSON, one after the other or in a list; rows of a table; a
    table of metrics as AIPerf writes it."""
    if text.startswith(_METRIC):
        yield dict(_metrics(text))
    elif not text.startswith(("{", "[")):
        for row in csv.DictReader(io.StringIO(text)):
            yield {key: _cell(cell) for key, cell in row.items() if key}
    else:
        decoder = json.JSONDecoder()
        end = 0
        while end < len(text):
            one, end = decoder.raw_decode(text, end)
            yield from one if isinstance(one, list) else [one]
            if blank := _BLANK.match(text, end):
                end = blank.end()


def _metrics(text: str) -> Iterator[tuple[str, Json]]:
    """List the metrics of such a table, as AIPerf's JSON names them; others behind it are left
    out."""
    for block in re.split(r"\n\s*\n", text):
        for row in csv.DictReader(block.splitlines()) if block.startswith(_METRIC) else ():
            name = re.sub(r"\s*\(.*", "", row.pop("Metric")).lower().replace(" ", "_")
            yield name, {{"Value": "avg"}.get(key, key): _cell(cell) for key, cell in row.items()}


def _cell(cell: Any) -> Any:
    with suppress(TypeError, ValueError):
        return float(cell)
    return cell or None


def _runs(path: Path, document: Any) -> list[Json]:
    """Return the runs in a JSON document of a tool, with our names of metrics and facts."""
    if not isinstance(document, dict):
        raise MalformedFile(path, _FORM)
    tool, flats = _recognised(document)
    made = [_named(tool, flat) for flat in flats]
    if tool.get("as_is"):
        made = [{"tool": tool["name"], **document}]
    for name in tool.get("needs", _DATA["needs"]):
        if any(number(run.get(name)) is None for run in made):
            raise MalformedFile(path, f"{_FORM} (it has no number under {name!r})")
    return made


def _recognised(document: Json) -> tuple[Json, list[Json]]:
    """Return the tool that wrote a document, the last one, without a name, if none is known, and
    its flat runs."""
    for tool in _TOOLS:
        parts = document.get(tool.get("runs", ""))
        whole = {key: part for key, part in document.items() if key != tool.get("runs")}
        listed = parts if isinstance(parts, list) and parts else [{}]
        flats = [dict(_flat({**whole, "": part})) for part in listed]
        if all(flat.keys() >= set(tool["is"]) for flat in flats):
            break
    return tool, flats


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """List the single values of a document by their dotted path; of a list the last entry."""
    if isinstance(value, list):
        value = value[-1] if value and isinstance(value[-1], dict | str) else None
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}".strip("."))
    else:
        yield name, value


def _named(tool: Json, flat: Json) -> Json:
    """Return a run's values by our names."""
    own = tool.get("own_names")
    values: Json = {key: value for key, value in flat.items() if own and "." not in key}
    for name, keys in tool.get("keys", {}).items():
        given = [flat[key] for key in keys if flat.get(key) is not None]
        values |= {name: given[0]} if given else {}
    for latency, key in tool.get("latencies", _DATA["latencies"]).items():
        factor = tool.get("factor", {}).get(latency, 1)
        for statistic, word in tool.get("statistics", _DATA["statistics"]).items():
            if (figure := number(flat.get(key.format(word)))) is not None:
                values[f"{statistic}_{latency}_ms"] = figure * factor
    for name, formulas in (*tool.get("formulas", {}).items(), *_DATA["formulas"].items()):
        known = (_value(formula, values) for formula in formulas)
        if values.get(name) is None:
            values[name] = next((value for value in known if value is not None), None)
    return {
        **values,
        "tool": tool["name"],
        "definitions": _definitions(tool, values),
        "doubts": [
            row["say"].format(**values)
            for row in tool.get("doubts", ())
            if _value(row["when"], values)
        ],
    }


def _value(formula: str, values: Json) -> Any:
    """Return what a formula is of these values; None if they do not allow it."""
    with suppress(NameError, TypeError, ArithmeticError):
        return evaluate(formula, values)
    return None


def _definitions(tool: Json, values: Json) -> dict[str, Json]:
    """Return the row of each metric that is not ours."""
    rows = [
        row
        for row in tool.get("definitions", ())
        if all(re.search(p, str(values.get(key))) for key, p in row.get("when", {}).items())
    ]
    return {
        key: row for row in reversed(rows) for key in values if re.fullmatch(row["metrics"], key)
    }
