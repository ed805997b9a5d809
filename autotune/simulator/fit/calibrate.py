"""The calibration of the simulated node by measured points, and what a calibration predicts for them.

A `Calibration` is the factors, and how far off they are. How far off is told by fits that have not seen whole groups -
an engine, a GPU, a model, a workload - never by leaving out random rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from autotune.arrays import Floats
from autotune.metrics.formulas import HEADLINE
from autotune.notify import Notify
from autotune.simulator.fit.errors import METRICS, Missed, errors_of
from autotune.simulator.fit.points import MeasuredPoint, alone, groups
from autotune.simulator.fit.solving import UNCERTAIN, FitTarget, Predictor, Problem, fit, without
from autotune.simulator.node.calibration import Calibration, Learned, nothing_learned, packaged_calibration
from autotune.simulator.node.uncertainty import Covered, interval90, sigma
from autotune.simulator.prediction_intervals import subject_of


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulated node says of one point, under the workload that was measured.

    Attributes:
        metrics: under the names of `autotune.metrics.formulas`, with figures fitted to all points; empty where it is
            predicted not to run.
        low, high: ends of the 90 % interval of the total token throughput, tokens per second.
        failure: why it is predicted not to run; None where it does.
        left_out: kind of group to the total token throughput with figures fitted to all points but those of this
            point's group; 0 where it is predicted not to run.
    """

    metrics: Mapping[str, float]
    low: float = 0.0
    high: float = math.inf
    failure: str | None = None
    left_out: Mapping[str, float] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Total token throughput, tokens per second; 0 where it is predicted not to run."""
        return self.metrics.get(HEADLINE, 0.0)


def fitted_calibration(
    points: Sequence[MeasuredPoint], *, start: str, cross_validate: bool, progress: Notify
) -> tuple[Calibration, list[Predicted]]:
    """Fit the factors to points, at least one of which ran; those that did not start are predicted, not fitted.

    Args:
        start: where the fit begins and what it is drawn to: ``shipped`` or ``physics``.
        cross_validate: leave out groups, to find how far off predictions of the unmeasured are; else the start's
            figures of that are kept.

    Returns:
        A calibration, and what it says of the points, in their order.
    """
    places = [place for place, point in enumerate(points) if point.failure is None]
    ran = [points[place] for place in places]
    begin = packaged_calibration() if start == "shipped" else nothing_learned()
    with Predictor(progress) as predict:
        progress(f"fitting {len(ran)} points")
        problem = Problem([target_of(point) for point in ran], begin, predict)
        x = fit(problem, packaged_calibration())
        calibration = problem.calibration(x)
        fitted = predict(problem.targets, calibration)
        unseen = _cross_validated(ran, problem, x, progress) if cross_validate else [{} for _ in ran]
    missed = [_missed(*each) for each in zip(ran, fitted, unseen, alone(ran), strict=True)]
    errors = errors_of(missed, _covered(ran), begin.errors)
    learned = Counter((point.members[0].source, point.members[0].evidence.value) for point in points)
    fitted_to = [Learned(source=source, points=n, evidence=evidence) for (source, evidence), n in learned.items()]
    update = {"fitted_to": [*begin.fitted_to, *fitted_to], "errors": errors}
    calibration = calibration.model_copy(update={**update, "deviations": problem.deviations(x)})
    predictions = predicted_by(points, calibration)
    for place, left_out in zip(places, unseen, strict=True):
        predictions[place] = replace(predictions[place], left_out=left_out)
    return calibration, predictions


def target_of(point: MeasuredPoint) -> FitTarget:
    """A point with its weight in a fit."""
    # A mean of equivalent rows is surer than a single run; less so where they differ by more than runs should. The
    # variance of two values that lie a range r apart is r² / 2.
    noise = UNCERTAIN[HEADLINE] ** 2
    surer = len(point.members) * noise / max(noise, point.spread**2 / 2)
    return FitTarget(point.resolved.setup, point.workload, point.metrics, point.weight * surer)


def _cross_validated(
    points: Sequence[MeasuredPoint], problem: Problem, x: Floats, progress: Notify
) -> list[dict[str, float]]:
    """Per point: kind of group -> total token throughput by a fit that has not seen its group, as in `Predicted`."""
    unseen: list[dict[str, float]] = [{} for _ in points]
    fits: dict[tuple[int, ...], list[dict[str, float]]] = {}  # groups of two kinds may have the same members
    for kind, named in groups(points).items():
        for name, members in named.items():
            if members not in fits:
                progress(f"fitting without {kind} {name}")
                left = [problem.targets[place] for place in members]
                fits[members] = problem.predict(left, without(problem, x, members))
            for place, metrics in zip(members, fits[members], strict=True):
                unseen[place][kind] = metrics.get(HEADLINE, 0.0)
    return unseen


def _missed(point: MeasuredPoint, fitted: Mapping[str, float], unseen: Mapping[str, float], counts: set[str]) -> Missed:
    load = f"{point.era} {point.gpu} {point.model.family} {point.workload.name}"
    both = {name: (point.metrics.get(name, 0.0), fitted.get(name, 0.0)) for name in METRICS}
    errors = {name: math.log(its / mine) for name, (its, mine) in both.items() if its > 0 and mine > 0}
    counted = {kind: mine for kind, mine in unseen.items() if mine > 0 and kind in counts}
    left_out = {kind: math.log(point.metrics[HEADLINE] / mine) for kind, mine in counted.items()}
    return Missed(point.engine, load, errors, left_out)


def _covered(points: Sequence[MeasuredPoint]) -> list[Covered]:
    subjects = {subject_of(point.resolved.setup, point.workload, point.metrics) for point in points}
    covered = []
    for subject in sorted(subjects, key=lambda s: (s.engine, s.gpu, s.model, s.read, s.written, s.in_flight)):
        figures = {name: round(getattr(subject, name), 1) for name in ("read", "written", "in_flight")}
        covered.append(Covered(**{**asdict(subject), **figures}))
    return covered


def predicted_by(points: Sequence[MeasuredPoint], calibration: Calibration) -> list[Predicted]:
    """What a calibration says of points: metrics, interval, or why it does not run."""
    return [_predicted(point, calibration) for point in points]


def _predicted(point: MeasuredPoint, calibration: Calibration) -> Predicted:
    outcome = replace(point.resolved, calibration=calibration).simulate(point.workload, 0)
    if outcome.failure is not None:
        return Predicted({}, 0.0, 0.0, outcome.failure.message)
    metrics = {name: float(value) for name, value in outcome.metrics.items() if isinstance(value, int | float)}
    subject = subject_of(point.resolved.setup, point.workload, point.metrics)
    low, high = interval90(metrics[HEADLINE], sigma(calibration.errors, subject))
    return Predicted(metrics, low, high)
