"""Stop a study early if no configuration can meet its limits: SLOs, and the least share of good
requests.

The posterior of the violations alone does not decide: after seven launches it gave odds of 0.001 to
limits that the fourteenth launch kept (``benchmarks/tuner/limits.py`` plays such studies). The physics
prior decides: where it predicts the limited metrics, its order of the candidates is right, and its
level is off by a factor that the launches show. Each prediction is multiplied by the most
favourable of these factors, and must still be far beyond a limit.
"""

from __future__ import annotations

import math

import numpy as np

from autotune.load.metrics.formulas import Slo

from .entry import Entry
from .gp.kernels import Kernels
from .history import History

OUT_OF_REACH = "the limits are out of reach: after the launches so far no configuration is expected to come near them"
"""Reason of the end of such a study."""
LEAST = 5
"""Launches with figures, of two commands or more, before limits count as out of reach."""
FAR, LEAST_PREDICTED = 1.5, 1.3
"""Least ratio to its limit of the nearest launch's worst metric, and of every candidate's
prediction."""


def out_of_reach(kernels: Kernels, history: History) -> bool:
    """Return whether no launch came near the limits and no candidate is predicted to."""
    slos = history.spec.with_goodput_floor.slos
    limited = [e for e in history if e.violations]
    if kernels.beyond is None or len(limited) < LEAST or len({e.position for e in limited}) < 2:
        return False
    seen = np.array([[_beyond(slo, e) for slo in slos] for e in limited])
    if seen.max(axis=1).min() < math.log(FAR):
        return False
    predicted = kernels.beyond
    errors = seen.T - predicted[:, [e.position for e in limited]]
    # A limit of which a launch or the prior tells nothing counts as kept.
    kindest = np.minimum(np.nan_to_num(errors, nan=-np.inf).min(axis=1), 0.0)
    with np.errstate(invalid="ignore"):
        worst = np.nan_to_num(predicted + kindest[:, None], nan=-np.inf).max(axis=0)
    return bool(worst.min() >= math.log(LEAST_PREDICTED))


def times(slo: Slo, value: float) -> float:
    """Return metric / limit, or limit / metric for a lower limit: above 1 the limit is violated."""
    above, below = (value, slo.limit) if slo.sense == "<=" else (slo.limit, value)
    return above / below if below > 0 else math.inf if above > 0 else 1.0


def _beyond(slo: Slo, launch: Entry) -> float:
    """Return the logarithm of `times`; minus infinity if the launch lacks the metric."""
    violation = launch.violations.get(str(slo))
    if violation is None:
        return -math.inf
    found = times(slo, slo.limit + violation if slo.sense == "<=" else slo.limit - violation)
    return math.log(max(found, 1e-9)) if found < math.inf else 20.0
