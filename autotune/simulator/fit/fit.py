"""The calibration of the simulated node by measured points: `calibrate`.

What it leaves behind is a `Calibration`: the factors, and how far off they are. How far off is told by fits that have
not seen whole groups - an engine, a GPU, a model, a workload - never by leaving out random rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.errors import BadInput
from autotune.notify import Notify
from autotune.simulator.fit.errors import METRICS, Missed, errors_of
from autotune.simulator.fit.points import MeasuredPoint, Predicted, era_of, groups
from autotune.simulator.fit.problem import UNCERTAIN, FitTarget, Predictor
from autotune.simulator.fit.solving import Fitted, fit, leave_out, predictor
from autotune.simulator.node.calibration import Calibration, Learned, nothing_learned, packaged_calibration
from autotune.simulator.node.uncertainty import HEADLINE, Covered, interval90, sigma
from autotune.simulator.prediction_intervals import subject_of


def calibrate(
    points: Sequence[MeasuredPoint], *, start: str, cross_validate: bool, progress: Notify
) -> tuple[Calibration, list[Predicted]]:
    """Fit the factors to points; those that did not start are predicted, not fitted.

    Args:
        start: where the fit begins and what it is drawn to: ``shipped`` or ``physics``.
        cross_validate: leave out groups, to find how far off predictions of the unmeasured are; else the start's
            figures of that are kept.

    Returns:
        A calibration, and what it says of the points, in their order.

    Raises:
        BadInput: no point ran.
    """
    ran = [place for place, point in enumerate(points) if point.failure is None]
    if not ran:
        raise BadInput("none of the measured rows ran: there is nothing to fit")
    begin = packaged_calibration() if start == "shipped" else nothing_learned()
    targets = [_target(points[place]) for place in ran]
    with predictor(progress) as predict:
        progress(f"fitting {len(targets)} points")
        whole = fit(targets, begin, predict, packaged_calibration())
        found = _without(whole, begin, points, ran, predict, progress) if cross_validate else {}
    missed = [_missed(points[place], whole.predicted[i], found.get(place, {})) for i, place in enumerate(ran)]
    errors = errors_of(missed, _covered([points[place] for place in ran]), begin.errors)
    learned = Counter((point.members[0].source, point.members[0].evidence.value) for point in points)
    fitted_to = [Learned(source=source, points=n, evidence=evidence) for (source, evidence), n in learned.items()]
    update = {"fitted_to": [*begin.fitted_to, *fitted_to], "errors": errors}
    calibration = whole.calibration.model_copy(update=update)
    left_out = {place: {kind: one.get(HEADLINE, 0.0) for kind, one in kinds.items()} for place, kinds in found.items()}
    return calibration, predicted_by(points, calibration, left_out)


def _target(point: MeasuredPoint) -> FitTarget:
    # A mean of equivalent rows is surer than a single run; less so where they differ by more than runs should. The
    # variance of two values that lie a range r apart is r² / 2.
    noise = UNCERTAIN[HEADLINE] ** 2
    surer = len(point.members) * noise / max(noise, point.spread**2 / 2)
    return FitTarget(point.resolved.setup, point.workload, point.metrics, point.weight * surer)


Unseen = dict[int, dict[str, dict[str, float]]]
"""Place of a point -> kind of group -> metrics predicted by a fit that had not seen its group."""


def _without(
    whole: Fitted,
    begin: Calibration,
    points: Sequence[MeasuredPoint],
    ran: Sequence[int],
    predict: Predictor,
    progress: Notify,
) -> Unseen:
    position = {place: i for i, place in enumerate(ran)}
    found: Unseen = defaultdict(dict)
    known: dict[tuple[int, ...], list[dict[str, float]]] = {}  # groups of two kinds may have the same members
    for group in groups(points):
        members = tuple(place for place in group.members if place in position)
        if not members or len(members) == len(ran):
            continue
        if members not in known:
            progress(f"fitting without {group.kind} {group.name}")
            known[members] = leave_out(whole, begin, [position[place] for place in members], predict)
        for place, one in zip(members, known[members], strict=True):
            found[place][group.kind] = one
    return found


def _missed(point: MeasuredPoint, fitted: Mapping[str, float], unseen: Mapping[str, Mapping[str, float]]) -> Missed:
    load = f"{era_of(point)} {point.gpu} {point.model.family} {point.workload.name}"
    left_out = {kind: _logs(point.metrics, predicted) for kind, predicted in unseen.items()}
    return Missed(point.engine, load, _logs(point.metrics, fitted), left_out)


def _logs(measured: Mapping[str, float], predicted: Mapping[str, float]) -> dict[str, float]:
    both = ((name, measured.get(name, 0.0), predicted.get(name, 0.0)) for name in METRICS)
    return {name: math.log(its / mine) for name, its, mine in both if its > 0 and mine > 0}


def _covered(points: Sequence[MeasuredPoint]) -> list[Covered]:
    found = []
    subjects = {subject_of(point.resolved.setup, point.workload, point.metrics) for point in points}
    for subject in sorted(subjects, key=lambda s: (s.engine, s.gpu, s.model, s.read, s.written, s.in_flight)):
        values = {name: getattr(subject, name) for name in Covered.model_fields}
        found.append(
            Covered(**{n: value if isinstance(value, str) else round(value, 1) for n, value in values.items()})
        )
    return found


def predicted_by(
    points: Sequence[MeasuredPoint], calibration: Calibration, left_out: Mapping[int, Mapping[str, float]]
) -> list[Predicted]:
    """What a calibration says of points: metrics, interval, or why it does not run."""
    return [_predicted(point, calibration, left_out.get(place, {})) for place, point in enumerate(points)]


def _predicted(point: MeasuredPoint, calibration: Calibration, left_out: Mapping[str, float]) -> Predicted:
    outcome = replace(point.resolved, calibration=calibration).simulate(point.workload, 0)
    if outcome.failure is not None:
        return Predicted({}, 0.0, 0.0, outcome.failure.message, left_out)
    metrics = {name: float(value) for name, value in outcome.metrics.items() if isinstance(value, int | float)}
    subject = subject_of(point.resolved.setup, point.workload, point.metrics)
    low, high = interval90(metrics[HEADLINE], sigma(calibration.errors, subject))
    return Predicted(metrics, low, high, left_out=left_out)
