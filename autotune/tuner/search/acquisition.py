"""Acquisition: expected improvement, times the probability of being feasible, over the launch's
cost.

A candidate is feasible when it starts and keeps every SLO. Launches that run now count as if they
came out as predicted, those that likely start: what is nearly a copy of them is not expected to
improve on them (the kriging believer of Ginsbourger, Le Riche and Carraro, Kriging Is Well-Suited
to Parallelize Optimization, 2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from autotune.base import frozen
from autotune.base.arrays import Bools, Floats, Ints, argmax, descending, floats, ints
from autotune.load.metrics.formulas import Slo

from .feasibility import believed, p_starts
from .gp.kernels import Kernels
from .gp.posterior import QUICK, Mixture, Posterior, Sampling
from .history import History
from .screen import Observations

GAIN = 0.005
"""The stated gain, score units: what is expected to add less than 0.5 % is not worth a launch."""
WORTH_IT = 0.02
"""A launch is chosen for its possible excess of more than 2 % over the best. Otherwise launches
would compare nearly equal candidates, and larger but less certain gains would remain untried."""
PLAUSIBLE, _MAY_RUN = 0.1, 0.05
"""Least odds that a candidate is worth a launch if it runs, and that it runs. The second are low:
few failures show which of their common values is the cause."""
TURN = 3
"""Period of the launches of a value never tried with the best's other settings, the most promising
one: it may be good there although it was bad elsewhere, and a wrong model does not search there by
itself."""
_UNTESTED, _EARLY = 0.5, 12
"""Standard deviation that each value never launched with an engine adds to a prediction, and the
launch up to which every turn (`TURN`) goes to such values, later every second one. Without these
turns a prior that is wrong about one engine keeps the search away from it, as effects in other
engines tell little about it."""
FEW = 4
"""Most values of a knob that must each be launched with the best's other settings before a search
may end early."""
SPREAD_OUT = 4
"""Launches after the first that are spread over the space if no prior gives a start."""
_LIKELY = 0.5
EVERY = 6000
"""Largest number of launchable candidates that is searched exhaustively."""
_BY_MEAN = 1200
_AT_RANDOM = 600
_STEPS = 2
_LEADERS = 12


def model_of(kernels: Kernels, history: History, effort: Sampling = QUICK) -> Posterior:
    """Return the posterior of the score after a history; running launches count as if they met the
    prediction."""
    return _posterior(
        kernels, history.observed, tuple(history.running), history.spec.seed, effort, history.step
    )


@lru_cache(maxsize=8)
def _posterior(
    kernels: Kernels,
    observed: Observations,
    running: tuple[int, ...],
    seed: int,
    effort: Sampling,
    step: float,
) -> Posterior:
    """Return the posterior (the latest few are cached, as decisions share them).

    `step`, of load searches, is the noise of a capacity.
    """
    if running:
        known = _posterior(kernels, observed, (), seed, effort, step)
        return known.condition_on_pending(ints(running))
    return Posterior(
        kernels,
        observed.positions,
        observed.scores,
        seed=seed,
        extra_covariance=observed.extra_covariance(step),
        effort=effort,
    )


def _scaled(slo: Slo, history: History) -> list[tuple[int, float]]:
    """Scale violations by position: the logarithm of metric over limit if it exists, else over
    their size."""
    name = str(slo)
    points = [(e.position, e.violations[name]) for e in history if name in e.violations]
    if slo.limit > 0:
        sign = 1.0 if slo.sense == "<=" else -1.0
        ratios = [(p, 1 + sign * v / slo.limit) for p, v in points]
        if all(r > 0 for _, r in ratios):
            return [(p, sign * math.log(r)) for p, r in ratios]
    size = float(np.median([abs(v) for _, v in points])) if points else 1.0
    return [(p, v / (size or 1.0)) for p, v in points]


@frozen
class Suggestion:
    """A candidate to launch next, and the expected gain of any launch over the best.

    Attributes:
        improvement: logarithm by which one launch is expected to improve on the best (None: not
            known).
        odds: the highest of any candidate that may run that it is better than the best by
            `WORTH_IT` if it does.
        untried: a value of a knob of few values may run and was never launched beside the best.
    """

    position: int
    improvement: float | None
    odds: float = 1.0
    untried: bool = False

    @property
    def little(self) -> bool:
        """Return whether no launch is worth it: by expectation, by plausible luck, or by
        uncertainty."""
        return not self.untried and _expects_little(self.improvement, self.odds)


def _expects_little(improvement: float | None, odds: float) -> bool:
    return improvement is not None and improvement < GAIN and odds < PLAUSIBLE


def suggest(kernels: Kernels, history: History, number: int) -> Suggestion | None:
    """Return the most promising candidate, or None if every candidate is spent.

    The history's scores are less the offsets of their nodes. The number, with the study's seed,
    breaks ties.
    """
    seed = (history.spec.seed, number)
    posterior = model_of(kernels, history)
    leader = _leader(history, posterior)
    new = untried_neighbours(kernels, history, leader)
    rows = np.union1d(shortlist(kernels, posterior, history, seed), np.flatnonzero(new[0]))
    if not len(rows):
        return None
    chance = p_feasible(kernels, history, rows)
    incumbent = _incumbent(posterior, kernels, history)
    if len(kernels.alternatives) == 1 and len(history.by_position) <= SPREAD_OUT:
        return Suggestion(
            int(rows[argmax(_spread_score(kernels, history, rows) * chance, seed)]), None
        )
    if incumbent is None:
        # While nothing is feasible yet the odds of running decide, and means between 0.5 and 1
        # break ties.
        mean = posterior.mean(rows)
        rank = 0.5 + 0.5 * (mean - mean.min()) / (np.ptp(mean) or 1.0)
        return Suggestion(int(rows[argmax(chance * rank, seed)]), None)
    predicted = posterior.predict(rows)
    worth, left = (
        expected_improvement(predicted, incumbent + more) * chance for more in (WORTH_IT, 0.0)
    )
    above = [weight * ndtr((mean - incumbent - WORTH_IT) / sd) for weight, mean, sd in predicted]
    odds = float((sum(above) * (chance >= _MAY_RUN)).max())
    improvement = float(left.max())
    near, untried = new[:, rows] & (chance >= _MAY_RUN)
    untested = np.zeros(len(rows), dtype=np.int64)
    if number % TURN == 0 and (number <= _EARLY or number % (2 * TURN) == 0):
        untested = _untested(kernels, history, rows) * (chance >= _MAY_RUN)
    chosen = untested > 0 if untested.any() else near
    if (
        leader is not None
        and chosen.any()
        and (number % TURN == 0 or _expects_little(improvement, odds))
    ):
        # Without priors, whose favourites are launched anyway; 1e-12 keeps the order among zeros.
        alone = posterior.without_priors()
        level = float(alone.mean(ints([leader]))[0])
        found = [
            (w, mean, np.sqrt(sd**2 + _UNTESTED**2 * untested))
            for w, mean, sd in alone.predict(rows)
        ]
        worth = np.where(
            chosen, (expected_improvement(found, level + WORTH_IT) + 1e-12) * chance, 0.0
        )
    best = argmax(worth / kernels.costs[rows] if history.spec.hours else worth, seed)
    return Suggestion(int(rows[best]), improvement, odds, bool(untried.any()))


def _leader(history: History, posterior: Posterior) -> int | None:
    """Return the best measured candidate by posterior mean that may be recommended."""
    good = history.incumbents
    return good[int(posterior.mean(ints(good)).argmax())] if good else None


def untried_neighbours(kernels: Kernels, history: History, leader: int | None) -> Bools:
    """Find the candidates that differ from the best in one value, or in its layout, that no launch
    had with its other settings.

    Where rules tie knobs, they change together, as few as there may be. A value was tried beside
    the best if a launch had it with no more changes than that; one that is tried beside the product
    only, if a launch of the engine had it at all.

    Returns:
        Shape ``(2, candidates)``: which they are, and which of them stand for a value of a knob of
        `FEW` values.
    """
    found = np.zeros((2, len(kernels.encoding)), dtype=np.bool_)
    if leader is None:
        return found
    changes = (kernels.codes != kernels.codes[:, leader, None]).sum(axis=0)
    launched = ints([*history.by_position, *history.observed.positions])
    engines = kernels.encoding.codes[:, 0]
    alike = launched[engines[launched] == engines[leader]]
    for codes, beside in zip(kernels.factors, kernels.beside, strict=True):
        values = int(codes.max()) + 1
        fewest, tried = np.full((2, values), len(kernels.codes) + 1)
        np.minimum.at(fewest, codes, changes)
        np.minimum.at(tried, codes[launched], changes[launched])
        if beside:
            # Each change of the best would make all of them new again.
            tried[codes[alike]] = 0
        hit = (changes == fewest[codes]) & (tried > fewest)[codes]
        found |= hit & np.array([[True], [values <= FEW]])
    found[:, list(history.not_searchable)] = False
    return found


def _untested(kernels: Kernels, history: History, rows: Ints) -> Ints:
    """Count the values of each candidate that its engine was never launched with, shape
    ``(rows,)``."""
    launched = ints(list(history.by_position))
    found = np.zeros(len(rows), dtype=np.int64)
    engines = kernels.encoding.codes[:, 0]
    for codes in kernels.codes[kernels.several_engines :]:
        seen = np.zeros((int(engines.max()) + 1, int(codes.max()) + 1), dtype=np.bool_)
        seen[engines[launched], codes[launched]] = True
        found += ~seen[engines[rows], codes[rows]]
    return found


def _spread_score(kernels: Kernels, history: History, rows: Ints) -> Floats:
    """Return the share of each candidate's knobs with the least launched value, shape
    ``(rows,)``."""
    launched = list(history.by_position)
    found = np.zeros(len(rows))
    for codes in kernels.codes:
        found -= np.bincount(codes[launched], minlength=int(codes.max()) + 1)[codes[rows]]
    return floats(1.0 + (found - found.max()) / max(1, len(kernels.codes))).clip(0.0)


def shortlist(
    kernels: Kernels, posterior: Posterior, history: History, seed: Sequence[int]
) -> Ints:
    """Return the candidates for the next launch, ascending; none that is finished.

    In a large space those with the highest additive mean (priors and each knob's own effect), some
    at random, and what is one knob away from the best that were measured or looked at; engine
    defaults and good starts always.
    """
    free = history.searchable
    if np.count_nonzero(free) <= EVERY:
        return np.flatnonzero(free)
    generator = np.random.default_rng([*seed, len(free)])
    rough = np.where(free, posterior.additive_mean(), -np.inf)
    chosen = descending(rough)[:_BY_MEAN]
    chosen = np.union1d(chosen, generator.choice(len(free), _AT_RANDOM, replace=False))
    named = (*history.candidates.defaults, *history.candidates.starts)
    chosen = np.union1d(chosen, ints(named))
    if history.measured_scores:
        known = np.unique(history.observed.positions)
        leaders = known[descending(posterior.mean(known))[:_LEADERS]]
        chosen = np.union1d(chosen, neighbours(kernels, leaders))
    new = chosen[free[chosen]]
    chosen = new
    worth = posterior.ucb(new)
    for _ in range(_STEPS):
        leaders = chosen[descending(worth)[:_LEADERS]]
        new = np.setdiff1d(neighbours(kernels, leaders), chosen)
        new = new[free[new]]
        chosen = np.concatenate([chosen, new])
        worth = np.concatenate([worth, posterior.ucb(new)])
    return np.sort(chosen)


def neighbours(kernels: Kernels, rows: Ints) -> Ints:
    """Return the candidates that differ from one of these in one knob."""
    codes = kernels.codes.astype(np.uint32)  # half as much to be read
    found = [
        np.flatnonzero((codes != codes[:, row, None]).sum(axis=0, dtype=np.uint16) == 1)
        for row in rows
    ]
    return np.unique(np.concatenate(found)) if found else rows


def p_runs(kernels: Kernels, history: History, rows: Ints) -> Floats:
    """Return the probability that candidates start, by their priors and the launches; shape
    ``(rows,)``."""
    ran = history.observed.positions
    broken = [e.position for e in history if e.broke]
    out_of_memory = {e.position for e in history if e.out_of_memory}
    learned = p_starts(kernels.encoding, ran, broken, rows, out_of_memory, kernels.p_starts)
    return learned * believed(kernels.encoding, kernels.p_starts, kernels.doubts, ran, broken, rows)


def p_feasible(kernels: Kernels, history: History, rows: Ints) -> Floats:
    """Return the probability that candidates start and keep every SLO; shape ``(rows,)``."""
    return p_runs(kernels, history, rows) * p_keeps_slos(kernels, history, rows)


def expected_improvement(predicted: Mixture, incumbent: float) -> Floats:
    """Return the expected improvement on the incumbent of `Posterior.predict`, score units (Jones
    et al. 1998)."""
    total: Floats | float = 0.0
    for weight, mean, sd in predicted:
        sd = np.maximum(sd, 1e-12)
        z = (mean - incumbent) / sd
        total = total + weight * sd * (z * ndtr(z) + np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
    return floats(total)


def p_keeps_slos(kernels: Kernels, history: History, rows: Ints) -> Floats:
    """Return the probability that candidates meet every SLO, each modelled on its own metric; shape
    ``(rows,)``."""
    chance = np.ones(len(rows))
    for slo in history.spec.slos:
        if not (points := _scaled(slo, history)):
            continue
        positions, values = zip(*points, strict=True)
        posterior = Posterior(kernels, positions, values, True, history.spec.seed)
        chance *= sum(weight * ndtr(-mean / sd) for weight, mean, sd in posterior.predict(rows))
    return chance


def _incumbent(posterior: Posterior, kernels: Kernels, history: History) -> float | None:
    """Return the highest posterior mean of measured candidates that met the SLOs; None while
    nothing is feasible.

    What runs now counts as well where it more likely than not starts and keeps them. A lucky draw
    is shrunk.
    """
    running = ints(sorted(set(history.running)))
    if len(running):
        running = running[p_feasible(kernels, history, running) > _LIKELY]
    rows = np.concatenate([ints(history.incumbents), running])
    return float(posterior.mean(rows).max()) if len(rows) else None
