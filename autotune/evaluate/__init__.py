"""`Trial -> TrialResult`: what a launch comes to, by the way that the study names.

    understanding   a command line as its engine's version understands it, and its prediction
    simulated       on the simulated node, in virtual time

An evaluator is a picklable callable.
"""

from __future__ import annotations

from typing import Protocol

from autotune.errors import UnknownName
from autotune.evaluate.understanding import Understood, model_of, predict, prediction, understand
from autotune.space.library import Library
from autotune.spec import StudySpec
from autotune.trial import Evidence, Trial, TrialResult

__all__ = ["Evaluator", "Understood", "evaluator_for", "model_of", "predict", "prediction", "understand"]


class Evaluator(Protocol):
    """How trials are evaluated."""

    @property
    def evidence(self) -> Evidence:
        """What its numbers are."""
        ...

    def __call__(self, trial: Trial) -> TrialResult:
        """Launch, load, stop. A configuration that cannot run is a result, not an exception."""
        ...


def evaluator_for(spec: StudySpec, library: Library) -> Evaluator:
    """The evaluator that a study names; raises `UnknownName`."""
    if spec.on == "simulator":
        from autotune.evaluate.simulated import Simulated

        return Simulated(library, spec.model, spec.hardware, spec.gpus, spec.noise, spec.seed)
    raise UnknownName("way to run trials", spec.on, ["simulator"])
