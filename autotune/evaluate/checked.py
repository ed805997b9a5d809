"""Around every evaluator: a result whose figures cannot be is no measurement.

A figure that is not finite, or below zero where nothing can be, comes from a fault: of the engine's own counts, of a
replay file, of somebody else's evaluator. Nothing after this sees one: neither the search nor Optuna, MLflow or a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from autotune.evaluate import Evaluator
from autotune.metrics.formulas import METRICS
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Failure, FailureKind, Metrics, State, Trial, TrialResult

_GONE = object()


@dataclass(frozen=True, slots=True)
class Checked:
    """An evaluator whose complete results have the objective, and no figure that cannot be.

    A complete result with one becomes ``invalid``, with the first such figure in its message; the figures themselves
    are left out whatever the state, so that what is kept of a result is always JSON.
    """

    evaluator: Evaluator
    spec: StudySpec

    @property
    def evidence(self) -> Evidence:
        """That of the evaluator."""
        return self.evaluator.evidence

    def __call__(self, trial: Trial) -> TrialResult:
        """See `Evaluator`."""
        result = self.evaluator(trial)
        problem = next(self._problems(trial, result), None) if result.state is State.COMPLETE else None
        result = replace(
            result,
            metrics={name: _cleaned(metrics) for name, metrics in result.metrics.items()},
            times_s={name: float(s) for name, s in result.times_s.items() if _possible(s)},
        )
        if problem is None:
            return result
        message = f"{problem}. The measurement says nothing about the configuration."
        return replace(result, state=State.INVALID, failure=Failure(FailureKind.INFRASTRUCTURE, message))

    def _problems(self, trial: Trial, result: TrialResult) -> Iterator[str]:
        """What is wrong with a complete result, the objective first."""
        goals = {trial.workloads[0], *(name for name in self.spec.weights if name in trial.workloads)}
        for name in (name for name in trial.workloads if name in goals):
            yield from _no_objective(name, self.spec.objective, result.metrics.get(name))
        for name, metrics in result.metrics.items():
            for metric, value in metrics.items():
                if metric in METRICS and value is not None and not _possible(value):
                    yield f"{name}: {metric} is {_said(value)}; {_meaning(value)}"


def _no_objective(name: str, objective: str, metrics: Mapping[str, Any] | None) -> Iterator[str]:
    if metrics is None:
        yield f"{name}: it was not measured, and the launch is told as complete"
    elif metrics.get(objective) is None:
        yield f"{name}: there is no {objective} among its metrics, and it is the objective"
    elif not _possible(metrics[objective]):
        yield f"{name}: {objective} is {_said(metrics[objective])}; {_meaning(metrics[objective])}"
    elif not metrics[objective] > 0:
        kind = "nothing was counted" if METRICS[objective].maximise else "nothing takes no time, so nothing was timed"
        yield f"{name}: {objective} is 0: {kind}"


def _possible(value: object) -> bool:
    """Whether it is a finite number, not below zero: no metric, time or spread is."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf


def _meaning(value: object) -> str:
    if not isinstance(value, Real) or isinstance(value, bool):
        return "a number was expected"
    if math.isnan(value):
        return "something was divided by nothing, or not counted at all"
    return "it must be finite, so something was divided by zero" if value == math.inf else "it cannot be below zero"


def _said(value: object) -> str:
    return f"{float(value):g}" if isinstance(value, Real) and not isinstance(value, bool) else repr(value)[:40]


def _cleaned(metrics: Mapping[str, Any]) -> Metrics:
    """The metrics as plain JSON values, without those that cannot be."""
    impossible = {m for m, v in metrics.items() if m in METRICS and isinstance(v, Real) and not _possible(v)}
    plain = {name: _plain(value) for name, value in metrics.items() if name not in impossible}
    return {name: value for name, value in plain.items() if value is not _GONE}


def _plain(value: Any) -> Any:
    """A value as JSON has it, a number of whatever library as Python's own; `_GONE` for one that JSON has not."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else _GONE
    if isinstance(value, Mapping):
        return {str(name): one for name, one in ((k, _plain(v)) for k, v in value.items()) if one is not _GONE}
    if isinstance(value, list | tuple):
        return [None if one is _GONE else one for one in map(_plain, value)]
    return _GONE
