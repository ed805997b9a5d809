"""What a study will take and what it will try first, told before its first launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.outputs.report import text
from autotune.prepare.candidates import Prepared
from autotune.replay import file_of
from autotune.search import objective
from autotune.search.priors import priors_of, sources_of
from autotune.search.study import Study
from autotune.simulator.node.uncertainty import HEADLINE
from autotune.simulator.prediction_intervals import intervals
from autotune.simulator.resolve_command import resolve_command
from autotune.space.context import Context
from autotune.trial import Evidence, Launch, Role, State, Trial, TrialResult

FIRST = 5
"""Candidates that a dry run tells with their predictions."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A launch as the simulator predicts it.

    Attributes:
        value: of the objective; None where it fails, or where the simulator does not know the objective.
        interval90: of the value on a real node; None where the simulator has none for this objective.
        seconds: of the node, from the start to the end of the load.
        failure: why it would not run.
    """

    value: float | None = None
    interval90: tuple[float, float] | None = None
    seconds: float | None = None
    failure: str = ""


def predict(prepared: Prepared, trial: Trial) -> Prediction:
    """Predict a launch; nothing is known of replayed rows, and of engines and models that the simulator lacks."""
    spec, seconds, metrics = prepared.spec, 0.0, {}
    if file_of(spec.on) is not None:
        return Prediction()
    try:
        loads = {name: load_workload(name, prepared.library) for name in trial.workloads}
        longest = max(load.longest_request for load in loads.values())
        context = Context(spec.model, spec.hardware, spec.gpus, trial.engine_version, longest)
        resolved = resolve_command(trial.command, prepared.library, context, trial.engine_version)
        for name, load in loads.items():
            outcome = resolved.simulate(load, spec.seed)
            if outcome.failure is not None:
                return Prediction(failure=outcome.failure.kind.value)
            seconds = (seconds or outcome.startup_s) + float(outcome.metrics["duration"])
            metrics[name] = dict(outcome.metrics)
    except BadInput:
        return Prediction()
    launch = Launch(trial, TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics=metrics))
    sure = None
    if spec.objective == HEADLINE and len(objective.weights(spec)) == 1:
        sure = intervals(resolved.setup, loads[spec.workloads[0]], metrics[spec.workloads[0]])["interval90"]
    return Prediction(objective.achieved(spec, launch), (sure[0], sure[1]) if sure else None, seconds)


def baseline_seconds(prepared: Prepared) -> float | None:
    """How long a launch of the search takes, by the prediction of the baseline's; None where nothing is known."""
    candidate = prepared.candidates.items[prepared.candidates.baseline]
    workloads = objective.workloads_of(prepared.spec, Role.SEARCH)
    command = prepared.command_of(candidate)
    trial = Trial(0, Role.BASELINE, candidate.configuration, candidate.engine_version, command, workloads)
    return predict(prepared, trial).seconds


def cost(prepared: Prepared, seconds: float | None, nodes: int = 1) -> dict[str, Any]:
    """The most that a study takes: launches, hours, node-hours; hours are None where a launch's time is not known.

    Args:
        seconds: of one launch.
        nodes: that launch side by side.
    """
    spec = prepared.spec
    node_hours = None if seconds is None else spec.launches * seconds / 3600
    if node_hours is not None and spec.hours is not None:
        node_hours = min(node_hours, nodes * spec.hours)
    hours = None if node_hours is None else node_hours / nodes
    return {"launches": spec.launches, "seconds_per_launch": seconds, "hours": hours, "node_hours": node_hours}


def cost_line(prepared: Prepared, seconds: float | None, nodes: int = 1) -> str:
    """`cost` in a sentence."""
    figures, spec = cost(prepared, seconds, nodes), prepared.spec
    launches = f"at most {text.count(spec.launches, 'launch', 'launches')}"
    if seconds is None:
        known = "are read from a table" if file_of(spec.on) else "take as long as the first one shows"
        return f"{launches}, which {known}"
    where = "of the simulated node" if spec.on == "simulator" else "of the node, as the simulator predicts"
    each = f"of about {text.seconds(seconds)} each" if spec.launches > 1 else f"of about {text.seconds(seconds)}"
    return f"{launches} {each}: {figures['hours']:.1f} hours, {figures['node_hours']:.1f} node-hours {where}"


def first_trials(prepared: Prepared) -> list[tuple[Trial, Prediction]]:
    """What a study would launch first if no result changed its mind, with predictions."""
    with TemporaryDirectory() as name:
        priors = priors_of(prepared, sources_of(prepared.spec, Path(name)))
        study = Study(Path(name) / "study", prepared.spec, prepared.candidates, prepared.command_of, priors)
        try:
            asked = (study.ask() for _ in range(min(FIRST, prepared.spec.launches)))
            trials = [trial for trial in asked if trial is not None]
        finally:
            study.close()
    return [(trial, predict(prepared, trial)) for trial in trials]


def typical_seconds(predictions: Sequence[Prediction]) -> float | None:
    """Mean time of those that start."""
    seconds = [one.seconds for one in predictions if one.seconds is not None]
    return fmean(seconds) if seconds else None
