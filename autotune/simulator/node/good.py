"""What share of a load's requests keeps limits of its own, from the fluid: a fast prediction of goodput.

The first batch waits for its prompts, evenly up to the end of the ramp; who is admitted later waits evenly up to the
end of the full stage. Of each a twelfth is looked at, with answers of each length of `LoadSummary.lengths`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.arrays import Floats
from autotune.metrics.formulas import Slo
from autotune.simulator.node.fluid import Flow
from autotune.simulator.node.load_summary import SHARES, LoadSummary

_SPREAD = {"ttft": 0.2, "tpot": 0.15, "e2el": 0.1}
"""Standard deviation of ln(latency of a request / what the fluid says of it), so that no request is good or bad for
sure: that of the means (``benchmarks/priors.py``), as requests of one kind fare much alike."""


def good_share(load: LoadSummary, flow: Flow, limits: Sequence[Slo]) -> float | None:
    """Share of the requests that keep every limit, at least half of one; None where waits decide that are not foreseen.

    Limits on anything else than TTFT, TPOT and E2EL hold nothing back, see `autotune.metrics.formulas.summarize`.
    """
    asked = [(slo, latency) for slo in limits if (latency := _latency(slo)) is not None]
    if flow.wait_s is not None and any(latency != "tpot" for _, latency in asked):
        return None
    from scipy.special import ndtr  # Half a second to load.

    share = 0.0
    begins_s, ends_s = (0.0, float(flow.ramp_s)), (float(flow.ramp_s), float(flow.ramp_s + flow.full_s))
    for part, (begin_s, end_s), token_s in zip(
        (flow.first, 1 - flow.first), (begins_s, ends_s), flow.per_token_s, strict=True
    ):
        latencies = _latencies(load, begin_s + SHARES * (end_s - begin_s), token_s)
        good = np.ones((len(SHARES), len(SHARES)))
        for slo, latency in asked:
            beyond = np.log(np.maximum(latencies[latency], 1e-9) * 1e3 / max(slo.limit, 1e-9)) / _SPREAD[latency]
            good = np.minimum(good, ndtr(-beyond if slo.sense == "<=" else beyond))
        share += part * float(good.mean())
    return max(share, 0.5 / load.requests)


def _latencies(load: LoadSummary, wait_s: Floats, token_s: Floats) -> dict[str, Floats]:
    """Seconds by latency, shape (waits, lengths)."""
    first_s, each_s = np.broadcast_arrays(wait_s[:, None], token_s)
    return {"ttft": first_s, "tpot": each_s, "e2el": first_s + np.maximum(load.lengths - 1, 0) * each_s}


def _latency(slo: Slo) -> str | None:
    """Latency of single requests that an SLO bounds; None for one of throughput or of another quantity."""
    *_, latency, unit = ("", *slo.metric.split("_"))
    return latency if unit == "ms" and latency in _SPREAD else None
