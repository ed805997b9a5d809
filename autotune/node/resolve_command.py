"""Resolve a command line as its engine's version does, and predict it on the simulated node."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autotune.base import BadInput, Evidence, Json, JsonObject, frozen
from autotune.engines import (
    Command,
    Configuration,
    Context,
    Engine,
    EngineCard,
    Failure,
    FailureKind,
    Knobs,
    Library,
    ModelCard,
    Scalar,
    engine,
    gpus_of,
    recognise,
)
from autotune.engines.context import as_failure, broken_rules, effective, normalised, unsuited
from autotune.engines.options import Setting, loading, unmodelled
from autotune.engines.schema import Effect
from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.table import Rent
from autotune.load.workloads import Workload, load_workload

from .calibration import Calibration, ServerSetup, adjustments_of, calibration_of
from .coefficients import conditional_knobs, speed_card
from .memory import MEMORY_KEYS
from .prediction_intervals import intervals
from .server import UNFORCED
from .simulate import SimulatedOutcome, simulate

_ARGS = re.compile(r"\bargs\.(\w+)")

RANDOM_WEIGHTS: JsonObject = {
    "load_gb_s": math.inf,
    "expert_imbalance": 0.0,
    "forced_on_text": True,
    "layout_spread": 0.03,
}
"""Coefficients of a server with random weights: it reads none, and tokens are spread over the
experts evenly. The spread by layout is a choice."""


@frozen
class ResolvedCommand:
    """A command line resolved by its engine's version.

    Attributes:
        effective: the knobs as the engine runs them.
        setup: what is simulated of it.
        changes: sentences, on what its options make of the model.
        unmodelled: settings that are simulated only where a knob of theirs is.
    """

    card: EngineCard
    context: Context
    effective: Configuration
    setup: ServerSetup
    unmodelled: Sequence[Setting]
    failure: Failure | None
    effects: Sequence[Effect] = ()
    changes: Sequence[str] = ()

    def running(self) -> ResolvedCommand:
        """Return it as on a real engine: only a switch makes it accept drafts of random tokens."""
        return self.with_setup(on_random=self.setup.on_random or UNFORCED)

    def with_setup(self, **changes: Any) -> ResolvedCommand:
        """Return it with some fields of its setup, e.g. another calibration."""
        return replace(self, setup=replace(self.setup, **changes))

    def simulate(self, workload: Workload, seed: int, slos: Sequence[Slo] = ()) -> SimulatedOutcome:
        """Simulate one load; a configuration forbidden by a rule fails before any computation."""
        if self.failure is not None:
            return SimulatedOutcome(failure=self.failure)
        return simulate(self.setup, workload, seed, slos)

    def non_default_knobs(self, fixed: Iterable[str] = ()) -> dict[str, Scalar]:
        """Return the knobs that differ from the defaults of the engine's version, some of them
        `fixed`."""
        knobs = self.effective.knobs
        defaults = engine(self.card.engine).default_knobs(
            self.context, {n: knobs[n] for n in fixed if n in knobs}
        )
        usual = effective(self.card, Configuration(self.card.engine, defaults), self.context).knobs
        return {name: value for name, value in knobs.items() if value != usual.get(name)}


def resolve_command(
    command: Command, library: Library, context: Context, version: str | None = None
) -> ResolvedCommand:
    """Parse a command line as its engine does, in a version (None: the newest known); raises
    `BadInput` as it would."""
    kind = recognise(command.argv, library)
    return resolve_for(
        kind, command, replace(context, version=kind.version(version)), calibration_of(library)
    )


def resolve_for(
    kind: Engine, command: Command, context: Context, calibration: Calibration | None = None
) -> ResolvedCommand:
    """Resolve a command line of a recognised engine, in a known version."""
    card = kind.card
    context = context.as_read(card)
    parsed = kind.parse(command, context.version)
    typed = kind.knobs(parsed, context)
    unseen = unmodelled(kind, parsed, typed)
    refused = _refused_number(card, typed)
    width = typed.knobs.get("tensor_parallel")
    # A division's remainder is kept as a fraction, for a rule to say what does not divide.
    divides = not (isinstance(width, float) and width > 0 and not width.is_integer())
    node = context.hardware, context.gpus
    setup = ServerSetup(
        card.engine, context.version, typed.knobs, context.model, *node, calibration
    )
    if refused is not None and divides:
        return ResolvedCommand(card, context, typed, setup, unseen, refused)
    configuration, _ = normalised(card, typed, context)
    loaded = loading(kind, parsed, context, configuration)
    context = loaded.context
    refused = refused or loaded.failure
    configuration, effects = normalised(card, typed, context)
    broken = [
        rule
        for rule in broken_rules(card, configuration, context)
        if rule.kind is not FailureKind.RULE
    ]
    if broken:
        refused = as_failure(broken[0])
    elif refused is None and (reason := unsuited(card, context)) is not None:
        refused = Failure(FailureKind.UNSUPPORTED, reason, f"RuntimeError: {reason}")
    setup = replace(
        setup,
        knobs=dict(configuration.knobs),
        model=context.model,
        on_random=kind.forced_length(parsed, context),
        replaced={} if kind.reads_weights(parsed, context) else RANDOM_WEIGHTS,
    )
    changes = [*loaded.reasons, *filter(None, [context.model.untold])]
    return ResolvedCommand(card, context, configuration, setup, unseen, refused, effects, changes)


def _refused_number(card: EngineCard, typed: Configuration) -> Failure | None:
    """Return the failure for a number that a parser lets through and no engine takes."""
    for name, value in typed.knobs.items():
        knob = card.knobs[name]
        if knob.choices is None and (wanted := knob.refuses(value)) is not None:
            message = f"{name}={value} is refused: {card.title} wants {wanted}."
            return Failure(FailureKind.BAD_ARGUMENT, message)
    return None


def model_of(
    command: Command, library: Library, version: str | None = None, model_id: str | None = None
) -> ModelCard:
    kind = recognise(command.argv, library)
    return library.model(kind.parse(command, kind.version(version)).model, model_id)


def knobs_modelled(resolved: ResolvedCommand, outcome: SimulatedOutcome) -> frozenset[str] | None:
    """Return the knobs of a version that the simulator reads; None if no simulation was
    complete."""
    if outcome.failure is not None:
        return None
    setup = resolved.setup
    conditional = conditional_knobs(speed_card(setup.engine), setup.version, setup.scope)
    return outcome.knobs_read | conditional


def not_simulated(resolved: ResolvedCommand, outcome: SimulatedOutcome) -> list[str]:
    """List the settings of a command on which no figure of its simulation depends, as they are
    written."""
    if outcome.failure is not None and outcome.memory is None:
        return []  # There is no figure.
    read = knobs_modelled(resolved, outcome)
    changed = resolved.non_default_knobs()

    def unseen(knobs: frozenset[str]) -> bool:
        # Without a complete simulation the knobs that would be read are unknown.
        return read is not None and knobs.isdisjoint(read) and not knobs.isdisjoint(changed)

    return [one.name for one in resolved.unmodelled if not one.knobs or unseen(one.knobs)]


def not_simulated_in(command: Command, library: Library, context: Context) -> list[str]:
    """List the settings as `not_simulated`, for the context's version; none for a command that
    cannot be read."""
    with suppress(BadInput):
        resolved = resolve_command(command, library, context, context.version)
        return not_simulated(resolved, resolved.simulate(load_workload("random:64:4:4"), 0))
    return []


def changed_defaults(
    versions: Sequence[tuple[Engine, str]],
    was: Knobs,
    now: Knobs,
    given: Collection[str] = (),
    *,
    unstated: bool = False,
) -> list[Json]:
    """Compare two versions: resolved knobs, then options that were not `given`, by both versions'
    defaults.

    A default of None, which the engine replaces, counts only where `unstated`; one borrowed from
    another version never.
    """
    changed: list[Json] = [
        {"knob": name, "from": was[name], "to": now[name]}
        for name in now
        if name in was and was[name] != now[name]
    ]
    tables = [kind.table(version) for kind, version in versions]
    if not tables or any(table.borrowed for table in tables):
        return changed
    (before, after), (kind, version) = tables, versions[-1]
    given = {
        *given,
        *(name for knob in now for name in _ARGS.findall(kind.reading(knob, version))),
    }
    defaults = {option.dest: option.default for option in before.options}
    for option in after.options:
        if option.dest in given or option.dest not in defaults:
            continue
        ends = defaults[option.dest], option.default
        if ends[0] != ends[1] and (unstated or None not in ends):
            changed.append({"flag": max(option.flags, key=len), "from": ends[0], "to": ends[1]})
    return changed


def version_changes(old: ResolvedCommand, new: ResolvedCommand) -> Json:
    """Compare two versions of an engine by their resolution of one command line.

    ``simulated_changes`` has what is simulated for one version only, and why.
    """
    kind = engine(new.card.engine)
    both = (old, new)
    changed = changed_defaults(
        [(kind, one.context.version) for one in both], old.effective.knobs, new.effective.knobs
    )
    before, after = (adjustments_of(one.setup) for one in both)
    alone = [
        {"only": one.context.version, "reason": adjustment.reason}
        for one, ours, others in ((old, before, after), (new, after, before))
        for adjustment in ours
        if adjustment not in others
    ]
    return {"changed_defaults": changed, "simulated_changes": alone}


def prediction(
    resolved: ResolvedCommand,
    workload: Workload,
    seed: int,
    outcome: SimulatedOutcome | None = None,
) -> Json:
    """Return the flat object of ``autotune simulate``: metrics, memory, ``failure``, intervals and
    the knobs.

    ``unseen`` names what was never measured, and as ``knob NAME`` what the simulator does not read:
    set otherwise than by default, it changes nothing here. The intervals should hold a real node's
    figures with odds of 9 to 1. An `outcome` is that of a load search, which ended at this
    workload.
    """
    speed_card(resolved.card.engine)  # raises for an engine without figures, even if it fails
    outcome = outcome or resolved.simulate(workload, seed)
    failed = outcome.failure
    failure = None
    if failed is not None:
        failure = {"kind": failed.kind.value, "message": failed.message, "log": failed.log_excerpt}
    sure = intervals(resolved.setup, workload, outcome.metrics)
    unseen = list(sure.pop("unseen"))
    read = knobs_modelled(resolved, outcome)
    if read is not None:
        unseen += [f"knob {name}" for name in resolved.non_default_knobs() if name not in read]
    configuration = resolved.effective
    return {
        **Rent(gpus_of(configuration, resolved.context.gpus)).derived(outcome.metrics),
        **dict.fromkeys(MEMORY_KEYS),  # null where a rule failed before there was a plan
        **(outcome.memory.to_json() if outcome.memory else {}),
        "failure": failure,
        "warning": outcome.warning,
        **sure,
        "unseen": unseen,
        "not_simulated": not_simulated(resolved, outcome),
        "evidence": Evidence.SIMULATED.value,
        "workload": workload.name,
        "engine": resolved.card.engine,
        "engine_version": resolved.context.version,
        "config": dict(configuration.knobs),
        "effects": [*(effect.reason for effect in resolved.effects), *resolved.changes],
    }
