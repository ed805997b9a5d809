"""The cost of a study in launches and hours, and its first trials, as predicted before the first launch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload, on_ladder
from autotune.metrics.table import HEADLINE, with_derived
from autotune.outputs.report import text
from autotune.prepare.candidates import Prepared
from autotune.search import objective
from autotune.search.priors import priors_of, sources_of
from autotune.search.study import Study
from autotune.simulator.load import simulated_load
from autotune.simulator.prediction_intervals import intervals
from autotune.simulator.resolve_command import resolve_command
from autotune.space.context import Context, gpus_of
from autotune.study.places import at_once, node_of_place
from autotune.trial import Evidence, Launch, Metrics, Role, State, Trial, TrialResult

FIRST = 5
"""Candidates that a dry run tells with their predictions."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A launch as the simulator predicts it.

    Attributes:
        value: of the objective; None where it fails or is not known.
        interval90: of the value on a real node, where that is known.
        seconds: of the node, from the start to the end of the load.
        failure: why it would not run.
    """

    value: float | None = None
    interval90: list[float] | None = None
    seconds: float | None = None
    failure: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"fails: {self.failure}" if self.failure else "not predicted"
        if self.interval90 is None:
            return f"{self.value:,.1f} simulated"
        low, high = self.interval90
        return f"{self.value:,.1f} simulated (90 % interval on a real node: {low:,.0f} to {high:,.0f})"


def predict(prepared: Prepared, trial: Trial) -> Prediction:
    """Predict a launch; nothing is known of replayed rows, and of engines and models that the simulator lacks."""
    spec, backend, seconds = prepared.spec, prepared.backend, 0.0
    metrics: dict[str, Metrics] = {}
    if backend.recorded:
        return Prediction()
    try:
        role = trial.role
        trial = replace(trial, workloads=objective.workloads_of(spec, role), ladder=objective.ladder_of(spec, role))
        loads = {name: load_workload(name, prepared.library) for name in trial.workloads}
        longest = max(load.longest_request for load in loads.values())
        context = Context(spec.model, spec.hardware, spec.gpus, trial.engine_version, longest)
        resolved = resolve_command(trial.command, prepared.library, context, trial.engine_version)
        for name, concurrency in trial.loads:
            load = on_ladder(loads[name], concurrency) if concurrency else loads[name]
            search = None if concurrency else backend.load_search(spec, name, load, role)
            came = simulated_load(resolved, load, spec.seed, spec.request_limits, search)
            if came.failure is not None:
                return Prediction(failure=came.failure.kind.value)
            seconds = (seconds or backend.startup_s or came.startup_s) + came.load_s
            gpus = gpus_of(trial.configuration, spec.gpus)
            metrics.setdefault(name, with_derived(came.metrics, gpus, spec.gpu_hour_price))
    except BadInput:
        return Prediction()
    value = objective.achieved(spec, Launch(trial, TrialResult(State.COMPLETE, Evidence.SIMULATED, metrics=metrics)))
    known, first = spec.objective == HEADLINE and not spec.weights, spec.workloads[0]
    sure = intervals(resolved.setup, loads[first], metrics[first])["interval90"] if known else None
    return Prediction(value, sure, seconds)


def baseline_trial(prepared: Prepared) -> list[tuple[Trial, Prediction]]:
    """The first launch of a study, with its prediction."""
    one = prepared.candidates.items[prepared.candidates.baseline]
    trial = Trial(0, Role.BASELINE, one.configuration, one.engine_version, prepared.command_of(one), ())
    return [(trial, predict(prepared, trial))]


def first_trials(prepared: Prepared) -> list[tuple[Trial, Prediction]]:
    """Return the first launches of a study if no result changed its mind, with predictions."""
    with TemporaryDirectory() as name:
        priors = priors_of(prepared, sources_of(prepared.spec, Path(name)))
        folder, command_of = Path(name) / "study", prepared.command_of
        study = Study(folder, prepared.spec, prepared.candidates, command_of, priors, prepared.recorded)
        try:
            trials = [study.ask() for _ in range(min(FIRST, prepared.spec.launches))]
        finally:
            study.close()
    return [(trial, predict(prepared, trial)) for trial in trials if trial is not None]


def cost(prepared: Prepared, first: list[tuple[Trial, Prediction]], places: Collection[str] = ()) -> dict[str, Any]:
    """The most that a study takes, by the mean time of some launches; what is not known is None.

    Args:
        places: the executor's nodes, or shares of this one, that launch side by side; none: one node.
    """
    spec, known = prepared.spec, [one.seconds for _, one in first if one.seconds is not None]
    seconds = fmean(known) if known else None
    hours = (
        None if seconds is None else min(spec.launches * seconds / 3600 / at_once(places), spec.hours or float("inf"))
    )
    node_hours = None if hours is None else hours * max(1, len(set(map(node_of_place, places))))
    return {"launches": spec.launches, "seconds_per_launch": seconds, "hours": hours, "node_hours": node_hours}


def cost_line(prepared: Prepared, first: list[tuple[Trial, Prediction]], places: Collection[str] = ()) -> str:
    """`cost` in a sentence."""
    figures, backend = cost(prepared, first, places), prepared.backend
    launches = f"at most {text.count(figures['launches'], 'launch', 'launches')}"
    if figures["hours"] is None:
        how = "are read from a table" if backend.recorded else "take as long as the first one shows"
        return f"{launches}, which {how}"
    where = "of the simulated node" if backend.virtual else "of the node, as the simulator predicts"
    each = f"of about {text.seconds(figures['seconds_per_launch'])} each"
    hours, node_hours = figures["hours"], figures["node_hours"]
    took = f"{hours:.1f} hours, {node_hours:.1f} node-hours" if hours >= 0.1 else text.seconds(3600 * hours)
    return f"{launches} {each}: {took} {where}"
