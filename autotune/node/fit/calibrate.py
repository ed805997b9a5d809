"""Calibrate the simulated node to measured points, and predict them with the calibration.

A `Calibration` has the factors and their errors. The errors are those of fits that have not seen
whole groups (an engine, a GPU, a model, a workload), never of fits without random rows.

Its `PredictionErrors` are quantiles, not variances: nine of ten errors lie within 1.645 standard
deviations by construction, whatever their tails. An engine's spread is the 90 % quantile of its
errors: of throughput, where that is known, by fits that had not seen the workload. Of the errors of
other left-out groups each group counts alike, because a group's errors are one fact (Lee, Barber
and Willett, arXiv:2306.06342, whose rank would ask for nine groups), and few points give wide
intervals, as in split conformal prediction (Angelopoulos and Bates, arXiv:2107.07511). The fewer
points there are below nine, the more the errors without any calibration count.

The fit is a least-squares problem, solved with all of the points and without some of them. Unknown
are the logarithms of the factors (`autotune.node.calibration`). A residual is
ln(predicted / measured) of a metric over the uncertainty of a run's metric, flattened where it is
large (soft L1, so that an outlier pulls with bounded force); and for each factor its distance from
its start over its spread, which draws factors without rows towards physics.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import field, replace
from itertools import chain, combinations
from multiprocessing.process import BaseProcess
from operator import attrgetter
from typing import NamedTuple, cast

import numpy as np
from scipy.optimize import least_squares

from autotune.base import FloatDict, FloatMap, JsonObject, Notify, StringMap, frozen
from autotune.base.arrays import Floats
from autotune.base.child import die_with_parent
from autotune.load.metrics.table import HEADLINE

from ..calibration import (
    OWN,
    UNKNOWN,
    Z90,
    ByFactor,
    Calibration,
    ErrorSpread,
    Factor,
    Learned,
    PredictionErrors,
    Subject,
    adjusted_coefficients,
    composed,
    factors_of,
    groups_of,
    interval90,
    nothing_learned,
    number_of,
    packaged_calibration,
    packaged_physics,
    pressing,
    sigma,
)
from ..prediction_intervals import subject_of
from ..server import SimulatedServer
from ..simulate import run_server
from ..steady import SteadyNode
from .reading import MeasuredPoint, group_names, groups

UNCERTAIN = {HEADLINE: 0.08, "median_ttft_ms": 0.35, "median_tpot_ms": 0.25}
"""Standard deviation of ln(metric) that a single run is taken to have. Throughput: equivalent rows
differ by 5 % on vLLM and 15 % on SGLang. Latencies are held more loosely: they hang on the order in
which a client's requests arrive."""

_STEP = 0.05
"""Step of ln(factor) for differences: large enough to average over the jumps of a schedule."""

_FAILED = 10.0
"""Error in ln of a complete load that is predicted to fail."""

_ROUNDS = 12
_CHUNK = 4
"""Runs that a worker gets at a time."""

_FARTHEST = 0.7
"""Longest step of ln(factor) to the optimum without some points: the Jacobian is invalid beyond
it."""
_ENOUGH = 3e-4
"""Relative decrease of the cost below which a fit ends."""
_ALIKE = 0.5
"""Correlation of the errors of one configuration's loads: what 332 configurations of public rows
left (0.47 to 0.55, by differences within a configuration)."""
_LEAST = 0.03
"""Least stated spread: the difference between two launches of one configuration."""
_TELLING = 9
"""Points from which on a 90 % quantile of errors exists: 0.9 (n + 1) is at most n."""
_NEW = ("engine", "version", "gpu", "model", "workload")
_LOAD = ("read", "written", "in_flight")
_NO_ERRORS = PredictionErrors()
_NOT_ASKED = {**dict.fromkeys(_NEW, 0.25), "layers": 0.3}
"""Addition for unseen groups if none was ever left out: four together as uncertain as without a
calibration. Of layers: a choice (docs/simulator-fit.md)."""


Points = Sequence[MeasuredPoint]
RunMetrics = FloatDict
"""Metrics of a simulated run; empty where the server fails."""


def _numbers(metrics: JsonObject) -> RunMetrics:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def weights(points: Points, alike: float) -> list[float]:
    """Return the weights of the points' squared residuals; 1 = a typical single run.

    A mean of equivalent rows is surer than a single run; less so where they differ by more than
    runs should. The variance of two values that lie a range r apart is r² / 2. Loads of one
    configuration share an error: n of them weigh n / (1 + (n - 1) `alike`), by the correlation of
    their errors, as a random effect has it.
    """
    noise = UNCERTAIN[HEADLINE] ** 2
    served = [point.members[0].configuration for point in points]
    loads = Counter(served)
    return [
        point.weight
        * (len(point.members) * noise / max(noise, point.spread**2 / 2))
        / (1 + (loads[its] - 1) * alike)
        for point, its in zip(points, served, strict=True)
    ]


def _published(point: MeasuredPoint, name: str) -> str:
    """Return the name of a metric of `UNCERTAIN` of a point: some rows have its mean alone."""
    return name if name in point.metrics else name.replace("median", "mean")


def _residuals(point: MeasuredPoint, predicted: RunMetrics, weight: float) -> list[float]:
    """Return one residual per metric of `UNCERTAIN`; 0 for an unmeasured one."""
    residuals = dict.fromkeys(UNCERTAIN, 0.0)
    for name, uncertain in UNCERTAIN.items():
        known = _published(point, name)
        if (measured := point.metrics.get(known, 0.0)) > 0:
            value = predicted.get(known, 0.0)
            r = math.log(value / measured if value > 0 else _FAILED) / uncertain
            # Soft L1: like r when small, like sqrt(2|r|) when large.
            flattened = math.copysign(math.sqrt(2.0 * (math.sqrt(1.0 + r * r) - 1.0)), r)
            residuals[name] = math.sqrt(weight) * flattened
    return list(residuals.values())


_WORKER_POINTS: list[MeasuredPoint] = []
"""Points of a worker's problem, inherited by the fork."""


def _slopes(
    place: int,
    calibration: Calibration,
    factors: Sequence[Factor],
    predicted: RunMetrics,
    weight: float,
) -> Floats:
    """Return the derivatives of a point's residuals by the logarithms of factors, shape (metrics,
    factors)."""
    point = _WORKER_POINTS[place]
    moved = {
        which: np.append(_STEP * unit, 0.0)
        for which, unit in zip(factors, np.eye(len(factors)), strict=True)
    }
    setup = point.resolved.setup
    node = SteadyNode(setup.model, setup.hardware, setup.gpus, point.workload, calibration, moved)
    logs = node.predict(setup.engine, setup.version, setup.knobs).drawn
    slopes = np.zeros((len(UNCERTAIN), len(factors)))
    for place, (name, residual) in enumerate(
        zip(UNCERTAIN, _residuals(point, predicted, weight), strict=True)
    ):
        log = logs.get(name.replace("median", "mean"))
        if log is None or not point.metrics.get(_published(point, name)) or not predicted:
            continue
        # Soft L1 flattens a residual r to f with f² = 2 (sqrt(1 + r²) - 1): the slope follows.
        flat = residual**2 / weight / 2 if weight else 0.0
        slope = math.sqrt(weight) * math.sqrt(1 + flat / 2) / (1 + flat) / UNCERTAIN[name]
        slopes[place] = slope * (log[:-1] - log[-1]) / _STEP
    return slopes


def _begin_worker(points: Points, parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    _WORKER_POINTS[:] = points


def _simulate(place: int, figures: FloatMap) -> RunMetrics:
    """Simulate a point with these figures."""
    point = _WORKER_POINTS[place]
    setup = point.resolved.setup
    server = SimulatedServer(setup, adjusted_coefficients(setup, figures))
    return _numbers(run_server(server, point.workload, 0).metrics)


class Problem:
    """Fit the factors of some points, with a prior at those of `start`; uses all cores inside the
    context.

    What was simulated is remembered: most differences leave most points as they were.
    """

    def __init__(self, points: Points, start: Calibration, progress: Notify) -> None:
        self.points = points
        self.start = start
        self._progress = progress
        physics = packaged_physics()
        self.groups = [groups_of(point.resolved.setup) for point in points]
        # The factors of one's own node may take what all loads of a configuration share.
        self._weights = weights(points, 0.0 if start.fitted_to else _ALIKE)
        factors = chain.from_iterable(factors_of(physics, groups) for groups in self.groups)
        self.factors = sorted({which for which in factors if _free(which, start)})
        self._spread = np.array(
            [physics.figures[which.figure].spread[which.level] for which in self.factors]
        )
        self._centre = self.logs(start)
        self._simulated: dict[tuple[float, ...], RunMetrics] = {}
        self._pool = ProcessPoolExecutor(
            os.cpu_count(),
            mp_context=multiprocessing.get_context("fork"),
            initializer=_begin_worker,
            initargs=(points, os.getpid()),
        )
        self._workers: set[BaseProcess] = set()

    def __enter__(self) -> Problem:
        # Fork all workers with a first task, and with Ctrl-C blocked for good: their parent handles
        # it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        others = multiprocessing.active_children()
        try:
            self._pool.submit(os.getpid).result()
            self._workers = set(multiprocessing.active_children()).difference(others)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        # Kill them, because waiting for their results would take seconds.
        for worker in self._workers:
            worker.kill()
        self._pool.shutdown(cancel_futures=True)

    def predict(
        self, calibration: Calibration, places: Sequence[int] | None = None
    ) -> list[RunMetrics]:
        """Simulate all points, or those at `places`, with a calibration."""
        physics = packaged_physics()
        wanted = range(len(self.points)) if places is None else places
        figures = [composed(physics, calibration, self.groups[place]) for place in wanted]
        keys = [(place, *its.values()) for place, its in zip(wanted, figures, strict=True)]
        pairs = zip(keys, figures, strict=True)
        missing = {key: its for key, its in pairs if key not in self._simulated}
        positions = (key[0] for key in missing)
        runs = self._pool.map(_simulate, positions, missing.values(), chunksize=_CHUNK)
        self._simulated.update(zip(missing, runs, strict=True))
        self._progress(f"{len(self._simulated)} simulated runs")
        return [self._simulated[key] for key in keys]

    def logs(self, calibration: Calibration) -> Floats:
        return np.array([math.log(calibration.factor(which)) for which in self.factors])

    def calibration(self, x: Floats) -> Calibration:
        """Return the start with these factors in it."""
        factors = self._placed(map(math.exp, x.tolist()), deepcopy(self.start.factors))
        return self.start.model_copy(update={"factors": factors})

    def _placed(self, numbers: Iterable[float], given: ByFactor) -> ByFactor:
        """Add a number of each factor to the given ones."""
        for which, number in zip(self.factors, numbers, strict=True):
            given.setdefault(which.level, {}).setdefault(which.group, {})[which.figure] = number
        return given

    def residuals(self, x: Floats) -> Floats:
        """Return the residuals, shape (points * metrics + factors,)."""
        metrics = self.predict(self.calibration(x))
        data = [_residuals(*each) for each in zip(self.points, metrics, self._weights, strict=True)]
        return np.concatenate([np.ravel(data), (x - self._centre) / self._spread])

    def jacobian(self, x: Floats) -> Floats:
        """Take differences of the fast prediction, all factors of a point at once; shape
        (residuals, factors).

        The full simulation's own would take a run for each factor and point, and have the jumps of
        its schedules.
        """
        calibration = self.calibration(x)
        metrics = self.predict(calibration)
        column = {which: place for place, which in enumerate(self.factors)}
        mine = [
            [which for which in factors_of(packaged_physics(), members) if which in column]
            for members in self.groups
        ]
        rows = np.zeros((len(self.points), len(UNCERTAIN), len(x)))
        places = range(len(self.points))
        jobs = (places, [calibration] * len(places), mine, metrics, self._weights)
        slopes = self._pool.map(_slopes, *jobs, chunksize=_CHUNK)
        for block, its, found in zip(rows, mine, slopes, strict=True):
            block[:, [column[which] for which in its]] = found
        return np.concatenate([rows.reshape(-1, len(x)), np.diag(1.0 / self._spread)])

    def deviations(self, x: Floats) -> ByFactor:
        """Return the posterior standard deviations of ln(factor)."""
        jacobian = self.jacobian(x)
        left = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
        return self._placed((round(deviation, 3) for deviation in left.tolist()), {})


def _free(which: Factor, start: Calibration) -> bool:
    """Return whether a factor is fitted.

    Factors fitted before stay: a handful of new rows must not move what all engines and GPUs share.
    They move groups that nobody measured, and what the engine does on their own node.
    """
    if not start.fitted_to:
        return which.level != OWN
    return which.level == OWN or not number_of(which, start.factors, 0.0)


def fit(problem: Problem, guess: Calibration) -> Floats:
    """Return the logarithms of the factors: maximum a posteriori; a start `guess` only saves
    time."""
    solution = least_squares(
        problem.residuals,
        problem.logs(guess),
        jac=cast("Callable[[Floats], Floats]", problem.jacobian),
        max_nfev=_ROUNDS,
        ftol=_ENOUGH,
        xtol=_ENOUGH,
    )
    return cast(Floats, solution.x)


def refit_without(whole: Problem, x: Floats) -> Callable[[Sequence[int]], Calibration]:
    """Return a function that fits without the points at some positions.

    A fit begins at the whole fit's solution `x`, where the Jacobian is known, and takes one
    Gauss-Newton step. Factors that only the left-out points determine return to their start.
    """
    residuals = whole.residuals(x)
    jacobian = whole.jacobian(x)

    def refit(left_out: Sequence[int]) -> Calibration:
        kept = np.ones(len(whole.points), dtype=bool)
        kept[list(left_out)] = False
        rows = np.concatenate([np.repeat(kept, len(UNCERTAIN)), np.ones(len(x), dtype=bool)])
        step = np.linalg.lstsq(jacobian[rows], residuals[rows], rcond=None)[0]
        return whole.calibration(x - np.clip(step, -_FARTHEST, _FARTHEST))

    return refit


@frozen
class PointErrors:
    """ln(measured / predicted) of one point.

    Attributes:
        errors: by metric, of the fit to all points.
        unseen: kind of `PredictionErrors.unseen` -> that of the total token throughput, by a fit
            that had not seen the point's group of that kind.
        groups: kind -> name of its group.
    """

    engine: str
    errors: FloatMap
    unseen: FloatMap
    groups: StringMap = field(default_factory=dict)


def stated_errors(
    points: Sequence[PointErrors], covered: Iterable[Subject], before: PredictionErrors = _NO_ERRORS
) -> PredictionErrors:
    """Return the errors to state; none is smaller than `before`, because the fit has seen its few
    points."""
    by_engine: dict[str, list[PointErrors]] = defaultdict(list)
    for point in points:
        by_engine[point.engine].append(point)
    by_engine["any"] = list(points)
    shared = _shared(points)
    engines = {
        name: {
            m: _stated(members, m, shared, before.engines.get(name, {}).get(m)) for m in UNCERTAIN
        }
        for name, members in by_engine.items()
    }
    # State for an unmeasured engine the largest spread of the measured ones.
    engines["any"] = {
        m: max(
            (one[m] for one in engines.values()),
            key=lambda spread: math.hypot(spread.group, spread.row),
        )
        for m in UNCERTAIN
    }
    added = {
        kind: max(more, before.unseen.get(kind, 0.0)) for kind, more in _unseen(points).items()
    }
    return PredictionErrors(
        engines={**before.engines, **engines},
        unseen={**_NOT_ASKED, **before.unseen, **added},
        covered=[*before.covered, *(one for one in covered if one not in before.covered)],
    )


def _stated(
    points: Sequence[PointErrors], metric: str, shared: float, before: ErrorSpread | None
) -> ErrorSpread:
    total = _scale([_foreseen(p, metric) for p in points if metric in p.errors])
    group = round(total * math.sqrt(shared), 3)
    row = round(total * math.sqrt(1.0 - shared), 3)
    if before is not None:
        return ErrorSpread(group=max(group, before.group), row=max(row, before.row))
    known = min(1.0, len(points) / _TELLING)

    def mixed(stated: float, unknown: float) -> float:
        return round(math.sqrt(known * stated**2 + (1.0 - known) * unknown**2), 3)

    return ErrorSpread(group=mixed(group, UNKNOWN.group), row=mixed(row, UNKNOWN.row))


def _foreseen(point: PointErrors, metric: str) -> float:
    """Return the error of a prediction: of throughput, if available, by the fit without the
    workload.

    A fit's own errors are too small, the more so the fewer points an engine has.
    """
    own = point.errors[metric]
    return point.unseen.get("workload", own) if metric == HEADLINE else own


def _shared(points: Sequence[PointErrors]) -> float:
    """Return the share of the variance common to configurations of one engine under one load.

    The differences of their errors tell it, over all engines. It is kept from the ends, where a
    comparison within an engine would be as unsure as one between engines, or certain.
    """
    loads: dict[tuple[str | None, ...], list[float]] = defaultdict(list)
    for point in points:
        if HEADLINE in point.errors:
            load = tuple(map(point.groups.get, ("version", "gpu", "model", "workload")))
            loads[point.engine, *load].append(point.errors[HEADLINE])
    differences = [a - b for errors in loads.values() for a, b in combinations(errors, 2)]
    if not differences or len(loads) < _TELLING:
        return 0.5
    total = _scale([error for errors in loads.values() for error in errors])
    return min(0.8, max(0.2, 1.0 - (_scale(differences) / total) ** 2 / 2.0))


def _unseen(points: Sequence[PointErrors]) -> FloatDict:
    """Return the additions to engines' spreads for an unseen group, by kind: they cover nine of ten
    left-out errors.

    Each group counts alike, however many points it has: the next prediction is of another group,
    not of another point of these.
    """
    seen = [point for point in points if HEADLINE in point.errors]
    own = {
        name: _scale([_foreseen(p, HEADLINE) for p in seen if p.engine == name])
        for name in {point.engine for point in seen}
    }
    # An unmeasured engine has the largest spread of the others.
    others = {name: max((own[e] for e in own if e != name), default=own[name]) for name in own}
    added = {"workload": 0.0}  # the engines' spreads are those of unseen workloads already
    for kind in (new for new in _NEW if new not in added):
        spread = others if kind == "engine" else own
        lacking = sorted(
            ((p.unseen[kind] / Z90) ** 2 - spread[p.engine] ** 2, p.groups.get(kind, ""))
            for p in seen
            if kind in p.unseen
        )
        if not lacking:
            continue
        sizes = Counter(group for _, group in lacking)
        shares = np.cumsum([1.0 / sizes[group] for _, group in lacking]) / len(sizes)
        # Take the rank within which the next error lies with odds of 9 to 1.
        rank = int(np.searchsorted(shares, 0.9 * (1.0 + 1.0 / len(lacking)) - 1e-9))
        added[kind] = round(math.sqrt(max(0.0, lacking[min(rank, len(lacking) - 1)][0])), 3)
    return added


def _scale(errors: Sequence[float]) -> float:
    """Return the standard deviation whose 90 % interval covers nine of ten errors."""
    if not errors:
        return 0.5
    return max(_LEAST, float(np.quantile(np.abs(errors), 0.9)) / Z90)


class LeftOutPrediction(NamedTuple):
    """Total token throughput by a fit without the point's group, 0 where it is predicted not to
    run, and the ends of its 90 % interval, tokens per second.

    The interval is that of a calibration whose errors have not seen the group either.
    """

    throughput: float
    low: float
    high: float


@frozen
class Predicted:
    """Prediction of one point, under the measured workload.

    Attributes:
        point: as it was measured.
        metrics: under the names of `autotune.load.metrics`, with figures fitted to all points; empty
            where it is predicted not to run.
        low, high: ends of the 90 % interval of the total token throughput, tokens per second.
        left_out: by kind of group, with figures fitted to all points but those of this point's
            group.
    """

    point: MeasuredPoint
    metrics: FloatMap
    low: float = 0.0
    high: float = math.inf
    failure: str | None = None
    left_out: Mapping[str, LeftOutPrediction] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Return the total token throughput, tokens per second; 0 if it is predicted not to run."""
        return self.metrics.get(HEADLINE, 0.0)

    @property
    def measured(self) -> float:
        """Return the measured total token throughput of the warm server, tokens per second."""
        return self.point.metrics[HEADLINE]

    @property
    def inside(self) -> bool:
        """Return whether the measured throughput is in the interval."""
        return self.failure is None and self.low <= self.measured <= self.high

    def ratio(self, name: str) -> float | None:
        """Return a metric's predicted over its measured value; None without either."""
        measured = self.point.metrics.get(name)
        expected = self.metrics.get(name)
        return expected / measured if expected and measured else None


def fitted_calibration(
    points: Points, *, start: str, cross_validate: bool, progress: Notify
) -> tuple[Calibration, list[Predicted]]:
    """Fit the factors to points, at least one of which ran, and predict all of them, in their
    order.

    Without `cross_validate` the errors of predictions of the unmeasured are those of the start.
    """
    places = [place for place, point in enumerate(points) if point.failure is None]
    ran = [points[place] for place in places]
    begin = packaged_calibration() if start == "shipped" else nothing_learned()
    progress(f"fitting {len(ran)} points")
    with Problem(ran, begin, progress) as problem:
        x = fit(problem, packaged_calibration())
        calibration = problem.calibration(x)
        fitted = problem.predict(calibration)
        unseen = _cross_validated(problem, x, progress) if cross_validate else [{} for _ in ran]
        deviations = problem.deviations(x)
    for line in pressing(calibration, problem.groups):
        progress(line)
    missed = [
        _errors_of_point(*each) for each in zip(ran, fitted, unseen, group_names(ran), strict=True)
    ]
    subjects = [subject_of(p.resolved.setup, p.workload, p.metrics) for p in ran]
    errors = stated_errors(missed, _covered(subjects), begin.errors)
    learned = Counter(
        (point.members[0].source, point.members[0].evidence.value) for point in points
    )
    fitted_to = [
        Learned(source=source, points=n, evidence=evidence)
        for (source, evidence), n in learned.items()
    ]
    calibration = calibration.model_copy(
        update={
            "fitted_to": [*begin.fitted_to, *fitted_to],
            "errors": errors,
            "deviations": deviations,
        }
    )
    predictions = predicted_by(points, calibration)
    without = _left_out(missed, subjects, unseen, begin.errors)
    for place, left_out in zip(places, without, strict=True):
        predictions[place] = replace(predictions[place], left_out=left_out)
    return calibration, predictions


def _left_out(
    missed: Sequence[PointErrors],
    subjects: Sequence[Subject],
    unseen: Sequence[FloatMap],
    before: PredictionErrors,
) -> list[dict[str, LeftOutPrediction]]:
    """Return per point and kind the prediction without its group, with the interval of one that
    nobody measured."""
    found: list[dict[str, LeftOutPrediction]] = [{} for _ in missed]
    groups = dict.fromkeys(pair for point in missed for pair in point.groups.items())
    for kind, name in groups:
        kept = [place for place, one in enumerate(missed) if one.groups.get(kind) != name]
        covered = _covered([subjects[place] for place in kept])
        errors = stated_errors([missed[place] for place in kept], covered, before)
        for place in {*range(len(missed))}.difference(kept):
            if (value := unseen[place].get(kind)) is not None:
                interval = interval90(value, sigma(errors, subjects[place]))
                found[place][kind] = LeftOutPrediction(value, *interval)
    return found


def _cross_validated(problem: Problem, x: Floats, progress: Notify) -> list[FloatDict]:
    """Return per point kind of group -> total token throughput by a fit that has not seen its
    group."""
    unseen: list[FloatDict] = [{} for _ in problem.points]
    refit = refit_without(problem, x)
    # Groups of two kinds may have the same members.
    fits = {}
    for kind, named in groups(problem.points).items():
        for name, members in named.items():
            if members not in fits:
                progress(f"fitting without {kind} {name}")
                fits[members] = problem.predict(refit(members), members)
            for place, metrics in zip(members, fits[members], strict=True):
                unseen[place][kind] = metrics.get(HEADLINE, 0.0)
    return unseen


def _errors_of_point(
    point: MeasuredPoint,
    fitted: FloatMap,
    unseen: FloatMap,
    names: StringMap,
) -> PointErrors:
    errors = {
        name: math.log(point.metrics[name] / fitted[name])
        for name in UNCERTAIN
        if point.metrics.get(name, 0.0) > 0 and fitted.get(name, 0.0) > 0
    }
    left_out = {
        kind: math.log(point.metrics[HEADLINE] / predicted)
        for kind, predicted in unseen.items()
        if predicted > 0
    }
    return PointErrors(point.engine, errors, left_out, names)


def _covered(subjects: Iterable[Subject]) -> list[Subject]:
    """List the setups and loads that were measured, with rounded loads."""
    covered = sorted({*subjects}, key=attrgetter("engine", "gpu", "model", *_LOAD))
    return [
        one.model_copy(update={name: round(getattr(one, name), 1) for name in _LOAD})
        for one in covered
    ]


def predicted_by(points: Points, calibration: Calibration) -> list[Predicted]:
    """Predict points by a calibration: metrics and interval, or a failure."""
    predictions = []
    for point in points:
        outcome = point.resolved.with_setup(calibration=calibration).simulate(point.workload, 0)
        if outcome.failure is not None:
            predictions.append(Predicted(point, {}, 0.0, 0.0, outcome.failure.message))
            continue
        metrics = _numbers(outcome.metrics)
        subject = subject_of(point.resolved.setup, point.workload, point.metrics)
        interval = interval90(metrics[HEADLINE], sigma(calibration.errors, subject))
        predictions.append(Predicted(point, metrics, *interval))
    return predictions
