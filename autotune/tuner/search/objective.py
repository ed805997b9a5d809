"""Read the objective, the second goal and the SLOs from one launch.

The objective is a metric of one workload, or the weighted geometric mean of a metric over several:
with values v and weights w its score is ``sum(w ln v) / sum(w)``. Its gain is the weighted
geometric mean of the gains, so a workload does not count for more because its figures are larger.
"""

import math

from autotune.base import FloatDict, FloatMap, Strings, frozen
from autotune.load.metrics.table import (
    GOODPUT,
    METRICS,
    Metrics,
    check_metric,
    is_number,
    is_valid_row,
)

from ..study.spec import StudySpec
from ..trial import Launch, Role, State, TrialResult


def maximises(metric: str) -> bool:
    """Return whether more of a metric is better; raises `UnknownName` for a metric that does not
    exist."""
    return METRICS[check_metric(metric)].maximise


def weights(spec: StudySpec) -> FloatDict:
    """Return each workload's share of the objective, in the study's order; shares add up to 1."""
    weighted = {name: spec.weights[name] for name in spec.workloads if name in spec.weights} or {
        spec.workloads[0]: 1.0
    }
    largest = max(weighted.values())
    total = math.fsum(weight / largest for weight in weighted.values())
    return {name: weight / largest / total for name, weight in weighted.items()}


def on_workloads(spec: StudySpec) -> str:
    """Return the objective's workload, or its workloads with their weights in the form of
    ``--weights``."""
    names = list(weights(spec))
    return (
        names[0]
        if len(names) == 1
        else ",".join(f"{name}={spec.weights[name]:g}" for name in names)
    )


def workloads_of(spec: StudySpec, role: Role) -> Strings:
    """Return the workloads of a launch: in the search those of goals and limits, else all."""
    if role in (Role.BASELINE, Role.FINAL):
        return spec.workloads
    needed = {*weights(spec), *(spec.workloads[:1] if spec.slos or spec.pareto else ())}
    return tuple(name for name in spec.workloads if name in needed)


@frozen
class Scores:
    """Figures of one launch for the study's goals and limits; None if they were not measured.

    Attributes:
        value, second_value: of the objective and of the second goal.
        score, second: their natural logarithms, signed so that more is better. Effects and noise
            are factors, so a gain in percent is a difference of scores.
        violations: SLO to the excess over its limit (<= 0 meets it), for the measured SLOs.
        too_slow: the lightest load of its load search violates an SLO, so there is no capacity.
        step: of its load search, score units; 0 without one. The capacity lies between the heaviest
            load that met every limit and the next one: the step is their difference.
    """

    value: float | None
    second_value: float | None
    score: float | None
    second: float | None
    violations: FloatMap
    too_slow: bool
    step: float


def scores_of(spec: StudySpec, result: TrialResult) -> Scores:
    """Read a launch's result; the score is that of all the objective's workloads together."""
    metrics = result.metrics if result.state is State.COMPLETE else {}
    first = metrics.get(spec.workloads[0], {})
    shares = weights(spec)
    parts = [
        share * part
        for name, share in shares.items()
        if (part := score_on(spec, metrics.get(name, {}))) is not None
    ]
    score = math.fsum(parts) if len(parts) == len(shares) else None
    value = None
    if score is not None:
        # Without a mean take the figure itself, which half a request may stand for in the score.
        name, *others = shares
        alone = number_in(metrics[name], spec.objective)
        value = value_of(spec.objective, score) if others else alone
    second_value = number_in(first, spec.pareto) if spec.pareto else None
    measured = {slo: number_in(first, slo.metric) for slo in spec.slos}
    return Scores(
        value=value,
        second_value=second_value,
        score=score,
        second=score_of(spec.goals[-1], second_value),
        violations={
            str(slo): slo.violation(number)
            for slo, number in measured.items()
            if number is not None
        },
        too_slow=spec.load.too_slow(first),
        step=spec.load.step(first),
    )


def number_in(metrics: Metrics, name: str) -> float | None:
    """Return a metric of one workload; None if it is no finite number of at least 0."""
    number = metrics.get(name)
    return float(number) if is_number(number) and 0 <= number < math.inf else None


def score_on(spec: StudySpec, metrics: Metrics) -> float | None:
    """Return the score of the objective on one workload; None without one."""
    number = number_in(metrics, spec.objective)
    if spec.objective == GOODPUT and number == 0:
        # No good request is a valid result, but has no logarithm: count half a request.
        duration_s = number_in(metrics, "duration")
        number = 0.5 / duration_s if duration_s else None
    return score_of(spec.objective, number)


def curve(launch: Launch, workload: str) -> dict[int, Metrics]:
    """Return a workload's curve: the metrics at each concurrency."""
    if launch.result.state is not State.COMPLETE:
        return {}
    rows = filter(is_valid_row, launch.result.curve(workload))
    return {row["concurrency"]: row for row in rows if "concurrency" in row}


def score_of(metric: str, number: float | None) -> float | None:
    """Return the logarithm of a figure, signed so that more is better; None without one."""
    if not is_number(number) or not 0 < number < math.inf:
        return None
    return math.log(number) if maximises(metric) else -math.log(number)


def value_of(metric: str, score_: float) -> float:
    """Return the inverse of `score_of`."""
    # Round to twelve digits, so that a figure survives the way to its score and back.
    return float(f"{math.exp(score_ if maximises(metric) else -score_):.12g}")
