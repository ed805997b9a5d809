"""Enumerate the valid, effective configurations of an engine, the candidates of a study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from autotune.base import Json, frozen

from .command import Configuration, Knobs, Scalar
from .context import Context, Normaliser, default_of, search_values
from .expression import evaluate, names
from .promises import Promised, TradeOffs
from .schema import EngineCard, Rule

Item = TypeVar("Item")


@frozen
class Candidate:
    """One effective configuration of the search space."""

    configuration: Configuration
    engine_version: str

    @property
    def fingerprint(self) -> str:
        return self.configuration.fingerprint


class Growth(Protocol):
    """More candidates of a study than its set has, near those that were launched."""

    def around(self, one: Configuration) -> Sequence[Configuration]:
        """List the configurations near one that may be launched."""

    def extended(self, candidates: CandidateSet, more: Sequence[Configuration]) -> CandidateSet:
        """Return a set with more configurations behind its own; without those that may not be
        launched."""


@dataclass(frozen=True)
class CandidateSet:
    """The candidates of a study, in a fixed order.

    Attributes:
        baseline, defaults, starts: positions of the baseline, the engines' defaults on all GPUs,
            known good starts.
        recipes: position to the name of the vendor's recipe that it is.
        unseen: positions with a setting that the evidence cannot see, whatever its value: not to be
            recommended.
        monotone_memory: knobs of which a larger value never needs less GPU memory.
        given_up: position to the promises that a candidate breaks for speed.
        promised: the longest request that is to be served.
        as_they_are: they are rows of a table: none is a shorter form of another one.
        without: maps a configuration's settings to what the engine makes of the command without
            each. What the engine decides by itself is no setting. None: not known, then a setting
            goes back to its value in the default.
        alone: the only candidate is a server of somebody else's, which is measured until the budget
            is used.
        growth: finds candidates near launched ones; None: there are no others.
    """

    items: Sequence[Candidate]
    baseline: int
    defaults: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    monotone_memory: frozenset[str] = frozenset()
    given_up: Mapping[int, TradeOffs] = field(default_factory=dict)
    as_they_are: bool = False
    without: Callable[[Configuration], Mapping[str, Configuration]] | None = field(
        default=None, compare=False
    )
    promised: Promised = field(default_factory=Promised)
    recipes: Mapping[int, str] = field(default_factory=dict)
    unseen: frozenset[int] = frozenset()
    alone: bool = False
    growth: Growth | None = field(default=None, compare=False)
    _giving_up: dict[frozenset[str], list[int]] = field(
        init=False, default_factory=dict, compare=False
    )

    @property
    def baseline_candidate(self) -> Candidate:
        return self.items[self.baseline]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {candidate.fingerprint: i for i, candidate in enumerate(self.items)}

    def __len__(self) -> int:
        return len(self.items)

    def __contains__(self, fingerprint: object) -> bool:
        return fingerprint in self._positions

    def position(self, fingerprint: str) -> int:
        """Return the index of a configuration; raises ``KeyError`` if it is not a candidate."""
        return self._positions[fingerprint]

    def including(self, configurations: Iterable[Configuration]) -> CandidateSet:
        """Return the set with further configurations of the study behind its own, in this order."""
        more = [one for one in dict.fromkeys(configurations) if one.fingerprint not in self]
        return self.growth.extended(self, more) if self.growth and more else self

    def near(self, configurations: Iterable[Configuration]) -> CandidateSet:
        """Return the set, followed by the configurations that `growth` finds around these."""
        growth = self.growth
        return (
            self.including(n for c in configurations for n in growth.around(c)) if growth else self
        )

    def giving_up(self, allowed: frozenset[str]) -> list[int]:
        """Return the positions of candidates with a trade-off outside ``allowed``; cached for all
        suggestions."""
        if allowed not in self._giving_up:
            self._giving_up[allowed] = [
                position
                for position, trade_offs in self.given_up.items()
                if any(one.kind not in allowed for one in trade_offs)
            ]
        return self._giving_up[allowed]


@dataclass(slots=True)
class Enumeration:
    """The distinct effective configurations of an engine, in a fixed order.

    Attributes:
        combinations: size of the raw product, knobs without effect at their default only.
        removed: rule name to the combinations that it removed first.
        last: the same where the walk came deepest: where nothing remains, the last ones to go.
        equivalents: combinations that are another one under the engine's own effects.
    """

    configurations: list[Configuration] = field(default_factory=list)
    combinations: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    last: Counter[str] = field(default_factory=Counter)
    equivalents: int = 0

    def keep(self, kept: list[Configuration], reason: str) -> None:
        """Keep some of the configurations; the others count as removed for a reason."""
        if len(kept) < len(self.configurations):
            self.removed[reason] = len(self.configurations) - len(kept)
        self.configurations = kept


def enumerate_engine(card: EngineCard, context: Context, pins: Knobs | None = None) -> Enumeration:
    """Walk the product of the knobs' values depth first; a rule that forbids a branch cuts it."""
    walk = _Walk(card, context, pins or {})
    walk.descend(0, settled=True)
    return walk.result


def why_empty(card: EngineCard, space: Enumeration, pins: Knobs) -> str:
    """Complete a sentence on an empty space: the rule that removed the last combinations, with its
    pins."""
    last = max(space.last, key=lambda name: space.last[name], default=None)
    if last is None:
        return ": a knob has no value here"
    rule = next(rule for rule in card.rules if rule.name == last)
    about = [f"{knob}={value}" for knob, value in pins.items() if knob in names(rule.forbid)]
    with_pins = f" with {', '.join(about)}" if about else ""
    return f"{with_pins}: {rule.reason.strip().rstrip('.')} (rule {last})"


class _Walk:
    def __init__(self, card: EngineCard, context: Context, pins: Knobs) -> None:
        self.card = card
        self.context = context
        self.pins = pins
        self.order = list(card.knobs)
        self.normaliser = Normaliser(card, context)
        self.scope: Json = context.scope({})
        self.result = Enumeration(removed={rule.name: 0 for rule in self.normaliser.rules})
        self.deepest = -1
        self.seen: set[tuple[Scalar, ...]] = set()
        self.values = [self._fixed_values(name) for name in self.order]
        self.sizes = [len(values) if values else 1 for values in self.values]
        # Whether the knobs before it say if a knob is active.
        self.active_at = [
            not names(knob.active) & set(self.order[i:])
            for i, knob in enumerate(card.knobs.values())
        ]
        # Rules, effects and conditional knobs by the position of the last knob that each names.
        normaliser = self.normaliser
        rules = [(rule, names(rule.forbid)) for rule in normaliser.rules]
        # Rules without knobs come first: a model that the version does not have is the reason.
        self.rules_at = self._at_last(
            sorted(rules, key=lambda row: bool(set(self.order) & set(row[1])))
        )
        self.effects_at = self._at_last(
            (effect, names(effect.when)) for effect in normaliser.effects
        )
        self.conditional_at = self._at_last(
            (
                (name, knob),
                {name} | names(knob.active, *(case.when for case in knob.default)),
            )
            for name, knob in normaliser.conditional
        )

    def _at_last(self, items: Iterable[tuple[Item, Collection[str]]]) -> list[list[Item]]:
        """List per position the items whose last knob is set there."""
        found: list[list[Item]] = [[] for _ in self.order]
        for item, used in items:
            last = max((i for i, name in enumerate(self.order) if name in used), default=0)
            found[last].append(item)
        return found

    def _fixed_values(self, name: str) -> tuple[Scalar, ...] | None:
        """Return a knob's values if they depend only on the context; None if they depend on other
        knobs."""
        if name in self.pins:
            return (self.pins[name],)
        knob = self.card.knobs[name]
        conditions = [entry.when for entry in knob.search]
        if conditions != ["True"]:
            # The default is tried if no case holds.
            conditions += [case.when for case in knob.default]
        if names(*conditions) & set(self.order):
            return None
        return search_values(knob, self.context.scope({}), self.context.version)

    def descend(self, position: int, settled: bool) -> None:
        """Walk the values of the knobs from a position on; ``settled``: the engine changes none of
        the set ones."""
        if position == len(self.order):
            self._leaf(settled)
            return
        name = self.order[position]
        scope = self.scope
        knob = self.card.knobs[name]
        if self.active_at[position] and knob.active != "True" and not evaluate(knob.active, scope):
            values: Sequence[Scalar] = (default_of(knob, scope, self.context.version),)
        else:
            values = self.values[position] or search_values(knob, scope, self.context.version)
        for value in values:
            scope[name] = value
            rule = next((r for r in self.rules_at[position] if evaluate(r.forbid, scope)), None)
            if not rule:
                self.descend(position + 1, settled and self._settles(position))
            else:
                below = math.prod(self.sizes[position + 1 :])
                self.result.combinations += below
                self._remove(rule, position, below)
        del scope[name]

    def _settles(self, position: int) -> bool:
        """Return whether the engine certainly changes nothing after a knob is set."""
        scope = self.scope
        version = self.context.version
        # The same object: a value that is equal and of another type is another one to an engine.
        return all(
            evaluate(knob.active, scope) or scope[name] is default_of(knob, scope, version)
            for name, knob in self.conditional_at[position]
        ) and not any(evaluate(effect.when, scope) for effect in self.effects_at[position])

    def _remove(self, rule: Rule, position: int, count: int) -> None:
        self.result.removed[rule.name] += count
        if position > self.deepest:
            self.deepest = position
            self.result.last.clear()
        if position == self.deepest:
            self.result.last[rule.name] += count

    def _leaf(self, settled: bool) -> None:
        self.result.combinations += 1
        scope = self.scope
        if not settled:
            scope = dict(scope)
            self.normaliser.apply(scope)
            if scope != self.scope and (broken := self.normaliser.broken(scope)):
                self._remove(broken[0], len(self.order), 1)
                return
        key = tuple([scope[name] for name in self.order])
        if key in self.seen:
            self.result.equivalents += 1
            return
        self.seen.add(key)
        knobs = dict(zip(self.order, key, strict=True))
        self.result.configurations.append(Configuration(self.card.engine, knobs))
