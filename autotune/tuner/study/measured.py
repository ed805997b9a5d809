"""Read the measured launches of studies, for a calibration of the simulated node."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.base import BadInput, Evidence, JsonObject, MalformedFile
from autotune.engines import Library, recognise
from autotune.engines.installed import as_measured
from autotune.load.metrics.table import METRICS
from autotune.node.fit.reading import LeftOut, MeasuredRow, Reading, checked_metrics, table_rows
from autotune.node.resolve_command import resolve_for

from ..trial import Launch
from .home import Home, library_of
from .loads import workload_of
from .results import RESULTS
from .spec import StudySpec


def read(
    files: Sequence[Path],
    studies: Sequence[str],
    home: Home,
    *,
    allow_unmeasured: bool = False,
    server: JsonObject | None = None,
) -> Reading:
    """Read files and studies together, each once; `server` is what was measured where a file does
    not tell. Raises `BadInput` if none is named, or no row is usable."""
    if not files and not studies:
        raise BadInput("no measurements: give them with --data FILE, or a study with --study NAME")
    library = Library()
    rows: list[MeasuredRow | LeftOut] = []
    for path in dict.fromkeys(path.resolve() for path in files):
        rows += table_rows(path, library, server)
    for name in dict.fromkeys(studies):
        rows += study_rows(home, name, allow_unmeasured)
    reading = Reading.from_rows(rows)
    if not any(row.failure is None for row in reading.rows):
        problem = "no row with measured metrics is usable"
        if skipped := reading.left_out:
            problem += (
                f"; the first of {len(skipped)} skipped rows, {skipped[0].label}: "
                f"{skipped[0].reason}"
            )
        raise BadInput(problem)
    return reading


def study_rows(
    home: Home, study: str, allow_unmeasured: bool = False
) -> Iterator[MeasuredRow | LeftOut]:
    """Read the launches of a study: a row per workload of a complete one, a row of a failed one.

    Left out: measurements that did not count (state ``invalid``), failures that were not the
    configuration's, loads whose client did not keep up, and servers of somebody else, whose command
    is not known.

    Raises `BadInput`: there is no such study, it has no launch, or (but for `allow_unmeasured`) was
    not measured.
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
            f"study {study!r} was {' and '.join(unmeasured)}, not measured: a fit to it would only "
            "repeat the simulator; give a study that ran with --on process or --on docker"
        )
    library = library_of(spec)
    for launch in launches:
        yield from _rows_of_launch(launch, spec, library, path)


def _rows_of_launch(
    launch: Launch, spec: StudySpec, library: Library, path: Path
) -> Iterator[MeasuredRow | LeftOut]:
    trial = launch.trial
    failed = launch.result.failure
    stem = f"{spec.study}/{trial.number:04d}"
    if reason := _unusable(launch):
        yield LeftOut(stem, spec.study, reason)
        return
    first = trial.workloads[0]
    measured = launch.result.metrics
    failure = None
    if failed:
        measured = {first: {}}
        failure = f"{failed.kind.value}: {failed.message}"
    for name, metrics in measured.items():
        label = stem if name == first else f"{stem} {name}"
        if metrics.get("client_bound"):
            yield LeftOut(label, spec.study, "its client did not keep up")
            continue
        known = {metric: value for metric, value in metrics.items() if metric in METRICS}
        try:
            # A failed launch has no figures.
            figures = checked_metrics(known) if known else {}
        except BadInput as error:
            raise MalformedFile(path, f"launch {trial.number}, {name}: {error}") from error
        try:
            workload, _ = workload_of(spec, trial.role, name, library)
            engine = recognise(trial.command.argv, library)
            engine, version = as_measured(engine, trial.engine_version)
            context = spec.context(version, workload.longest_request)
            resolved = resolve_for(engine, trial.command, context)
        except BadInput as error:
            yield LeftOut(label, spec.study, str(error))
            continue
        evidence = launch.result.evidence
        yield MeasuredRow(label, spec.study, resolved, workload, figures, failure, evidence)


def _unusable(launch: Launch) -> str:
    if reason := launch.without_meaning:
        return reason
    failure = launch.result.failure
    if failure and not failure.blames_the_configuration:
        return f"its failure does not depend on the configuration ({failure.kind.value})"
    external = "".join(launch.trial.command.argv[:1]).startswith("external:")
    return "an external server, whose command is unknown" if external else ""
