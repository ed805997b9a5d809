"""Intervals of a mean, of a ratio of throughputs and of a change in latencies, all 95 %."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.loadgen.request_file import RequestTable

Interval = tuple[float, float]

INTERVAL_ERROR = 0.05
MIN_REQUESTS = 20
"""With fewer requests the resampled means say little of the real ones."""

_RESAMPLES = 1000
_DRAWS = 10_000_000
"""Draws per run and statistic: a run of very many requests has fewer resamples, which then suffice too."""
_MIN_RESAMPLES = 200
_BLOCK = 2_000_000
"""Draws held in memory at a time."""


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean of two values or more."""
    mean, squared_error = _moments(np.asarray(values, dtype=np.float64))
    half = _student(len(values) - 1) * math.sqrt(squared_error)
    return mean - half, mean + half


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's interval of B over A, of geometric means, as a change in percent.

    Spreads may differ (B. L. Welch, Biometrika 34, 1947); logarithms, as a node's noise multiplies. None for fewer
    than two values on a side, or a value that is not above 0.
    """
    if min(len(a), len(b)) < 2 or min(*a, *b) <= 0:
        return None
    (mean_a, error_a), (mean_b, error_b) = _moments(np.log(a)), _moments(np.log(b))
    error = error_a + error_b
    half = 0.0
    if error > 0:
        degrees = error**2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
        half = _student(degrees) * math.sqrt(error)
    change = mean_b - mean_a
    return 100 * math.expm1(change - half), 100 * math.expm1(change + half)


def _student(degrees: float) -> float:
    """Student's t that the mean leaves on either side in `INTERVAL_ERROR` of all cases."""
    from scipy.special import stdtrit  # Half a second to load, for those who repeat.

    return float(stdtrit(degrees, 1 - INTERVAL_ERROR / 2))


def _moments(values: Floats) -> tuple[float, float]:
    """The mean, and the square of its standard error."""
    return float(values.mean()), float(values.var(ddof=1)) / len(values)


def latency_intervals(a: RequestTable, b: RequestTable, seed: int = 0) -> dict[str, Interval]:
    """Intervals of the change from A to B in percent, by metric name, from resampled requests.

    The percentile bootstrap over the successful requests of each run, within each load (B. Efron, Annals of
    Statistics 7, 1979). It knows how requests of one run differ, not how runs differ. A metric is left out where a
    run has fewer than `MIN_REQUESTS` requests, or a latency of 0.
    """
    rng = np.random.default_rng(seed)
    intervals: dict[str, Interval] = {}
    latencies = zip(_latencies_ms(a), _latencies_ms(b), strict=True)
    for (name, values_a, loads_a), (_, values_b, loads_b) in latencies:
        if min(len(values_a), len(values_b)) < MIN_REQUESTS:
            continue
        resamples = min(_RESAMPLES, max(_MIN_RESAMPLES, _DRAWS // max(len(values_a), len(values_b))))
        drawn_a, drawn_b = (_resampled(v, w, resamples, rng) for v, w in ((values_a, loads_a), (values_b, loads_b)))
        for statistic, low, high in zip(("mean", "median"), drawn_a, drawn_b, strict=True):
            if low.min() > 0:
                ends = np.percentile(high / low - 1, (100 * INTERVAL_ERROR / 2, 100 * (1 - INTERVAL_ERROR / 2)))
                intervals[f"{statistic}_{name}_ms"] = (100 * float(ends[0]), 100 * float(ends[1]))
    return intervals


def _latencies_ms(table: RequestTable) -> Iterator[tuple[str, Floats, Ints]]:
    """Name, value per successful request, and the load it belongs to; definitions as in `autotune.metrics.formulas`."""
    columns = table.columns
    ok = columns["outcome"] == "ok"
    _, points = np.unique(columns["point"].astype(str), return_inverse=True)
    loads = points * (1 + columns["seed"].max(initial=0)) + columns["seed"]
    several = ok & (columns["output_tokens"] > 1)
    gaps = columns["output_tokens"][several] - 1
    generating_s = (columns["e2el_s"] - columns["ttft_s"])[several]
    yield "ttft", columns["ttft_s"][ok] * 1e3, loads[ok]
    yield "tpot", generating_s / gaps * 1e3, loads[several]
    yield "e2el", columns["e2el_s"][ok] * 1e3, loads[ok]


def _resampled(values: Floats, loads: Ints, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Means and medians of resampled requests, each of shape (resamples,)."""
    members = [np.flatnonzero(loads == load) for load in np.unique(loads)]
    block = max(1, _BLOCK // len(values))
    means, medians = np.empty(resamples), np.empty(resamples)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        chosen = [each[rng.integers(0, len(each), (count, len(each)))] for each in members]
        drawn = values[np.concatenate(chosen, axis=1)]
        means[start : start + count] = drawn.mean(axis=1)
        medians[start : start + count] = np.median(drawn, axis=1)
    return means, medians
