"""Which candidate to launch next: expected improvement, times the odds that it starts and keeps every SLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.search.causes import starts
from autotune.search.process import IGNORING, NEUTRAL, TRUSTING, Floats, Kernels, Process, Trust

HEDGE = 4
"""One suggestion of so many ignores the prior."""


@dataclass(frozen=True, slots=True)
class Observations:
    """What is known, as numbers.

    Attributes:
        measured: position and score (logarithm, more is better) of every measured launch.
        feasible: beside each of `measured`: whether it kept every SLO.
        slos: SLO to position and slack-free violation of every launch that measured it, in logarithms of the
            metric over its limit, or any unit in which 0 is the limit and less is good.
        broken: positions that failed to run.
        pending: positions that run now.
        spent: positions that must not be suggested.
    """

    measured: Sequence[tuple[int, float]] = ()
    feasible: Sequence[bool] = ()
    slos: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    broken: Sequence[int] = ()
    pending: Sequence[int] = ()
    spent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate, and how much of a logarithm it is expected to improve on the best (None: not known)."""

    position: int
    improvement: float | None


def suggest(kernels: Kernels, seen: Observations, seed: int, number: int) -> Suggestion | None:
    """The most promising candidate, or None when every candidate is spent.

    Args:
        seed: with the trial's number it breaks ties.
        number: of the trial; every so many ignore the prior, because where the prior is wrong about the best
            and right about the rest, its weight alone does not tell.
    """
    trusts = IGNORING if number % HEDGE == HEDGE - 1 else TRUSTING
    free = np.ones(len(kernels.encoding), dtype=np.bool_)
    free[list(seen.spent | set(seen.pending))] = False
    if not free.any():
        return None
    chance = starts(kernels.encoding, [p for p, _ in seen.measured], seen.broken) * keeps_slos(kernels, seen)
    process = _with_pending(kernels, seen, trusts)
    incumbent = _incumbent(process, seen)
    if incumbent is None:
        return Suggestion(_best(chance * _rank(process), free, (seed, number)), None)
    improvement = expected_improvement(process, incumbent) * chance
    best = _best(improvement, free, (seed, number))
    return Suggestion(best, float(improvement[best]))


def expected_improvement(process: Process, incumbent: float) -> Floats:
    """By how much each candidate is expected to exceed the incumbent, in score units (Jones et al. 1998)."""
    total: Floats | float = 0.0
    for weight, mean, sd in process.predict():
        z = (mean - incumbent) / sd
        total = total + weight * sd * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
    return np.asarray(total, dtype=np.float64)


def keeps_slos(kernels: Kernels, seen: Observations) -> Floats:
    """The odds that each candidate keeps every SLO, each modelled on its own metric; shape ``(candidates,)``."""
    chance = np.ones(len(kernels.encoding))
    for points in seen.slos.values():
        if not points:
            continue
        process = Process(kernels, [p for p, _ in points], [v for _, v in points], NEUTRAL)
        chance *= sum(weight * ndtr(-mean / sd) for weight, mean, sd in process.predict())
    return chance


def _with_pending(kernels: Kernels, seen: Observations, trusts: tuple[Trust, ...]) -> Process:
    """Running launches count as if they had come out as predicted, so that parallel ones spread out."""
    positions, scores = [p for p, _ in seen.measured], [s for _, s in seen.measured]
    process = Process(kernels, positions, scores, trusts)
    if not seen.pending or not positions:
        return process
    expected = process.mean(np.array(seen.pending, dtype=np.int64))
    return Process(kernels, [*positions, *seen.pending], [*scores, *expected.tolist()], trusts)


def _incumbent(process: Process, seen: Observations) -> float | None:
    """The best posterior mean of what was measured and kept the SLOs: a lucky draw is shrunk."""
    good = [p for (p, _), feasible in zip(seen.measured, seen.feasible, strict=True) if feasible]
    return float(process.mean(np.array(good, dtype=np.int64)).max()) if good else None


def _rank(process: Process) -> Floats:
    """Means between 0.5 and 1: while nothing is feasible yet, the odds of running decide and these break ties."""
    mean = process.mean()
    span = float(mean.max() - mean.min())
    return np.asarray(0.5 + 0.5 * (mean - mean.min()) / (span if span > 0 else 1.0), dtype=np.float64)


def _best(worth: Floats, free: NDArray[np.bool_], seed: Sequence[int]) -> int:
    masked = np.where(free, worth, -np.inf)
    ties = np.flatnonzero(masked >= masked.max() * (1 - 1e-9) if masked.max() > 0 else masked == masked.max())
    return int(np.random.default_rng(list(seed)).choice(ties))
