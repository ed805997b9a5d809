"""Group sequential test: compare two means at several looks during their launches, with a possible
stop at each.

Looking often finds "winners" by chance, so the stated error is spent little by little: after a
fraction f of the planned information at most ``ERROR_RATE * f**SPENDING`` of equal configurations
have passed as better (Lan and DeMets, Biometrika 1983; the power family is Kim and DeMets',
Biometrika 1987). The bounds follow from the joint normal distribution of the looks by the recursion
of Armitage, McPherson and Rowe (J. R. Statist. Soc. A, 1969). The spread of a launch is estimated,
so a bound on z is turned into one on Student's t by its significance level (Jennison and Turnbull,
Group Sequential Methods, 2000, section 11.4). Estimate and interval order the outcomes by the look
at which the test stopped, then by the difference seen (ibid., section 8.4): the estimate is as
often too high as too low, and the 95 % interval covers the truth in 95 % although a lucky lead
stops the test early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from autotune.base import Interval, frozen
from autotune.base.arrays import Floats, floats

from ..spread import CONFIDENCE

LEAST_FOUND = 0.3
"""Share of tested real gains that must pass as better so that their intervals have the stated
coverage.

Small gains pass with a lucky difference alone. Of the intervals that are reported because a test
passed, as many miss as of all, over the share that passes (false coverage rate: Benjamini and
Yekutieli, J. Am. Stat. Assoc., 2005): the lower end has so much less of the error.
"""
ERROR_RATE = 0.025
"""One-sided error: the largest share of studies that call a configuration equal to the baseline
better."""
SPENDING = 3.0
"""Exponent of the error spending: late looks get most of it, as with O'Brien and Fleming's
bounds."""
HOPELESS = 0.01
"""Probability of success, at the current trend, below which the test is stopped for futility."""

_REACH = 8.0
"""Standard deviations beyond which the density is negligible."""


@frozen
class Look:
    """State of the test at a look.

    Attributes:
        fraction: of the information planned, in (0, 1]; 1 = nothing more will come.
        information: ``1 / (1/n + 1/m)`` of n launches against m; grows from look to look.
        difference: of the means, score units.
        sd: of one launch; 0 = repeats came out exactly equal.
        degrees: of freedom on which ``sd`` is known.
    """

    fraction: float
    information: float
    difference: float
    sd: float
    degrees: float

    @property
    def t(self) -> float:
        """Return the difference over its standard error."""
        return self.difference * math.sqrt(self.information) / self.sd


class Outcome(Enum):
    """State of a test."""

    OPEN = "open"
    BETTER = "better"
    HOPELESS = "hopeless"


def outcome(looks: Sequence[Look]) -> tuple[Outcome, int]:
    """Return the state of the test, and the look at which it ended; later data do not count."""
    uppers = _bounds_at(looks)
    for count, (look, upper) in enumerate(zip(looks, uppers, strict=True), start=1):
        if look.sd == 0:
            return (Outcome.BETTER if look.difference > 0 else Outcome.HOPELESS), count
        z = _z_of_t(look.t, look.degrees)
        if z >= upper:
            return Outcome.BETTER, count
        if look.fraction < 1 and z <= _futile(look.fraction):
            return Outcome.HOPELESS, count
    return Outcome.OPEN, len(looks)


def _bounds_at(looks: Sequence[Look]) -> tuple[float, ...]:
    return bounds(tuple(x.fraction for x in looks), tuple(x.information for x in looks))


@lru_cache(maxsize=4096)
def bounds(fractions: tuple[float, ...], informations: tuple[float, ...]) -> tuple[float, ...]:
    """Return the z at each look above which a configuration is better.

    They hold however the futility rule is used: it is ignored here, which can only lower the error.
    """
    path = _Path()
    spent = 0.0
    found = []
    for fraction, information in zip(fractions, informations, strict=True):
        allowed = ERROR_RATE * min(1.0, fraction) ** SPENDING - spent
        upper = path.reaching(allowed, information)
        found.append(upper)
        spent += path.above(upper, information)
        path = path.onward(-_REACH, upper, information)
    return tuple(found)


@lru_cache(maxsize=64)
def estimate(looks: tuple[Look, ...]) -> tuple[float, Interval]:
    """Return the median-unbiased estimate and its 95 % interval, from the looks until the end."""
    ended, count = outcome(looks)
    last = looks[count - 1]
    if last.sd == 0:
        return last.difference, (last.difference, last.difference)
    tail = (1 - CONFIDENCE) / 2
    better = ended is Outcome.BETTER
    chances = (tail * LEAST_FOUND if better else tail, 0.5, 1 - tail)
    low, middle, high = (_solved(looks[:count], ended, chance) for chance in chances)
    # The bounds do not count on the futility rule and the interval does: it must not say more than
    # the test.
    return middle, (max(low, 0.0) if better else min(low, 0.0), high)


def repeated_interval(looks: Sequence[Look]) -> Interval:
    """Return the interval of the last look, with 95 % coverage over all looks together, for any
    stopping rule.

    Repeated confidence intervals (Jennison and Turnbull, Group Sequential Methods, 2000, chapter
    9): where more than one bound may end a test, as a change that is shown to be large or small.
    """
    last = looks[-1]
    upper = _bounds_at(looks)[-1]
    half = (
        -float(stdtrit(last.degrees, float(ndtr(-upper)))) * last.sd / math.sqrt(last.information)
    )
    return last.difference - half, last.difference + half


def _futile(fraction: float) -> float:
    """Return the z below which success at the last look has probability `HOPELESS`, with a flat
    prior."""
    last = float(ndtri(1 - ERROR_RATE))
    return float(last * math.sqrt(fraction) + float(ndtri(HOPELESS)) * math.sqrt(1 - fraction))


def _solved(looks: Sequence[Look], ended: Outcome, chance: float) -> float:
    """Return the true difference at which an outcome at least as good has this probability."""
    last = looks[-1]
    uppers = _bounds_at(looks)

    def off(truth: float) -> float:
        return _at_least(looks, uppers, ended, truth) - chance

    step = 2 * last.sd / math.sqrt(last.information)
    low = last.difference - step
    high = last.difference + step
    while off(low) > 0:
        low = low - step
        step = 2 * step
    while off(high) < 0:
        high = high + step
        step = 2 * step
    return float(brentq(off, low, high, xtol=1e-7))


def _at_least(
    looks: Sequence[Look], uppers: Sequence[float], ended: Outcome, truth: float
) -> float:
    """Return the probability of an outcome at least as good as the observed one, at this true
    difference."""
    last = looks[-1]
    path = _Path()
    above = 0.0
    below = 0.0
    for look, upper in zip(looks[:-1], uppers, strict=False):
        shift = truth * math.sqrt(look.information) / last.sd
        high = _shifted(upper, shift, look.degrees)
        low = _shifted(_futile(look.fraction), shift, look.degrees)
        above += path.above(high, look.information)
        below += path.below(low, look.information)
        path = path.onward(low, high, look.information)
    seen = _z_of_t(last.t - truth * math.sqrt(last.information) / last.sd, last.degrees)
    if ended is Outcome.HOPELESS:
        return 1 - below - path.below(seen, last.information)
    return above + path.above(seen, last.information)


def _shifted(z: float, shift: float, degrees: float) -> float:
    """Return a bound on z for t as one for t minus a shift."""
    t = float(stdtrit(degrees, float(ndtr(-abs(z)))))
    return _z_of_t(math.copysign(t, z) - shift, degrees)


def _z_of_t(t: float, degrees: float) -> float:
    """Return the normal deviate with the significance of Student's t, exact in both tails."""
    z = float(ndtri(max(float(stdtr(degrees, -abs(t))), 1e-300)))
    return math.copysign(z, t)


@frozen
class _Path:
    """Distribution of z among tests that still run, without a true difference: points, their
    probabilities, when."""

    z: Floats = field(default_factory=lambda: np.zeros(1))
    mass: Floats = field(default_factory=lambda: np.ones(1))
    information: float = 0.0

    def above(self, z: float, information: float) -> float:
        """Return the probability of still running and then being at ``z`` or higher."""
        keep, sd = self._step(information)
        return float(self.mass @ ndtr((keep * self.z - z) / sd))

    def below(self, z: float, information: float) -> float:
        """Return the probability as `above`, for lower values."""
        return replace(self, z=-self.z).above(-z, information)

    def reaching(self, chance: float, information: float) -> float:
        """Return the z reached with this probability."""
        if self.above(_REACH, information) >= chance:
            return _REACH
        return float(
            brentq(lambda z: self.above(z, information) - chance, -_REACH, _REACH, xtol=1e-9)
        )

    def onward(self, low: float, high: float, information: float) -> _Path:
        """Return the paths that crossed neither bound."""
        keep, sd = self._step(information)
        low = max(low, -_REACH)
        high = min(high, _REACH)
        if low >= high:
            return _Path(np.zeros(1), np.zeros(1), information)
        nodes, weights = _nodes(16 * (1 + min(15, int((high - low) / (8 * sd)))))
        z = 0.5 * (high - low) * nodes + 0.5 * (high + low)
        kernel = np.exp(-0.5 * ((z[:, None] - keep * self.z[None, :]) / sd) ** 2) / (
            sd * math.sqrt(2 * math.pi)
        )
        return _Path(z, (kernel @ self.mass) * weights * 0.5 * (high - low), information)

    def _step(self, information: float) -> Interval:
        share = self.information / information
        return math.sqrt(share), math.sqrt(1 - share)


@lru_cache(maxsize=32)
def _nodes(count: int) -> tuple[Floats, Floats]:
    nodes, weights = leggauss(count)
    return floats(nodes), floats(weights)
