"""Read the measured launches of studies, for a calibration of the simulated node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.base.errors import BadInput, MalformedFile
from autotune.base.evidence import Evidence
from autotune.engines.context import Context
from autotune.engines.detect import as_measured
from autotune.engines.library import Library
from autotune.engines.registry import recognise
from autotune.load.metrics.table import METRICS
from autotune.node.fit.reading import LeftOut, MeasuredRow, Reading, checked, table_rows
from autotune.node.resolve_command import resolve_for
from autotune.tuner.trial import Launch, Role, State

from .home import Home, library_of
from .loads import workload_of
from .results import RESULTS
from .spec import StudySpec


def read(
    files: Sequence[Path], studies: Sequence[str], home: Home, *, allow_unmeasured: bool = False
) -> Reading:
    """Read files and studies together, each once; raises `BadInput` if none is named, or no row is
    usable."""
    if not files and not studies:
        raise BadInput("no measurements: give them with --data FILE, or a study with --study NAME")
    library = Library()
    rows: list[MeasuredRow | LeftOut] = []
    for path in dict.fromkeys(path.resolve() for path in files):
        rows += table_rows(path, library)
    for name in dict.fromkeys(studies):
        rows += study_rows(home, name, allow_unmeasured)
    reading = Reading.of(rows)
    if not any(row.failure is None for row in reading.rows):
        out = [f"{one.label}: {one.reason}" for one in reading.left_out]
        why = f"; the first of {len(out)} skipped rows, {out[0]}" if out else ""
        raise BadInput(f"no row with measured metrics is usable{why}")
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
            f"study {study!r} was {' and '.join(unmeasured)}, not measured: a fit to it would only repeat the "
            "simulator; give a study that ran with --on process or --on docker"
        )
    library = library_of(spec)
    for launch in launches:
        yield from _rows_of_launch(launch, spec, library, path)


def _rows_of_launch(
    launch: Launch, spec: StudySpec, library: Library, path: Path
) -> Iterator[MeasuredRow | LeftOut]:
    stem, command, failed = (
        f"{spec.study}/{launch.trial.number:04d}",
        launch.trial.command,
        launch.result.failure,
    )
    reason = _unusable(launch)
    if reason:
        yield LeftOut(stem, spec.study, reason)
        return
    first, failure = (
        launch.trial.workloads[0],
        None if failed is None else f"{failed.kind.value}: {failed.message}",
    )
    for name, metrics in launch.result.metrics.items() if failed is None else [(first, {})]:
        label = stem if name == first else f"{stem} {name}"
        if metrics.get("client_bound"):
            yield LeftOut(label, spec.study, "its client did not keep up")
            continue
        try:
            known = {metric: value for metric, value in metrics.items() if metric in METRICS}
            given = checked(known) if failed is None else {}
        except BadInput as error:
            raise MalformedFile(path, f"launch {launch.trial.number}, {name}: {error}") from error
        try:
            workload, _ = workload_of(spec, launch.trial.role, name, library)
            engine, version = as_measured(
                recognise(command.argv, library), launch.trial.engine_version
            )
            context = Context(
                spec.model, spec.hardware, spec.gpus, version, workload.longest_request
            )
            resolved = resolve_for(engine, command, context)
        except BadInput as error:
            yield LeftOut(label, spec.study, str(error))
            continue
        yield MeasuredRow(
            label, spec.study, resolved, workload, given, failure, launch.result.evidence
        )


def _unusable(launch: Launch) -> str:
    result = launch.result
    if launch.trial.role is Role.SCREEN:
        return "its weights were random"
    if result.state is State.INVALID:
        return (
            f"its measurement is invalid{f' ({result.failure.message})' if result.failure else ''}"
        )
    if result.failure is not None and not result.failure.blames_the_configuration:
        return f"its failure does not depend on the configuration ({result.failure.kind.value})"
    external = any(word.startswith("external:") for word in launch.trial.command.argv[:1])
    return "an external server, whose command is unknown" if external else ""
