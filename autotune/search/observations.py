"""Turn a study's history into the observations of the acquisition functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.metrics.formulas import Slo
from autotune.search.acquisition import Observations
from autotune.search.history import History


def observations(history: History) -> Observations:
    """Observations of a history; launches of equivalent candidates count for one."""
    measured = [e for e in history if e.score is not None]
    return Observations(
        measured=[(e.position, e.score) for e in measured if e.score is not None],
        feasible=[history.feasible(e.position) for e in measured],
        slos={str(slo): scaled(slo, _violations(history, slo)) for slo in history.spec.slos},
        second=[(e.position, e.second) for e in history if e.second is not None],
        broken=[e.position for e in history if e.broke],
        out_of_memory=frozenset(e.position for e in history if e.out_of_memory),
        pending=[e.position for e in history.pending],
        spent=history.done_with,
    )


def _violations(history: History, slo: Slo) -> list[tuple[int, float]]:
    return [(e.position, e.violations[str(slo)]) for e in history if e.violations and str(slo) in e.violations]


def scaled(slo: Slo | None, points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Violations as logarithms of metric over limit where that exists, else over their typical size.

    Args:
        slo: None for a constraint of which only the violations are known.
        points: position and violation.
    """
    if slo is not None and slo.limit > 0:
        sign = 1.0 if slo.sense == "<=" else -1.0
        ratios = [(p, 1 + sign * v / slo.limit) for p, v in points]
        if all(r > 0 for _, r in ratios):
            return [(p, sign * math.log(r)) for p, r in ratios]
    size = float(np.median([abs(v) for _, v in points])) if points else 1.0
    return [(p, v / (size or 1.0)) for p, v in points]
