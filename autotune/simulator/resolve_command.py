"""A command line as its engine understands it, and what the simulated node makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autotune.engines import Engine, recognise
from autotune.loadgen.workloads import Workload
from autotune.simulator.node import Outcome, ServerSetup, simulate
from autotune.simulator.node.calibration import Calibration, calibration_of
from autotune.simulator.node.coefficients import speed_card
from autotune.simulator.node.memory import MEMORY_KEYS, MemoryPlan
from autotune.simulator.prediction_intervals import intervals
from autotune.space.cards import ModelCard
from autotune.space.context import Context
from autotune.space.fingerprint import Effective, as_failure, broken_rules, effective, unsuited
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.trial import Command, Configuration, Evidence, Failure, FailureKind


@dataclass(frozen=True, slots=True)
class Understood:
    """A command line as its engine's version understands it; the simulated node takes `calibration` (None: ours)."""

    card: EngineCard
    context: Context
    effective: Effective
    failure: Failure | None
    calibration: Calibration | None = None

    @property
    def setup(self) -> ServerSetup:
        return ServerSetup(
            engine=self.card.engine,
            version=self.context.version,
            knobs=dict(self.effective.configuration.knobs),
            model=self.context.model,
            hardware=self.context.hardware,
            gpus=self.context.gpus,
            calibration=self.calibration,
        )


def understand(command: Command, library: Library, context: Context, version: str | None = None) -> Understood:
    """Parse a command line as its engine does; raises `BadInput` where the engine's parser would refuse it.

    Args:
        context: its version is replaced by the one that is asked for (None: the newest known).
    """
    engine = recognise(command.argv, library)
    found = understand_as(engine, command, context, engine.version(version))
    return replace(found, calibration=calibration_of(library))


def understand_as(engine: Engine, command: Command, context: Context, version: str) -> Understood:
    """`understand` for an engine that is recognised already.

    Args:
        version: one that this engine knows; it replaces the context's.
    """
    card, known = engine.card, version
    context = Context(context.model, context.hardware, context.gpus, known, context.longest_request)
    parsed = engine.parse(command, known)
    raw = engine.knobs(parsed, context)
    refused = _out_of_range(card, raw)
    if refused is not None and not _divides_unevenly(raw):
        return Understood(card, context, Effective(raw, ()), refused)
    made = effective(card, raw, context)
    broken = [rule for rule in broken_rules(card, made.configuration, context) if rule.kind is not FailureKind.RULE]
    return Understood(card, context, made, as_failure(broken[0]) if broken else refused or _unsuited(card, context))


def _unsuited(card: EngineCard, context: Context) -> Failure | None:
    """Why the engine does not run on this hardware, or not this model there, whatever its options."""
    reason = unsuited(card, context)
    return None if reason is None else Failure(FailureKind.UNSUPPORTED, reason, f"RuntimeError: {reason}")


def _divides_unevenly(configuration: Configuration) -> bool:
    """Whether the reader kept the remainder of a division as a fraction, for a rule to say what does not divide."""
    width = configuration.knobs.get("tensor_parallel")
    return isinstance(width, float) and width > 0 and not width.is_integer()


def _out_of_range(card: EngineCard, configuration: Configuration) -> Failure | None:
    """A number that no engine takes, though its parser lets it through: it is refused while the server starts."""
    for name, value in configuration.knobs.items():
        knob = card.knobs[name]
        reason = knob.refuses(value) if knob.choices is None else None
        if reason is not None:
            return Failure(FailureKind.BAD_ARGUMENT, f"{name}={value} is refused: {card.title} wants {reason}.")
    return None


def model_of(command: Command, library: Library, version: str | None = None, model_id: str | None = None) -> ModelCard:
    """The model that a command line serves."""
    engine = recognise(command.argv, library)
    return library.model(engine.parse(command, engine.version(version)).model, model_id)


def predict(understood: Understood, workload: Workload, seed: int) -> Outcome:
    """One load on the simulated node; the failure of a rule comes before the arithmetic."""
    if understood.failure is not None:
        return Outcome(failure=understood.failure)
    return simulate(understood.setup, workload, seed)


def _memory(plan: MemoryPlan | None) -> dict[str, float | str | None]:
    """The memory plan's keys; all None where a rule failed before there was one."""
    return dict.fromkeys(MEMORY_KEYS) if plan is None else dict(plan.to_json())


def prediction(understood: Understood, workload: Workload, seed: int) -> dict[str, Any]:
    """The flat object of ``autotune simulate``: metrics, memory, ``failure``, ``interval90`` and what was read.

    The intervals should hold a real node's figures with odds of 9 to 1 (`autotune.simulator.prediction_intervals`).
    """
    speed_card(understood.card.engine)  # of an engine without figures nothing is said, not even that it fails
    outcome = predict(understood, workload, seed)
    failed = outcome.failure
    return {
        **outcome.metrics,
        **_memory(outcome.memory),
        "failure": {"kind": failed.kind.value, "message": failed.message, "log": failed.log_excerpt}
        if failed
        else None,
        **intervals(understood.setup, workload, outcome.metrics),
        "evidence": Evidence.SIMULATED.value,
        "workload": workload.name,
        "engine": understood.card.engine,
        "engine_version": understood.context.version,
        "config": dict(understood.effective.configuration.knobs),
        "effects": [effect.reason for effect in understood.effective.effects],
    }
