"""The fit as a least-squares problem, solved with all of the targets and without some of them.

Unknown are the logarithms of the factors (`autotune.simulator.node.calibration`). A residual is ln(predicted /
measured) of a metric over what a run of that metric is uncertain by, flattened where it is large (soft L1, so that an
outlier pulls with bounded force); and for each factor its distance from where it starts over its spread, which draws
what the rows do not tell towards physics.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import cast

import numpy as np
from scipy.optimize import least_squares

from autotune.arrays import Floats
from autotune.child import die_with_parent
from autotune.loadgen.workloads import Workload
from autotune.notify import Notify
from autotune.simulator.node import ServerSetup, run_server
from autotune.simulator.node.calibration import (
    OWN,
    Calibration,
    Factor,
    composed,
    factors_of,
    groups_of,
    packaged_physics,
)
from autotune.simulator.node.coefficients import adjusted, speed_card
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.node.steady import SteadyNode

UNCERTAIN = {"total_token_throughput": 0.08, "median_ttft_ms": 0.35, "median_tpot_ms": 0.25}
"""Standard deviation of ln(metric) that a single run is taken to have. Throughput: equivalent rows differ by 5 % on
vLLM and 15 % on SGLang. Latencies are held more loosely: they hang on the order in which a client's requests arrive."""

_STEP = 0.05
"""Of ln(factor), for differences: large enough to look over the jumps of a schedule."""

_FAILED = 10.0
"""What a load that ran is taken to be predicted wrong by when it is predicted to fail."""

_ROUNDS = 12
_TOLD_EVERY = 100
_CHUNK = 4
"""Tasks that a worker gets at a time."""

_FARTHEST = 0.7
"""Of ln(factor), a step to where a fit without some targets lies: beyond it the Jacobian says nothing."""
_ENOUGH = 3e-4
"""A step that lowers the cost by less than this share ends a fit."""


@dataclass(frozen=True, eq=False)
class FitTarget:
    """A measured point as the fit sees it.

    Attributes:
        metrics: measured, under the names of `UNCERTAIN`; one that is missing does not count.
        weight: 1; less for what is known to be an outlier.
    """

    setup: ServerSetup
    workload: Workload
    metrics: Mapping[str, float]
    weight: float

    @property
    def groups(self) -> dict[str, str]:
        """The groups of factors that it tells about."""
        return groups_of(speed_card(self.setup.engine), self.setup.version, self.setup.hardware)

    def predicted(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The metrics of a simulated run with these figures; empty when it fails."""
        setup = self.setup
        scope = {"model": setup.model, "hardware": setup.hardware, "gpus": setup.gpus}
        coefficients = adjusted(speed_card(setup.engine), figures, setup.version, setup.knobs, scope)
        metrics = run_server(SimulatedServer(setup, coefficients), self.workload, 0).metrics
        return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}

    def slopes(self, calibration: Calibration, factors: Sequence[Factor], predicted: Mapping[str, float]) -> Floats:
        """Derivatives of the residuals by the logarithms of factors, shape (metrics, factors)."""
        moved = {which: np.append(_STEP * unit, 0.0) for which, unit in zip(factors, np.eye(len(factors)), strict=True)}
        setup = self.setup
        node = SteadyNode(setup.model, setup.hardware, setup.gpus, self.workload, calibration, moved)
        logs = node.predict(setup.engine, setup.version, setup.knobs).drawn
        slopes = np.zeros((len(UNCERTAIN), len(factors)))
        for place, (name, residual) in enumerate(zip(UNCERTAIN, self.residuals(predicted), strict=True)):
            log = logs.get(name.replace("median", "mean"))
            if log is None or self.metrics.get(name, 0.0) <= 0 or not predicted:
                continue
            # Soft L1 flattens a residual r to f with f² = 2 (sqrt(1 + r²) - 1): the slope follows.
            flat = residual**2 / self.weight / 2 if self.weight else 0.0
            slope = math.sqrt(self.weight) * math.sqrt(1 + flat / 2) / (1 + flat) / UNCERTAIN[name]
            slopes[place] = slope * (log[:-1] - log[-1]) / _STEP
        return slopes

    def residuals(self, predicted: Mapping[str, float]) -> list[float]:
        """One per metric of `UNCERTAIN`; 0 for one that was not measured."""
        residuals = []
        for name, uncertain in UNCERTAIN.items():
            measured = self.metrics.get(name, 0.0)
            if measured <= 0:
                residuals.append(0.0)
                continue
            value = predicted.get(name, 0.0)
            r = math.log(value / measured if value > 0 else _FAILED) / uncertain
            # Soft L1: like r when small, like sqrt(2|r|) when large.
            flattened = math.copysign(math.sqrt(2.0 * (math.sqrt(1.0 + r * r) - 1.0)), r)
            residuals.append(math.sqrt(self.weight) * flattened)
        return residuals


Task = tuple[FitTarget, Mapping[str, float]]
"""A target, and the figures with which it is to be simulated."""


class Predictor:
    """Simulates targets on all cores, and remembers: most differences leave most targets as they were.

    There is no thread and no lock here, as an executor has them: Ctrl-C may come anywhere.
    """

    def __init__(self, progress: Notify) -> None:
        self._progress, self._runs = progress, 0
        self._known: dict[tuple[object, ...], dict[str, float]] = {}
        self._workers: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def __call__(self, targets: Sequence[FitTarget], calibration: Calibration) -> list[dict[str, float]]:
        """The metrics of each target by a calibration."""
        tasks: list[Task] = [(one, composed(packaged_physics(), calibration, one.groups)) for one in targets]
        missing = {_key(task): task for task in tasks if _key(task) not in self._known}
        if missing:
            self._known.update(zip(missing, self._simulated(list(missing.values())), strict=True))
        return [self._known[_key(task)] for task in tasks]

    def _simulated(self, tasks: Sequence[Task]) -> list[dict[str, float]]:
        """Results of tasks in their order; whoever has done a few gets the next few."""
        if not self._pipes:
            self._start()
        before, self._runs = self._runs, self._runs + len(tasks)
        if self._runs // _TOLD_EVERY > before // _TOLD_EVERY:
            self._progress(f"{self._runs} simulated runs")
        results: list[dict[str, float]] = [{}] * len(tasks)
        positions = iter(range(0, len(tasks), _CHUNK))
        idle, busy = list(self._pipes), set[Connection]()
        while True:
            for pipe, position in zip(idle, positions, strict=False):
                pipe.send((position, tasks[position : position + _CHUNK]))
                busy.add(pipe)
            if not busy:
                return results
            idle = [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]
            for pipe in idle:
                position, metrics = pipe.recv()
                results[position : position + len(metrics)] = metrics
                busy.remove(pipe)

    def _start(self) -> None:
        """Fork a worker per core; Ctrl-C waits until all are there, so that none of them gets it half made."""
        fork = multiprocessing.get_context("fork")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(os.cpu_count() or 1):
                ours, its = fork.Pipe()
                worker = fork.Process(target=_work, args=(its, os.getpid()), daemon=True)
                worker.start()
                its.close()
                self._workers.append(worker)
                self._pipes.append(ours)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _key(task: Task) -> tuple[object, ...]:
    target, figures = task
    return target, *figures.values()


def _work(pipe: Connection, parent: int) -> None:
    """Simulate what the parent sends; an interruption is the parent's business, its end this worker's too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    while os.getppid() == parent:
        position, tasks = pipe.recv()
        pipe.send((position, [target.predicted(figures) for target, figures in tasks]))


class Problem:
    """Fit the factors of some targets.

    Args:
        start: where the factors begin and what they are drawn to.
    """

    def __init__(self, targets: Sequence[FitTarget], start: Calibration, predict: Predictor) -> None:
        self.targets, self.start, self.predict = targets, start, predict
        physics = packaged_physics()
        self.factors = sorted(
            {which for t in targets for which in factors_of(physics, t.groups) if _free(which, start)}
        )
        self._spread = np.array([physics.figures[which.figure].spread[which.level] for which in self.factors])
        self._centre = self.logs(start)
        self._known: dict[bytes, tuple[Floats, Floats]] = {}

    def logs(self, calibration: Calibration) -> Floats:
        """The logarithms of a calibration's factors, shape (factors,)."""
        return np.array([math.log(calibration.factor(which)) for which in self.factors])

    def calibration(self, x: Floats) -> Calibration:
        """The start with these factors in it."""
        factors = {level: {g: dict(f) for g, f in groups.items()} for level, groups in self.start.factors.items()}
        for which, log in zip(self.factors, x.tolist(), strict=True):
            factors.setdefault(which.level, {}).setdefault(which.group, {})[which.figure] = math.exp(log)
        return self.start.model_copy(update={"factors": factors})

    def residuals(self, x: Floats) -> Floats:
        """Shape (targets * metrics + factors,)."""
        metrics = self.predict(self.targets, self.calibration(x))
        data = [r for target, its in zip(self.targets, metrics, strict=True) for r in target.residuals(its)]
        return np.concatenate([np.array(data), (x - self._centre) / self._spread])

    def at(self, x: Floats) -> tuple[Floats, Floats]:
        """Residuals and Jacobian, kept for who asks for the same place again."""
        key = x.tobytes()
        if key not in self._known:
            self._known = {key: (self.residuals(x), self.jacobian(x))}
        return self._known[key]

    def jacobian(self, x: Floats) -> Floats:
        """Differences of the fast prediction, all factors of a target at once; shape (residuals, factors).

        The full simulation's own would take a run for each factor and target, and have the jumps of its schedules.
        """
        calibration = self.calibration(x)
        metrics = self.predict(self.targets, calibration)
        column = {which: place for place, which in enumerate(self.factors)}
        rows = np.zeros((len(self.targets), len(UNCERTAIN), len(x)))
        for target, its, block in zip(self.targets, metrics, rows, strict=True):
            mine = [which for which in factors_of(packaged_physics(), target.groups) if which in column]
            slopes = target.slopes(calibration, mine, its)
            block[:, [column[which] for which in mine]] = slopes
        return np.concatenate([rows.reshape(-1, len(x)), np.diag(1.0 / self._spread)])

    def deviations(self, x: Floats) -> dict[str, dict[str, dict[str, float]]]:
        """What the targets leave of the standard deviations of ln(factor), by level, group and figure."""
        jacobian = self.jacobian(x)
        left = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
        found: dict[str, dict[str, dict[str, float]]] = {}
        for which, deviation in zip(self.factors, left.tolist(), strict=True):
            found.setdefault(which.level, {}).setdefault(which.group, {})[which.figure] = round(deviation, 3)
        return found


def _free(which: Factor, start: Calibration) -> bool:
    """Whether a factor is looked for.

    What rows have told already stays: a handful of new ones must not move what all engines and GPUs share. They move
    groups that nobody measured, and what the engine does on their own node.
    """
    if not start.fitted_to:
        return which.level != OWN
    return which.level == OWN or not start.knows(which)


def fit(problem: Problem, guess: Calibration) -> Floats:
    """The logarithms of the factors that explain the targets best while they stay near the start.

    It is a maximum a posteriori estimate.

    Args:
        guess: where to begin looking; it saves time and does not change what is looked for.
    """
    solution = least_squares(
        problem.residuals,
        problem.logs(guess),
        jac=cast("Callable[[Floats], Floats]", problem.jacobian),
        max_nfev=_ROUNDS,
        ftol=_ENOUGH,
        xtol=_ENOUGH,
    )
    return cast(Floats, solution.x)


def without(whole: Problem, x: Floats, out: Sequence[int]) -> Calibration:
    """The calibration of a fit without some targets.

    It begins at the whole fit's solution, where its Jacobian is known, and takes one Gauss-Newton step with it. Factors
    that only the left-out targets tell about are back at their start.

    Args:
        x: the whole fit's solution.
        out: positions of the targets that are left out.
    """
    kept = np.ones(len(whole.targets), dtype=bool)
    kept[list(out)] = False
    residuals, jacobian = whole.at(x)
    rows = np.concatenate([np.repeat(kept, len(UNCERTAIN)), np.ones(len(x), dtype=bool)])
    step = np.linalg.lstsq(jacobian[rows], residuals[rows], rcond=None)[0]
    return whole.calibration(x - np.clip(step, -_FARTHEST, _FARTHEST))
