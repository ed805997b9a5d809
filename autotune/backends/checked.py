"""Around every evaluator: metrics that follow from the measured ones are added, and impossible figures are refused.

A figure that is not finite, or below zero where nothing can be, comes from a fault: of the engine's own counts, of a
replay file, of somebody else's evaluator. Nothing after this sees one: neither the search nor Optuna, MLflow or a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from autotune.backends import Evaluator
from autotune.metrics.formulas import without_capacity
from autotune.metrics.table import CURVE, GOODPUT, METRICS
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Failure, FailureKind, Metrics, State, Trial, TrialResult

_NOT_JSON = object()


@dataclass(frozen=True, slots=True)
class Checked:
    """An evaluator whose results have the derived metrics, complete ones the objective, and none an impossible figure.

    A complete result with an impossible figure becomes ``invalid``, with the first one in its message. Such figures are
    left out whatever the state, so that a row is always JSON.
    """

    evaluator: Evaluator
    spec: StudySpec

    @property
    def evidence(self) -> Evidence:
        """The evaluator's."""
        return self.evaluator.evidence

    def __call__(self, trial: Trial) -> TrialResult:
        """See `Evaluator`."""
        result = self.evaluator(trial)
        metrics = {name: self.spec.derived(found, trial.configuration) for name, found in result.metrics.items()}
        problem = next(self._problems(trial, metrics), None) if result.state is State.COMPLETE else None
        result = replace(
            result,
            metrics={name: _plain(_without_impossible(measured)) for name, measured in metrics.items()},
            times_s={name: float(s) for name, s in result.times_s.items() if _is_possible(s)},
        )
        if problem is None:
            return result
        message = f"{problem}. The measurement says nothing about the configuration."
        return replace(result, state=State.INVALID, failure=Failure(FailureKind.INFRASTRUCTURE, message))

    def _problems(self, trial: Trial, metrics: Mapping[str, Metrics]) -> Iterator[str]:
        """List the problems of a complete result, the objective's first."""
        objective = self.spec.objective
        goals = {trial.workloads[0], *self.spec.weights}
        for name in (name for name in trial.workloads if name in goals):
            measured = metrics.get(name)
            value = (measured or {}).get(objective)
            if self.spec.load_key and without_capacity(measured or {}):
                continue  # It was measured, and found too slow for any load.
            if measured is None:
                yield f"{name}: it was not measured, but the launch is reported as complete"
            elif value is None:
                yield f"{name}: there is no {objective} among its metrics, and it is the objective"
            elif not _is_possible(value):
                yield f"{name}: {objective} is {_impossible(value)}"
            elif not value > 0 and not (objective == GOODPUT and measured.get("duration")):
                more = METRICS[objective].maximise
                kind = "nothing was counted" if more else "nothing takes no time, so nothing was timed"
                yield f"{name}: {objective} is 0: {kind}"
        for name, measured in metrics.items():
            for metric, value in measured.items():
                if metric in METRICS and value is not None and not _is_possible(value):
                    yield f"{name}: {metric} is {_impossible(value)}"


def _is_possible(value: object) -> bool:
    """True for a finite number that is not below zero, as every metric and time is."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf


def _impossible(value: object) -> str:
    return f"{str(value)[:40]}; a finite number of at least 0 was expected"


def _without_impossible(metrics: Mapping[str, Any]) -> Metrics:
    kept = {m: v for m, v in metrics.items() if m not in METRICS or not isinstance(v, Real) or _is_possible(v)}
    if isinstance(rows := kept.get(CURVE), list):
        kept[CURVE] = [_without_impossible(row) for row in rows]
    return kept


def _plain(value: Any) -> Any:
    """Convert a value to JSON's types, numbers of any library to Python's; `_NOT_JSON` for what JSON has not."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else _NOT_JSON
    if isinstance(value, Mapping):
        return {str(name): one for name, one in ((k, _plain(v)) for k, v in value.items()) if one is not _NOT_JSON}
    if isinstance(value, list | tuple):
        return [None if one is _NOT_JSON else one for one in map(_plain, value)]
    return _NOT_JSON
