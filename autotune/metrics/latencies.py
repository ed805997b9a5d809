"""Latencies of requests and the statistics of them: the formulas that the whole run and its windows share.

Definitions are those of ``vllm bench serve``, see `autotune.metrics.formulas`. Milliseconds throughout.
"""

from __future__ import annotations

import numpy as np

from autotune.arrays import Floats
from autotune.metrics.records import RequestRecords
from autotune.trial import Metrics

QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Statistic to the quantile that it is, interpolated linearly."""

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def tpot_ms(records: RequestRecords) -> Floats:
    """Time per output token after the first, per request; 0 where there was only one token, shape (n,)."""
    gaps = np.maximum(records.output_tokens - 1, 1)
    return np.where(records.output_tokens > 1, (records.finished_s - records.first_token_s) / gaps * 1e3, 0.0)


def latencies(done: RequestRecords) -> dict[str, Floats]:
    """Every sample of each latency of requests that succeeded; those of one token have no TPOT."""
    return {
        "ttft": (done.first_token_s - done.sent_s) * 1e3,
        "tpot": tpot_ms(done)[done.output_tokens > 1],
        "itl": done.itl_ms,
        "e2el": (done.finished_s - done.sent_s) * 1e3,
    }


def statistics(name: str, values: Floats) -> Metrics:
    """All `STATISTICS` of a latency's samples under their names, e.g. ``p99_ttft_ms``; 0 where there is no sample."""
    if not len(values):
        return {f"{statistic}_{name}_ms": 0.0 for statistic in STATISTICS}
    p50, p90, p95, p99 = (float(v) for v in np.percentile(values, (50, 90, 95, 99)))
    figures = (float(np.mean(values)), p50, float(np.std(values)), p90, p95, p99)
    return {f"{statistic}_{name}_ms": value for statistic, value in zip(STATISTICS, figures, strict=True)}


def token_series(done: RequestRecords) -> tuple[Floats, Floats]:
    """When output tokens came and how many: two columns of shape (k,); at the end of each request if not streamed."""
    if len(done.token_s):
        return done.token_s, done.token_n
    return done.finished_s, done.output_tokens
