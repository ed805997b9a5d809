"""Ray Tune in a thread of its own, with a searcher that hands out the trials of a queue, and what runs them on nodes.

The study decides what to try (`autotune.search`) and Ray Tune where resources are free; the searcher connects them.
Sources: https://docs.ray.io/en/latest/tune/api/suggestion.html (``Searcher``),
https://docs.ray.io/en/latest/tune/tutorials/tune-resources.html (``PlacementGroupFactory``).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from autotune.errors import AutotuneError
from autotune.executors import EvaluationSetup
from autotune.executors.ray.node_pool import Node
from autotune.executors.ray.result_queue import TRIAL_FOLDER, TUNE_FOLDER, Ended, Started, own_folder, pack
from autotune.notify import on_node
from autotune.trial import Trial

_THREADS = "OMP_NUM_THREADS"
_OOM_SCORE = Path("/proc/self/oom_score_adj")
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


class TrialQueueSearcher(Searcher, tune.Stopper):
    """Suggests the tasks that are put into its queue, in their order, and ends the tuning when it is closed."""

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

    def __call__(self, *_: object) -> bool:
        """Stop no single trial: each ends by itself."""
        return False

    def stop_all(self) -> bool:
        """Whether the executor is being closed."""
        return self.closed.is_set()

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
                    stop=self.searcher,
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            ).fit()
        except BaseException as error:
            self.error = error


def run_trial(config: dict[str, Any], setup: EvaluationSetup, queue: Any, folder: str) -> dict[str, int]:
    """Evaluate a task's trial, and put its result and files into the queue.

    Args:
        config: ``{"task": Task}``, as Ray Tune passes it on.
        queue: the actor of `result_queue.ResultQueue`.
        folder: the tuner's working folder, to which relative paths in commands refer, where it exists here too.
    """
    task: Task = config["task"]
    queue.put.remote(Started(task.key))
    with environment_of_ray_start(), own_folder(TRIAL_FOLDER, task.node.name) as own:
        setup = replace(setup, folder=Path(own), notify=lambda text: queue.put.remote(on_node(text, task.node.name)))
        (setup.folder / "trials").mkdir()
        with contextlib.chdir(folder if os.path.isdir(folder) else own):
            gpu_ids = tuple(str(index) for index in ray.get_gpu_ids())
            try:
                result = setup.evaluator()(task.trial)
                ended = Ended(task.key, replace(result, node=task.node.name, gpu_ids=gpu_ids))
            except AutotuneError as error:
                ended = Ended(task.key, problem=str(error))
            except Exception:
                ended = Ended(task.key, bug=traceback.format_exc())
        files = pack(setup.folder / "trials" / f"{task.trial.number:04d}")
        # Waited for: what is in the queue outlives this process.
        ray.get(queue.put.remote(replace(ended, files=files)))
    return {"done": 1}


@contextlib.contextmanager
def environment_of_ray_start() -> Iterator[None]:
    """Restore what a server inherits to that of ``ray start``, as far as Ray has changed it.

    That is the number of threads, which Ray sets by its own count of processors: a server would run with one. And when
    memory is short, Linux would end the process of a trial and all below it first (``oom_score_adj``; ``man 5 proc``).
    """
    before = Path("/proc/self/environ").read_bytes().split(b"\0")
    given = any(line.startswith(f"{_THREADS}=".encode()) for line in before)
    threads = None if given else os.environ.pop(_THREADS, None)
    score = _OOM_SCORE.read_text()
    # Refused below what a privileged Ray has set, to one without its privilege; then it stays.
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
    try:
        yield
    finally:
        _OOM_SCORE.write_text(score)
        if threads is not None:
            os.environ[_THREADS] = threads
