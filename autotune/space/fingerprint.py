"""The effective configuration: what the engine makes of a setting, so that equivalents become one candidate.

Three things are normalised away: knobs that have no effect under the others (`Knob.active`), what the
engine sets by itself (`Effect`), and defaults that were spelled out, because a configuration always
holds every knob's concrete value.
"""

from __future__ import annotations

from typing import Any

from autotune.space.context import Context, default_of
from autotune.space.entry import in_range
from autotune.space.expression import evaluate, fill_value
from autotune.space.schema import Effect, EngineCard, Rule
from autotune.trial import Configuration, Failure


class Normaliser:
    """Effects and rules of one engine version in one context, picked out once for many configurations.

    `scope` arguments are mutable mappings from `Context.scope`: the knobs with the fixed names beside them.
    """

    def __init__(self, card: EngineCard, context: Context) -> None:
        version = context.version
        self._version = version
        self.conditional = [(name, knob) for name, knob in card.knobs.items() if knob.active != "True"]
        self.effects = [effect for effect in card.effects if in_range(version, effect.versions)]
        told = [rule for rule in card.rules if rule.module is None or rule.module in context.lacking]
        self.rules = [rule for rule in told if in_range(version, rule.versions)]
        self._rounds = len(self.effects) + len(self.conditional) + 1

    def apply(self, scope: dict[str, Any]) -> list[Effect]:
        """Make a scope's knobs effective, in place; returns the effects that changed something."""
        applied: dict[str, Effect] = {}
        # An effect may deactivate another knob and the other way round: repeat until nothing changes.
        for _ in range(self._rounds):
            changed = False
            for name, knob in self.conditional:
                if not evaluate(knob.active, scope):
                    value = default_of(knob, scope, self._version)
                    changed = changed or scope[name] != value
                    scope[name] = value
            for effect in self.effects:
                if not evaluate(effect.when, scope):
                    continue
                settings = {name: fill_value(value, scope) for name, value in effect.set.items()}
                if any(scope.get(name) != value for name, value in settings.items()):
                    applied[effect.name] = effect
                    changed = True
                scope.update(settings)
            if not changed:
                break
        return list(applied.values())

    def broken(self, scope: dict[str, Any]) -> list[Rule]:
        return [rule for rule in self.rules if evaluate(rule.forbid, scope)]


def normalised(card: EngineCard, configuration: Configuration, context: Context) -> tuple[Configuration, list[Effect]]:
    """Normalise a configuration to what the engine runs; also returns the effects that changed something."""
    scope = context.scope(configuration.knobs)
    effects = Normaliser(card, context).apply(scope)
    return Configuration(configuration.engine, {name: scope[name] for name in configuration.knobs}), effects


def effective(card: EngineCard, configuration: Configuration, context: Context) -> Configuration:
    """Return a configuration as the engine runs it; idempotent."""
    return normalised(card, configuration, context)[0]


def unsuited(card: EngineCard, context: Context) -> str | None:
    """Say why an engine cannot run this model on this hardware, whatever its options; None when it can."""
    scope = context.scope({})
    return next((need.reason for need in card.requires if not evaluate(need.expect, scope)), None)


def broken_rules(card: EngineCard, configuration: Configuration, context: Context) -> list[Rule]:
    """List the rules that a configuration breaks, in the file's order."""
    return Normaliser(card, context).broken(context.scope(configuration.knobs))


def as_failure(rule: Rule) -> Failure:
    """Turn a broken rule into the failure that a launch would end in."""
    return Failure(rule.kind, f"{rule.reason} (rule {rule.name}; {rule.source})", rule.message)
