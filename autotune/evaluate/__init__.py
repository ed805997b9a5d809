"""The contract of evaluators: a trial in, a result out, by the way that the study names.

launched     by launching a server, loading it over HTTP, and stopping it
offline      without a server: on the simulated node, or from a file of recorded launches
derived      around each evaluator: the metrics that follow from the measured ones
checked      around each evaluator, so that no figure leaves it that cannot be
readback     what an engine that is ready made of its arguments
"""

from __future__ import annotations

from typing import Protocol

from autotune.trial import Evidence, Trial, TrialResult

PHASES = ("launch", "ready", "warmup", "load", "stop")
"""The keys of `TrialResult.times_s`, in their order."""


class Evaluator(Protocol):
    """Evaluates trials; a picklable callable."""

    @property
    def evidence(self) -> Evidence:
        """Where its numbers come from."""
        ...

    def __call__(self, trial: Trial) -> TrialResult:
        """Launch, load, stop. A configuration that cannot run is a result, not an exception."""
        ...
