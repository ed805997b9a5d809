"""What one launch says of the objective and of the SLOs."""

from __future__ import annotations

import math

from autotune.load.metrics import METRICS, check_metric
from autotune.spec import StudySpec
from autotune.trial import FailureKind, Launch, State


def maximises(metric: str) -> bool:
    """Whether more of a metric is better; raises `UnknownName` for a metric that does not exist."""
    return METRICS[check_metric(metric)].maximise


def value(launch: Launch, metric: str, workload: str) -> float | None:
    """A metric of a finished launch, or None where it was not measured or is no number that it can be."""
    if launch.result.state is not State.COMPLETE:
        return None
    number = launch.result.metrics.get(workload, {}).get(metric)
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number < math.inf:
        return None
    return float(number)


def score(spec: StudySpec, launch: Launch, workload: str | None = None) -> float | None:
    """The natural logarithm of the objective, turned so that more is better; None where there is none.

    Logarithms, because effects and noise are factors, and because a gain in percent is a difference of scores.
    """
    number = value(launch, spec.objective, workload or spec.workloads[0])
    if number is None or number <= 0:
        return None
    return math.log(number) if maximises(spec.objective) else -math.log(number)


def from_score(spec: StudySpec, score_: float) -> float:
    """The objective's value of a score."""
    return math.exp(score_ if maximises(spec.objective) else -score_)


def violations(spec: StudySpec, launch: Launch) -> dict[str, float]:
    """SLO to how far the launch was beyond its limit (<= 0 keeps it), for the SLOs that were measured."""
    measured = {slo: value(launch, slo.metric, spec.workloads[0]) for slo in spec.slos}
    return {str(slo): slo.violation(number) for slo, number in measured.items() if number is not None}


def broke(launch: Launch) -> bool:
    """Whether the configuration itself failed (a port in use or a lost node is not its fault)."""
    failure = launch.result.failure
    return launch.result.state is State.FAILED and (failure is None or failure.blames_the_configuration)


def ran_out_of_memory(launch: Launch) -> bool:
    """Whether the configuration needed more memory than there is."""
    failure = launch.result.failure
    return broke(launch) and failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY
