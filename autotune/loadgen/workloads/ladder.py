"""A ladder: one workload at several concurrencies, to draw the curve of a server."""

from __future__ import annotations

from autotune.loadgen.workloads import Workload
from autotune.loadgen.workloads.lengths import SessionLengths

LEAST_PROMPTS = 32
"""Prompts of the lightest loads: a mean latency of fewer has too wide an interval."""
PER_PLACE = 8
"""Prompts of a load per unit of its concurrency; a steady state is found from three on (`autotune.metrics.steady`)."""


def how_fixed(workload: Workload) -> str:
    """How a workload fixes the load that a ladder would set, as the end of a sentence; empty where it does not."""
    if len(workload.points) > 1:
        return f"has {len(workload.points)} loads of its own"
    arrival = workload.points[0].arrival
    return "" if arrival.kind == "all_at_once" else f"is sent {arrival.describe()}"


def on_ladder(workload: Workload, concurrency: int) -> Workload:
    """A workload of one load with so many requests in flight.

    Lengths come from the same distribution. A light load has fewer prompts, `PER_PLACE` per request in flight and
    `LEAST_PROMPTS` at least: a thousand prompts one at a time would take most of an hour. Sessions are sent whole.
    """
    load = workload.with_concurrencies([concurrency])
    point = load.points[0]
    whole = isinstance(point.lengths, SessionLengths)
    few = point.prompts if whole else min(point.prompts, max(LEAST_PROMPTS, PER_PLACE * concurrency))
    # A name of its own gives it prompts of its own.
    return load.model_copy(
        update={"name": f"{workload.name}-ladder-{point.label}", "points": [point.model_copy(update={"prompts": few})]}
    )
