"""Means and intervals of a few repeats on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

ERROR_RATE = 0.05
"""Of every interval: two-sided, so that a configuration equal to the baseline passes as better in 2.5 %."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of one launch, and on how many degrees of freedom it is known."""

    sd: float
    degrees: int

    @classmethod
    def pooled(cls, groups: Iterable[Sequence[float]]) -> Spread:
        """From repeats of several configurations, which differ in their means but share the noise."""
        squares, degrees = 0.0, 0
        for group in groups:
            if len(group) >= 2:
                mean = math.fsum(group) / len(group)
                squares += math.fsum((x - mean) ** 2 for x in group)
                degrees += len(group) - 1
        sd = math.sqrt(squares / degrees) if degrees else 0.0
        # Equal repeats must give exactly 0 although their mean is rounded.
        return cls(sd if sd > 1e-12 else 0.0, degrees)

    def half_width(self, counts: Sequence[int], comparisons: int = 1) -> float | None:
        """Half the 95 % interval of a mean (one count) or of a difference of two means (two counts).

        Student's t with Bonferroni's correction for ``comparisons`` intervals that must hold together; None
        where nothing was repeated.
        """
        if self.degrees < 1 or min(counts) < 1:
            return None
        quantile = float(stdtrit(self.degrees, 1 - ERROR_RATE / (2 * comparisons)))
        return quantile * self.sd * math.sqrt(sum(1 / n for n in counts))


def mean(values: Sequence[float]) -> float:
    """The mean; raises ``ZeroDivisionError`` on none."""
    return math.fsum(values) / len(values)


def percent(log_ratio: float) -> float:
    """A difference of logarithms as a gain in percent."""
    return 100 * math.expm1(log_ratio)
