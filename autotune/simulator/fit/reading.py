"""Reads measurements: tables and studies of one's own.

A table is CSV, or one JSON object per line; its columns stand in ``docs/calibration.md``. Every figure is checked: what
cannot be right is refused with the file and the row. What is not understood is left out.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines import recognise, split_command
from autotune.engines.installed_options import as_measured
from autotune.errors import BadInput, MalformedFile, UnknownName
from autotune.loadgen.workloads import Workload, load_workload, workload_names
from autotune.loadgen.workloads.arrivals import arrival_of
from autotune.metrics.records import LATENCIES
from autotune.metrics.table import HEADLINE, METRICS
from autotune.simulator.fit.points import LeftOut, MeasuredRow
from autotune.simulator.resolve_command import resolve_for
from autotune.space.cards import HardwareCard
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.study.home import Home
from autotune.study.results import RESULTS
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Evidence, Launch, State

_NEEDED = ("command", "engine_version", "hardware")
_LENGTHS = ("input_len", "output_len", "num_prompts")
_WHOLE = (*_LENGTHS, "gpus", "max_concurrency")
_COLUMNS = (*_NEEDED, *_WHOLE, "label", "note", "model", "env", "workload", "request_rate", "failure")
_DESCRIPTION = (
    f"a table of measurements, CSV or a JSON object per line, has the columns {', '.join(_NEEDED)}, workload or "
    f"{', '.join(_LENGTHS)}, and metrics such as total_token_throughput, or failure (docs/calibration.md)"
)

_NODE = re.compile(r"(\d+)\s*[x×]\s*(\S.*)")
_NEVER_ZERO = re.compile(r"duration|completed|(request|output|total_token)_throughput|(?!std).*_(ttft|e2el)_ms")
_SAME = math.log(1.1)
"""Throughput times duration is the tokens, but for rounding and a client's own idea of when a run begins."""

_ENOUGH = 0.95
"""Of the requests that were sent; where fewer came back, the load was another one than was asked for."""


def table_rows(path: Path, library: Library) -> Iterator[MeasuredRow | LeftOut]:
    """The rows of a table.

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
    lines = _json_lines(path, text) if text.lstrip().startswith("{") else _csv_lines(path, text)
    for line, cells in lines:
        given = {name: value for name, value in cells.items() if value not in (None, "")}
        try:
            yield _table_row(path.name, line, given, library)
        except BadInput as error:
            raise MalformedFile(path, str(error), line) from error


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except ValueError as error:
            raise MalformedFile(path, f"not JSON ({error}); {_DESCRIPTION}", number) from error
        if not isinstance(cells, dict):
            raise MalformedFile(path, "not an object of column to value", number)
        yield number, cells


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
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
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                problem = f"{len(cells)} cells, but the first line names {len(columns)} columns"
                raise MalformedFile(path, problem, reader.line_num)
            yield reader.line_num, dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise MalformedFile(path, f"not CSV: {error}", reader.line_num) from error


def _table_row(source: str, line: int, cells: Mapping[str, Any], library: Library) -> MeasuredRow | LeftOut:
    """Read a row's cells that hold something; left out where its engine, model, node or command is not understood.

    Raises:
        BadInput: a column that is unknown or missing, or a figure that cannot be right.
    """
    for name in cells:
        if name not in METRICS and name not in _COLUMNS:
            raise UnknownName("column", name, (*_COLUMNS, *METRICS))
    for name in _NEEDED:
        if name not in cells:
            raise BadInput(f"no {name}; {_DESCRIPTION}")
    lengths = [name for name in _LENGTHS if name in cells]
    if ("workload" in cells) == bool(lengths) or len(lengths) not in (0, len(_LENGTHS)):
        raise BadInput(f"give either workload, or all of {', '.join(_LENGTHS)}")
    command = split_command(f"{cells.get('env', '')} {cells['command']}")
    failure = None if "failure" not in cells else str(cells["failure"])
    metrics = {} if failure else checked({name: value for name, value in cells.items() if name in METRICS})
    counts = {name: _whole(name, cells.get(name)) for name in _WHOLE}
    rate = _number("request_rate", cells.get("request_rate")) or None
    label = str(cells.get("label", line))
    try:
        asked = _workload(cells, counts, rate, library)
        workload = _completed(asked, metrics)
        hardware, gpus = _node(str(cells["hardware"]), counts["gpus"], library)
        engine, version = as_measured(recognise(command.argv, library), str(cells["engine_version"]))
        model = library.model(str(cells["model"]) if "model" in cells else engine.parse(command, version).model)
        context = Context(model, hardware, gpus, version, workload.longest_request)
        resolved = resolve_for(engine, command, context)
    except BadInput as error:
        return LeftOut(label, source, str(error))
    return MeasuredRow(label, source, resolved, workload, metrics, failure)


def _node(text: str, gpus: int | None, library: Library) -> tuple[HardwareCard, int]:
    """The card of a node, and how many of its GPUs were used: as given, as the name says, else all."""
    match = _NODE.fullmatch(text.strip())
    hardware = library.node(match[2].strip() if match else text.strip())
    used = gpus or (int(match[1]) if match else hardware.gpus)
    if not 0 < used <= hardware.gpus:
        raise BadInput(f"{used} GPUs: nodes of {hardware.name} have 1 to {hardware.gpus}")
    return hardware, used


def _workload(
    cells: Mapping[str, Any], counts: Mapping[str, int | None], rate: float | None, library: Library
) -> Workload:
    """The workload that was asked for: one that has a name, where it is the same, else one of its own."""
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


def _completed(workload: Workload, metrics: Mapping[str, float]) -> Workload:
    """The load of the requests that came back.

    Where up to one request in twenty did not (a client out of file descriptors), the others were no load.

    Raises:
        BadInput: too many did not come back.
    """
    sent = sum(point.prompts for point in workload.points)
    completed = int(metrics.get("completed", sent))
    if completed >= sent:
        return workload
    if completed < _ENOUGH * sent or len(workload.points) > 1:
        raise BadInput(f"only {completed} of {sent} requests came back, so the load was not the one that was asked for")
    return workload.model_copy(update={"points": [workload.points[0].model_copy(update={"prompts": completed})]})


def _number(name: str, value: Any) -> float | None:
    """A figure; None where there is none.

    Raises:
        BadInput: text, NaN, infinity or a negative number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        figure = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        figure = math.nan
    if not math.isfinite(figure) or figure < 0:
        raise BadInput(f"{name} is {value!r}; a finite number of at least 0 is needed, or nothing")
    return figure


def _whole(name: str, value: Any) -> int | None:
    """A whole number above 0; None where there is none."""
    figure = _number(name, value)
    if figure is not None and (figure != int(figure) or figure < 1):
        raise BadInput(f"{name} is {value!r}; a whole number above 0 is needed")
    return None if figure is None else int(figure)


def checked(given: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row that ran; a gap between tokens of 0 ms is one that nobody measured, and left out.

    Raises:
        BadInput: a metric that is missing, no number, or in another unit than its name says.
    """
    metrics: dict[str, float] = {}
    for name, value in given.items():
        figure = _number(name, value)
        if figure is None:
            continue
        if figure == 0 and _NEVER_ZERO.fullmatch(name):
            raise BadInput(f"{name} is 0; write tokens or requests per second, ms or s, or say why it failed")
        if figure > 0 or METRICS[name].may_be_zero:
            metrics[name] = figure
    if HEADLINE not in metrics:
        raise BadInput(f"no {HEADLINE}; a row that ran needs {HEADLINE}, one that did not its failure")
    if "duration" in metrics:
        _check_units(metrics, metrics["duration"])
    return metrics


def _check_units(metrics: Mapping[str, float], duration: float) -> None:
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
            raise BadInput(f"{name} is {metrics[name]:g} ms, longer than the run of {duration:g} s; check the units")


@dataclass(frozen=True, slots=True)
class Reading:
    """What files and studies gave."""

    rows: tuple[MeasuredRow, ...]
    left_out: tuple[LeftOut, ...]


def read_file(path: Path) -> Reading:
    """The rows of a table.

    Raises:
        BadInput: it cannot be read, is no such table, or has a figure that cannot be right (with file and row).
    """
    return _sorted(table_rows(path, Library()))


def read(files: Sequence[Path], studies: Sequence[str], home: Home, *, allow_unmeasured: bool = False) -> Reading:
    """The rows of files and studies together; each file and study counts once.

    Raises:
        BadInput: nothing was named, something cannot be read, or no row can be used.
    """
    if not files and not studies:
        raise BadInput("nothing to learn from: name measurements with --data FILE, or a study with --study NAME")
    library = Library()
    rows: list[MeasuredRow | LeftOut] = []
    for path in dict.fromkeys(path.resolve() for path in files):
        rows += table_rows(path, library)
    for name in dict.fromkeys(studies):
        rows += study_rows(home, name, allow_unmeasured)
    reading = _sorted(rows)
    if not any(row.failure is None for row in reading.rows):
        first = reading.left_out[0] if reading.left_out else None
        why = (
            f"; the first of {len(reading.left_out)} that were left out, {first.label}: {first.reason}" if first else ""
        )
        raise BadInput(f"no row with measured metrics can be used{why}")
    return reading


def _sorted(rows: Iterable[MeasuredRow | LeftOut]) -> Reading:
    rows = list(rows)
    return Reading(
        tuple(row for row in rows if isinstance(row, MeasuredRow)),
        tuple(row for row in rows if isinstance(row, LeftOut)),
    )


def study_rows(home: Home, study: str, allow_unmeasured: bool = False) -> Iterator[MeasuredRow | LeftOut]:
    """The launches of a study: a row per workload of a complete one, a row of a failed one.

    Left out: measurements that did not count (state ``invalid``), failures that were not the configuration's, loads
    whose client did not keep up, and servers of somebody else, whose command is not known.

    Args:
        allow_unmeasured: take simulated, emulated and replayed launches as well.

    Raises:
        BadInput: there is no such study, it has no launch, or its numbers were not measured.
    """
    spec = home.spec(study)
    path = home.study_folder(study) / RESULTS
    launches = home.launches(study)
    if not launches:
        raise BadInput(f"study {study!r} has no finished launch in {path}")
    kinds = {launch.result.evidence for launch in launches}
    unmeasured = sorted(kind.value for kind in kinds - {Evidence.MEASURED})
    if unmeasured and not allow_unmeasured:
        raise BadInput(
            f"study {study!r} was {' and '.join(unmeasured)}, not measured: a fit to it would only learn what the "
            "simulator says already; name a study that ran with --on process or --on docker"
        )
    library = library_of(spec)
    for launch in launches:
        yield from _rows_of_launch(launch, spec, library, path)


def _rows_of_launch(launch: Launch, spec: StudySpec, library: Library, path: Path) -> Iterator[MeasuredRow | LeftOut]:
    stem = f"{spec.study}/{launch.trial.number:04d}"
    reason = _unusable(launch)
    if reason:
        yield LeftOut(stem, spec.study, reason)
        return
    result, first = launch.result, launch.trial.workloads[0]
    if result.failure is not None:
        yield _launch_row(launch, spec, library, first, {}, stem)
        return
    for name, metrics in result.metrics.items():
        label = stem if name == first else f"{stem} {name}"
        if metrics.get("client_bound"):
            yield LeftOut(label, spec.study, "its client did not keep up")
        else:
            try:
                given = checked({metric: value for metric, value in metrics.items() if metric in METRICS})
            except BadInput as error:
                raise MalformedFile(path, f"launch {launch.trial.number}, {name}: {error}") from error
            yield _launch_row(launch, spec, library, name, given, label)


def _unusable(launch: Launch) -> str:
    result = launch.result
    if result.state is State.INVALID:
        return f"its measurement does not count{f' ({result.failure.message})' if result.failure else ''}"
    if result.failure is not None and not result.failure.blames_the_configuration:
        return f"its failure was not the configuration's ({result.failure.kind.value})"
    external = launch.trial.command.argv[:1] and launch.trial.command.argv[0].startswith("external:")
    return "somebody else's server, whose command is not known" if external else ""


def _launch_row(
    launch: Launch, spec: StudySpec, library: Library, workload_name: str, metrics: Mapping[str, float], label: str
) -> MeasuredRow | LeftOut:
    command, failed = launch.trial.command, launch.result.failure
    failure = None if failed is None else f"{failed.kind.value}: {failed.message}"
    try:
        workload = load_workload(workload_name, library)
        engine, version = as_measured(recognise(command.argv, library), launch.trial.engine_version)
        context = Context(spec.model, spec.hardware, spec.gpus, version, workload.longest_request)
        resolved = resolve_for(engine, command, context)
    except BadInput as error:
        return LeftOut(label, spec.study, str(error))
    return MeasuredRow(label, spec.study, resolved, workload, metrics, failure, launch.result.evidence)
