"""Whether the nodes that run a study are alike, and how launches on several of them are compared.

A throttled GPU or a slow link makes one of several nodes slower, from the beginning or in the middle of a study. Most
nodes are alike, a few are off by any amount: every way to divide the nodes so, and for each node every launch from
which on or until which it is off, is given its probability by the launches of one and the same configuration
(`divisions`; the baseline's, and fresh ones of finalists; a mixture with a point mass, Mitchell and Beauchamp, J. Am.
Stat. Assoc. 83, 1988), averaged over what the spread of a launch may be. A node's offset at a launch is the mean over
all that: next to nothing where noise explains the launches, nearly the whole difference where it cannot.

The search takes scores less their node's offset. The finals do not rely on it: there a configuration is compared with
the baseline on the same node only (`contrast`), before it changed or after that, and the spread of a launch is what a
node and a configuration, each with a part of its own, leave unexplained (`additive_spread`). Both follow from least
squares with a constant for each node, so that successive looks have the joint distribution that the test of
`sequential` counts on.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autotune.search.decide.estimate import Spread, mean
from autotune.search.divisions import Found, Fresh, weigh

Placed = tuple[str, float]
"""A launch's place, which is its node or one before or after that changed, and its score."""

CERTAIN = 0.99
"""Odds from which on a node is said to be off, or to have changed."""
SUSPICIOUS = 0.2
"""Odds from which on, up to `CERTAIN`, the baseline is launched there once more."""
WORTH = 0.03
"""An offset below which that is not worth a launch; 3 %."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a node does to the score of a launch.

    Attributes:
        offset: what the launch has more than on a node as the others are, score units.
        sd: how unsure that is.
        odds: that the node is off at all.
    """

    offset: float
    sd: float
    odds: float

    @property
    def certain(self) -> bool:
        """Whether the node is said to be off."""
        return self.odds >= CERTAIN

    @property
    def slow(self) -> bool:
        """Whether it is said to be slower than the others."""
        return self.certain and self.offset < 0


@dataclass(frozen=True, slots=True)
class Change:
    """A node that was not the same all the time.

    Attributes:
        before: number of the last launch of which it is known that it had not changed.
        after: of the first of which it is known that it had.
        odds: that it did change.
    """

    before: int
    after: int
    odds: float

    @property
    def certain(self) -> bool:
        """Whether it is said to have changed."""
        return self.odds >= CERTAIN


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node does to scores in the course of a study.

    Attributes:
        numbers: of the launches there that it is known by, ascending.
        stages: at each of them.
        change: the likeliest, however unlikely; None with fewer than two launches, or odds too small for a number.
    """

    numbers: tuple[int, ...] = (0,)
    stages: tuple[Stage, ...] = (Stage(0.0, 0.0, 0.0),)
    change: Change | None = None

    @property
    def now(self) -> Stage:
        """At the latest launch."""
        return self.stages[-1]

    @property
    def changed(self) -> Change | None:
        """The change, if it is certain."""
        return self.change if self.change is not None and self.change.certain else None

    @property
    def suspicious(self) -> bool:
        """Whether another launch of the baseline there is worth making."""
        return SUSPICIOUS <= self.now.odds < CERTAIN and abs(self.now.offset) >= WORTH

    @property
    def recent(self) -> tuple[int, ...]:
        """The launches since it is as it is now: since it changed, where that is likelier than that it always was."""
        if self.change is None or self.change.odds < self.now.odds / 2:
            return self.numbers
        return tuple(number for number in self.numbers if number >= self.change.after) or self.numbers[-1:]

    def at(self, number: int) -> Stage:
        """At any launch: between two that it is known by it changed at any with equal chance, if it did."""
        right = bisect_right(self.numbers, number)
        if right in (0, len(self.numbers)):
            return self.stages[min(right, len(self.numbers) - 1)]
        (first, last), (one, two) = self.numbers[right - 1 : right + 1], self.stages[right - 1 : right + 1]
        share = (number - first) / (last - first)
        offset = one.offset + share * (two.offset - one.offset)
        square = (1 - share) * (one.sd**2 + one.offset**2) + share * (two.sd**2 + two.offset**2)
        odds = one.odds + share * (two.odds - one.odds)
        return Stage(offset, math.sqrt(max(0.0, square - offset**2)), odds)

    def level(self, number: int) -> Stage:
        """At a launch it is known by, the same for all that are compared: constant but for a change that is certain."""
        return self.stages[0] if self.changed is not None and number <= self.changed.before else self.now

    def place(self, node: str, number: int) -> str:
        """What a launch on this node may be compared within: the node; where it changed before or after that."""
        if self.changed is None or number >= self.changed.after:
            return node
        return f"{node} before" if number <= self.changed.before else f"{node} at launch {number}"

    def says(self, number: int) -> bool:
        """Whether a launch is evidence: made while the node was like the others for all that is known."""
        in_doubt = self.changed is not None and self.changed.before < number < self.changed.after
        return not (in_doubt or self.at(number).certain)


@lru_cache(maxsize=32)
def effects(launches: tuple[Fresh, ...]) -> dict[str, Effect]:
    """Node to what it does to scores, for the nodes on which any of these ran that tell something of it.

    Args:
        launches: by number; configurations differ in means of their own, so that one launch of one tells nothing.
    """
    often = Counter(what for what, _, _, _ in launches)
    launches = tuple(row for row in launches if often[row[0]] > 1)
    names = sorted({node for _, node, _, _ in launches})
    if len(names) < 2:
        return {name: Effect() for name in names}
    found = weigh(launches, names)
    on = np.stack([column.on if column.node >= 0 else np.zeros_like(column.on) for column in found.columns])
    odds, offsets, squares = (total @ on for total in (found.odds, found.means, found.squares))
    sds = np.sqrt(np.maximum(squares - offsets**2, 0.0))
    known: dict[str, Effect] = {}
    for k, name in enumerate(names):
        rows = [i for i, (_, node, _, _) in enumerate(launches) if node == name]
        stages = tuple(Stage(float(offsets[i]), float(sds[i]), min(1.0, float(odds[i]))) for i in rows)
        known[name] = Effect(tuple(launches[i][2] for i in rows), stages, _change(found, k))
    return known


def _change(found: Found, node: int) -> Change | None:
    """When a node changed, if it did: all but the least likely launches, which together are no more than chance."""
    odds: dict[tuple[int, int], float] = {}
    for column, chance in zip(found.columns, found.odds, strict=True):
        if column.node == node and column.before >= 0:
            odds[column.before, column.after] = odds.get((column.before, column.after), 0.0) + float(chance)
    total, spans = math.fsum(odds.values()), sorted(odds)
    if not total:
        return None
    sums = list(itertools.accumulate(odds[span] for span in spans))
    tail = (1 - CERTAIN) / 2 * total
    first = next(i for i, done in enumerate(sums) if done > tail)
    last = next(i for i, done in enumerate(sums) if done >= total - tail)
    return Change(spans[first][0], spans[last][1], min(1.0, total))


def contrast(mine: Sequence[Placed], theirs: Sequence[Placed]) -> tuple[float, float]:
    """The difference of two configurations' means by launches on the same nodes, and its information.

    The difference has the variance of one launch over the information, ``1 / (1/n + 1/m)`` summed over the nodes; 0
    where no node ran both, then the difference is that of all launches. On one node these are the plain figures.
    """
    parts = []
    for node in sorted({node for node, _ in mine} & {node for node, _ in theirs}):
        a, b = [s for n, s in mine if n == node], [s for n, s in theirs if n == node]
        parts.append((mean(a) - mean(b), 1 / (1 / len(a) + 1 / len(b))))
    if not parts:
        return mean([s for _, s in mine]) - mean([s for _, s in theirs]), 0.0
    if len(parts) == 1:
        return parts[0]
    information = math.fsum(weight for _, weight in parts)
    return math.fsum(difference * weight for difference, weight in parts) / information, information


def planned(mine: Sequence[str], theirs: Sequence[str], more: int, closed: Collection[str] = ()) -> float:
    """The information of `contrast` after so many more launches, in pairs on the nodes that have had fewest.

    Args:
        closed: places where nothing runs any more, unless there are no others.
    """
    counts = {node: [mine.count(node), theirs.count(node)] for node in sorted({*mine, *theirs})}
    alive = [count for node, count in counts.items() if node not in closed] or list(counts.values())
    for number in range(0, more, 2):
        fewest = min(alive, key=lambda count: count[0])
        fewest[0] += 1
        fewest[1] += number + 1 < more
    return sum(1 / (1 / n + 1 / m) for n, m in counts.values() if n and m)


def additive_spread(launches: Sequence[tuple[Hashable, str, float]]) -> Spread:
    """The spread of a launch where configurations and nodes each add a part of their own.

    Args:
        launches: of each its configuration, place and score.
    """
    if not launches:
        return Spread.of(0.0, 0)
    columns = [dict.fromkeys(row[k] for row in launches) for k in (0, 1)]
    codes = [{name: at for at, name in enumerate(column)} for column in columns]
    design = np.zeros((len(launches), sum(map(len, codes))))
    for i, (what, node, _) in enumerate(launches):
        design[i, codes[0][what]] = design[i, len(codes[0]) + codes[1][node]] = 1.0
    scores = np.array([score for _, _, score in launches])
    # Around the middle, so that equal repeats leave exactly nothing.
    scores = scores - scores.mean()
    found, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    return Spread.of(float(((scores - design @ found) ** 2).sum()), len(launches) - int(rank))
