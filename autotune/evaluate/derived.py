"""Adds to every result the metrics that follow from the measured ones: per GPU, per user, and in money."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.evaluate import Evaluator
from autotune.metrics.derived import with_derived
from autotune.space.context import gpus_of
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Trial, TrialResult


@dataclass(frozen=True, slots=True)
class Derived:
    """An evaluator whose results have the metrics of `autotune.metrics.derived`, of the GPUs that a server takes."""

    evaluator: Evaluator
    spec: StudySpec

    @property
    def evidence(self) -> Evidence:
        """The evaluator's."""
        return self.evaluator.evidence

    def __call__(self, trial: Trial) -> TrialResult:
        """See `Evaluator`."""
        result = self.evaluator(trial)
        gpus, price = gpus_of(trial.configuration, self.spec.gpus), self.spec.gpu_hour_price
        metrics = {name: with_derived(measured, gpus, price) for name, measured in result.metrics.items()}
        return replace(result, metrics=metrics)
