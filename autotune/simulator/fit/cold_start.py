"""The silence of a cold server: many seconds at the beginning of its first load in which it answers nobody.

The first load after a start compiles and tunes kernels for the shapes that it brings. Nothing of that is in the
simulated server, which is warm; a fit that sees it would learn a slow engine.

The rule. With all requests sent at once they queue up, and the times to the first token are spread about evenly between
the first and the last. Half of their sum is the mean, the last is about the 99th percentile; so the first token comes
at about 2 x mean - p99. On the performance lab's rows that is 11 to 17 s for three that nobody warmed up, and within
some 4 s of the simulated server's own in nearly all others. Long queues are not quite even: a server that runs 48
requests at a time gives 14 to 17 s of 176 to 261 s by the same formula, and is not cold. So a silence must be longer
than `LEAST_S` and at least `LEAST_SHARE` of the 99th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.loadgen.workloads import Workload

LEAST_S = 8.0
LEAST_SHARE = 0.25
_ERROR_S = 2.0
"""Standard deviation of the estimate; its difference from the simulated server's own is within twice that."""

_NOISE = 0.1
"""Standard deviation of ln(throughput) of single runs of one configuration: 5 % in vLLM, 15 % in SGLang."""

_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_FROM_SENDING = ("ttft", "e2el")


def cold_start_s(workload: Workload, metrics: Mapping[str, float]) -> float:
    """Seconds at the beginning of a run in which the server answered nobody; 0 where it is not cold, or not known."""
    at_once = len(workload.points) == 1 and workload.points[0].arrival.kind == "all_at_once"
    needed = ("mean_ttft_ms", "p99_ttft_ms", "duration")
    if not at_once or any(name not in metrics for name in needed):
        return 0.0
    mean, last, duration = (metrics[name] for name in needed)
    first_s = (2 * mean - last) / 1e3
    cold = first_s > LEAST_S and first_s >= LEAST_SHARE * last / 1e3 and first_s < duration
    return first_s if cold else 0.0


def without_cold_start(metrics: Mapping[str, float], silent: float) -> dict[str, float]:
    """The metrics of the run less the silent seconds: what the fit is compared with.

    Rates over the whole run grow, times from the sending of a request shrink; what happens between tokens stays.
    """
    if not silent:
        return dict(metrics)
    duration = metrics["duration"]
    changed = dict(metrics)
    for name, value in metrics.items():
        statistic, _, rest = name.partition("_")
        if name in _RATES:
            changed[name] = value * duration / (duration - silent)
        elif statistic != "std" and rest.removesuffix("_ms") in _FROM_SENDING:
            changed[name] = max(value - silent * 1e3, 1.0)
    changed["duration"] = duration - silent
    return changed


def weight(metrics: Mapping[str, float], silent: float) -> float:
    """Weight of a run whose silence was taken off, against one of a warm server: by the variances of both."""
    if not silent:
        return 1.0
    error = _ERROR_S / (metrics["duration"] - silent)
    return _NOISE**2 / (_NOISE**2 + math.pow(error, 2))
