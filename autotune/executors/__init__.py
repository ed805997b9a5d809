"""Where evaluations run. The contract, and the executors by name.

An executor takes trials and gives back finished launches, in whatever order they end; it knows neither
the search nor what an evaluation does.
"""

from __future__ import annotations

from typing import Protocol

from autotune.errors import UnknownName
from autotune.evaluate import Evaluator
from autotune.executors.local import LocalExecutor
from autotune.trial import Launch, Trial


class Executor(Protocol):
    """Runs trials, up to `slots` at a time."""

    @property
    def slots(self) -> int:
        """How many trials may run at the same time."""
        ...

    def submit(self, trial: Trial) -> None:
        """Accept a trial; at most `slots` may be unfinished."""
        ...

    def next_finished(self) -> Launch:
        """Wait for the next trial to end."""
        ...

    def close(self) -> None:
        """Release what it holds; unfinished trials are given up."""
        ...


def executor_for(name: str, evaluator: Evaluator) -> Executor:
    """The executor of a name; raises `UnknownName`."""
    if name != "local":
        raise UnknownName("executor", name, ["local"])
    return LocalExecutor(evaluator)
