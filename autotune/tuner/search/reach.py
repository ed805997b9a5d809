"""Stop a study early if no configuration can meet its limits: SLOs, and the least share of good
requests.

The posterior of the violations is too confident for that: after seven launches it gave odds of
0.001 to limits that the fourteenth launch met (``benchmarks/tuner/limits.py`` plays such studies).
So the physics prior decides. If it predicts a limited metric, its ranking of the candidates is
right, and its level is wrong by a factor that the launches show. Every prediction is multiplied by
the most favourable of these factors, and must still be far beyond a limit.
"""

import math

import numpy as np

from autotune.load.metrics.formulas import Slo

from .entry import Entry
from .gp.kernels import Kernels
from .history import History

OUT_OF_REACH = "the limits are out of reach: after the launches so far no configuration is expected to come near them"
"""Reason of the end of such a study."""
LEAST = 5
"""Measured launches, of at least two commands, before limits may be out of reach."""
FAR, LEAST_PREDICTED = 1.5, 1.3
"""Least ratio of the worst metric to its limit: of the launch that came nearest, and of every
candidate's prediction."""


def out_of_reach(kernels: Kernels, history: History) -> bool:
    """Return whether no launch came near the limits, and no candidate is predicted to."""
    slos = history.spec.with_goodput_floor.slos
    limited = [e for e in history if e.violations]
    positions = [e.position for e in limited]
    predicted = kernels.limit_ratios
    if predicted is None or len(limited) < LEAST or len({*positions}) < 2:
        return False
    measured = np.array([[_beyond(slo, e) for slo in slos] for e in limited])
    if measured.max(axis=1).min() < math.log(FAR):
        return False
    # A limit whose metric was not measured or is not predicted counts as met.
    errors = np.nan_to_num(measured.T - predicted[:, positions], nan=-np.inf)
    most_favourable = np.minimum(errors.min(axis=1, keepdims=True), 0.0)
    with np.errstate(invalid="ignore"):
        worst = np.nan_to_num(predicted + most_favourable, nan=-np.inf).max(axis=0)
    return bool(worst.min() >= math.log(LEAST_PREDICTED))


def times(slo: Slo, value: float) -> float:
    """Return metric / limit, or limit / metric for a lower limit: above 1 it is violated."""
    above, below = (value, slo.limit) if slo.sense == "<=" else (slo.limit, value)
    return above / below if below > 0 else math.inf if above > 0 else 1.0


def _beyond(slo: Slo, launch: Entry) -> float:
    """Return the logarithm of `times`; minus infinity if the launch lacks the metric."""
    violation = launch.violations.get(str(slo))
    if violation is None:
        return -math.inf
    found = times(slo, slo.limit + violation if slo.sense == "<=" else slo.limit - violation)
    return math.log(max(found, 1e-9)) if found < math.inf else 20.0
