"""What a study itself cost, and when its gain has paid for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.metrics.derived import COSTS, PER_GPU
from autotune.metrics.formulas import HEADLINE
from autotune.search import timeline
from autotune.study.curve import StudyCost
from autotune.study.recommendation import Verdict, WorkloadComparison
from autotune.study.spec import StudySpec
from autotune.trial import Launch

_RATES = (
    *(HEADLINE, "steady_total_token_throughput", "output_throughput", "request_throughput", "request_goodput"),
    *("capacity_total_token_throughput", PER_GPU, *COSTS),
)
"""Objectives whose gain is in work per node-hour."""


def study_cost(
    spec: StudySpec,
    launches: Sequence[Launch],
    verdict: Verdict,
    gain_percent: float | None,
    workloads: Mapping[str, WorkloadComparison],
) -> StudyCost | None:
    """The hours of all launches, in money, and when they are paid back; None where no time is known.

    A launch has the whole node to itself, but where GPUs were reserved for it: others may have run beside it.

    With a gain of g an hour of the recommended command does the work of 1 + g hours of the baseline's: it saves g
    node-hours, so that n node-hours are paid back after n / g hours at full load, whatever a node costs. The gain is
    that of a ``better`` verdict; of an objective that is no rate, that of total token throughput.
    """
    node_hours = sum(_share(launch, spec.gpus) * timeline.seconds(launch) for launch in launches) / 3600
    if not node_hours:
        return None
    gain = _gain(spec, gain_percent, workloads) if verdict is Verdict.BETTER else 0.0
    price, gpu_hours = spec.gpu_hour_price, node_hours * spec.gpus
    return StudyCost(
        node_hours=node_hours,
        gpu_hours=gpu_hours,
        gpu_hour_price=price,
        cost=None if price is None else gpu_hours * price,
        paid_back_after_hours=node_hours / gain if gain > 0 else None,
    )


def _share(launch: Launch, gpus: int) -> float:
    """The share of its node that a launch had."""
    reserved = len(launch.result.gpu_ids)
    return min(1.0, reserved / gpus) if reserved else 1.0


def _gain(spec: StudySpec, gain_percent: float | None, workloads: Mapping[str, WorkloadComparison]) -> float:
    if spec.objective in _RATES:
        return (gain_percent or 0.0) / 100
    row = workloads.get(spec.workloads[0])
    before, after = ((m or {}).get(HEADLINE) for m in (row.baseline, row.recommended)) if row else (None, None)
    return after / before - 1 if before and after else 0.0
