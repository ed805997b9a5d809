"""Reads measurements: tables (`own_table`) and studies of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.metrics.formulas import METRICS
from autotune.simulator.fit.own_table import RowPlace, checked, read_table
from autotune.simulator.fit.rows import LeftOut, MeasuredOutcome, MeasuredRow, RowOrigin, measured, row_of
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.study.home import Home
from autotune.study.results import RESULTS
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Evidence, Launch, Metrics, State


@dataclass(frozen=True, slots=True)
class Reading:
    """What files and studies gave."""

    rows: tuple[MeasuredRow, ...]
    left_out: tuple[LeftOut, ...]


def read_file(path: Path, library: Library | None = None) -> Reading:
    """The rows of a file of measurements.

    Raises:
        BadInput: it cannot be read, is no such table, or has a figure that cannot be right (with file and row).
    """
    return _sorted(row_of(raw, library or Library()) for raw in read_table(path))


def read(
    files: Sequence[Path],
    studies: Sequence[str],
    home: Home,
    *,
    allow_unmeasured: bool = False,
    library: Library | None = None,
) -> Reading:
    """The rows of files and studies together; each file and study counts once.

    Raises:
        BadInput: nothing was named, something cannot be read, or no row can be used.
    """
    if not files and not studies:
        raise BadInput("nothing to learn from: name measurements with --data FILE, or a study with --study NAME")
    library = library or Library()
    readings = [read_file(path, library) for path in dict.fromkeys(path.resolve() for path in files)]
    readings += [_sorted(study_rows(home, name, allow_unmeasured)) for name in dict.fromkeys(studies)]
    found = Reading(
        tuple(row for reading in readings for row in reading.rows),
        tuple(one for reading in readings for one in reading.left_out),
    )
    if not any(row.failure is None for row in found.rows):
        first = found.left_out[0] if found.left_out else None
        why = f"; the first of {len(found.left_out)} that were left out, {first.label}: {first.reason}" if first else ""
        raise BadInput(f"no row with measured metrics can be used{why}")
    return found


def _sorted(found: Iterable[MeasuredRow | LeftOut]) -> Reading:
    rows: list[MeasuredRow] = []
    left_out: list[LeftOut] = []
    for one in found:
        if isinstance(one, MeasuredRow):
            rows.append(one)
        else:
            left_out.append(one)
    return Reading(tuple(rows), tuple(left_out))


def study_rows(home: Home, study: str, allow_unmeasured: bool = False) -> Iterator[MeasuredRow | LeftOut]:
    """The launches of a study: a row per workload of a complete one, a row of a failed one.

    Left out: measurements that did not count (state ``invalid``), failures that were not the configuration's, loads
    whose client did not keep up or that an earlier version cut short, and servers of
    somebody else, whose command is not known.

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
        yield from _rows(launch, spec, library, path)


def _rows(launch: Launch, spec: StudySpec, library: Library, path: Path) -> Iterator[MeasuredRow | LeftOut]:
    stem = f"{spec.study}/{launch.trial.number:04d}"
    reason = _unusable(launch)
    if reason:
        yield LeftOut(stem, spec.study, reason)
    elif launch.result.failure is not None:
        failure = launch.result.failure
        outcome = MeasuredOutcome({}, f"{failure.kind.value}: {failure.message}")
        yield _row(launch, spec, library, (stem, launch.trial.workloads[0]), outcome)
    else:
        for name, metrics in launch.result.metrics.items():
            label = stem if name == launch.trial.workloads[0] else f"{stem} {name}"
            if name in launch.result.shortened:
                yield LeftOut(label, spec.study, "its load was cut short: its throughputs are forecasts")
                continue
            if metrics.get("client_bound"):
                yield LeftOut(label, spec.study, "its client did not keep up")
                continue
            place = RowPlace(path, row=f"launch {launch.trial.number}, {name}")
            yield _row(launch, spec, library, (label, name), MeasuredOutcome(_metrics(place, metrics)))


def _unusable(launch: Launch) -> str:
    """Why a launch teaches nothing; empty where it does."""
    result = launch.result
    if result.state is State.INVALID:
        return f"its measurement does not count{f' ({result.failure.message})' if result.failure else ''}"
    if result.failure is not None and not result.failure.blames_the_configuration:
        return f"its failure was not the configuration's ({result.failure.kind.value})"
    external = launch.trial.command.argv[:1] and launch.trial.command.argv[0].startswith("external:")
    return "somebody else's server, whose command is not known" if external else ""


def _metrics(place: RowPlace, metrics: Metrics) -> dict[str, float]:
    given = {name: value for name, value in metrics.items() if name in METRICS}
    return checked(place, given, ("total_token_throughput",))


def _row(
    launch: Launch, spec: StudySpec, library: Library, named: tuple[str, str], outcome: MeasuredOutcome
) -> MeasuredRow | LeftOut:
    """A row of a launch.

    Args:
        named: its label and its workload's name.
    """
    label, name = named
    try:
        workload = load_workload(name, library)
        context = Context(spec.model, spec.hardware, spec.gpus, launch.trial.engine_version, 0)
        origin = RowOrigin(label, spec.study, launch.result.evidence)
        return measured(origin, launch.trial.command, context, library, workload, outcome)
    except BadInput as error:
        return LeftOut(label, spec.study, str(error))
