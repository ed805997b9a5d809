"""The noise that launches get where no server has its own: one draw per launch, shared by all its loads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autotune.metrics.formulas import METRICS
from autotune.trial import Metrics, Trial


def noise_factor(sigma: float, seed: int, trial: Trial) -> float:
    """A log-normal factor on the node's speed, fixed by (seed, candidate, launch index)."""
    fingerprint = int(trial.configuration.fingerprint, 16)
    generator = np.random.default_rng([seed, fingerprint, trial.launch_index])
    return math.exp(sigma * float(generator.standard_normal()))


def scaled(metrics: Mapping[str, object], factor: float) -> Metrics:
    """Metrics of a node that is faster by a factor: rates multiplied, times divided."""
    result: Metrics = {}
    for name, value in metrics.items():
        metric = METRICS.get(name)
        if metric is None or not isinstance(value, int | float) or isinstance(value, bool):
            result[name] = value
        else:
            result[name] = value * factor**metric.time_power
    return result
