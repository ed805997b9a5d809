"""What a server carries within limits on its latencies, from the fluid at a few loads: a fast prediction.

The loads are closed loops. At each the fluid tells the mean time to the first token and per token; a quantile is taken
as a multiple of the mean. Where the worst of the limits is reached lies between two loads, on straight lines through
logarithms. An open loop is carried as the closed one that holds as many in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.arrays import Floats
from autotune.metrics.formulas import Slo
from autotune.metrics.records import QUANTILES
from autotune.simulator.node.fluid import Flow
from autotune.simulator.node.load_summary import LoadSummary
from autotune.simulator.node.steptime import Seconds

IN_FLIGHT = (8, 32, 128, 512)
"""The loads at which the fluid is looked at."""
_UPPER_TTFT, _UPPER_TPOT = 2.0, 1.4
"""A 90th percentile or higher over the mean, of chats on the simulated node below saturation; a third more or less."""


def carried(loads: Sequence[LoadSummary], flows: Sequence[Flow], slos: Sequence[Slo]) -> tuple[Floats, Floats]:
    """Tokens per second and requests in flight at the capacity, logarithms; of draws arrays of shape (draws,).

    Args:
        loads: closed loops, ascending, of the same prompts.
        slos: limits on anything else than a latency of requests hold nothing back.

    A server that breaks a limit at the lightest load has less than that load's throughput, by as much as it is beyond.
    """
    beyond, speeds = [], []
    for load, flow in zip(loads, flows, strict=True):
        wait_s, token_s = np.asarray(flow.mean_wait_s), np.asarray(flow.mean_token_s)
        limits = [_beyond(slo, load, wait_s, token_s) for slo in slos]
        beyond.append(np.max([one for one in limits if one is not None], axis=0))
        # Little's law.
        speeds.append(np.log(load.in_flight * (load.read + load.written) / (wait_s + flow.answer_s)))
    places = np.log([load.in_flight for load in loads])
    speed, place = np.asarray(speeds[-1]), np.asarray(speeds[-1]) * 0 + places[-1]
    for i in range(len(loads) - 2, -1, -1):
        rise = np.maximum(beyond[i + 1] - beyond[i], 1e-9)
        share = np.clip(-beyond[i] / rise, 0.0, 1.0)
        crossed = beyond[i + 1] > 0
        speed = np.where(crossed, speeds[i] + share * (speeds[i + 1] - speeds[i]), speed)
        place = np.where(crossed, places[i] + share * (places[i + 1] - places[i]), place)
    short = np.maximum(beyond[0], 0.0)
    return np.asarray(speed - short), np.asarray(place - short)


def _beyond(slo: Slo, load: LoadSummary, wait_s: Seconds, token_s: Seconds) -> Floats | None:
    """ln(latency / limit); None of what is not foreseen."""
    statistic, _, rest = slo.metric.partition("_")
    if statistic not in (*QUANTILES, "mean") or slo.sense != "<=" or slo.limit <= 0:
        return None
    upper = QUANTILES.get(statistic, 0.5) > 0.5
    first_s, each_s = (_UPPER_TTFT * wait_s, _UPPER_TPOT * token_s) if upper else (wait_s, token_s)
    length = float(np.quantile(load.lengths, QUANTILES[statistic])) if upper else load.written
    values = {"ttft_ms": first_s, "tpot_ms": each_s, "itl_ms": each_s, "e2el_ms": first_s + length * each_s}
    return np.asarray(np.log(1e3 * values[rest] / slo.limit)) if rest in values else None
