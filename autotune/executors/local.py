"""The easiest executor, always there: one trial at a time, in this process."""

from __future__ import annotations

from autotune.evaluate import Evaluator
from autotune.trial import Launch, Trial


class LocalExecutor:
    """Evaluates a trial when its result is waited for."""

    slots = 1

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._waiting: list[Trial] = []

    def submit(self, trial: Trial) -> None:
        """Accept a trial; raises ``RuntimeError`` when one is waiting already."""
        if len(self._waiting) >= self.slots:
            raise RuntimeError("the local executor runs one trial at a time")
        self._waiting.append(trial)

    def next_finished(self) -> Launch:
        """Evaluate the waiting trial; raises ``IndexError`` when there is none."""
        trial = self._waiting.pop(0)
        return Launch(trial, self._evaluator(trial))

    def close(self) -> None:
        """Forget a trial that was not evaluated."""
        self._waiting.clear()
