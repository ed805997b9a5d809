"""What a study knows at its end: the regret that remains, and what the launches taught about the node's physics."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from autotune.arrays import descending
from autotune.search.acquisition import p_feasible, shortlist
from autotune.search.decide.estimate import percent
from autotune.search.gp.kernels import Kernels
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.study.recommendation import LearnedFigure, Regret

ODDS = 0.9
_PLACES, _DRAWS = 64, 2000
"""Untried candidates that may be better, and draws of all scores."""
MOVED = 0.75
"""Of its standard deviation, by which a figure must have moved to be told; also less than a tenth of it is not."""
_LEAST_SHIFT = 0.1
_MOST_FIGURES = 5
_UNITS = {"us": "us", "ms": "ms", "share": "of the peak"}


def regret(history: History, model: Posterior, kernels: Kernels, winner: int) -> Regret:
    """By how much anything may still be better than the winner, with the odds that nothing is better by more.

    True scores are drawn together for the winner, for what was tried and kept the limits, and for the untried
    candidates that are likeliest to be better; an untried one may fail to start, or break a limit.
    """
    rows = shortlist(kernels, model, history, (history.spec.seed, len(history)))
    chance = p_feasible(kernels, history, rows)
    level = model.mean(np.array([winner]))[0]
    better = sum(weight * ndtr((mean - level) / sd) for weight, mean, sd in model.predict(rows)) * chance
    chosen = descending(np.asarray(better, dtype=np.float64))[:_PLACES]
    tried = [position for position in history.by_position if position != winner and history.feasible(position)]
    places = np.array([winner, *tried, *rows[chosen]], dtype=np.int64)
    scores = model.draws(places, _DRAWS, history.spec.seed)
    odds = np.concatenate([np.ones(1 + len(tried)), chance[chosen]])
    runs = np.random.default_rng([history.spec.seed, _DRAWS, 1]).random(scores.shape) < odds
    most = np.where(runs, scores, -np.inf).max(axis=1) - scores[:, 0]
    return Regret(percent=percent(float(np.quantile(most, ODDS))), odds=ODDS)


def learned_figures(model: Posterior, kernels: Kernels) -> list[LearnedFigure]:
    """The figures that the launches moved, of the source that they bear out, those that moved furthest first."""
    which = int(model.belief.argmax())
    figures = kernels.figures[which]
    if not figures:
        return []
    shift, before, after = model.figures(which, np.array([one.logs for one in figures]))
    moved = np.abs(shift) / np.maximum(before, 1e-12)
    told = (moved >= MOVED) & (np.abs(shift) >= _LEAST_SHIFT) & (after < before)
    rows = [(figures[i], float(shift[i])) for i in descending(moved) if told[i]]
    found: dict[tuple[str, str | None], LearnedFigure] = {}
    for one, by in rows:
        same = [other for other in figures if other.name == one.name]
        alike = len(same) > 1 and all(
            math.isclose(other.value, one.value) and any(o is other and abs(s - by) < _LEAST_SHIFT for o, s in rows)
            for other in same
        )
        engine = None if alike else one.engine
        row = LearnedFigure(
            figure=one.name,
            engine=engine,
            from_=float(f"{one.value:.3g}"),
            to=float(f"{one.value * math.exp(by):.3g}"),
            unit=_UNITS.get(one.name.rpartition("_")[2], ""),
        )
        found.setdefault((one.name, engine), row)
    return list(found.values())[:_MOST_FIGURES]
