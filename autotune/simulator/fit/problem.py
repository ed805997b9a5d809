"""The fit as a least-squares problem: unknowns, residuals, and their Jacobian by differences.

Unknown are the logarithms of the factors (`autotune.simulator.node.calibration`). A residual is ln(predicted /
measured) of a metric over what a run of that metric is uncertain by, flattened where it is large (soft L1, so that an
outlier pulls with bounded force); and for each factor its distance from where it starts over its spread, which draws
what the rows do not tell towards physics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats
from autotune.loadgen.workloads import Workload
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

UNCERTAIN = {"total_token_throughput": 0.08, "median_ttft_ms": 0.35, "median_tpot_ms": 0.25}
"""Standard deviation of ln(metric) that a single run is taken to have. Throughput: equivalent rows differ by 5 % on
vLLM and 15 % on SGLang. Latencies are held more loosely: they hang on the order in which a client's requests arrive."""

_STEP = 0.05
"""Of ln(factor), for differences: large enough to look over the jumps of a schedule."""

_FAILED = 10.0
"""What a load that ran is taken to be predicted wrong by when it is predicted to fail."""


@dataclass(frozen=True)
class FitTarget:
    """A measured point as the fit sees it.

    Attributes:
        metrics: measured, under the names of `UNCERTAIN`; one that is missing does not count.
        weight: 1; less for what is known to be an outlier.
    """

    setup: ServerSetup
    workload: Workload
    metrics: Mapping[str, float]
    weight: float = 1.0

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


Task = tuple[FitTarget, Mapping[str, float]]
"""A target, and the figures with which it is to be simulated."""


class Predictor:
    """Simulated runs of targets, remembered: most differences leave most targets as they were.

    Args:
        run: simulates tasks, in their order.
    """

    def __init__(self, run: Callable[[Sequence[Task]], list[dict[str, float]]]) -> None:
        self._run = run
        self._known: dict[tuple[float, ...], dict[str, float]] = {}
        self._targets: dict[int, FitTarget] = {}  # kept alive, so that no other one gets its id

    def __call__(self, tasks: Sequence[Task]) -> list[dict[str, float]]:
        """The metrics of each target with the figures given for it."""
        keys = [(id(target), *figures.values()) for target, figures in tasks]
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self._known}
        if missing:
            self._known.update(zip(missing, self._run(list(missing.values())), strict=True))
            self._targets.update((id(target), target) for target, _ in missing.values())
        return [self._known[key] for key in keys]


class Problem:
    """Fit the factors of some targets.

    Args:
        start: where the factors begin and what they are drawn to.
    """

    def __init__(self, targets: Sequence[FitTarget], start: Calibration, predictor: Predictor) -> None:
        self.targets, self._start, self._predictor = list(targets), start, predictor
        physics = packaged_physics()
        self.factors = sorted(
            {which for t in targets for which in factors_of(physics, t.groups) if _free(which, start)}
        )
        self._spread = np.array([physics.figures[which.figure].spread[which.level] for which in self.factors])
        self._centre = self.logs(start)

    def logs(self, calibration: Calibration) -> Floats:
        """The logarithms of a calibration's factors, shape (factors,)."""
        return np.array([math.log(calibration.factor(which)) for which in self.factors])

    def calibration(self, x: Floats) -> Calibration:
        """The start with these factors in it."""
        factors = {level: {g: dict(f) for g, f in groups.items()} for level, groups in self._start.factors.items()}
        for which, log in zip(self.factors, x.tolist(), strict=True):
            factors.setdefault(which.level, {}).setdefault(which.group, {})[which.figure] = math.exp(log)
        return self._start.model_copy(update={"factors": factors})

    def residuals(self, x: Floats) -> Floats:
        """Shape (targets * metrics + factors,)."""
        return self._residuals_of([x])[0]

    def jacobian(self, x: Floats) -> Floats:
        """Forward differences, shape (residuals, factors)."""
        moved = [x + _STEP * unit for unit in np.eye(len(x))]
        here, *there = self._residuals_of([x, *moved])
        return np.array([(other - here) / _STEP for other in there]).T

    def _residuals_of(self, xs: Sequence[Floats]) -> list[Floats]:
        """Residuals at several places, their runs simulated together."""
        tasks = [task for x in xs for task in tasks_of(self.targets, self.calibration(x))]
        predicted = self._predictor(tasks)
        n = len(self.targets)
        found = []
        for i, x in enumerate(xs):
            data = [
                r for t, p in zip(self.targets, predicted[i * n : (i + 1) * n], strict=True) for r in _misfits(t, p)
            ]
            found.append(np.concatenate([np.array(data), (x - self._centre) / self._spread]))
        return found


def tasks_of(targets: Iterable[FitTarget], calibration: Calibration) -> list[Task]:
    """The runs that predict targets by a calibration."""
    return [(target, composed(packaged_physics(), calibration, target.groups)) for target in targets]


def _free(which: Factor, start: Calibration) -> bool:
    """Whether a factor is looked for.

    What rows have told already stays: a handful of new ones must not move what all engines and GPUs share. They move
    groups that nobody measured, and what the engine does on their own node.
    """
    if not start.fitted_to:
        return which.level != OWN
    return which.level == OWN or not start.knows(which)


def _misfits(target: FitTarget, predicted: Mapping[str, float]) -> list[float]:
    """The residuals of one target, one per metric of `UNCERTAIN`."""
    found = []
    for name, uncertain in UNCERTAIN.items():
        measured = target.metrics.get(name, 0.0)
        if measured <= 0:
            found.append(0.0)
            continue
        value = predicted.get(name, 0.0)
        r = math.log(value / measured if value > 0 else _FAILED) / uncertain
        # Soft L1: like r when small, like sqrt(2|r|) when large.
        flattened = math.copysign(math.sqrt(2.0 * (math.sqrt(1.0 + r * r) - 1.0)), r)
        found.append(math.sqrt(target.weight) * flattened)
    return found
