"""Read measurements: the user's tables and studies.

A table is CSV, or one JSON object per line; its columns stand in ``docs/calibration.md``. Every
figure is checked: an impossible one is refused with the file and the row. A row that is not
understood is left out.

Rows are equivalent when they are one effective configuration (`space.context`), of one version of
its engine, serving one model on one node under one load. Their difference is the noise of a launch:
it belongs to the point, and no fit may be asked to explain it. A cross-validation leaves out whole
groups, never random rows: a row's neighbours, which differ from it by an option, would give its
value away.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import Version

from autotune.base import (
    BadInput,
    Evidence,
    FloatDict,
    FloatMap,
    Json,
    JsonObject,
    MalformedFile,
    StringDict,
    Strings,
    UnknownName,
    frozen,
)
from autotune.base.csv_table import csv_table
from autotune.engines import Context, FailureKind, Library, ModelCard, recognise, split_command
from autotune.engines.context import broken_rules
from autotune.engines.installed import as_measured
from autotune.load.metrics.records import LATENCIES
from autotune.load.metrics.table import HEADLINE, METRICS
from autotune.load.metrics.tools import load_of, number, of_one_configuration, runs, tool_of
from autotune.load.workloads import Workload, load_workload, workload_names
from autotune.load.workloads.arrivals import arrival_of
from autotune.load.workloads.lengths import (
    FixedLengths,
    Lengths,
    LibraryTextLengths,
    ShareGPTLengths,
    TableLengths,
)

from ..resolve_command import ResolvedCommand, resolve_for
from ..server import SimulatedServer

_ANOTHER_THING = 0.5
"""Weight of a row that measures something else than its configuration: a cap that the engine sets
by itself, or a combination that only slows it down. The simulator has both, but all of such a row
rests on one figure."""

_CAP = "speculative-caps-requests"

LEAST_S = 8.0
LEAST_SHARE = 0.25
_ERROR_S = 2.0
"""Standard deviation of a cold start's estimate: its difference from the simulated server's own is
within twice it."""

_NOISE = 0.1
"""Standard deviation of ln(throughput) of single runs of one configuration: 5 % in vLLM, 15 % in
SGLang."""

_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_FROM_SENDING = ("ttft", "e2el")


@dataclass(frozen=True)
class MeasuredRow:
    """One measured benchmark, or one server that did not start, without metrics; `source` is a
    file's or a study's."""

    label: str
    source: str
    resolved: ResolvedCommand
    workload: Workload
    metrics: FloatMap
    failure: str | None
    evidence: Evidence = Evidence.MEASURED

    @property
    def configuration(self) -> Strings:
        """Return what names the served configuration and its node, whatever the load."""
        context = self.resolved.context
        return (
            self.resolved.effective.fingerprint,
            context.version,
            context.model.id,
            context.hardware.model_dump_json(),
            str(context.gpus),
        )

    @cached_property
    def cold_start_s(self) -> float:
        """Return the first seconds without an answer of the server; 0 if it was warm, or unknown.

        The first load after a start compiles and tunes kernels for the shapes that it brings. The
        simulated server is warm; a fit that sees a cold one would learn a slow engine.

        With all requests sent at once they queue up, and the times to the first token are spread
        about evenly between the first and the last. Half of their sum is the mean, the last is
        about the 99th percentile; so the first token comes at about 2 x mean - p99: within some 4 s
        of the simulated server's own in nearly all of the performance lab's rows, and at 11 to 17 s
        in three that nobody warmed up. Long queues are not quite even: a server that runs 48
        requests at a time gives 14 to 17 s of 176 to 261 s, and is not cold. So a silence must be
        longer than `LEAST_S` and at least `LEAST_SHARE` of the 99th percentile.
        """
        needed = ("mean_ttft_ms", "p99_ttft_ms", "duration")
        arrivals = [point.arrival.kind for point in self.workload.points]
        if arrivals != ["all_at_once"] or not self.metrics.keys() >= set(needed):
            return 0.0
        mean, last, duration = (self.metrics[name] for name in needed)
        first_s = (2 * mean - last) / 1e3
        cold = first_s > LEAST_S and first_s >= LEAST_SHARE * last / 1e3 and first_s < duration
        return first_s if cold else 0.0

    @property
    def warm(self) -> FloatMap:
        """Return the metrics less the silent seconds, as the simulated server is warm.

        Rates over the whole run grow, times from the sending of a request shrink; what happens
        between tokens stays.
        """
        silent = self.cold_start_s
        if not silent:
            return self.metrics
        changed = dict(self.metrics)
        duration = self.metrics["duration"]
        for name, value in self.metrics.items():
            statistic, _, rest = name.partition("_")
            if name in _RATES:
                changed[name] = value * duration / (duration - silent)
            elif statistic != "std" and rest.removesuffix("_ms") in _FROM_SENDING:
                changed[name] = max(value - silent * 1e3, 1.0)
        changed["duration"] = duration - silent
        return changed

    @cached_property
    def deductions(self) -> FloatMap:
        """Return the factors by which its weight is reduced, by reason."""
        factors = {}
        if silent := self.cold_start_s:
            # Compare with a run of a warm server by the variances of both.
            error = _ERROR_S / (self.metrics["duration"] - silent)
            reason = f"its server was cold: it answered no request for {silent:.0f} s"
            factors[reason] = _NOISE**2 / (_NOISE**2 + math.pow(error, 2))
        resolved = self.resolved
        if any(effect.name == _CAP for effect in resolved.effects):
            factors["it measures speculation's limit of running requests"] = _ANOTHER_THING
        # Reduce combinations that run but are never worth it.
        for rule in broken_rules(resolved.card, resolved.effective, resolved.context):
            if rule.kind is FailureKind.RULE:
                factors[f"it breaks the rule {rule.name}"] = _ANOTHER_THING
        return factors

    @property
    def weight(self) -> float:
        """Return the weight of its squared error; 1 = a run like any other."""
        return math.prod(self.deductions.values())


@frozen
class LeftOut:
    """A row that teaches nothing, and why."""

    label: str
    source: str
    reason: str


def model_name(model: ModelCard) -> str:
    return model.id.rstrip("/").rsplit("/", 1)[-1]


def shape(workload: Workload) -> str:
    """Name the class of a workload: its lengths and how it arrives, without the figures of the
    arrival.

    Points of one curve, 4 at a time to 128, are one class: a fit that knows one of them knows the
    others.
    """
    kinds = dict.fromkeys(
        f"{_lengths(point.lengths)} {point.arrival.kind.replace('_', ' ')}"
        for point in workload.points
    )
    text = " + ".join(kinds)
    return f"{text}, alike" if workload.prefix is not None else text


def _lengths(lengths: Lengths) -> str:
    if isinstance(lengths, FixedLengths):
        return f"{lengths.input_tokens}→{lengths.output_tokens}"
    if isinstance(lengths, TableLengths):
        read, written = lengths.input_quantiles[1.0], lengths.output_quantiles[1.0]
        return lengths.stand_in_for or f"{read:.0f}→{written:.0f}"
    if isinstance(lengths, LibraryTextLengths):
        return f"{lengths.text} {lengths.input_tokens}→{lengths.output_tokens}"
    return "ShareGPT" if isinstance(lengths, ShareGPTLengths) else lengths.file


@frozen
class MeasuredPoint:
    """One effective configuration under one load, measured once or more: geometric means of the
    warm metrics.

    `spread` is ln of the highest total token throughput over the lowest; `weight` that of its
    squared error.
    """

    members: Sequence[MeasuredRow]
    metrics: FloatMap
    spread: float
    weight: float

    @property
    def label(self) -> str:
        return "+".join(row.label for row in self.members)

    @property
    def resolved(self) -> ResolvedCommand:
        return self.members[0].resolved

    @property
    def workload(self) -> Workload:
        return self.members[0].workload

    @property
    def failure(self) -> str | None:
        return self.members[0].failure

    @property
    def engine(self) -> str:
        return self.resolved.card.engine

    @property
    def era(self) -> str:
        """Return the engine with the first two numbers of its version: ``vllm 0.11``."""
        release = Version(self.resolved.context.version).release
        return f"{self.engine} {'.'.join(map(str, release[:2]))}"

    @property
    def gpu(self) -> str:
        return self.resolved.context.hardware.name

    @property
    def model(self) -> ModelCard:
        return self.resolved.context.model

    @property
    def measured(self) -> float:
        """Return the total token throughput, tokens per second, with the seconds in which nobody
        was answered."""
        return _geometric_mean([row.metrics[HEADLINE] for row in self.members])


def points_of(rows: Sequence[MeasuredRow]) -> list[MeasuredPoint]:
    """Merge equivalent rows, in the order of the first of each."""
    equivalents: dict[Strings, list[MeasuredRow]] = {}
    for row in rows:
        identity = (
            *row.configuration,
            # Compare the load's name: a client that lost a request in fifty sent the same load.
            row.workload.name,
            f"{shape(row.workload)} {[point.arrival for point in row.workload.points]}",
            "failed" if row.failure is not None else row.evidence,
        )
        equivalents.setdefault(identity, []).append(row)
    return [_merged(members) for members in equivalents.values()]


def _merged(members: Sequence[MeasuredRow]) -> MeasuredPoint:
    warm = [row.warm for row in members]
    names = dict.fromkeys(name for metrics in warm for name in metrics)
    means = {name: _geometric_mean([m[name] for m in warm if name in m]) for name in names}
    logs = [math.log(metrics[HEADLINE]) for metrics in warm if metrics] or [0.0]
    weight = float(np.mean([row.weight for row in members]))
    return MeasuredPoint(members, means, max(logs) - min(logs), weight)


def _geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; of counts that may be 0 (failed requests) the plain mean."""
    figures = np.array(values, dtype=float)
    return float(np.exp(np.log(figures).mean()) if (figures > 0).all() else figures.mean())


def groups(points: Sequence[MeasuredPoint]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Group the points that a cross-validation leaves out together: kind -> name -> places in the
    list, ascending.

    A kind of which the points know only one group is left out. Points that did not start are in a
    group too.
    """
    kinds = {
        "engine": [point.engine for point in points],
        "gpu": [point.gpu for point in points],
        "workload": [point.workload.name for point in points],
        "curve": [shape(point.workload) for point in points],  # all loads of one shape
        # Count as an interval does: checkpoints and sizes of one family are built alike.
        "model": [point.model.family for point in points],
        "version": [point.era for point in points],
    }
    return {
        kind: {
            name: tuple(i for i, n in enumerate(names) if n == name)
            for name in dict.fromkeys(names)
        }
        for kind, names in kinds.items()
        if len(set(names)) > 1
    }


def group_names(points: Sequence[MeasuredPoint]) -> list[StringDict]:
    """Return per point kind -> name of its group, of the kinds of `groups`."""
    names: list[StringDict] = [{} for _ in points]
    for kind, named in groups(points).items():
        for name, members in named.items():
            for place in members:
                names[place][kind] = name
    return names


SERVER = {"command": "--command", "hardware": "--hw", "engine_version": "--engine-version"}
"""Facts of the measured server that a result may lack, and the option that states each."""
_NEEDED = ("command", "engine_version", "hardware")
_LENGTHS = ("input_len", "output_len", "num_prompts")
_WHOLE = (*_LENGTHS, "gpus", "max_concurrency")
_COLUMNS = (
    *_NEEDED,
    *_WHOLE,
    "label",
    "note",
    "model",
    "env",
    "workload",
    "request_rate",
    "failure",
)
_DESCRIPTION = (
    f"a table of measurements, CSV or a JSON object per line, has the columns {', '.join(_NEEDED)}, workload or "
    f"{', '.join(_LENGTHS)}, and metrics such as total_token_throughput, or failure (docs/calibration.md)"
)

_NODE = re.compile(r"(\d+)\s*[x×]\s*(\S.*)")
_NEVER_ZERO = re.compile(
    r"duration|completed|(request|output|total_token)_throughput|(?!std).*_(ttft|e2el)_ms"
)
_SAME = math.log(1.1)
"""Throughput times duration is the tokens, but for rounding and a client's own idea of when a run
begins."""

_ENOUGH = 0.95
"""Least share of sent requests that must come back; otherwise the load was another one than
requested."""


def table_rows(
    path: Path, library: Library, server: JsonObject | None = None
) -> Iterator[MeasuredRow | LeftOut]:
    """Read the rows of a table, or the runs of a load generator, which need the measured `server`;
    raises `BadInput` or, with the row, `MalformedFile`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"--data {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MalformedFile(path, "is not UTF-8 text") from error
    if tool_of(text.lstrip()):
        lines = _run_lines(path, text, server or {})
    else:
        lines = _json_lines(path, text) if text.lstrip().startswith("{") else _csv_lines(path, text)
    for line, cells in lines:
        given = {name: value for name, value in cells.items() if value not in (None, "")}
        try:
            yield _table_row(path.name, line, given, library)
        except BadInput as error:
            raise MalformedFile(path, str(error), line) from error


def _run_lines(path: Path, text: str, server: JsonObject) -> Iterator[tuple[int, Json]]:
    """Return the runs of a load generator as rows of a table, without metrics of another
    definition; prompts and answers are of their mean lengths."""
    found = runs(path, text)
    if not all("command" in run for run in found):
        of_one_configuration(path, found)
    for line, run in enumerate(found, start=1):
        known = run | {name: value for name, value in server.items() if value}
        if missing := [flag for name, flag in SERVER.items() if not known.get(name)]:
            raise BadInput(
                f"{path}: a result of {run['tool']}, which does not state its server; add {', '.join(missing)}, e.g. "
                "--command 'vllm serve …' --hw 8xh200 --engine-version 0.32.0, or columns of these names"
            )
        load = load_of(run)
        if not load or "ramp" in load:
            raise MalformedFile(path, f"a load that is not simulated: {load or 'not stated'}", line)
        names = {*METRICS, *SERVER, *_WHOLE, "request_rate"} - run.get("definitions", {}).keys()
        if "workload" in run:
            names = (names - set(_LENGTHS)) | {"workload"}
        for name in names & set(_LENGTHS):
            if not (figure := number(known.get(name))):
                raise MalformedFile(path, f"a result of {run['tool']} without {name}", line)
            known[name] = round(figure)
        known["request_rate"] = number(known.get("request_rate"))
        yield line, {name: known.get(name) for name in names}


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Json]]:
    for at, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except ValueError as error:
            raise MalformedFile(path, f"not JSON ({error}); {_DESCRIPTION}", at) from error
        if not isinstance(cells, dict):
            raise MalformedFile(path, "not an object of column to value", at)
        yield at, cells


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, Json]]:
    columns, body = csv_table(path, text, dict.fromkeys(_NEEDED, f": {_DESCRIPTION}"))
    for line, cells in body:
        yield line, dict(zip(columns, cells, strict=True))


def _table_row(
    source: str, line: int, cells: JsonObject, library: Library
) -> MeasuredRow | LeftOut:
    """Read a row's cells; raises `BadInput` for an unknown or missing column, or an impossible
    figure."""
    for name in cells:
        if name not in METRICS and name not in _COLUMNS:
            raise UnknownName("column", name, (*_COLUMNS, *METRICS), usual=_COLUMNS)
    for name in _NEEDED:
        if name not in cells:
            raise BadInput(f"no {name}; {_DESCRIPTION}")
    lengths = [name for name in _LENGTHS if name in cells]
    if ("workload" in cells) == bool(lengths) or len(lengths) not in (0, len(_LENGTHS)):
        raise BadInput(f"give either workload, or all of {', '.join(_LENGTHS)}")
    command = split_command(f"{cells.get('env', '')} {cells['command']}")
    failure = str(cells["failure"]) if "failure" in cells else None
    metrics = {}
    if not failure:
        metrics = checked_metrics({name: value for name, value in cells.items() if name in METRICS})
    counts = {name: _whole(name, cells.get(name)) for name in _WHOLE}
    rate = _number("request_rate", cells.get("request_rate")) or None
    label = str(cells.get("label", line))
    try:
        workload = _completed(_workload(cells, counts, rate, library), metrics)
        # Use the given count of GPUs, else that in the node's name, else all of the node.
        name = str(cells["hardware"]).strip()
        counted = _NODE.fullmatch(name)
        hardware = library.node(counted[2] if counted else name)
        gpus = counts["gpus"] or (int(counted[1]) if counted else hardware.gpus)
        if not 0 < gpus <= hardware.gpus:
            raise BadInput(f"{gpus} GPUs: nodes of {hardware.name} have 1 to {hardware.gpus}")
        engine = recognise(command.argv, library)
        engine, version = as_measured(engine, str(cells["engine_version"]))
        model = library.model(str(cells.get("model") or engine.parse(command, version).model))
        context = Context(model, hardware, gpus, version, workload.longest_request)
        resolved = resolve_for(engine, command, context)
        row = MeasuredRow(label, source, resolved, workload, metrics, failure)
        reason = _contradiction(row)
    except BadInput as error:
        return LeftOut(label, source, str(error))
    return LeftOut(label, source, reason) if reason else row


def _contradiction(row: MeasuredRow) -> str:
    """Say why a row's first tokens came sooner than its command lets its requests run; empty: they
    did not.

    Of N requests in flight of which R run, the others wait (N - R) / N of a request's time
    (Little's law); half of it is asked for.
    """
    clients = row.workload.points[-1].arrival.concurrency
    if not clients or not {"mean_ttft_ms", "mean_tpot_ms"} <= row.metrics.keys():
        return ""
    server = SimulatedServer(row.resolved.setup)
    clients = server.share_of(clients)
    run = server.running_limit * server.data_parallel
    first_ms = row.metrics["mean_ttft_ms"]
    written = float(row.workload.draw(0, 0).output_tokens.mean())
    answer_ms = row.metrics["mean_tpot_ms"] * (written - 1)
    if first_ms >= (1 - run / clients) * (first_ms + answer_ms) / 2:
        return ""
    return (
        f"{clients} requests in flight, of which its command lets {run} run, have their first tokens after "
        f"{first_ms:.0f} ms: another command was measured"
    )


def _workload(
    cells: JsonObject, counts: Mapping[str, int | None], rate: float | None, library: Library
) -> Workload:
    """Return the packaged workload of a launch, else one made of its parameters."""
    arrival = arrival_of(counts["max_concurrency"], rate)
    if "workload" in cells:
        workload = load_workload(str(cells["workload"]), library)
        return workload if arrival.kind == "all_at_once" else workload.with_arrival(arrival)
    name = ":".join(["random", *(str(counts[length]) for length in _LENGTHS)])
    workload = load_workload(name).with_arrival(arrival)
    for packaged in (load_workload(each, library) for each in workload_names(library)):
        points = [point.model_copy(update={"label": ""}) for point in packaged.points]
        if packaged.prefix is None and points == workload.points:
            return packaged
    if arrival.concurrency is not None:
        name += f" c{arrival.concurrency}"
    elif arrival.request_rate is not None:
        name += f" {arrival.request_rate:g}/s"
    return workload.model_copy(update={"name": name})


def _completed(workload: Workload, metrics: FloatMap) -> Workload:
    """Return the load of the completed requests; raises `BadInput` if too many failed.

    Where up to one request in twenty did not (a client out of file descriptors), the others were no
    load.
    """
    sent = sum(point.prompts for point in workload.points)
    completed = int(metrics.get("completed", sent))
    if completed >= sent:
        return workload
    if completed < _ENOUGH * sent or len(workload.points) > 1:
        raise BadInput(
            f"only {completed} of {sent} requests were completed, so the load was not the requested one"
        )
    point = workload.points[0].model_copy(update={"prompts": completed})
    return workload.model_copy(update={"points": [point]})


def _number(name: str, value: Any) -> float | None:
    """Read a figure, None for none; raises `BadInput` for text, NaN, infinity or a negative
    number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        figure = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        figure = math.nan
    if not 0 <= figure < math.inf:
        raise BadInput(f"{name} is {value!r}; a finite number of at least 0 is needed, or nothing")
    return figure


def _whole(name: str, value: Any) -> int | None:
    figure = _number(name, value)
    if figure is None:
        return None
    if figure < 1 or not figure.is_integer():
        raise BadInput(f"{name} is {value!r}; a whole number above 0 is needed")
    return int(figure)


def checked_metrics(given: JsonObject) -> FloatDict:
    """Read the metrics of a complete row; a gap between tokens of 0 ms is unmeasured, and skipped.

    Raises `BadInput`: a metric that is missing, no number, or in another unit than its name says.
    """
    metrics = {}
    for name, value in given.items():
        figure = _number(name, value)
        if figure is None:
            continue
        if figure == 0 and _NEVER_ZERO.fullmatch(name):
            raise BadInput(
                f"{name} is 0; write tokens or requests per second, ms or s, or say why it failed"
            )
        if figure > 0 or METRICS[name].may_be_zero:
            metrics[name] = figure
    if HEADLINE not in metrics:
        raise BadInput(
            f"no {HEADLINE}; a row that ran needs {HEADLINE}, one that did not its failure"
        )
    if "duration" in metrics:
        _check_units(metrics, metrics["duration"])
    return metrics


def _check_units(metrics: FloatMap, duration: float) -> None:
    tokens = {
        "total_token_throughput": ("total_input_tokens", "total_output_tokens"),
        "output_throughput": ("total_output_tokens",),
    }
    for rate, counted in tokens.items():
        if rate not in metrics or not all(name in metrics for name in counted):
            continue
        expected = sum(metrics[name] for name in counted) / duration
        if expected <= 0 or abs(math.log(metrics[rate] / expected)) > _SAME:
            raise BadInput(
                f"{rate} is {metrics[rate]:g}, but the tokens over the duration ({duration:g} s) are {expected:g} "
                "per second; check the units"
            )
    for name in (f"mean_{latency}_ms" for latency in LATENCIES):
        if metrics.get(name, 0.0) > duration * 1e3 * 1.01:
            raise BadInput(
                f"{name} is {metrics[name]:g} ms, longer than the run of {duration:g} s; check the units"
            )


@frozen
class Reading:
    """Rows of files and studies, and the skipped ones."""

    rows: tuple[MeasuredRow, ...]
    left_out: tuple[LeftOut, ...]

    @classmethod
    def from_rows(cls, rows: Sequence[MeasuredRow | LeftOut]) -> Reading:
        """Separate the usable rows from the skipped ones."""
        left_out = tuple(row for row in rows if isinstance(row, LeftOut))
        return cls(tuple(row for row in rows if isinstance(row, MeasuredRow)), left_out)


def read_file(path: Path) -> Reading:
    """Read a table; raises `BadInput` (with file and row) if it is unreadable or invalid."""
    return Reading.from_rows([*table_rows(path, Library())])
