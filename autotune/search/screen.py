"""Screen candidates by launches with random weights: they start sooner, and give only a rank.

What such a launch measures is a score of its own. That less the score of the same candidate with its weights has a
mean over all candidates, and a part for each engine and each layout; both are learned with the candidates' scores, as
covariance that the launches with random weights share (`shared`). So they rank candidates, and the level is that of the
launches with weights.

A control comes first: the baseline and one candidate of another layout are launched both ways. Later on the best of
what has random weights is launched with its own, every few launches, so that the finals have what to choose from. Where
the differences spread too much to rank, or the start is not so much shorter, all further launches have their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import chdtrc

from autotune.arrays import Floats
from autotune.search.decide.sequential_test import LAUNCH_NOISE
from autotune.space.context import RANKS
from autotune.trial import Configuration, Scalar

CONTROLS = 2
"""Candidates launched both ways before launches with random weights are trusted."""
CHECK = 4
"""Launches with random weights after which the best of them is launched with real ones."""
DOUBT = 0.01
"""Odds of the observed variation of differences, under the assumed similarity, below which ranks are not used."""
WORTH = 0.85
"""Share of the time of a launch with real weights above which random weights are not worth their spread."""
_OVERALL, _EXPERTS, _ENGINE, _LAYOUT, _OWN = 0.3, 0.2, 0.05, 0.05, 0.01
"""Standard deviations of the difference: over all candidates; of experts that are spread over many GPUs, on which real
tokens fall unevenly; and the parts of an engine, a layout and a candidate. They are choices."""


class Made(Protocol):
    """Fields of a launch that are read, an `autotune.search.history.Entry`."""

    @property
    def position(self) -> int: ...
    @property
    def score(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Screen:
    """Results so far of the launches with random weights.

    Attributes:
        spread: standard deviation of what candidates launched both ways differ by; None of fewer than `CONTROLS`.
        over: why no more launches have random weights; empty while they may.
    """

    spread: float | None = None
    over: str = ""

    @property
    def trusted(self) -> bool:
        """Return whether the search uses launches with random weights."""
        return not self.over and self.spread is not None


def screen_of(configurations: Sequence[Configuration], entries: Sequence[Made], screened: Sequence[Made]) -> Screen:
    """Judge the `screened` launches, with random weights, by those of the same candidates with real ones."""
    full, cheap = _means(entries), _means(screened)
    both = [p for p in cheap if p in full]
    if not both:
        return Screen()
    took = [fmean(e.seconds for e in rows if e.position in both) for rows in (entries, screened)]
    if took[1] > WORTH * took[0]:
        times = f"{took[1]:.0f} s instead of {took[0]:.0f} s"
        return Screen(over=f"a launch with random weights is not much shorter ({times})")
    if len(both) < CONTROLS:
        return Screen()
    differences = np.array([cheap[p] - full[p] for p in both])
    covariance = shared([Ranked(p, cheap[p], layout_of(configurations[p])) for p in both])
    means_of = [sum(1 / sum(e.position == p for e in rows) for rows in (entries, screened)) for p in both]
    covariance += LAUNCH_NOISE**2 * np.diag(means_of)
    inverse = np.linalg.inv(covariance)
    residuals = differences - inverse.sum(axis=0) @ differences / inverse.sum()
    spread = float(differences.std(ddof=1))
    if chdtrc(len(both) - 1, residuals @ inverse @ residuals) < DOUBT:
        return Screen(spread, f"random weights rank badly: their effect varies by {100 * spread:.0f} %")
    return Screen(spread)


class Ranked(NamedTuple):
    """One complete launch with random weights; its layout is from `layout_of`."""

    position: int
    score: float
    layout: tuple[Scalar, ...]


def shared(rows: Sequence[Ranked]) -> Floats:
    """Return the covariance of the effect of random weights on scores, shape ``(rows, rows)``."""

    def alike(names: Sequence[object]) -> Floats:
        return np.array([[a == b for b in names] for a in names], dtype=np.float64)

    apart = np.array([1.0 - 1.0 / max(1.0, float(one.layout[-1] or 1)) for one in rows])
    found = _OVERALL**2 + _EXPERTS**2 * np.outer(apart, apart) + _ENGINE**2 * alike([one.layout[0] for one in rows])
    found += _LAYOUT**2 * alike([one.layout for one in rows]) + _OWN**2 * alike([one.position for one in rows])
    return np.asarray(found, dtype=np.float64)


def layout_of(configuration: Configuration) -> tuple[Scalar, ...]:
    """Return the engine of a configuration and its distribution over GPUs."""
    knobs = configuration.knobs
    return (configuration.engine, *(knobs.get(name) for name in (*RANKS, "expert_parallel")))


def _means(entries: Sequence[Made]) -> Mapping[int, float]:
    ran = [(e.position, e.score) for e in entries if e.score is not None]
    return {position: fmean(score for p, score in ran if p == position) for position, _ in ran}
