"""Context of an evaluation (model, node, version, load), a knob's default and values in it,
effective configurations.

The *effective* configuration makes equivalents one candidate: a knob without effect under the
others (`Knob.active`) has its default, what the engine sets by itself (`Effect`) is set, and every
default is spelled out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from autotune.base import Json, Strings, frozen

from .cards import HardwareCard, ModelCard
from .command import Configuration, Scalar
from .expression import Namespace, Scope, evaluate, fill_value
from .failure import Failure
from .schema import Effect, EngineCard, Knob, Reads, Rule

_OF_THE_LOAD = (
    *("longest_request", "concurrency", "tokens_in_flight"),
    *("prefix_tokens", "shares_prefixes"),
)


@frozen
class Context:
    """Fixed names of the engines' expressions.

    Attributes:
        gpus: GPUs that the study uses, at most the node's.
        longest_request: input + output tokens of the longest request of the workloads; 0 = unknown.
        concurrency: most requests in flight; infinite = unknown, or sent whatever the server does.
        tokens_in_flight: their tokens, prompts and answers, in the mean; infinite = unknown.
        version: the engine's version.
        lacking: Python modules that the engine's installation was asked for and does not have.
        prefix_tokens: tokens with which prompts of a workload may begin alike; infinite = unknown.
        allowed: kinds of trade-offs that the search may make.
    """

    model: ModelCard
    hardware: HardwareCard
    gpus: int
    version: str
    longest_request: int = 0
    lacking: Strings = ()
    concurrency: float = math.inf
    tokens_in_flight: float = math.inf
    prefix_tokens: float = 0
    allowed: Strings = ()

    @property
    def shares_prefixes(self) -> bool:
        return self.prefix_tokens > 0

    def as_read(self, card: EngineCard) -> Context:
        """Return the context with the model as a version of an engine reads its description."""
        held = [one for one in card.reads if one.holds(self.scope({}), self.version)]
        return self.with_figures(held, self.scope({})) if held else self

    def with_figures(self, changes: Iterable[Reads], scope: Scope, **more: float) -> Context:
        """Return the context with changed figures of the model's architecture."""
        figures = {
            name: fill_value(value, scope) for one in changes for name, value in one.figures.items()
        }
        architecture = self.model.architecture.model_copy(update={**figures, **more})
        return replace(self, model=self.model.model_copy(update={"architecture": architecture}))

    def scope(self, knobs: Scope) -> Json:
        """Return the names visible to an expression: the knobs and ``model, hardware, gpus,
        workload, allowed``."""
        load = {name: getattr(self, name) for name in _OF_THE_LOAD}
        fixed = {"model": self.model, "hardware": self.hardware, "gpus": self.gpus}
        return {**knobs, **fixed, "workload": Namespace(load), "allowed": self.allowed}


def default_of(knob: Knob, scope: Scope, version: str) -> Scalar:
    """Return the knob's default: the first case that holds, or None."""
    return next(
        (fill_value(case.value, scope) for case in knob.default if case.holds(scope, version)),
        None,
    )


def search_values(knob: Knob, scope: Scope, version: str) -> tuple[Scalar, ...]:
    """List the values to try: those of the first case that holds, or the default."""
    for entry in knob.search if knob.exists_in(version) else ():
        if entry.holds(scope, version):
            return tuple(entry.values)
    return (default_of(knob, scope, version),)


class Normaliser:
    """Effects and rules of one engine version in one context, selected once for many
    configurations.

    `scope` arguments are mutable mappings from `Context.scope`: the knobs with the fixed names
    beside them.
    """

    def __init__(self, card: EngineCard, context: Context) -> None:
        version = context.version
        self._version = version
        self.conditional = [
            (name, knob) for name, knob in card.knobs.items() if knob.active != "True"
        ]
        self.effects = [effect for effect in card.effects if effect.is_for(version)]
        self.rules = [
            rule
            for rule in card.rules
            if rule.is_for(version) and (rule.module is None or rule.module in context.lacking)
        ]
        self._rounds = len(self.effects) + len(self.conditional) + 1

    def apply(self, scope: Json) -> list[Effect]:
        """Make a scope's knobs effective, in place; returns the effects that changed a knob, or that
        are no more than remarks."""
        applied: dict[str, Effect] = {}
        # An effect may deactivate another knob and the other way round: repeat until nothing
        # changes.
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
                differs = any(scope.get(name) != value for name, value in settings.items())
                if differs or not settings:
                    applied[effect.name] = effect
                changed = changed or differs
                scope.update(settings)
            if not changed:
                break
        return list(applied.values())

    def broken(self, scope: Json) -> list[Rule]:
        return [rule for rule in self.rules if evaluate(rule.forbid, scope)]


def normalised(
    card: EngineCard, configuration: Configuration, context: Context
) -> tuple[Configuration, list[Effect]]:
    """Normalise a configuration to the effective one; also returns the effects that changed a
    knob."""
    scope = context.scope(configuration.knobs)
    effects = Normaliser(card, context).apply(scope)
    return Configuration(
        configuration.engine, {name: scope[name] for name in configuration.knobs}
    ), effects


def effective(card: EngineCard, configuration: Configuration, context: Context) -> Configuration:
    """Return the effective configuration; idempotent."""
    return normalised(card, configuration, context)[0]


def unsuited(card: EngineCard, context: Context) -> str | None:
    """Explain why an engine cannot run this model on this hardware with any options; None if it
    can."""
    scope = context.scope({})
    needs = (need for need in card.requires if need.is_for(context.version))
    return next((need.reason for need in needs if not evaluate(need.expect, scope)), None)


def broken_rules(card: EngineCard, configuration: Configuration, context: Context) -> list[Rule]:
    """List the rules that a configuration breaks, in the file's order."""
    return Normaliser(card, context).broken(context.scope(configuration.knobs))


def as_failure(rule: Rule) -> Failure:
    """Turn a violated rule into the failure of its launch."""
    return Failure(rule.kind, f"{rule.reason} (rule {rule.name}; {rule.source})", rule.message)
