"""Which configurations are asked about: every pair of knob values, both sides of every rule, a
random sample, and what is tried beside the best: every value of it, and random ones together."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import get_args

from autotune.base.errors import BadInput
from autotune.engines.command import RANKS, Configuration, Scalar
from autotune.engines.context import (
    Context,
    Normaliser,
    broken_rules,
    effective,
    search_values,
)
from autotune.engines.engine import Engine
from autotune.engines.expression import evaluate, names
from autotune.engines.failure import FailureKind
from autotune.engines.schema import GiveUpKind, Rule
from autotune.engines.space import EngineSpace

Pair = tuple[tuple[str, Scalar], tuple[str, Scalar]]
TRIED_AT_ONCE = 40
"""Configurations of which the one with the most new pairs is taken: a greedy cover, short
enough."""
BASES = 60
"""Candidates that are changed until they break a rule and no other."""
MOST_CHANGED = 2
"""Knobs of a candidate that are changed at a time: what breaks no rule by so few is not tried."""
OF_A_RULE = 2
"""Configurations on the forbidden side of each rule."""
OF_A_VALUE = 3
"""Candidates beside which each value is tried alone."""
# What the engines' own parsers or checks judge of a launch; the others are judgements of ours on
# its speed, or are about requests.
JUDGED = {
    FailureKind.BAD_ARGUMENT,
    FailureKind.UNSUPPORTED,
    FailureKind.CRASHED,
    FailureKind.OUT_OF_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration to ask about.

    Attributes:
        rule: the rule that forbids it; None of a candidate.
    """

    configuration: Configuration
    rule: Rule | None = None


def pair_cover(candidates: Sequence[Configuration], seed: int) -> list[Configuration]:
    """A small set of candidates in which every pair of two knobs' values occurs that occurs in any
    candidate."""
    if not candidates:
        return []
    knobs = candidates[0].knobs
    varying = [name for name in knobs if len({one.knobs[name] for one in candidates}) > 1]
    drawn = random.Random(seed)
    order = list(candidates)
    drawn.shuffle(order)
    missing = {pair for one in order for pair in _pairs(one, varying)}
    cover: list[Configuration] = []
    while missing:
        tried = drawn.sample(order, min(TRIED_AT_ONCE, len(order)))
        best = max(tried, key=lambda one: len(missing & set(_pairs(one, varying))))
        if not missing & set(_pairs(best, varying)):
            best = next(one for one in order if missing & set(_pairs(one, varying)))
        cover.append(best)
        missing -= set(_pairs(best, varying))
    return cover or [order[0]]


def _pairs(one: Configuration, varying: Sequence[str]) -> Iterator[Pair]:
    return combinations([(name, one.knobs[name]) for name in varying], 2)


def forbidden_sides(
    engine: Engine, context: Context, candidates: Sequence[Configuration], seed: int
) -> list[Case]:
    """For every rule, candidates with the fewest knobs changed so that this rule alone forbids
    them."""
    drawn = random.Random(seed)
    bases = drawn.sample(list(candidates), min(BASES, len(candidates)))
    rules = [rule for rule in Normaliser(engine.card, context).rules if rule.kind in JUDGED]
    return [case for rule in rules for case in _side(engine, context, bases, rule)]


def _side(
    engine: Engine, context: Context, bases: Sequence[Configuration], rule: Rule
) -> list[Case]:
    knobs = [name for name in engine.card.knobs if name in names(rule.forbid)]
    found: dict[str, Case] = {}
    for count in range(1, min(MOST_CHANGED, len(knobs)) + 1):
        for changed in combinations(knobs, count):
            for base in bases:
                for values in product(*(_values(engine, context, base, name) for name in changed)):
                    one = base.with_knobs(**dict(zip(changed, values, strict=True)))
                    if _breaks_alone(engine, context, one, rule):
                        found.setdefault(one.fingerprint, Case(one, rule))
                        break
                if len(found) == OF_A_RULE:
                    return list(found.values())
    return list(found.values())


def _values(engine: Engine, context: Context, base: Configuration, name: str) -> list[Scalar]:
    """Values of a knob to try: all that may be pinned, or numbers around what is searched."""
    knob, scope = engine.card.knobs[name], context.scope(base.knobs)
    if knob.choices is not None:
        return list(knob.choices)
    searched = list(search_values(knob, scope, context.version))
    numbers = [1, 2, 3, 4, 8, 16, 64] if knob.minimum is not None else []
    if name not in RANKS:
        numbers.append(context.model.context_limit + 1)
    return [*searched, *(n for n in numbers if n not in searched and knob.refuses(n) is None)]


def _breaks_alone(engine: Engine, context: Context, one: Configuration, rule: Rule) -> bool:
    """Whether a rule forbids what its command is read as, and no other rule does; a rule of speed
    may, too."""
    # From the cheapest to the dearest: most of what is tried fails the first.
    if not evaluate(rule.forbid, context.scope(one.knobs)) or _broken(engine, context, one) != [
        rule.name
    ]:
        return False
    try:
        parsed = engine.parse(engine.command(one, context), context.version)
        return _broken(engine, context, engine.knobs(parsed, context)) == [rule.name]
    except BadInput:
        return False  # no option writes it


def _broken(engine: Engine, context: Context, one: Configuration) -> list[str]:
    made = effective(engine.card, one, context)
    return [rule.name for rule in broken_rules(engine.card, made, context) if rule.kind in JUDGED]


def beside(space: EngineSpace, bases: Sequence[Configuration], drawn: int, seed: int) -> list[Case]:
    """What is tried beside the best, were some candidates these: each value alone beside a few of
    them, and random ones with a further change; with every trade-off allowed."""
    chance = random.Random(seed)
    space = replace(space, context=replace(space.context, allowed=get_args(GiveUpKind)))
    found: dict[Configuration, None] = {}
    times: Counter[tuple[str, Scalar]] = Counter()
    for base in chance.sample(list(bases), len(bases)):
        for one in space.beside(base, 1):
            changes = one.knobs.items() - base.knobs.items()
            if any(times[change] < OF_A_VALUE for change in changes):
                found[one] = None
                times.update(changes)
    alone = list(found)
    for one in chance.choices(alone, k=drawn) if alone else ():
        if further := space.beside(one, 1):
            found[chance.choice(further)] = None
    return [Case(one) for one in found if one not in set(bases)]


def cases_of(space: EngineSpace, drawn: int, near: int, seed: int) -> Mapping[str, list[Case]]:
    """The cases of one engine on one node, by why they were taken; none is taken twice.

    Args:
        drawn: random candidates.
        near: random configurations with two changes that are tried beside the best.
    """
    candidates = space.space.configurations
    pairs = pair_cover(candidates, seed)
    rest = [one for one in candidates if one not in set(pairs)]
    sample = random.Random(seed).sample(rest, min(drawn, len(rest)))
    taken = set(pairs) | set(sample)
    return {
        "pairs": [Case(one) for one in pairs],
        "random": [Case(one) for one in sample],
        "beside": [c for c in beside(space, pairs, near, seed) if c.configuration not in taken],
        "rules": forbidden_sides(space.engine, space.context, candidates, seed),
    }
