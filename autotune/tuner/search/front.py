"""Acquisition for two goals: expected hypervolume improvement of their Pareto front.

The front are the configurations that no other one beats in one goal without losing in the other.
What it is worth is the area between it and a reference point, its hypervolume, here in units of
logarithms squared. A candidate's two scores are taken as independent and normal; the expected
growth of the area is then exact, a sum over the steps of the front's staircase (Emmerich, Yang,
Deutz, Wang and Fonseca, A Multicriteria Generalization of Bayesian Global Optimization, 2016): with
E(t) the expected improvement of one score over t, each step from a to b at height h gives ``(E1(a)
- E1(b)) E2(h)``.

The reference point is the nadir of the measured front, the worst of each goal on it, moved away by
a tenth of the front's extent and by no less than a tenth of a logarithm, so that a new end of the
front is worth something too (Ishibuchi, Imada, Setoguchi and Nojima, How to Specify a Reference
Point in Hypervolume Calculation for Fair Performance Comparison, 2018).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autotune.base.arrays import Bools, Floats, Ints, argmax, floats, ints

from .acquisition import Suggestion, expected_improvement, model_of, p_feasible, shortlist, suggest
from .gp.kernels import Kernels
from .gp.posterior import Mixture, Posterior
from .history import History

_BEYOND = 0.1
"""Distance of the reference point beyond the nadir: share of the front's extent, and least
logarithm."""
_ENDLESS = 1e3
"""Logarithm beyond every score."""
_WORTH_A_TURN = 0.5
"""Share of the largest expected improvement below which another turn is not launched."""


def suggest_front(kernels: Kernels, history: History, number: int) -> Suggestion | None:
    """Suggest the next launch for the Pareto front, by the arguments of `acquisition.suggest`; None
    if none is left.

    In turns: where the front is expected to grow most; the best of the first goal, which is what is
    recommended; the best of the second. The last two are the ends of the front, beyond which the
    first one would hardly look. A turn that expects much less than another one gives way to it.

    `Suggestion.improvement` is the largest that any turn expects, in logarithms; the growth of the
    front is divided by the longer side of the box that holds it: how much one goal would gain all
    along it.
    """
    turn = number % 3
    turns = number // 3
    alone = suggest(kernels, history, turns)
    positions = sorted(
        {e.position for e in history if e.second is not None and history.feasible(e.position)}
    )
    if alone is None or alone.improvement is None or not positions:
        return alone
    seed = (history.spec.seed, number)
    one, two = _posteriors(kernels, history)
    rows = shortlist(kernels, one, history, seed)
    chance = p_feasible(kernels, history, rows)
    found = []
    # Running candidates are on the front as predicted, or near copies of them would be expected to
    # add as much again.
    for worth in _worths(one, two, ints([*positions, *history.running]), rows):
        best = argmax(worth * chance, seed)
        found.append((int(rows[best]), float(worth[best] * chance[best])))
    found.insert(1, (alone.position, alone.improvement))
    most = max(found, key=lambda place: place[1])
    position, _ = found[turn] if found[turn][1] >= _WORTH_A_TURN * most[1] else most
    return Suggestion(position, most[1], alone.odds)


def _posteriors(kernels: Kernels, history: History) -> tuple[Posterior, Posterior]:
    """Return the posteriors of both goals. The priors are of the first; for the second their
    weights have any sign."""
    one = model_of(kernels, history)
    positions, scores = zip(
        *((e.position, e.second) for e in history if e.second is not None), strict=True
    )
    two = Posterior(kernels, positions, scores, True, history.spec.seed)
    if not history.pending:
        return one, two
    return one, two.condition_on_pending(ints(history.running))


def _worths(one: Posterior, two: Posterior, measured: Ints, rows: Ints) -> tuple[Floats, Floats]:
    """Return the expected growth of the front, and expected improvement of the second goal; shapes
    ``(rows,)``."""
    front = non_dominated(np.stack([one.mean(measured), two.mean(measured)], axis=1))
    reference = reference_point(front)
    seconds = two.predict(rows)
    growth = expected_growth(one.predict(rows), seconds, front, reference)
    return growth / (front.max(axis=0) - reference).max(), expected_improvement(
        seconds, float(front[:, 1].max())
    )


def dominated(points: Floats) -> Bools:
    """Return which points are dominated, shape ``(points,)``."""
    no_better = np.all(points[:, None, :] <= points[None, :, :], axis=2)
    worse = np.any(points[:, None, :] < points[None, :, :], axis=2)
    return np.asarray(np.any(no_better & worse, axis=1), dtype=np.bool_)


def non_dominated(points: Floats) -> Floats:
    """Return the front of some points, by rising first and falling second coordinate, shape
    ``(points, 2)``."""
    return np.unique(points[~dominated(points)], axis=0)


def reference_point(front: Floats) -> Floats:
    """Return the corner where the area of a front starts, shape ``(2,)``; see the top of this
    file."""
    nadir = front.min(axis=0)
    return floats(nadir - np.maximum(_BEYOND * (front.max(axis=0) - nadir), _BEYOND))


def expected_growth(one: Mixture, two: Mixture, front: Floats, reference: Floats) -> Floats:
    """Return the expected growth of a front's area by a candidate's two scores, shape
    ``(candidates,)``.

    Args:
        one, two: what is believed of the candidates' scores; more is better.
        front: as of `non_dominated`, nowhere below `reference`.
    """
    total: Floats | float = 0.0
    for a, b, height in _steps(front, reference):
        total = total + (
            expected_improvement(one, a) - expected_improvement(one, b)
        ) * expected_improvement(two, height)
    return floats(total)


def _steps(front: Floats, reference: Floats) -> Iterator[tuple[float, float, float]]:
    """Return the steps of the front's staircase: from, to (first score), height (second score)."""
    edges = [float(reference[0]), *front[:, 0].tolist(), _ENDLESS]
    heights = [*front[:, 1].tolist(), float(reference[1])]
    return zip(edges, edges[1:], heights, strict=False)
