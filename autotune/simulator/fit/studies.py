"""Studies of one's own as measurements: what was learnt on a node tells the simulator how fast that node is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.metrics.formulas import METRICS
from autotune.simulator.fit.raw import Place, checked
from autotune.simulator.fit.rows import LeftOut, MeasuredRow, Origin, Outcome, measured
from autotune.space.context import Context
from autotune.space.library import Library
from autotune.study.home import Home
from autotune.study.results import RESULTS
from autotune.study.spec import StudySpec
from autotune.study.user_library import library_of
from autotune.trial import Evidence, Launch, Metrics, State


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
        told = Outcome({}, f"{failure.kind.value}: {failure.message}")
        yield _row(launch, spec, library, (stem, launch.trial.workloads[0]), told)
    else:
        for name, metrics in launch.result.metrics.items():
            label = stem if name == launch.trial.workloads[0] else f"{stem} {name}"
            if name in launch.result.shortened:
                yield LeftOut(label, spec.study, "its load was cut short: its throughputs are forecasts")
                continue
            if metrics.get("client_bound"):
                yield LeftOut(label, spec.study, "its client did not keep up")
                continue
            place = Place(path, row=f"launch {launch.trial.number}, {name}")
            yield _row(launch, spec, library, (label, name), Outcome(_metrics(place, metrics)))


def _unusable(launch: Launch) -> str:
    """Why a launch teaches nothing; empty where it does."""
    result = launch.result
    if result.state is State.INVALID:
        return f"its measurement does not count{f' ({result.failure.message})' if result.failure else ''}"
    if result.failure is not None and not result.failure.blames_the_configuration:
        return f"its failure was not the configuration's ({result.failure.kind.value})"
    external = launch.trial.command.argv[:1] and launch.trial.command.argv[0].startswith("external:")
    return "somebody else's server, whose command is not known" if external else ""


def _metrics(place: Place, metrics: Metrics) -> dict[str, float]:
    given = {name: value for name, value in metrics.items() if name in METRICS}
    return checked(place, given, ("total_token_throughput",))


def _row(
    launch: Launch, spec: StudySpec, library: Library, named: tuple[str, str], outcome: Outcome
) -> MeasuredRow | LeftOut:
    """A row of a launch.

    Args:
        named: its label and its workload's name.
    """
    label, name = named
    try:
        workload = load_workload(name, library)
        context = Context(spec.model, spec.hardware, spec.gpus, launch.trial.engine_version, 0)
        origin = Origin(label, spec.study, launch.result.evidence)
        return measured(origin, launch.trial.command, context, library, workload, outcome)
    except BadInput as error:
        return LeftOut(label, spec.study, str(error))
