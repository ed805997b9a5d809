"""Predict candidates that nobody has launched: gain, and the probability of starting."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from autotune.arrays import descending
from autotune.search.acquisition import p_keeps_slos, p_runs, shortlist
from autotune.search.decide.estimate import Z, percent
from autotune.search.explain.attribution import ENGINE
from autotune.search.gp.kernels import Kernels
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.search.observations import observations
from autotune.space.enumeration import Candidate
from autotune.study.recommendation import Prediction
from autotune.trial import Command, Scalar

UNTRIED = 3
"""Candidates that are reported."""
LIKELY = 0.5
"""Odds of starting and keeping the limits below which a candidate is not worth telling of, while others are."""


def predictions(
    history: History, model: Posterior, kernels: Kernels, winner: int, command_of: Callable[[Candidate], Command]
) -> list[Prediction]:
    """The untried candidates of which most is expected, of those that are likely to start and keep the limits."""
    seen = observations(history)
    rows = shortlist(kernels, model, seen.done_with, [p for p, _ in seen.measured], (len(history),))
    if not len(rows):
        return []
    odds, keeps = p_runs(kernels, seen, rows), p_keeps_slos(kernels, seen, rows)
    likely = odds * keeps >= LIKELY
    allowed = likely if likely.any() else np.ones(len(rows), dtype=np.bool_)
    order = descending(np.where(allowed, model.mean(rows), -np.inf))
    places = [int(i) for i in order[:UNTRIED] if allowed[i]]
    best = [int(rows[i]) for i in places]
    mean, covariance = model.joint(np.array([winner, *best], dtype=np.int64))
    told = []
    for i, (place, position) in enumerate(zip(places, best, strict=True), start=1):
        gain = float(mean[i] - mean[0])
        half = Z * float(np.sqrt(max(0.0, covariance[i, i] + covariance[0, 0] - 2 * covariance[0, i])))
        candidate = history.candidates.items[position]
        told.append(
            Prediction(
                engine=candidate.configuration.engine,
                config=dict(candidate.configuration.knobs),
                changes=_changes(history, position, winner),
                command=command_of(candidate).shell(),
                predicted_gain_percent=percent(gain),
                ci95=(percent(gain - half), percent(gain + half)),
                starts=float(odds[place]),
                keeps_slos=float(keeps[place]),
            )
        )
    return told


def _changes(history: History, position: int, winner: int) -> dict[str, Scalar]:
    items = history.candidates.items
    mine, theirs = items[position].configuration, items[winner].configuration
    engine: Mapping[str, Scalar] = {} if mine.engine == theirs.engine else {ENGINE: mine.engine}
    return {**engine, **{name: value for name, value in mine.knobs.items() if theirs.knobs.get(name) != value}}
