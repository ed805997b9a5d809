"""Spread of a launch, means and gains, and the distribution of a difference, for all decisions.

Scores are logarithms, so that a difference of scores is a gain in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

from autotune.base import Interval, frozen
from autotune.base.arrays import Floats

CONFIDENCE = 0.95
"""Confidence of every two-sided interval."""
Z = 1.959964
"""Half the width of that interval of a normal distribution, in standard deviations."""

LAUNCH_NOISE = 0.03
"""Usual standard deviation between launches of one command, 3 %: assumed before any repeat."""
FEW_DEGREES = 3
"""Degrees of freedom below which repeats get one more, of `LAUNCH_NOISE`.

It keeps an interval from a single pair of launches within reason (12.7 spreads become 4.3). Where
launches really vary by 10 %, it makes a one-sided error of 2.5 % 4.9 % on one degree of freedom and
4.7 % on two.
"""
_EQUAL = 1e-12
_LEAST_SD = 1e-9
_BEYOND = 1e-6


@frozen
class Spread:
    """Standard deviation of one launch, and its degrees of freedom."""

    sd: float
    degrees: int

    @classmethod
    def from_squares(cls, squares: float, degrees: int) -> Spread:
        """Return the spread of a sum of squares.

        Where all repeats, two or more, came out exactly equal, as in a replay without noise, the
        spread is 0.
        """
        # Equal repeats must give exactly 0 although their mean is rounded.
        if degrees >= 2 and math.sqrt(squares / degrees) <= _EQUAL:
            return cls(0.0, degrees)
        if degrees < FEW_DEGREES:
            squares = squares + LAUNCH_NOISE**2
            degrees = degrees + 1
        return cls(math.sqrt(squares / degrees), degrees)

    @classmethod
    def pooled(cls, groups: Iterable[Sequence[float]]) -> Spread:
        """Return the spread of repeats of several configurations, which share the noise but not the
        mean."""
        squares = 0.0
        degrees = 0
        for group in groups:
            if not group:
                continue
            middle = mean(group)
            squares += math.fsum((x - middle) ** 2 for x in group)
            degrees += len(group) - 1
        return cls.from_squares(squares, degrees)

    def half_width(self, counts: Sequence[float]) -> float | None:
        """Return half the 95 % interval of a mean (one count) or of a difference of two means (two
        counts).

        Student's t; None where something was not launched.
        """
        if min(counts) < 1:
            return None
        return Effect.of_launches(0.0, 1 / sum(1 / n for n in counts), self).interval[1]


@frozen
class Effect:
    """Distribution of a difference, score units: its odds and its interval are both of it.

    A mixture of Student's t; of normal distributions where the degrees of freedom are infinite.

    Attributes:
        weights, means, sds: shape ``(parts,)``.
        degrees: of freedom, of each part.
    """

    weights: Floats
    means: Floats
    sds: Floats
    degrees: float = math.inf

    @classmethod
    def of_launches(cls, difference: float, information: float, spread: Spread) -> Effect:
        """Return the distribution of a difference that launches show (`nodes.contrast`)."""
        sd = spread.sd / math.sqrt(information)
        return cls(np.ones(1), np.array([difference]), np.array([sd]), spread.degrees)

    @property
    def mean(self) -> float:
        return float(self.weights @ self.means)

    @property
    def interval(self) -> Interval:
        """Return the 95 % interval."""
        return self._quantile((1 - CONFIDENCE) / 2), self._quantile((1 + CONFIDENCE) / 2)

    def odds(self, least: float = 0.0) -> float:
        """Return the odds that the difference is larger than this."""
        away = (self.means - least) / np.maximum(self.sds, _LEAST_SD)
        return float(self.weights @ stdtr(self.degrees, away))

    def _quantile(self, chance: float) -> float:
        ends = self.means + self.sds * stdtrit(self.degrees, chance)
        low = float(ends.min())
        high = float(ends.max())
        if high - low <= _EQUAL:
            return low
        # The mixture's lies between those of its parts.
        return float(
            brentq(lambda x: 1 - self.odds(x) - chance, low - _BEYOND, high + _BEYOND, xtol=_EQUAL)
        )


def mean(values: Sequence[float]) -> float:
    """Return the mean; raises ``ZeroDivisionError`` for no values."""
    return math.fsum(values) / len(values)


def percent(log_ratio: float) -> float:
    """Return a difference of logarithms as a gain in percent."""
    return round(100 * math.expm1(log_ratio), 10)


def percents(interval: Interval) -> Interval:
    """Return an interval of differences of logarithms as gains in percent."""
    return percent(interval[0]), percent(interval[1])
