"""What the process believes of candidates that nobody has launched: predicted gain, and the odds of running."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from autotune.recommendation import Untried
from autotune.search.acquisition import Observations, keeps_slos
from autotune.search.causes import starts
from autotune.search.decomposition import ENGINE, Z
from autotune.search.estimate import percent
from autotune.search.history import History
from autotune.search.process import Floats, Kernels, Process
from autotune.space.candidates import Candidate
from autotune.trial import Command, Scalar

UNTRIED = 3
"""Candidates that are told of."""
LIKELY = 0.5
"""Odds of starting and keeping the limits below which a candidate is not worth telling of, while others are."""


def beliefs(
    history: History, model: Process, kernels: Kernels, winner: int, command_of: Callable[[Candidate], Command]
) -> list[Untried]:
    """The untried candidates of which most is expected, of those that are likely to start and keep the limits."""
    free = np.ones(len(history.candidates), dtype=np.bool_)
    free[list(history.done_with)] = False
    if not free.any():
        return []
    broken = [e.position for e in history if e.broke]
    odds = starts(kernels.encoding, [e.position for e in history if e.measured], broken)
    keeps = _keeps(history, kernels)
    likely = free & (odds * keeps >= LIKELY)
    allowed = likely if likely.any() else free
    order = np.argsort(-np.where(allowed, model.mean(), -np.inf), kind="stable")
    best = [int(p) for p in order[:UNTRIED] if allowed[p]]
    mean, covariance = model.joint(np.array([winner, *best], dtype=np.int64))
    rows = []
    for i, position in enumerate(best, start=1):
        gain = float(mean[i] - mean[0])
        half = Z * float(np.sqrt(max(0.0, covariance[i, i] + covariance[0, 0] - 2 * covariance[0, i])))
        candidate = history.candidates.items[position]
        rows.append(
            Untried(
                engine=candidate.configuration.engine,
                config=dict(candidate.configuration.knobs),
                changes=_changes(history, position, winner),
                command=command_of(candidate).shell(),
                predicted_gain_percent=percent(gain),
                ci95=(percent(gain - half), percent(gain + half)),
                starts=float(odds[position]),
                keeps_slos=float(keeps[position]),
            )
        )
    return rows


def _keeps(history: History, kernels: Kernels) -> Floats:
    """The odds that each candidate keeps the limits: how far beyond it is, as a share of the limit, is modelled."""
    points: dict[str, list[tuple[int, float]]] = {}
    for slo in history.spec.slos:
        rows = [(e.position, e.violations[str(slo)]) for e in history if e.violations and str(slo) in e.violations]
        size = abs(slo.limit) or float(np.median([abs(v) for _, v in rows] or [1.0])) or 1.0
        points[str(slo)] = [(p, v / size) for p, v in rows]
    return keeps_slos(kernels, Observations(slos=points)) if points else np.ones(len(history.candidates))


def _changes(history: History, position: int, winner: int) -> dict[str, Scalar]:
    items = history.candidates.items
    mine, theirs = items[position].configuration, items[winner].configuration
    engine: Mapping[str, Scalar] = {} if mine.engine == theirs.engine else {ENGINE: mine.engine}
    return {**engine, **{name: value for name, value in mine.knobs.items() if theirs.knobs.get(name) != value}}
