"""Reads measurements: tables (`table`) and studies of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.engines import recognise
from autotune.engines.installed_options import as_measured
from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.workloads import load_workload
from autotune.metrics.formulas import METRICS
from autotune.simulator.fit.points import LeftOut, MeasuredRow
from autotune.simulator.fit.table import checked, table_rows
from autotune.simulator.resolve_command import resolve_for
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.study.home import Home
from autotune.study.results import RESULTS
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Evidence, Launch, State


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
    whose client did not keep up or that an earlier version cut short, and servers of somebody else, whose command is
    not known.

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
        if name in result.shortened:
            yield LeftOut(label, spec.study, "its load was cut short: its throughputs are forecasts")
        elif metrics.get("client_bound"):
            yield LeftOut(label, spec.study, "its client did not keep up")
        else:
            try:
                given = checked({metric: value for metric, value in metrics.items() if metric in METRICS})
            except BadInput as error:
                raise MalformedFile(path, f"launch {launch.trial.number}, {name}: {error}") from error
            yield _launch_row(launch, spec, library, name, given, label)


def _unusable(launch: Launch) -> str:
    """Why a launch teaches nothing; empty where it does."""
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
