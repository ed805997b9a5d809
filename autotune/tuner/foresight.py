"""Predict a study before it begins: its first launches, and its cost."""

from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from autotune.base import BadInput, Json, frozen
from autotune.load.metrics import readable
from autotune.load.metrics.table import HEADLINE
from autotune.load.workloads import load_workload
from autotune.node.prediction_intervals import intervals
from autotune.node.resolve_command import resolve_command

from .backends import ValidatedEvaluator
from .backends.simulator import SimulatedEvaluator
from .prepare.candidates import Prepared
from .search import objective
from .search.priors import priors_of, sources_of
from .search.study import Study
from .study.sentences import sentences
from .study.spec import at_once, node_of_place
from .trial import Role, Trial

FIRST = 5
"""Number of candidates that a dry run lists with predictions."""


@frozen
class Prediction:
    """A simulator's prediction of a launch: the objective's value (None: fails or unknown),
    `interval90` on a node.

    `seconds` of the node go from the start to the end of the load; `failure` is why it would not
    run.
    """

    value: float | None = None
    interval90: list[float] | None = None
    seconds: float | None = None
    failure: str = ""

    def __str__(self) -> str:
        return "".join(sentences(__file__, "prediction", launch=self, readable=readable))


def predict(prepared: Prepared, trial: Trial) -> Prediction:
    """Predict a launch; replayed rows, and engines and models unknown to the simulator, have no
    prediction."""
    spec = prepared.spec
    backend = prepared.backend
    if backend.recorded:
        return Prediction()
    workloads = objective.workloads_of(spec, trial.role)
    trial = replace(trial, workloads=workloads, rungs=spec.rungs_of(trial.role), launch_index=0)
    simulated = SimulatedEvaluator(spec.with_fields(noise=0.0), prepared.library)
    try:
        result = ValidatedEvaluator(simulated, spec)(trial)
    except BadInput:
        return Prediction()
    if result.failure and not result.metrics:
        return Prediction(failure=result.failure.kind.value)
    seconds = (backend.startup_s or result.times_s["ready"]) + result.times_s["load"]
    first = spec.workloads[0]
    sure = None
    if spec.objective == HEADLINE and not spec.weights:
        loads = [load_workload(name, prepared.library) for name in trial.workloads]
        context = spec.context(trial.engine_version, max(load.longest_request for load in loads))
        resolved = resolve_command(trial.command, prepared.library, context, trial.engine_version)
        sure = intervals(resolved.setup, loads[0], result.metrics[first])["interval90"]
    return Prediction(objective.scores_of(spec, result).value, sure, seconds)


def baseline_trial(prepared: Prepared) -> list[tuple[Trial, Prediction]]:
    """Return the first launch of a study, with its prediction."""
    one = prepared.candidates.baseline_candidate
    command = prepared.command_of(one)
    trial = Trial(0, Role.BASELINE, one.configuration, one.engine_version, command, ())
    return [(trial, predict(prepared, trial))]


def first_trials(prepared: Prepared) -> list[tuple[Trial, Prediction]]:
    """Return the first launches of a study, with predictions; results may change the order."""
    with TemporaryDirectory() as name:
        sources = sources_of(prepared.spec, Path(name))
        folder = Path(name) / "study"
        study = Study.of(folder, prepared, priors_of(prepared, sources), sources)
        with closing(study):
            trials = [study.ask() for _ in range(min(FIRST, prepared.spec.launches))]
    return [(trial, predict(prepared, trial)) for trial in trials if trial]


def cost(
    prepared: Prepared, first: list[tuple[Trial, Prediction]], places: Collection[str] = ()
) -> Json:
    """Return the time of a study's launches, from their mean on the executor's nodes, and its
    limit; None: unknown."""
    spec = prepared.spec
    known = [one.seconds for _, one in first if one.seconds is not None]
    seconds = hours = node_hours = None
    if known:
        seconds = fmean(known)
        hours = spec.launches * seconds / 3600 / at_once(places)
        node_hours = hours * max(1, len(set(map(node_of_place, places))))
    return {
        "launches": spec.launches,
        "seconds_per_launch": seconds,
        "hours": hours,
        "node_hours": node_hours,
        "hours_limit": spec.hours,
    }
