"""Rank the leaders, and value a repeat of one of them against a new candidate (knowledge gradient).

A single launch may be lucky, and the best of many launches usually was. So the leader is the best by the model's mean,
which shrinks lucky launches, and a leader is launched again when that is expected to change the choice for more than
the stated gain (the knowledge gradient: Frazier, Powell and Dayanik, INFORMS J. Comput. 21, 2009, for correlated
means).
"""

from __future__ import annotations

import numpy as np

from autotune.arrays import Floats, descending
from autotune.search.decide.sequential_test import mean
from autotune.search.decide.simplify import spread_of
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History

LEADERS = 5
"""How many of the best are compared."""
_POINTS = np.linspace(-4.0, 4.0, 161)
_CHANCES = np.exp(-0.5 * _POINTS**2) / np.exp(-0.5 * _POINTS**2).sum()
"""Of the launch's outcome, in standard deviations of what it may be."""


def challengers(history: History) -> list[int]:
    """Return the configurations other than the baseline that ran, kept the limits and may be recommended."""
    others = (p for p in history.by_position if p != history.candidates.baseline)
    return [p for p in others if history.feasible(p) and p not in history.barred]


def ranked(model: Posterior, history: History) -> list[int]:
    """Return the challengers, the best first: by the model's mean, and by their own launches as far as these tell more.

    What the model takes for noise beyond the spread of a launch is an effect of the candidate's own.
    """
    positions = challengers(history)
    if not positions:
        return []
    means, variance = model.mean(np.array(positions, dtype=np.int64)), spread_of(history) ** 2
    own = max(0.0, model.noise**2 - variance)
    scores = [history.scores(position) for position in positions]
    known = np.array([own / max(own + variance / len(mine), 1e-12) for mine in scores])
    return [positions[i] for i in descending(means + known * (np.array([mean(mine) for mine in scores]) - means))]


def gradients(means: Floats, covariance: Floats, noise: float) -> Floats:
    """Knowledge gradients: expected rise of the best mean by a launch of each; shape ``(rows,)``, score units.

    Args:
        means, covariance: of the true scores.
        noise: standard deviation of one launch.
    """
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0) + noise**2)
    shifts = covariance / np.maximum(spread, 1e-12)
    after = means[:, None, None] + shifts[:, :, None] * _POINTS
    return np.asarray(after.max(axis=0) @ _CHANCES - means.max(), dtype=np.float64)


def next_repeat(
    model: Posterior, history: History, noise: float, candidate: int | None = None
) -> tuple[int, float, float]:
    """Return the leader to launch again, what that is worth, and what a launch of a new candidate is worth.

    The baseline is something to choose, but its turn comes in the finals.

    Args:
        noise: standard deviation of one launch.
        candidate: the new one; without it the third value is 0.
    """
    leaders = ranked(model, history)[:LEADERS]
    base = history.candidates.baseline
    rows = [*leaders, *([base] if history.feasible(base) else []), *([] if candidate is None else [candidate])]
    worth = gradients(*model.joint(np.array(rows, dtype=np.int64)), noise)
    best = int(descending(worth[: len(leaders)])[0])
    return leaders[best], float(worth[best]), float(worth[-1]) if candidate is not None else 0.0
