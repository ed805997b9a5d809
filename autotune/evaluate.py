"""`Trial -> TrialResult`: what a launch comes to, by the way that the study names.

An evaluator is a picklable callable. `Simulated` answers from the simulated node: it parses the trial's
own command line as the engine's version does, so that ``autotune simulate`` on the printed command and
the study agree by construction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from autotune.engines import recognise
from autotune.errors import BadInput
from autotune.load.metrics import METRICS
from autotune.load.workloads import Workload, load_workload
from autotune.simulate import Outcome, ServerSetup, simulate
from autotune.simulate.coefficients import speed_card
from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.context import Context
from autotune.space.fingerprint import Effective, as_failure, broken_rules, effective
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.spec import StudySpec
from autotune.trial import Command, Evidence, Failure, FailureKind, Metrics, State, Trial, TrialResult

Z90 = 1.645
"""Standard deviations of a normal distribution that hold 90 % on both sides."""


class Evaluator(Protocol):
    """How trials are evaluated."""

    @property
    def evidence(self) -> Evidence:
        """What its numbers are."""
        ...

    def __call__(self, trial: Trial) -> TrialResult:
        """Launch, load, stop. A configuration that cannot run is a result, not an exception."""
        ...


@dataclass(frozen=True, slots=True)
class Understood:
    """A command line as its engine's version understands it."""

    card: EngineCard
    context: Context
    effective: Effective
    failure: Failure | None

    @property
    def setup(self) -> ServerSetup:
        return ServerSetup(
            engine=self.card.engine,
            version=self.context.version,
            knobs=dict(self.effective.configuration.knobs),
            model=self.context.model,
            hardware=self.context.hardware,
            gpus=self.context.gpus,
        )


def understand(command: Command, library: Library, context: Context, version: str | None = None) -> Understood:
    """Parse a command line as its engine does; raises `BadInput` where the engine's parser would refuse it.

    Args:
        context: its version is replaced by the one that is asked for (None: the newest known).
    """
    engine = recognise(command.argv, library)
    card, known = engine.card, engine.version(version)
    context = Context(context.model, context.hardware, context.gpus, known, context.longest_request)
    parsed = engine.parse(command, known)
    made = effective(card, engine.knobs(parsed, context), context)
    broken = [rule for rule in broken_rules(card, made.configuration, context) if rule.kind is not FailureKind.RULE]
    return Understood(card, context, made, as_failure(broken[0]) if broken else None)


def model_of(command: Command, library: Library, version: str | None = None, model_id: str | None = None) -> ModelCard:
    """The model that a command line serves."""
    engine = recognise(command.argv, library)
    return library.model(engine.parse(command, engine.version(version)).model, model_id)


def predict(understood: Understood, workload: Workload, seed: int) -> Outcome:
    """One load on the simulated node; the failure of a rule comes before the arithmetic."""
    if understood.failure is not None:
        return Outcome(failure=understood.failure)
    return simulate(understood.setup, workload, seed)


def prediction(understood: Understood, workload: Workload, seed: int) -> dict[str, Any]:
    """The flat object of ``autotune simulate``: metrics, ``failure``, ``interval90``, ``evidence`` and what was read.

    ``interval90`` should hold a real node's total token throughput with odds of 9 to 1: a log-normal with the
    spread of the simulator's errors over the rows that it was fitted to (``residual_sigma`` of its figures).
    What lies far from those rows is less sure than that.
    """
    outcome = predict(understood, workload, seed)
    failed, throughput = outcome.failure, outcome.metrics.get("total_token_throughput")
    sigma = speed_card(understood.card.engine).residual_sigma
    ends = None if throughput is None else [throughput * math.exp(z * sigma) for z in (-Z90, Z90)]
    return {
        **outcome.metrics,
        "failure": {"kind": failed.kind.value, "message": failed.message, "log": failed.log_excerpt}
        if failed
        else None,
        "interval90": ends,
        "evidence": Evidence.SIMULATED.value,
        "workload": workload.name,
        "engine": understood.card.engine,
        "engine_version": understood.context.version,
        "config": dict(understood.effective.configuration.knobs),
        "effects": [effect.reason for effect in understood.effective.effects],
    }


@dataclass(frozen=True, slots=True)
class Simulated:
    """Evaluates on the simulated node, in virtual time.

    Attributes:
        noise: sigma of the log-normal factor that one launch's throughput gets.
    """

    library: Library
    model: ModelCard
    hardware: HardwareCard
    gpus: int
    noise: float
    seed: int
    evidence: Evidence = Evidence.SIMULATED

    def __call__(self, trial: Trial) -> TrialResult:
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        workloads = {name: load_workload(name, self.library) for name in trial.workloads}
        longest = max(workload.longest_request for workload in workloads.values())
        context = Context(self.model, self.hardware, self.gpus, trial.engine_version, longest)
        understood = understand(trial.command, self.library, context, trial.engine_version)
        factor = self._noise_factor(trial)
        metrics: dict[str, Metrics] = {}
        times_s = {"launch": 0.0, "ready": 0.0, "warmup": 0.0, "load": 0.0, "stop": 0.0}
        failure: Failure | None = None
        for name, workload in workloads.items():
            # The same prompts for every configuration, new ones for every repeat.
            outcome = predict(understood, workload, self.seed + trial.launch_index)
            times_s["ready"] = outcome.startup_s
            if outcome.failure is not None:
                failure = outcome.failure
                break
            metrics[name] = scaled(outcome.metrics, factor)
            times_s["load"] += float(metrics[name]["duration"])
        return TrialResult(
            state=State.FAILED if failure else State.COMPLETE,
            evidence=self.evidence,
            failure=failure,
            metrics={} if failure else metrics,
            times_s=times_s,
            gpus=self.gpus,
            node=f"simulated-{self.hardware.name}",
            started_at=started_at,
        )

    def _noise_factor(self, trial: Trial) -> float:
        """One draw per launch, fixed by (seed, candidate, launch index)."""
        fingerprint = int(trial.configuration.fingerprint, 16)
        generator = np.random.default_rng([self.seed, fingerprint, trial.launch_index])
        return math.exp(self.noise * float(generator.standard_normal()))


def scaled(metrics: Mapping[str, object], factor: float) -> Metrics:
    """Metrics of a node that is faster by a factor: rates multiplied, times divided."""
    result: Metrics = {}
    for name, value in metrics.items():
        metric = METRICS.get(name)
        if metric is None or not isinstance(value, int | float) or isinstance(value, bool):
            result[name] = value
        else:
            result[name] = value * factor**metric.time_power
    return result


def evaluator_for(spec: StudySpec, library: Library) -> Evaluator:
    """The evaluator that a study names."""
    if spec.on == "simulator":
        return Simulated(library, spec.model, spec.hardware, spec.gpus, spec.noise, spec.seed)
    raise BadInput(f"trials on {spec.on!r} are not known to this version; known: simulator")
