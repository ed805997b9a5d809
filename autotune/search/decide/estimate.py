"""Means and intervals of a few repeats on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Of every two-sided interval."""
Z = 1.959964
"""Half the width of such an interval of a normal distribution, in standard deviations."""

LAUNCH_NOISE = 0.03
"""The usual standard deviation between launches of one command: 3 %. Expected before any repeat; nobody would notice an
effect that small, and no launch is spent on one."""
FEW_DEGREES = 3
"""Repeats with fewer degrees of freedom have one more from that expectation.

It keeps an interval from a single pair of launches within reason (12.7 spreads become 4.3). Where launches really vary
by 10 %, it makes a one-sided error of 2.5 % 4.9 % on one degree of freedom and 4.7 % on two.
"""
_EQUAL = 1e-12


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of one launch, and on how many degrees of freedom it is known."""

    sd: float
    degrees: int

    @classmethod
    def of(cls, squares: float, degrees: int) -> Spread:
        """From a sum of squares.

        Where all repeats, two or more, came out exactly equal, as in a replay without noise, the spread is 0.
        """
        # Equal repeats must give exactly 0 although their mean is rounded.
        if degrees >= 2 and math.sqrt(squares / degrees) <= _EQUAL:
            return cls(0.0, degrees)
        if degrees < FEW_DEGREES:
            squares, degrees = squares + LAUNCH_NOISE**2, degrees + 1
        return cls(math.sqrt(squares / degrees), degrees)

    @classmethod
    def pooled(cls, groups: Iterable[Sequence[float]]) -> Spread:
        """From repeats of several configurations, which differ in their means but share the noise."""
        squares, degrees = 0.0, 0
        for group in groups:
            if not group:
                continue
            middle = mean(group)
            squares += math.fsum((x - middle) ** 2 for x in group)
            degrees += len(group) - 1
        return cls.of(squares, degrees)

    def half_width(self, counts: Sequence[float]) -> float | None:
        """Half the 95 % interval of a mean (one count) or of a difference of two means (two counts).

        Student's t; None where something was not launched.
        """
        if min(counts) < 1:
            return None
        quantile = float(stdtrit(self.degrees, (1 + CONFIDENCE) / 2))
        return quantile * self.sd * math.sqrt(sum(1 / n for n in counts))


def mean(values: Sequence[float]) -> float:
    """The mean; raises ``ZeroDivisionError`` on none."""
    return math.fsum(values) / len(values)


def percent(log_ratio: float) -> float:
    """A difference of logarithms as a gain in percent."""
    return round(100 * math.expm1(log_ratio), 10)


def percents(middle: float, half: float) -> tuple[float, float]:
    """An interval of differences of logarithms as gains in percent."""
    return percent(middle - half), percent(middle + half)
