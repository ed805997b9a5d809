"""A finished study's commands, launched again on two versions of their engine."""

from collections.abc import Callable

from autotune.base import BadInput, Watch
from autotune.outputs.export import write_artefacts
from autotune.tuner.backends import EvaluationSetup, Evaluator, evaluator_for
from autotune.tuner.study.home import Home
from autotune.tuner.study.options import RegressOptions
from autotune.tuner.study.recommendation import Recommendation, Regression
from autotune.tuner.study.results import Lock
from autotune.tuner.verify import Comparison


def regress(
    home: Home,
    options: RegressOptions,
    notify: Watch,
    evaluator: Callable[[EvaluationSetup], Evaluator] = evaluator_for,
) -> tuple[Regression, Recommendation]:
    """Compare, from the start or after an interruption, and write the result into the study's
    folder.

    Raises `BadInput` for what cannot be compared, `Interrupted` or `CannotGoOn` with what is
    finished kept.
    """
    spec = home.spec(options.study)
    folder = home.study_folder(options.study)
    lock = Lock(folder)
    try:
        done = home.recommendation(spec.study)
        if done is None:
            way_on = f"continue with:\n{home.resume_command(spec.study)}"
            raise BadInput(f"study {spec.study!r} has not ended; {way_on}")
        regression = Comparison(home, spec, done, options, notify).run(evaluator)
        done = done.model_copy(update={"regressions": home.regressions(spec.study)})
        write_artefacts(folder, spec, home.launches(spec.study), done)
    finally:
        lock.release()
    return regression, done
