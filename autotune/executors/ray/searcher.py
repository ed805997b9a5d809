"""Ray Tune in a thread of its own, with a searcher that hands out the trials of a queue, and what runs them on nodes.

The study decides what to try (`autotune.search`) and Ray Tune where resources are free; the searcher connects them.
Sources: https://docs.ray.io/en/latest/tune/api/suggestion.html (``Searcher``),
https://docs.ray.io/en/latest/tune/tutorials/tune-resources.html (``PlacementGroupFactory``).

The queue brings messages, results and the files of trials from the nodes, as they come. They are not Ray Tune's own
results: it keeps the latest of every trial until the end, and a log of a real server is large.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import queue
import re
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher
from ray.util.queue import Empty, Queue

from autotune.executors import EvaluationSetup, Outcome, outcome_of
from autotune.executors.ray.cluster import Node
from autotune.notify import Stage, on_node
from autotune.trial import Trial, TrialResult

TRIAL_FOLDER, TUNE_FOLDER = "autotune-trial", "autotune-ray"
"""How the names begin of the folders of running trials, and of those in which Ray Tune keeps its files."""
_THREADS = "OMP_NUM_THREADS"
_OOM_SCORE = Path("/proc/self/oom_score_adj")
A_LITTLE = 0.001
"""Of a node's processors, which are the server's and nobody counts, and of the resource that names its hardware."""


@dataclass(frozen=True, slots=True)
class Started:
    """A task has its GPUs."""

    key: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A task has ended on its node; `files` is the trial's folder, a compressed tar archive."""

    key: str
    outcome: Outcome
    files: bytes


Event = str | Stage | Started | Ended
"""A text is a line to show to a person."""


def create_queue(node_id: str) -> Queue:
    """Create a queue in an actor on the tuner's own node: nodes put events, the tuner takes them; it ends with it."""
    return Queue(actor_options={"num_cpus": 0, "label_selector": {"ray.io/node-id": node_id}})


def take_events(queue: Queue, wait_s: float) -> list[Event]:
    """Remove and return all events; waits at most so long for one."""
    try:
        # With no time to wait, Python 3.11's wait_for gives up before it looks.
        first = [queue.get(timeout=wait_s)] if wait_s else []
    except Empty:
        return []
    return [*first, *queue.get_nowait_batch(queue.qsize())]


def own_folder(kind: str, name: str = "") -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder, and remove those that killed processes of this machine left.

    Several machines may share the folder for temporary files, so a machine looks only at its own.
    """
    prefix = f"{kind}-{_safe(platform.node())}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    # A container's files may be another user's.
    return tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-{_safe(name)}-", ignore_cleanup_errors=True)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)


def pack(folder: Path) -> bytes:
    """Archive a folder; empty bytes for a folder that does not exist. What cannot be read is left out."""
    if not folder.is_dir():
        return b""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            # A container's server may leave files that only its user reads.
            with contextlib.suppress(PermissionError, FileNotFoundError):
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return stream.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Write what `pack` read; raises ``OSError`` where there is no room."""
    if content:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter=_harmless)


def _harmless(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out what a server may put beside its log: devices, and links that lead elsewhere."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


@dataclass(slots=True, eq=False)
class Task:
    """One try of a trial on a node, with a key of its own.

    Attributes:
        tries: of the trial, this one included.
        serial: numbers tasks in the order in which they were submitted.
        waiting_since_s: for its GPUs; None once it has them, infinite once that was said.
    """

    key: str
    trial: Trial
    gpus: int
    node: Node
    tries: int = 1
    serial: int = 0
    waiting_since_s: float | None = None

    def placement(self) -> tune.PlacementGroupFactory:
        """Return one bundle on the task's node, so that all GPUs are there."""
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
        """Return the next task, as a configuration; None while there is none and others run."""
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
        """Stop everything once the executor is being closed."""
        return self.closed.is_set()

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:  # noqa: ARG002
        """Note a trial whose process or node is gone; results come by the result queue."""
        key = self._keys.pop(trial_id, None)
        if error and key is not None:
            self.errors.put(key)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the study is the state."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray Tune pickles its searcher to restore from, which is never done.
        return {}


class TuneThread:
    """Ray Tune in a thread; runs `run_trial` with these parameters on the nodes."""

    def __init__(self, **parameters: Any) -> None:
        self.searcher = TrialQueueSearcher()
        self.error: BaseException | None = None
        self._folder = own_folder(TUNE_FOLDER)
        self._trainable = tune.with_parameters(run_trial, **parameters)
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
    """Evaluate the trial of ``{"task": Task}``, and put its result and files into the tuner's queue.

    Relative paths in commands refer to the tuner's working `folder`, where it exists here too.
    """
    task: Task = config["task"]
    tell = queue.actor.put.remote
    tell(Started(task.key))
    with environment_of_ray_start(), own_folder(TRIAL_FOLDER, task.node.name) as own:
        setup = replace(setup, folder=Path(own), notify=lambda text: tell(on_node(text, task.node.name)))
        (setup.folder / "trials").mkdir()
        with contextlib.chdir(folder if os.path.isdir(folder) else own):
            outcome = outcome_of(lambda trial: setup.evaluator()(trial), task.trial)
        if isinstance(outcome, TrialResult):
            gpu_ids = tuple(str(index) for index in ray.get_gpu_ids())
            outcome = replace(outcome, node=task.node.name, gpu_ids=gpu_ids)
        files = pack(setup.folder / "trials" / f"{task.trial.number:04d}")
        # Waited for: what is in the queue outlives this process.
        queue.put(Ended(task.key, outcome, files))
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
