"""The whole product on one screen: `run(spec) -> Recommendation`. Read this first.

A study is a loop: *ask* for a configuration, *evaluate* it, *tell* the result; at the end, *recommend*
one command, with evidence. The optimiser knows no server, the measurement knows no optimiser; one
value, `Trial`, travels between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from autotune.artefacts import write_artefacts
from autotune.errors import Interrupted
from autotune.evaluate import evaluator_for
from autotune.executors import Executor, executor_for
from autotune.home import Home
from autotune.prepare import prepare
from autotune.progress import Progress
from autotune.recommend import recommend
from autotune.recommendation import Recommendation
from autotune.request import library_for
from autotune.search import Study, open_study
from autotune.spec import StudySpec
from autotune.tracking import Tracker
from autotune.trial import Launch


def run(spec: StudySpec, home: Home, progress: Progress) -> Recommendation:
    """Tune, from the start or from where an interrupted study stopped, and write every artefact.

    Raises:
        BadInput: nothing may be tried, or the home folder cannot be written; no folder is made then.
        Interrupted: the user stopped it; what is finished is kept.
        StudyLocked: another tuner works on this study.
    """
    progress.phase("enumerating what may be tried")
    library = library_for(Path(spec.space) if spec.space else None)
    prepared = prepare(spec, library, progress.note)
    folder = home.open(spec)
    for text in prepared.spec.notes[len(spec.notes) :]:
        progress.note(text)
    # What was left out is told with the answer; the question stays as it was asked.
    spec = prepared.spec
    progress.opened(folder)
    executor = executor_for(spec.executor, evaluator_for(spec, library, folder))
    study = open_study(folder, spec, prepared.candidates, prepared.command_of, prepared.prior())
    with closing(study), closing(executor):
        try:
            with Tracker(home.path, spec) as tracker:
                tracker.sync(study.launches)
                for launch in _launches(study, executor, progress):
                    tracker.record(launch)
                progress.phase("writing the report")
                recommendation = recommend(
                    spec, prepared.candidates, study.launches, prepared.excluded, study.stop_reason
                )
                write_artefacts(folder, spec, study.launches, recommendation)
                tracker.finish(recommendation, folder)
        except KeyboardInterrupt:
            done = len(study.launches)
            raise Interrupted(f"stopped, {done} launches are kept; go on with: autotune resume {spec.study}") from None
    return recommendation


def _launches(study: Study, executor: Executor, progress: Progress) -> Iterator[Launch]:
    """Ask, evaluate, tell, with as many trials under way as the executor has slots, until the study ends."""
    running = 0
    while True:
        while running < executor.slots and (trial := study.ask()) is not None:
            progress.started(trial, study)
            executor.submit(trial)
            running += 1
        if running == 0:
            return
        launch = executor.next_finished()
        running -= 1
        study.tell(launch)
        progress.finished(launch, study)
        yield launch
