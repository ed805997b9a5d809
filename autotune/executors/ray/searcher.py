"""Ray Tune in a thread of its own, with a searcher that hands out the trials of a queue.

The study decides what to try (`autotune.search`) and Ray Tune where resources are free; the searcher connects them.
Sources: https://docs.ray.io/en/latest/tune/api/suggestion.html (``Searcher``),
https://docs.ray.io/en/latest/tune/tutorials/tune-resources.html (``PlacementGroupFactory``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from autotune.executors.ray.node_pool import Node
from autotune.executors.ray.result_queue import TUNE_FOLDER, own_folder
from autotune.trial import Trial

A_LITTLE = 0.001
"""Of a node's processors, which are the server's and nobody counts, and of the resource that names its hardware."""


@dataclass(frozen=True, slots=True)
class Task:
    """One try of a trial on a node.

    Attributes:
        key: of its own, as a trial may be tried again.
        gpus: those that it needs.
    """

    key: str
    trial: Trial
    gpus: int
    node: Node

    def placement(self) -> tune.PlacementGroupFactory:
        """One bundle on the task's node, so that all GPUs are there."""
        bundle: dict[str, float] = {"CPU": A_LITTLE}
        if self.gpus:
            bundle["GPU"] = self.gpus
        if self.node.kind:
            bundle[self.node.kind] = A_LITTLE
        return tune.PlacementGroupFactory(
            [bundle], strategy="STRICT_PACK", bundle_label_selector=[{"ray.io/node-id": self.node.node_id}]
        )


class TrialQueueSearcher(Searcher):
    """Suggests the tasks that are put into its queue, in their order."""

    def __init__(self) -> None:
        super().__init__(metric="done", mode="max")
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.errors: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._keys: dict[str, str] = {}

    def suggest(self, trial_id: str) -> Any:
        """The next task, as a configuration; None while there is none and others run."""
        if self.closed.is_set():
            # While nothing runs Ray Tune asks for trials for minutes, and looks at no stopper.
            return Searcher.FINISHED
        try:
            # And it sleeps for a second between two times that it asks: waited for here, a task starts at once.
            task = self.tasks.get(block=not self._keys)
        except queue.Empty:
            return None
        if task is None:
            return Searcher.FINISHED
        self._keys[trial_id] = task.key
        return {"task": task}

    def close(self) -> None:
        """End the queue: there will be no more tasks."""
        self.closed.set()
        self.tasks.put(None)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        """Note a trial whose process or node is gone; results come by the result queue."""
        key = self._keys.pop(trial_id, None)
        if error and key is not None:
            self.errors.put(key)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the study is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray Tune pickles its searcher to restore from, which is never done.
        return {}


class StopWhenClosed(tune.Stopper):
    """Ends the tuning when the searcher's queue is closed."""

    def __init__(self, searcher: TrialQueueSearcher) -> None:
        self._closed = searcher.closed

    def __call__(self, *_: object) -> bool:
        """Single trials end by themselves."""
        return False

    def stop_all(self) -> bool:
        """Whether the executor is being closed."""
        return self._closed.is_set()

    def __getstate__(self) -> dict[str, Any]:
        return {}


class TuneThread:
    """Ray Tune in a thread.

    Args:
        trainable: runs on a node; is given ``{"task": Task}`` and ``parameters``.
    """

    def __init__(self, trainable: Callable[..., Any], parameters: dict[str, Any]) -> None:
        self.searcher = TrialQueueSearcher()
        self.error: BaseException | None = None
        self._folder = own_folder(TUNE_FOLDER)
        self._trainable = tune.with_parameters(trainable, **parameters)
        self._thread = threading.Thread(target=self._run, name="ray-tune", daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> None:
        """Stop; trials that still run are ended with their processes."""
        self.searcher.close()
        self._thread.join(wait_s)
        self._folder.cleanup()

    def _run(self) -> None:
        try:
            tune.Tuner(
                tune.with_resources(self._trainable, lambda config: config["task"].placement()),
                tune_config=tune.TuneConfig(search_alg=self.searcher, num_samples=-1, reuse_actors=True),
                run_config=tune.RunConfig(
                    name="study",
                    storage_path=self._folder.name,
                    stop=StopWhenClosed(self.searcher),
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            ).fit()
        except BaseException as error:
            self.error = error
