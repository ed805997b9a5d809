"""Finds the factors, and finds them again without some of the targets."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import cast

import numpy as np
from scipy.optimize import least_squares

from autotune.arrays import Floats
from autotune.child import die_with_parent
from autotune.notify import Notify
from autotune.simulator.fit.problem import FitTarget, Predictor, Problem, Task, tasks_of
from autotune.simulator.node.calibration import Calibration

_ROUNDS = 12
_TOLD_EVERY = 100
_CHUNK = 4
"""Tasks that a worker gets at a time."""

_FOLD_STEPS = 8
_ENOUGH = 3e-4
"""A step that lowers the cost by less than this share ends a fit."""


@dataclass(frozen=True)
class Fitted:
    """A calibration and what it predicts.

    Attributes:
        predicted: metrics per target, in the order in which they were given.
        x: the logarithms of the factors.
    """

    calibration: Calibration
    predicted: list[dict[str, float]]
    x: Floats
    problem: Problem


@contextmanager
def predictor(progress: Notify) -> Iterator[Predictor]:
    """Simulate on all cores of the machine.

    There is no thread and no lock here, as an executor has them: Ctrl-C may come anywhere.
    """
    runs = 0
    workers: list[BaseProcess] = []
    pipes: list[Connection] = []

    def run(tasks: Sequence[Task]) -> list[dict[str, float]]:
        nonlocal runs
        if not pipes:
            _start(workers, pipes)
        before, runs = runs, runs + len(tasks)
        if runs // _TOLD_EVERY > before // _TOLD_EVERY:
            progress(f"{runs} simulated runs")
        return _share_out(tasks, pipes)

    try:
        yield Predictor(run)
    finally:
        for worker in workers:
            worker.kill()


def _start(workers: list[BaseProcess], pipes: list[Connection]) -> None:
    """Fork a worker per core; Ctrl-C waits until all are there, so that none of them gets it half made."""
    fork = multiprocessing.get_context("fork")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for _ in range(os.cpu_count() or 1):
            ours, its = fork.Pipe()
            worker = fork.Process(target=_work, args=(its, os.getpid()), daemon=True)
            worker.start()
            its.close()
            workers.append(worker)
            pipes.append(ours)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, parent: int) -> None:
    """Simulate what the parent sends; an interruption is the parent's business, its end this worker's too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    while os.getppid() == parent:
        position, tasks = pipe.recv()
        pipe.send((position, [target.predicted(figures) for target, figures in tasks]))


def _share_out(tasks: Sequence[Task], pipes: Sequence[Connection]) -> list[dict[str, float]]:
    """Results of tasks in their order; whoever has done a few gets the next few."""
    results: list[dict[str, float]] = [{}] * len(tasks)
    positions = iter(range(0, len(tasks), _CHUNK))
    idle, busy = list(pipes), set[Connection]()
    while True:
        for pipe, position in zip(idle, positions, strict=False):
            pipe.send((position, tasks[position : position + _CHUNK]))
            busy.add(pipe)
        if not busy:
            return results
        idle = [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]
        for pipe in idle:
            position, found = pipe.recv()
            results[position : position + len(found)] = found
            busy.remove(pipe)


def fit(
    targets: Sequence[FitTarget], start: Calibration, predict: Predictor, guess: Calibration | None = None
) -> Fitted:
    """The factors that explain the targets best while they stay near the start: a maximum a posteriori estimate.

    Args:
        guess: where to begin looking; it saves time and does not change what is looked for. None: at the start.
    """
    problem = Problem(targets, start, predict)
    found = least_squares(
        problem.residuals,
        problem.logs(guess or start),
        jac=cast("Callable[[Floats], Floats]", problem.jacobian),
        max_nfev=_ROUNDS,
        ftol=_ENOUGH,
        xtol=_ENOUGH,
    )
    calibration = problem.calibration(found.x)
    return Fitted(calibration, predict(tasks_of(targets, calibration)), found.x, problem)


def leave_out(whole: Fitted, start: Calibration, out: Sequence[int], predict: Predictor) -> list[dict[str, float]]:
    """What a fit without some targets predicts for them.

    It begins at the whole fit's solution, where its Jacobian is known, and takes Gauss-Newton steps with that Jacobian
    until the cost of the remaining targets falls no more. Factors that only the left-out targets tell about are back
    at their start.

    Args:
        out: positions of the targets that are left out.
    """
    targets = whole.problem.targets
    problem = Problem([target for i, target in enumerate(targets) if i not in set(out)], start, predict)
    where = dict(zip(whole.problem.factors, whole.x.tolist(), strict=True))
    x = _descended(problem, np.array([where[which] for which in problem.factors]))
    return predict(tasks_of([targets[i] for i in out], problem.calibration(x)))


def _descended(problem: Problem, x: Floats) -> Floats:
    residuals = problem.residuals(x)
    cost = float(residuals @ residuals)
    solve = np.linalg.pinv(problem.jacobian(x))  # known runs only
    for _ in range(_FOLD_STEPS):
        step, before = solve @ residuals, cost
        for share in (1.0, 0.5, 0.25, 0.1, 0.03):
            tried = x - share * step
            residuals = problem.residuals(tried)
            cost = float(residuals @ residuals)
            if cost < before:
                break
        else:
            return x
        x = tried
        if cost > before * (1.0 - _ENOUGH):
            return x
    return x
