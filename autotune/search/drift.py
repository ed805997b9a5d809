"""Whether the node changes while a study runs: launches of one and the same configuration over the study.

A hot or throttled node, or another one behind the same name, shifts every later launch. The baseline is launched again
now and then and in the finals; a straight line and a step between any two of its launches are fitted to them and to the
finalist's fresh ones, and the likelier is believed when chance seldom looks like it (Student's t with Bonferroni's
correction for the shapes tried).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from autotune.search.decide.estimate import Spread, mean

EVERY = 10
"""Launches after which the baseline is due again."""
ERROR_RATE = 0.002
"""How often a steady node looks so; it is looked at many times, so up to 1 % of studies are told that it drifts."""
SUSPICION = 0.2
"""A change that chance makes no more often than this, and is worth it, has the baseline launched once more at once."""
WORTH = 0.05
"""A change that is worth a launch to be sure of; 5 %."""
MOST_IN_A_ROW = 3
"""Launches of the baseline in a row to be sure of a change."""
MOST = 0.1
"""A change of more than about 10 % is not corrected with confidence: gains below it are refused."""

Point = tuple[int, float]
"""A launch's number and score."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How the scores of one and the same configuration changed.

    Attributes:
        change: from the first launch to the last one, score units.
        first, last: numbers of the launches between which it changed: next to each other for a step.
        chance: how often a steady node looks so, or worse.
    """

    change: float
    first: int
    last: int
    chance: float

    @property
    def certain(self) -> bool:
        """Whether it is believed."""
        return self.chance < ERROR_RATE

    @property
    def suspicious(self) -> bool:
        """Whether it is worth another launch of the baseline."""
        return self.chance < SUSPICION and abs(self.change) >= WORTH

    @property
    def corrigible(self) -> bool:
        """Whether scores can be compared after correction."""
        return abs(self.change) <= MOST

    def offset(self, number: int) -> float:
        """What a launch's score has more than it would have at the end."""
        done = (number - self.first) / (self.last - self.first)
        return self.change * (min(1.0, max(0.0, done)) - 1.0)


def find(
    points: Sequence[Point], others: Sequence[Sequence[Point]] = (), apart: Sequence[Sequence[Point]] | None = None
) -> Drift | None:
    """The likeliest change; None with fewer than two launches, or when all are equal.

    Args:
        points: the launches of the baseline, by number.
        others: fresh launches of other configurations, which change alike about means of their own.
        apart: the launches of the baseline, those of each node for themselves; None: they ran on one. Nodes differ in
            their means, so that only what changes on a node is a change.
    """
    if len(points) < 2 or len({score for _, score in points}) == 1:
        return None
    numbers = [number for number, _ in points]
    spans = [(numbers[0], numbers[-1])]
    if len(points) > 2:
        spans += itertools.pairwise(numbers)
    groups = [*([points] if apart is None else apart), *others]
    fits = [fit for first, last in spans if (fit := _fitted(groups, first, last)) is not None]
    if not fits:
        return None
    best = min(fits, key=lambda fit: fit.chance)
    return Drift(best.change, best.first, best.last, min(1.0, best.chance * len(fits)))


def _fitted(groups: Sequence[Sequence[Point]], first: int, last: int) -> Drift | None:
    """Least squares of a change between two numbers that is common to all groups; None where no group saw it."""
    rows: list[tuple[float, float]] = []
    for group in groups:
        course = [min(1.0, max(0.0, (number - first) / (last - first))) for number, _ in group]
        x0, y0 = mean(course), mean([score for _, score in group])
        rows += [(x - x0, score - y0) for x, (_, score) in zip(course, group, strict=True)]
    sxx = math.fsum(x**2 for x, _ in rows)
    if sxx == 0:
        return None
    change = math.fsum(x * y for x, y in rows) / sxx
    spread = Spread.of(math.fsum((y - change * x) ** 2 for x, y in rows), len(rows) - len(groups) - 1)
    if spread.sd == 0:
        return Drift(change, first, last, 0.0 if change else 1.0)
    chance = 2 * float(stdtr(spread.degrees, -abs(change) * math.sqrt(sxx) / spread.sd))
    return Drift(change, first, last, chance)
