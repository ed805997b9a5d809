"""Screen candidates by launches with random weights: they start sooner, and give only a rank.

The difference of a candidate's two scores, with random weights and with its own, has a mean over
all candidates, and a part for each engine and each layout. Both are learned with the candidates'
scores, as covariance that the launches with random weights share (`shared`). So they rank
candidates, and the level is that of the launches with weights.

A control comes first, unless the baseline starts too soon for that: it and one candidate of another
layout are launched both ways. Later, every few launches, one that has random weights is launched
with its own: of each layout, then the best. Where layouts differ too much to rank, or starts too
little to pay, all further launches have their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from autotune.base.arrays import Floats, floats
from autotune.engines import Candidate, Configuration, Scalar
from autotune.engines.command import RANKS

from .spread import LAUNCH_NOISE

CONTROLS = 2
"""Candidates launched both ways before launches with random weights are trusted."""
CHECKS, KNOWN = (2, 4), 0.06
"""Launches with random weights between two with real ones: the second value where `Screen.layouts`
< `KNOWN`."""
START_S = 120.0
"""Seconds of a start without the reading of weights; vLLM's and SGLang's ``start_s`` in their
simulator.yaml."""
BADLY, FEW = (0.12, 0.095), 4
"""Limits of `Screen.layouts` for ranks to be used: the second holds from `FEW` candidates launched
both ways on."""
WORTH, FAILED = 0.85, 2
"""Largest ratio of the duration of a launch with random weights to one with real weights; failures
of an engine with random weights, of candidates that ran with real ones, after which it has no more
such launches."""
_OVERALL, _EXPERTS, _ENGINE, _OWN = 0.3, 0.2, 0.05, 0.01
"""Standard deviations of the difference: over all candidates; of experts that are spread over many
GPUs, on which real tokens fall unevenly; and the parts of an engine and a candidate. They are
choices."""
_LAYOUT = {0.03: 0.3, 0.06: 0.3, 0.12: 0.2, 0.24: 0.1, 0.48: 0.1}
"""Prior of the standard deviation of a layout's part: its value to its probability, a choice as
well."""


class TimedScore(NamedTuple):
    """A measured launch: fields of `autotune.tuner.search.history.Entry`, times in seconds."""

    number: int
    position: int
    score: float
    seconds: float
    start_s: float


@dataclass(frozen=True, slots=True)
class Screen:
    """Results so far of the launches with random weights.

    Attributes:
        layouts: standard deviation of the layouts' parts; 0 until launches with random weights are
            `trusted`.
        over: why no more launches have random weights; empty while they may.
    """

    layouts: float = 0.0
    over: str = ""

    @property
    def trusted(self) -> bool:
        return self.layouts > 0.0


def screen_of(
    candidates: Sequence[Candidate], entries: Sequence[TimedScore], screened: Sequence[TimedScore]
) -> Screen:
    """Judge the `screened` launches, with random weights, by those of the same candidates with real
    ones."""
    full, random_weights = (
        {e.position: [o for o in r if o.position == e.position] for e in r}
        for r in (entries, screened)
    )
    both = [p for p in random_weights if p in full]
    # The second start of a command finds its kernels compiled: one with random weights is shorter
    # for that as well.
    timed = [p for p in both if random_weights[p][0].number < full[p][0].number] or both
    took = [[fmean(e.seconds for e in rows[p]) for rows in (full, random_weights)] for p in timed]
    # Before the control: the first launch as it was, and as expected if it read no weights.
    took = took or [[e.seconds, e.seconds - max(0.0, e.start_s - START_S)] for e in entries][:1]
    full_s, random_s = map(fmean, zip(*took, strict=True)) if took else (0.0, 0.0)
    if random_s > WORTH * full_s:
        times = f"{random_s:.0f} s instead of {full_s:.0f} s"
        return Screen(over=f"a launch with random weights is not much shorter ({times})")
    if len(both) < CONTROLS:
        return Screen()
    rank, score = (
        np.array([fmean(e.score for e in rows[p]) for p in both]) for rows in (random_weights, full)
    )
    noise = LAUNCH_NOISE**2 * np.diag([1 / len(random_weights[p]) + 1 / len(full[p]) for p in both])
    odds = []
    for layouts, before in _LAYOUT.items():
        covariance = noise + shared(
            [Ranked(p, 0.0, layout_of(candidates[p].configuration), layouts) for p in both]
        )
        distance = (rank - score) @ np.linalg.solve(covariance, rank - score)
        odds.append(math.log(before) - (distance + np.linalg.slogdet(covariance)[1]) / 2)
    learned = float(np.average(list(_LAYOUT), weights=np.exp(np.array(odds) - max(odds))))
    if learned > BADLY[len(both) >= FEW]:
        return Screen(
            over=f"random weights rank badly: their effect on a layout varies by {100 * learned:.0f} %"
        )
    return Screen(learned)


class Ranked(NamedTuple):
    """One complete launch with random weights: its layout (`layout_of`), and `Screen.layouts` as
    the model uses it."""

    position: int
    score: float
    layout: tuple[Scalar, ...]
    layouts: float


def shared(rows: Sequence[Ranked]) -> Floats:
    """Return the covariance of the effect of random weights on scores, shape ``(rows, rows)``."""

    def alike(names: Sequence[object]) -> Floats:
        return floats([[a == b for b in names] for a in names])

    spread_experts = np.array([1.0 - 1.0 / max(1.0, float(one.layout[-1] or 1)) for one in rows])
    found = (
        _OVERALL**2
        + _EXPERTS**2 * np.outer(spread_experts, spread_experts)
        + _ENGINE**2 * alike([one.layout[0] for one in rows])
    )
    found += _OWN**2 * alike([one.position for one in rows])
    return floats(found + rows[0].layouts ** 2 * alike([one.layout for one in rows]))


def layout_of(configuration: Configuration) -> tuple[Scalar, ...]:
    """Return the engine of a configuration and its distribution over GPUs."""
    return (
        configuration.engine,
        *(configuration.knobs.get(name) for name in (*RANKS, "expert_parallel")),
    )
