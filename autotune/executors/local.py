"""The easiest executor, always there: one trial at a time, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.evaluate import Evaluator
from autotune.trial import Launch, Trial


class LocalExecutor:
    """Evaluates a trial when its result is waited for."""

    nodes: Sequence[str] = ()
    busy: Sequence[str] = ()

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._waiting: Trial | None = None

    def has_room(self) -> bool:
        """Whether no trial waits."""
        return self._waiting is None

    def submit(self, trial: Trial) -> None:
        """Accept a trial; raises ``RuntimeError`` when one is waiting already."""
        if self._waiting is not None:
            raise RuntimeError("the local executor runs one trial at a time")
        self._waiting = trial

    def next_finished(self) -> Launch:
        """Evaluate the waiting trial; raises ``RuntimeError`` when there is none."""
        if self._waiting is None:
            raise RuntimeError("no trial was submitted")
        trial, self._waiting = self._waiting, None
        return Launch(trial, self._evaluator(trial))

    def retire(self, node: str, why: str) -> bool:
        """There is no other node than this machine."""
        del node, why
        return False

    def close(self) -> None:
        """Forget a trial that was not evaluated."""
        self._waiting = None
