"""Reads a table of measurements: CSV, or one JSON object per line; its columns stand in ``docs/calibration.md``.

Every figure is checked: what cannot be right is refused with the file and the row.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines import split_command
from autotune.errors import BadInput, MalformedFile, UnknownName
from autotune.metrics.formulas import METRICS
from autotune.metrics.records import LATENCIES
from autotune.simulator.node.uncertainty import HEADLINE
from autotune.trial import Command

_NEEDED = ("command", "engine_version", "hardware")
_LENGTHS = ("input_len", "output_len", "num_prompts")
_ABOUT = (*_NEEDED, *_LENGTHS, "label", "note", "gpus", "model", "env", "workload", "max_concurrency", "request_rate")
_COLUMNS = (*_ABOUT, "failure")
_DESCRIPTION = (
    f"a table of measurements, CSV or a JSON object per line, has the columns {', '.join(_NEEDED)}, workload or "
    f"{', '.join(_LENGTHS)}, and metrics such as total_token_throughput, or failure (docs/calibration.md)"
)

_NEVER_ZERO = re.compile(r"duration|completed|(request|output|total_token)_throughput|(?!std).*_(ttft|e2el)_ms")
_MAY_BE_ZERO = re.compile(r"failed|cache_hit_rate|request_goodput|std_.*")
_SAME = math.log(1.1)
"""Throughput times duration is the tokens, but for rounding and a client's own idea of when a run begins."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """File and row, for messages.

    Attributes:
        row: in words, where lines mean nothing.
    """

    path: Path
    line: int | None = None
    row: str = ""

    def wrong(self, problem: str) -> MalformedFile:
        """An error that names file and row."""
        return MalformedFile(self.path, f"{self.row}: {problem}" if self.row else problem, self.line)


@dataclass(frozen=True, slots=True)
class RawRow:
    """One benchmark of a table, before its command is parsed.

    Attributes:
        label: short; unique within its file.
        engine_version: as the engine tells it; words behind the number are allowed.
        hardware: a node by name, ``8xH200`` or ``MI300X``.
        metrics: under the names of `autotune.metrics.formulas`, checked; empty when it failed.
        gpus: None: as `hardware` says, else all of the node.
        model: its id; None: as the command names it.
        workload: as ``--workload`` takes it; empty: made of the figures below.
        input_tokens, output_tokens: of every prompt and answer.
        prompts: how many were asked for.
        concurrency, request_rate: both None = all at once.
    """

    label: str
    place: RowPlace
    command: Command
    engine_version: str
    hardware: str
    metrics: Mapping[str, float]
    failure: str | None
    gpus: int | None
    model: str | None
    workload: str
    input_tokens: int
    output_tokens: int
    prompts: int
    concurrency: int | None
    request_rate: float | None


def number(place: RowPlace, name: str, value: Any) -> float | None:
    """A figure of a file; None where there is none.

    Raises:
        MalformedFile: text, NaN, infinity or a negative number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        figure = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        figure = math.nan
    if not math.isfinite(figure) or figure < 0:
        raise place.wrong(f"{name} is {value!r}; a finite number of at least 0 is needed, or nothing")
    return figure


def whole(place: RowPlace, name: str, value: Any) -> int | None:
    """A whole number above 0 of a file; None where there is none."""
    figure = number(place, name, value)
    if figure is not None and (figure != int(figure) or figure < 1):
        raise place.wrong(f"{name} is {value!r}; a whole number above 0 is needed")
    return None if figure is None else int(figure)


def checked(place: RowPlace, given: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row that ran; a gap between tokens of 0 ms is one that nobody measured, and left out.

    Raises:
        MalformedFile: a metric that is missing, no number, or in another unit than its name says.
    """
    metrics: dict[str, float] = {}
    for name, value in given.items():
        figure = number(place, name, value)
        if figure is None:
            continue
        if figure == 0 and _NEVER_ZERO.fullmatch(name):
            raise place.wrong(f"{name} is 0; write tokens or requests per second, ms or s, or say why it failed")
        if figure > 0 or _MAY_BE_ZERO.fullmatch(name):
            metrics[name] = figure
    if HEADLINE not in metrics:
        raise place.wrong(f"no {HEADLINE}; a row that ran needs {HEADLINE}, one that did not its failure")
    _check_units(place, metrics)
    return metrics


def _check_units(place: RowPlace, metrics: Mapping[str, float]) -> None:
    duration = metrics.get("duration")
    if duration is None:
        return
    tokens = {
        "total_token_throughput": ("total_input_tokens", "total_output_tokens"),
        "output_throughput": ("total_output_tokens",),
    }
    for rate, counted in tokens.items():
        if rate not in metrics or not all(name in metrics for name in counted):
            continue
        expected = sum(metrics[name] for name in counted) / duration
        if expected <= 0 or abs(math.log(metrics[rate] / expected)) > _SAME:
            raise place.wrong(
                f"{rate} is {metrics[rate]:g}, but the tokens over the duration ({duration:g} s) are {expected:g} "
                "per second; check the units"
            )
    for name in (f"mean_{latency}_ms" for latency in LATENCIES):
        if metrics.get(name, 0.0) > duration * 1e3 * 1.01:
            raise place.wrong(f"{name} is {metrics[name]:g} ms, longer than the run of {duration:g} s; check the units")


def read_table(path: Path) -> Iterator[RawRow]:
    """The rows of a file.

    Raises:
        BadInput: it cannot be read.
        MalformedFile: it is no such table, or has a figure that cannot be right.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"--data {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MalformedFile(path, "is not UTF-8 text") from error
    rows = _json_lines(path, text) if text.lstrip().startswith("{") else _csv_lines(path, text)
    for place, cells in rows:
        yield _row(place, {name: value for name, value in cells.items() if value not in (None, "")})


def _json_lines(path: Path, text: str) -> Iterator[tuple[RowPlace, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        place = RowPlace(path, number)
        try:
            cells = json.loads(line)
        except ValueError as error:
            raise place.wrong(f"not JSON ({error}); {_DESCRIPTION}") from error
        if not isinstance(cells, dict):
            raise place.wrong("not an object of column to value")
        yield place, cells


def _csv_lines(path: Path, text: str) -> Iterator[tuple[RowPlace, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [name.strip() for name in next(reader, [])]
        for name in _NEEDED:
            if name not in columns:
                raise MalformedFile(path, f"no column {name}: {_DESCRIPTION}", 1)
        twice = [name for name in columns if columns.count(name) > 1]
        if twice:
            raise MalformedFile(path, f"two columns are called {twice[0]!r}", 1)
        for cells in reader:
            place = RowPlace(path, reader.line_num)
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                raise place.wrong(f"{len(cells)} cells, but the first line names {len(columns)} columns")
            yield place, dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise MalformedFile(path, f"not CSV: {error}", reader.line_num) from error


def _row(place: RowPlace, cells: Mapping[str, Any]) -> RawRow:
    """A row of cells that hold something."""
    for name in cells:
        if name not in METRICS and name not in _COLUMNS:
            raise place.wrong(str(UnknownName("column", name, (*_COLUMNS, *METRICS))))
    for name in _NEEDED:
        if name not in cells:
            raise place.wrong(f"no {name}; {_DESCRIPTION}")
    lengths = [name for name in _LENGTHS if name in cells]
    if ("workload" in cells) == bool(lengths) or len(lengths) not in (0, len(_LENGTHS)):
        raise place.wrong(f"give either workload, or all of {', '.join(_LENGTHS)}")
    try:
        command = split_command(f"{cells.get('env', '')} {cells['command']}")
    except BadInput as error:
        raise place.wrong(str(error)) from error
    failure = cells.get("failure")
    given = {name: value for name, value in cells.items() if name in METRICS}
    return RawRow(
        label=str(cells.get("label", place.line)),
        place=place,
        command=command,
        engine_version=str(cells["engine_version"]),
        hardware=str(cells["hardware"]),
        metrics={} if failure else checked(place, given),
        failure=None if failure is None else str(failure),
        gpus=whole(place, "gpus", cells.get("gpus")),
        model=None if "model" not in cells else str(cells["model"]),
        workload=str(cells.get("workload", "")),
        input_tokens=whole(place, "input_len", cells.get("input_len")) or 0,
        output_tokens=whole(place, "output_len", cells.get("output_len")) or 0,
        prompts=whole(place, "num_prompts", cells.get("num_prompts")) or 0,
        concurrency=whole(place, "max_concurrency", cells.get("max_concurrency")),
        request_rate=number(place, "request_rate", cells.get("request_rate")) or None,
    )
