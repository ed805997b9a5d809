"""The whole product on one screen: `run(spec) -> Recommendation`. Read this first.

A study is a loop: *ask* for a configuration, *evaluate* it, *tell* the result; at the end, *recommend*
one command, with evidence. The optimiser knows no server, the measurement knows no optimiser; one
value, `Trial`, travels between them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from autotune.errors import BadInput, Interrupted
from autotune.evaluate import evaluator_for
from autotune.executors import executor_for
from autotune.home import Home
from autotune.prepare import Prepared, prepare
from autotune.progress import Progress
from autotune.recommend import recommend
from autotune.recommendation import Recommendation
from autotune.report import write_artefacts
from autotune.request import library_for
from autotune.search import Study, open_study
from autotune.simulate.roofline import roofline
from autotune.spec import StudySpec
from autotune.load.workloads import load_workload
from autotune.tracking import Tracker


def run(spec: StudySpec, home: Home, progress: Progress) -> Recommendation:
    """Tune, from the start or from where an interrupted study stopped, and write every artefact.

    Raises:
        Interrupted: the user stopped it; what is finished is kept.
        StudyLocked: another tuner works on this study.
    """
    library = library_for(Path(spec.space) if spec.space else None)
    prepared = prepare(spec, library)
    evaluator = evaluator_for(spec, library)
    folder = home.study_folder(spec.study)
    prior = roofline_prior(prepared, spec)
    with closing(open_study(folder, spec, prepared.candidates, prepared.command_of, prior)) as study:
        with Tracker(home.path, spec) as tracker, closing(executor_for(spec.executor, evaluator)) as executor:
            tracker.sync(study.launches)
            try:
                while (trial := study.ask()) is not None:
                    progress.started(trial, study)
                    executor.submit(trial)
                    launch = executor.next_finished()
                    study.tell(launch)
                    tracker.record(launch)
                    progress.finished(launch, study)
            except KeyboardInterrupt:
                raise Interrupted(_resume_hint(spec, study)) from None
            progress.phase("writing the report")
            recommendation = recommend(spec, prepared.candidates, study.launches, prepared.excluded, study.stop_reason)
            write_artefacts(folder, spec, study.launches, recommendation)
            tracker.finish(recommendation, folder)
    return recommendation


def _resume_hint(spec: StudySpec, study: Study) -> str:
    return f"stopped after {len(study.launches)} launches, nothing is lost; go on with: autotune resume {spec.study}"
