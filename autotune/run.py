"""The whole product on one screen: `run(spec) -> Recommendation`. Read this first.

A study is a loop: *ask* for a configuration, *evaluate* it, *tell* the result; at the end,
*recommend* one command, with evidence. The optimiser knows no server, the measurement knows no
optimiser; one value, `Trial`, travels between them.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from autotune.base import BadInput, CannotGoOn, Evidence, Interrupted
from autotune.outputs.export import write_artefacts
from autotune.outputs.progress import Progress, cost_line
from autotune.outputs.tracking import Tracker
from autotune.tuner.accuracy.check import Gate
from autotune.tuner.advice import advise
from autotune.tuner.backends import EvaluationSetup, Evaluator, evaluator_for
from autotune.tuner.executors import Executor, retire_bad_node
from autotune.tuner.executors.factory import executor_for
from autotune.tuner.foresight import baseline_trial
from autotune.tuner.prepare.candidates import Prepared, check_weights, no_effect_by_rule, prepare
from autotune.tuner.recommend import recommend
from autotune.tuner.search.budget import most_nodes
from autotune.tuner.search.priors import coverage, keep, priors_of, sources_of
from autotune.tuner.search.study import Study
from autotune.tuner.study.home import Home, library_of
from autotune.tuner.study.recommendation import Recommendation
from autotune.tuner.study.results import Lock
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Trial

_WAYS_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free disk space there"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable again"),
    errno.EIO: "check the disk and its connection",
}
"""Remedies for a file that cannot be written."""


def run(
    spec: StudySpec,
    home: Home,
    progress: Progress,
    evaluator: Callable[[EvaluationSetup], Evaluator] = evaluator_for,
) -> Recommendation:
    """Tune, from the start or after an interruption, and write all files.

    Args:
        evaluator: makes the study's evaluator, as `evaluator_for`.

    Raises:
        BadInput: nothing may be tried, or the home folder cannot be written; no folder is made
            then. Also when the first launch cannot be made as it was asked for.
        CannotGoOn: the machine keeps launches from being made or kept; what is finished is kept.
        Interrupted: the user stopped it; what is finished is kept.
        StudyLocked: another tuner works on this study.
    """
    folder = home.study_folder(spec.study)
    if folder.is_dir():
        # Report a second tuner before any long step.
        with _writable(folder, spec, home):
            Lock(folder).release()
    sources = sources_of(spec, folder)
    progress.phase("building the list of valid configurations")
    library = library_of(spec)
    prepared = prepare(spec, library, progress.note)
    check_weights(prepared)
    prepared.backend.fetch(spec, list(prepared.spaces), progress.note)
    setup = EvaluationSetup(spec, library, folder, progress.note, evaluator)
    with closing(
        executor_for(spec.executor, setup, prepared.gpus_needed, most_nodes(spec.launches))
    ) as executor:
        home.open(spec)
        with _writable(folder, spec, home):
            keep(sources, folder)
            for text in prepared.spec.notes[len(spec.notes) :]:
                progress.note(text)
            candidates = prepared.candidates
            progress.opened(folder, candidates)
            priors = priors_of(prepared, sources)
            if not (prepared.recorded or candidates.alone):
                prepared = prepared.with_note(coverage(priors, candidates))
                progress.note(prepared.spec.notes[-1])
            study = Study.of(folder, prepared, priors, sources)
        with closing(study):
            if study.launches:
                progress.resumed(study.launches)
            else:
                progress.note(cost_line(prepared, baseline_trial(prepared), executor.nodes))
            return _tune(prepared, home, study, executor, progress)


def _tune(
    prepared: Prepared, home: Home, study: Study, executor: Executor, progress: Progress
) -> Recommendation:
    """Run the loop and its final steps, and report an interruption."""
    # Its notes say what was left out; study.yaml keeps the spec as it was typed.
    spec = prepared.spec
    folder = home.study_folder(spec.study)
    try:
        with Tracker(home.path, spec, progress.note) as tracker:
            tracker.sync(study.launches)
            gate = Gate(spec, folder, prepared.candidates.baseline_candidate.fingerprint)
            for launch in _launches(study, executor, progress, gate):
                tracker.record(launch)
            executor.close()
            progress.phase("writing the report")
            explanation = study.explanation(partial(no_effect_by_rule, prepared))
            recommendation = recommend(
                spec,
                prepared.candidates,
                study.launches,
                prepared.excluded,
                study.stop_reason,
                explanation,
                prepared.kept,
            ).model_copy(
                update={
                    "regressions": home.regressions(spec.study),
                    "not_searched": prepared.not_searched,
                }
            )
            if prepared.backend.foreign and spec.baseline and not spec.verifies:
                progress.phase("simulating what its configuration could carry")
                try:
                    advice = advise(spec, prepared.library, folder)
                    recommendation = recommendation.model_copy(update={"advice": advice})
                except BadInput as error:
                    progress.note(f"its configuration is not simulated: {error}")
            for note in write_artefacts(folder, spec, study.launches, recommendation):
                progress.note(note)
            tracker.finish(recommendation, folder)
    except KeyboardInterrupt as stop:
        raise Interrupted.by(stop, f"stopped, {_kept(study, spec, home)}") from None
    except (BadInput, CannotGoOn) as error:
        # Once something was launched the input was valid: the machine has changed since.
        if isinstance(error, BadInput) and not study.launches:
            raise
        raise CannotGoOn(f"{error}\nThe study has stopped; {_kept(study, spec, home)}") from None
    except OSError as error:
        if error.errno not in _WAYS_OUT and folder.is_dir():
            raise
        raise CannotGoOn(
            f"{_problem(error, folder)}\nThe study has stopped; {_kept(study, spec, home)}"
        ) from error
    finally:
        # Close before the lock goes: the launches of another tuner would meet ours.
        executor.close()
    return recommendation


@contextmanager
def _writable(folder: Path, spec: StudySpec, home: Home) -> Iterator[None]:
    """Explain the remedy if a study's files are not writable, at its start or later."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WAYS_OUT:
            raise
        raise CannotGoOn(
            f"{_problem(error, folder)} Then:\n{home.resume_command(spec.study)}"
        ) from error


def _problem(error: OSError, folder: Path) -> str:
    way_out = _WAYS_OUT.get(error.errno or 0, "free disk space there")
    return f"{error.filename or folder} is not writable ({error.strerror}); {way_out}."


def _kept(study: Study, spec: StudySpec, home: Home) -> str:
    """Return the second half of a message: what is stored, and how to go on."""
    folder = home.study_folder(spec.study)
    if not folder.is_dir():
        return f"its folder {folder} was deleted, so it cannot be resumed."
    way_on = f"continue with:\n{home.resume_command(spec.study)}"
    return f"{len(study.launches)} launches are stored; {way_on}"


def _launches(study: Study, executor: Executor, progress: Progress, gate: Gate) -> Iterator[Launch]:
    """Ask, evaluate, tell, with as many concurrent trials as the executor has capacity for, until
    the study ends."""

    def ask() -> Trial | None:
        trial = study.ask(executor.nodes, executor.busy)
        if trial is not None:
            progress.started(trial, study.launches, study.phase)
        return trial

    # Only this run's results: earlier failures may have been repaired.
    launches = []
    for launch in executor.launches(ask):
        before = study.launches
        known_changes = study.changes
        try:
            if launch.result.answers:
                launch = gate.judge(launch, before)
        finally:
            # Keep a finished launch even if its answers cannot be judged.
            study.tell(launch)
        progress.finished(launch, before)
        for change in study.changes:
            if change not in known_changes:
                progress.note(change)
        yield launch
        launches.append(launch)
        # A replayed launch ran on no node of this study.
        if launch.result.evidence is not Evidence.REPLAYED:
            retire_bad_node(launches, executor, before)
        for node, why in study.off_nodes.items():
            if {*executor.nodes, *executor.busy} - {node}:
                executor.retire(node, why)
