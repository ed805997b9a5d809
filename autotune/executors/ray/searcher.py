"""Ray Tune at work: a searcher that hands out what it is given, in a thread of its own.

The study decides what to try (`autotune.search`) and Ray Tune where resources are free: the searcher is the seam, a
queue of trials. Sources: https://docs.ray.io/en/latest/tune/api/suggestion.html (``Searcher``),
https://docs.ray.io/en/latest/tune/tutorials/tune-resources.html (``PlacementGroupFactory``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from autotune.executors.ray.folders import TUNING, own_folder
from autotune.executors.ray.node_pool import Place
from autotune.trial import Trial

A_LITTLE = 0.001
"""Of a node's processors, which are the server's and nobody counts, and of the resource that says what its GPUs are."""


@dataclass(frozen=True, slots=True)
class Task:
    """A trial on its way to a node.

    Attributes:
        key: of its own, as a trial may be tried again.
        gpus: those that it needs.
    """

    key: str
    trial: Trial
    gpus: int
    place: Place

    def placement(self) -> tune.PlacementGroupFactory:
        """One bundle, so all GPUs are on one node; that one."""
        bundle: dict[str, float] = {"CPU": A_LITTLE}
        if self.gpus:
            bundle["GPU"] = self.gpus
        if self.place.kind:
            bundle[self.place.kind] = A_LITTLE
        return tune.PlacementGroupFactory(
            [bundle], strategy="STRICT_PACK", bundle_label_selector=[{"ray.io/node-id": self.place.node_id}]
        )


class Feed(Searcher):
    """Ray Tune's way to ask for trials: gives what was put into it."""

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
            # And it sleeps for a second between two times that it asks: waited for here, a task begins at once.
            task = self.tasks.get(block=not self._keys)
        except queue.Empty:
            return None
        if task is None:
            return Searcher.FINISHED
        self._keys[trial_id] = task.key
        return {"task": task}

    def close(self) -> None:
        """There will be no more tasks."""
        self.closed.set()
        self.tasks.put(None)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        """Results come by the courier; here only that a trial's process or node is gone."""
        key = self._keys.pop(trial_id, None)
        if error and key is not None:
            self.errors.put(key)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the study is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray Tune pickles its searcher to restore from, which is never done.
        return {}


class Halt(tune.Stopper):
    """Ends the tuning when the feed is closed."""

    def __init__(self, feed: Feed) -> None:
        self._closed = feed.closed

    def __call__(self, *_: object) -> bool:
        """Single trials end by themselves."""
        return False

    def stop_all(self) -> bool:
        """Whether the executor is being closed."""
        return self._closed.is_set()

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Tuning:
    """Ray Tune in a thread.

    Args:
        trainable: runs on a node; is given ``{"task": Task}`` and ``parameters``.
    """

    def __init__(self, trainable: Callable[..., Any], parameters: dict[str, Any]) -> None:
        self.feed = Feed()
        self.problem: BaseException | None = None
        self._place = own_folder(TUNING)
        self._trainable = tune.with_parameters(trainable, **parameters)
        self._thread = threading.Thread(target=self._run, name="ray-tune", daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> None:
        """End it; what still runs is ended with its processes."""
        self.feed.close()
        self._thread.join(wait_s)
        self._place.cleanup()

    def _run(self) -> None:
        try:
            tune.Tuner(
                tune.with_resources(self._trainable, lambda config: config["task"].placement()),
                tune_config=tune.TuneConfig(search_alg=self.feed, num_samples=-1, reuse_actors=True),
                run_config=tune.RunConfig(
                    name="study",
                    storage_path=str(Path(self._place.name)),
                    stop=Halt(self.feed),
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            ).fit()
        except BaseException as error:
            self.problem = error
