"""Acquisition for two goals: expected hypervolume improvement of their Pareto front.

The front consists of the non-dominated configurations. Its hypervolume is the area between it and a
reference point, in units of logarithms squared. If a candidate's two scores are independent and
normal, the expected growth of this area is an exact sum over the steps of the front's staircase
(Emmerich, Yang, Deutz, Wang and Fonseca, A Multicriteria Generalization of Bayesian Global
Optimization, 2016): with E(t) the expected improvement of a score over t, a step from a to b at
height h contributes ``(E1(a) - E1(b)) E2(h)``.

The reference point is the nadir of the measured front, the worst value of each goal on it, moved
away by a tenth of the front's extent and by at least a tenth of a logarithm, so that a new end of
the front counts too (Ishibuchi, Imada, Setoguchi and Nojima, How to Specify a Reference Point in
Hypervolume Calculation for Fair Performance Comparison, 2018).
"""

from collections.abc import Iterator

import numpy as np

from autotune.base.arrays import Bools, Floats, Ints, argmax, floats, ints

from .acquisition import Suggestion, expected_improvement, model_of, p_feasible, shortlist, suggest
from .gp.kernels import Kernels
from .gp.posterior import Mixture, Posterior
from .history import History

_BEYOND = 0.1
"""Distance of the reference point from the nadir: as a share of the front's extent, and at least
this logarithm."""
_ENDLESS = 1e3
"""A score above all others."""
_WORTH_A_TURN = 0.5
"""Least expected improvement of a turn, as a share of the largest one, for its own launch."""


def suggest_front(kernels: Kernels, history: History, number: int) -> Suggestion | None:
    """Suggest the next launch for the Pareto front; None if no candidate is left. The arguments are
    those of `acquisition.suggest`.

    There are three turns: the candidate of the largest expected growth of the front; the best one
    for the first goal, by which a command is recommended; the best one for the second goal. The
    last two extend the ends of the front, which its growth alone would neglect. A turn whose
    expected improvement is much smaller than another one's is replaced by that one.

    `Suggestion.improvement` is the largest expected improvement of a turn, in logarithms. For the
    growth of the front it is the growth over the longer side of the front's bounding box, i.e. the
    gain of one goal along the whole front.
    """
    turn = number % 3
    alone = suggest(kernels, history, number // 3)
    positions = sorted(
        {e.position for e in history if e.second is not None and history.feasible(e.position)}
    )
    if alone is None or alone.improvement is None or not positions:
        return alone
    seed = (history.spec.seed, number)
    one = model_of(kernels, history)
    measured, scores = zip(
        *((e.position, e.second) for e in history if e.second is not None), strict=True
    )
    # The priors predict the first goal; for the second their weights may have either sign.
    two = Posterior(kernels, measured, scores, True, history.spec.seed)
    if history.pending:
        two = two.condition_on_pending(ints(history.running))
    rows = shortlist(kernels, one, history, seed)
    chance = p_feasible(kernels, history, rows)
    found = []
    # Put running candidates on the front as predicted, so that near copies of them add little.
    for improvement in _improvements(one, two, ints([*positions, *history.running]), rows):
        expected = improvement * chance
        best = argmax(expected, seed)
        found.append((int(rows[best]), float(expected[best])))
    found.insert(1, (alone.position, alone.improvement))
    most = max(found, key=lambda place: place[1])
    position, _ = found[turn] if found[turn][1] >= _WORTH_A_TURN * most[1] else most
    return Suggestion(position, most[1], alone.odds)


def _improvements(
    one: Posterior, two: Posterior, measured: Ints, rows: Ints
) -> tuple[Floats, Floats]:
    """Return the expected growth of the front over the longer side of its bounding box, and the
    expected improvement of the second goal; shapes ``(rows,)``."""
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
    """Return the reference point of a front's hypervolume, shape ``(2,)``; see the top of this
    file."""
    nadir = front.min(axis=0)
    return floats(nadir - np.maximum(_BEYOND * (front.max(axis=0) - nadir), _BEYOND))


def expected_growth(one: Mixture, two: Mixture, front: Floats, reference: Floats) -> Floats:
    """Return the expected growth of a front's area by a candidate's two scores, shape
    ``(candidates,)``.

    Args:
        one, two: predictive distributions of the candidates' scores; more is better.
        front: from `non_dominated`, nowhere below `reference`.
    """
    total: Floats | float = 0.0
    for a, b, height in _steps(front, reference):
        total = total + (
            expected_improvement(one, a) - expected_improvement(one, b)
        ) * expected_improvement(two, height)
    return floats(total)


def _steps(front: Floats, reference: Floats) -> Iterator[tuple[float, float, float]]:
    """Return the steps of the front's staircase: start and end (first score), height (second)."""
    edges = [float(reference[0]), *front[:, 0].tolist(), _ENDLESS]
    heights = [*front[:, 1].tolist(), float(reference[1])]
    return zip(edges, edges[1:], heights, strict=False)
