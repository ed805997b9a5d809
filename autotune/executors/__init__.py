"""Where evaluations run. The contract, and the executors by name.

An executor takes trials and gives back finished launches, in whatever order they end; it knows neither
the search nor what an evaluation does.

    local     one trial at a time, in this process
    raytune   on the nodes of a Ray cluster, as many at a time as their GPUs allow
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.errors import BadInput
from autotune.evaluate import Evaluator
from autotune.evaluate.checked import Checked
from autotune.executors import environment
from autotune.executors.local import LocalExecutor
from autotune.notify import Notify
from autotune.space.library import Library
from autotune.study.spec import StudySpec, check_executor
from autotune.trial import Launch, Trial


@dataclass(frozen=True, slots=True)
class Work:
    """What evaluators of a study are made with.

    Attributes:
        make: makes one; arguments as of `autotune.evaluate.evaluator_for`.
        folder: the study's on this machine; made by whoever opens the study.
        notify: shows what a person should know while trials run.
    """

    make: Callable[..., Evaluator]
    spec: StudySpec
    library: Library
    folder: Path
    notify: Notify

    def evaluator(self) -> Evaluator:
        """The study's evaluator, whose results are checked."""
        return Checked(self.make(self.spec, self.library, self.folder, self.notify), self.spec)


class Executor(Protocol):
    """Runs trials, as many at a time as it has room for."""

    @property
    def nodes(self) -> Sequence[str]:
        """Names of the nodes on which another trial would begin at once; empty: one place without a name."""
        ...

    @property
    def busy(self) -> Sequence[str]:
        """Names of the nodes on which another trial would wait."""
        ...

    def has_room(self) -> bool:
        """Whether another trial would begin at once."""
        ...

    def submit(self, trial: Trial) -> None:
        """Accept a trial, for its own node where it names one; for another one where that is gone."""
        ...

    def next_finished(self) -> Launch:
        """Wait for the next trial to end.

        Raises what an evaluator raises, `autotune.errors.BadInput` or `CannotGoOn`, where nothing more can be launched.
        """
        ...

    def retire(self, node: str, why: str) -> bool:
        """Launch nothing more on a node, and say why; whether there is another one."""
        ...

    def close(self) -> None:
        """Release what it holds; unfinished trials are given up. May be called again."""
        ...


def executor_for(name: str, work: Work, needs: Sequence[int], most_nodes: int) -> Executor:
    """The executor of a name.

    Args:
        needs: the GPUs that the candidates need, each number once.
        most_nodes: so many nodes are used at most.

    Raises:
        UnknownName: there is none of this name.
        BadInput: Ray is not installed, or there is no node for these candidates.
    """
    check_executor(name)
    if name == "local":
        return LocalExecutor(work.evaluator())
    address = name.partition(":")[2]
    environment.prepare(environment.stands_alone(address, work.spec.on))
    try:
        # Imported when asked for: it takes seconds.
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"--executor {name} needs Ray Tune ({error}); install it with: pip install 'autotune[ray]'"
        ) from error
    from autotune.executors.ray import RayExecutor

    return RayExecutor(address, work, needs, most_nodes)
