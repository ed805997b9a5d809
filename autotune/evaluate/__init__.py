"""`Trial -> TrialResult`: what a launch comes to, by the way that the study names.

    understanding   a command line as its engine's version understands it, and its prediction
    simulated       on the simulated node, in virtual time
    replayed        from a file of recorded launches
    launched        by launching a server, loading it over HTTP, and stopping it

An evaluator is a picklable callable; `autotune.evaluate.checked` stands around each, so that no figure leaves it that
cannot be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from autotune.errors import UnknownName
from autotune.notify import Notify, silent
from autotune.simulator.resolve_command import Understood, model_of, predict, prediction, understand, understand_as
from autotune.space.library import Library
from autotune.study.spec import StudySpec
from autotune.trial import Evidence, Trial, TrialResult

__all__ = [
    "Evaluator",
    "Understood",
    "evaluator_for",
    "model_of",
    "predict",
    "prediction",
    "understand",
    "understand_as",
]


class Evaluator(Protocol):
    """How trials are evaluated."""

    @property
    def evidence(self) -> Evidence:
        """What its numbers are."""
        ...

    def __call__(self, trial: Trial) -> TrialResult:
        """Launch, load, stop. A configuration that cannot run is a result, not an exception."""
        ...


def evaluator_for(spec: StudySpec, library: Library, folder: Path, notify: Notify = silent) -> Evaluator:
    """The evaluator that a study names; raises `UnknownName`.

    Args:
        folder: the study's, for what launches leave behind.
        notify: called when a launch is tried again.
    """
    # Imported when asked for: HTTP clients and event loops take time that a simulated study need not spend.
    if spec.on == "simulator":
        from autotune.evaluate.simulated import Simulated

        return Simulated(library, spec.model, spec.hardware, spec.gpus, spec.noise, spec.seed)
    if spec.on.startswith("replay:"):
        from autotune.evaluate.replayed import Replayed

        return Replayed(spec, library)
    if spec.on in ("process", "docker", "emulator") or spec.on.startswith("external:"):
        from autotune.evaluate.attempts import BackOff
        from autotune.evaluate.launched import Launched

        return Launched(spec, library, folder, back_off=BackOff(notify=notify))
    known = ["simulator", "emulator", "process", "docker", "external:URL", "replay:FILE"]
    raise UnknownName("way to run trials", spec.on, known)
