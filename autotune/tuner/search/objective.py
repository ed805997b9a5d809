"""Read the objective, the second goal and the SLOs from one launch.

The objective is a metric of one workload, or the weighted geometric mean of it over several: with
values v and weights w its score is ``sum(w ln v) / sum(w)``. A gain in it is the weighted geometric
mean of the gains, so that no workload counts for more because its figures are larger.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.load.metrics.formulas import without_capacity
from autotune.load.metrics.table import CURVE, GOODPUT, METRICS, Metrics, check_metric, counts
from autotune.tuner.study.spec import StudySpec
from autotune.tuner.trial import Launch, Role, State


def maximises(metric: str) -> bool:
    """Return whether more of a metric is better; raises `UnknownName` for a metric that does not
    exist."""
    return METRICS[check_metric(metric)].maximise


def weights(spec: StudySpec) -> dict[str, float]:
    """Return workload to its share of the objective, in the study's order; the shares add up to
    1."""
    given = {name: spec.weights[name] for name in spec.workloads if name in spec.weights} or {
        spec.workloads[0]: 1.0
    }
    largest = max(given.values())
    total = math.fsum(weight / largest for weight in given.values())
    return {name: weight / largest / total for name, weight in given.items()}


def on_workloads(spec: StudySpec) -> str:
    """Return the objective's workload, or its workloads with their weights in the form of
    ``--weights``."""
    names = list(weights(spec))
    return (
        names[0]
        if len(names) == 1
        else ",".join(f"{name}={spec.weights[name]:g}" for name in names)
    )


def workloads_of(spec: StudySpec, role: Role) -> tuple[str, ...]:
    """Return the workloads of a launch: in the search those of the decision, else all."""
    if role in (Role.BASELINE, Role.FINAL):
        return spec.workloads
    needed = {*weights(spec), *(spec.workloads[:1] if spec.slos or spec.pareto else ())}
    return tuple(name for name in spec.workloads if name in needed)


def value(launch: Launch, metric: str, workload: str) -> float | None:
    """Return a metric of a finished launch; None if no whole load gave a finite number of at least
    0."""
    if launch.result.state is not State.COMPLETE:
        return None
    number = launch.result.metrics.get(workload, {}).get(metric)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not math.isfinite(number)
        or number < 0
    ):
        return None
    return float(number)


def by_rank(launch: Launch) -> Launch:
    """Return a launch with the metrics for its rank: those with random weights, else its own."""
    result = launch.result
    return (
        replace(launch, result=replace(result, metrics=result.ranking))
        if result.ranking
        else launch
    )


def score(spec: StudySpec, launch: Launch, workload: str | None = None) -> float | None:
    """Return the natural logarithm of the objective, with the sign that makes more better; None
    without one.

    Logarithms, because effects and noise are factors, and because a gain in percent is a difference
    of scores. It is of one workload; None: of the objective's, all of which must have been
    measured.
    """
    shares = weights(spec) if workload is None else {workload: 1.0}
    total = []
    for name, share in shares.items():
        number = value(launch, spec.objective, name)
        if spec.objective == GOODPUT and number == 0:
            # That no request kept the limits is an answer, not a fault; half of one stands for it,
            # to have a logarithm.
            duration_s = value(launch, "duration", name)
            number = 0.5 / duration_s if duration_s else None
        part = score_of(spec.objective, number)
        if part is None:
            return None
        total.append(share * part)
    return math.fsum(total)


def second_value(spec: StudySpec, launch: Launch) -> float | None:
    """Return the second goal's metric; None if it was not measured."""
    return None if spec.pareto is None else value(launch, spec.pareto, spec.workloads[0])


def curve(launch: Launch, workload: str) -> dict[int, Metrics]:
    """Return concurrency to the metrics of a workload's whole load there."""
    if launch.result.state is not State.COMPLETE:
        return {}
    rows = launch.result.metrics.get(workload, {}).get(CURVE) or []
    return {row["concurrency"]: row for row in rows if "concurrency" in row and counts(row)}


def score_of(metric: str, number: float | None) -> float | None:
    """Return the logarithm of a figure, with the sign that makes more better; None without one."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
        return None
    return math.log(number) if maximises(metric) else -math.log(number)


def value_of(metric: str, score_: float) -> float:
    """Return the inverse of `score_of`."""
    # Twelve digits: what was measured once comes back as it was.
    return float(f"{math.exp(score_ if maximises(metric) else -score_):.12g}")


def achieved(spec: StudySpec, launch: Launch) -> float | None:
    """Return the objective's value in a launch; None without a score."""
    shares = weights(spec)
    if len(shares) > 1:
        mean = score(spec, launch)
        return None if mean is None else value_of(spec.objective, mean)
    number = value(launch, spec.objective, next(iter(shares)))
    return number if number or (number is not None and spec.objective == GOODPUT) else None


def violations(spec: StudySpec, launch: Launch) -> dict[str, float]:
    """Return SLO to the launch's excess over its limit (<= 0 meets it), for the measured SLOs."""
    measured = {slo: value(launch, slo.metric, spec.workloads[0]) for slo in spec.slos}
    return {
        str(slo): slo.violation(number) for slo, number in measured.items() if number is not None
    }


def too_slow(spec: StudySpec, launch: Launch) -> bool:
    """Return whether a launch was measured without a capacity: the lightest load violates an
    SLO."""
    measured = launch.result.state is State.COMPLETE and bool(spec.load_key)
    return measured and without_capacity(launch.result.metrics.get(spec.workloads[0], {}))


def step_of_load(spec: StudySpec, launch: Launch) -> float:
    """Return the step of a launch's load search, score units; 0 without one.

    It is from the heaviest load that met every limit to the next one, which broke one: the capacity
    is between them.
    """
    found = launch.result.metrics.get(spec.workloads[0], {}) if spec.load_key else {}
    kept, broken = found.get(f"capacity_{spec.load_key}"), found.get("capacity_broken_at")
    return math.log(broken / kept) if kept and broken else 0.0


def lightest_load(spec: StudySpec, launch: Launch) -> float | None:
    """Return the lightest load of a load search; None without one."""
    curve = launch.result.metrics.get(spec.workloads[0], {}).get(CURVE) if spec.load_key else None
    return float(curve[0][spec.load_key]) if curve else None
