"""Run trials on the nodes of a Ray cluster, through Ray Tune.

The study decides what to try (`autotune.tuner.search`) and Ray Tune where resources are free. That
runs in a thread of its own, with a searcher that hands out the trials of a queue. `cluster` has the
connection, which nodes fit, which autotune they have, and which of them runs which trial. Only this
package imports ray. Sources: https://docs.ray.io/en/latest/tune/api/suggestion.html (``Searcher``),
https://docs.ray.io/en/latest/tune/tutorials/tune-resources.html (``PlacementGroupFactory``).

A second queue brings messages, results and the files of trials from the nodes, as they come. They
are not Ray Tune's own results: it keeps the latest of every trial until the end, and a log of a
real server is large.
"""

import contextlib
import io
import itertools
import math
import os
import platform
import queue
import re
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher
from ray.util.queue import Empty, Queue

from autotune.base import (
    AutotuneError,
    CannotGoOn,
    FloatDict,
    Json,
    Stage,
    StringDict,
    frozen,
    silent,
)
from autotune.base.notify import on_node
from autotune.engines import gpus_of

from ...backends import EvaluationSetup
from ...trial import Launch, Trial, TrialResult
from .. import Bug, Executor, NextTrial, Outcome, outcome_of
from .cluster import Cluster, Node, NodePool, head_is_gone

POLL_S = 1.0
"""Seconds between two polls of Ray Tune for lost trials."""
TRIES = 2
"""Tries of a trial whose node or process is lost. A node that loses this number of processes in a
row is excluded."""
CLOSE_S = 30.0
NOTICE_S = 5.0
"""Seconds by which Ray reports a lost process before its lost node."""
WAIT_S = 60.0
"""Seconds of waiting for GPUs used outside autotune before a message."""
TRIAL_FOLDER = "autotune-trial"
TUNE_FOLDER = "autotune-ray"
"""Prefixes of the folders of running trials, and of Ray Tune's files."""
_OOM_SCORE = Path("/proc/self/oom_score_adj")
A_LITTLE = 0.001
"""Share of a node's processors (uncounted, for the server) and of its hardware resource."""


@frozen
class Started:
    """A task has its GPUs."""

    key: str


@frozen
class Ended:
    """A task has ended on its node; `files` is the trial's folder, a compressed tar archive."""

    key: str
    outcome: Outcome
    files: bytes


Event = str | Stage | Started | Ended
"""Event from a node; a text is a line to show."""


def create_queue(node_id: str) -> Queue:
    """Create a queue in an actor on the tuner's node: nodes put events, the tuner takes them."""
    return Queue(actor_options={"num_cpus": 0, "label_selector": {"ray.io/node-id": node_id}})


def take_events(queue: Queue, wait_s: float) -> list[Event]:
    """Remove and return all events; waits at most this long for one."""
    try:
        # With no time to wait, Python 3.11's wait_for gives up before it looks.
        first = [queue.get(timeout=wait_s)] if wait_s else []
    except Empty:
        return []
    return [*first, *queue.get_nowait_batch(queue.qsize())]


def own_folder(kind: str, name: str = "") -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder, and remove those of killed processes of this machine.

    Several machines may share the folder for temporary files, so a machine looks only at its own,
    and a user only at his.
    """
    host, own = (re.sub(r"[^\w.]+", "_", text) for text in (platform.node(), name))
    prefix = f"{kind}-{host}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if (
            pid.isdecimal()
            and not Path(f"/proc/{pid}").exists()
            and folder.stat().st_uid == os.getuid()
        ):
            shutil.rmtree(folder, ignore_errors=True)
    # A container's files may be another user's.
    return tempfile.TemporaryDirectory(
        prefix=f"{prefix}{os.getpid()}-{own}-", ignore_cleanup_errors=True
    )


def pack(folder: Path) -> bytes:
    """Archive a folder; empty bytes for a missing folder. Unreadable files are skipped."""
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
    """Write the result of `pack`; raises ``OSError`` if the disk is full."""
    if content:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter=_harmless)


def _harmless(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Skip unsafe entries that a server may leave next to its log: devices, and links out of the
    folder."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


@dataclass(slots=True, eq=False)
class Task:
    """One try of a trial on a node, with its own key.

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
        bundle: FloatDict = {"CPU": A_LITTLE}
        if self.gpus:
            bundle["GPU"] = self.gpus
        if self.node.kind:
            bundle[self.node.kind] = A_LITTLE
        return tune.PlacementGroupFactory(
            [bundle],
            strategy="STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": self.node.node_id}],
        )


class TrialQueueSearcher(Searcher, tune.Stopper):
    """Suggest the tasks in its queue, in their order, and end the tuning when it is closed."""

    def __init__(self) -> None:
        super().__init__(metric="done", mode="max")
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.errors: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.closed = threading.Event()
        self._keys: StringDict = {}

    def suggest(self, trial_id: str) -> Any:
        """Return the next task, as a configuration; None if there is none while others run."""
        if self.closed.is_set():
            # While nothing runs Ray Tune asks for trials for minutes, and looks at no stopper.
            return Searcher.FINISHED
        try:
            # Wait here, as Ray Tune sleeps for a second between two questions.
            task = self.tasks.get(block=not self._keys)
        except queue.Empty:
            return None
        if task is None:
            return Searcher.FINISHED
        self._keys[trial_id] = task.key
        return {"task": task}

    def close(self) -> None:
        """End the queue: no more tasks follow."""
        self.closed.set()
        self.tasks.put(None)

    def __call__(self, *_: object) -> bool:
        """Stop no single trial: each ends by itself."""
        return False

    def stop_all(self) -> bool:
        """Stop everything when the executor is closed."""
        return self.closed.is_set()

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Record a trial whose process or node is gone; results come by the result queue."""
        key = self._keys.pop(trial_id, None)
        if error and key:
            self.errors.put(key)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the study is the state."""

    def __getstate__(self) -> Json:
        # Ray Tune pickles its searcher to restore from, which is never done.
        return {}


class TuneThread:
    """Ray Tune in a thread; it runs `run_trial` with these parameters on the nodes."""

    def __init__(self, **parameters: Any) -> None:
        self.searcher = TrialQueueSearcher()
        self.error: BaseException | None = None
        self._folder = own_folder(TUNE_FOLDER)
        self._trainable = tune.with_parameters(run_trial, **parameters)
        self._thread = threading.Thread(target=self._run, name="ray-tune", daemon=True)
        self._thread.start()

    def close(self, wait_s: float) -> None:
        """Stop; running trials end with their processes."""
        self.searcher.close()
        self._thread.join(wait_s)
        self._folder.cleanup()

    def _run(self) -> None:
        try:
            tune.Tuner(
                tune.with_resources(self._trainable, lambda config: config["task"].placement()),
                tune_config=tune.TuneConfig(
                    search_alg=self.searcher, num_samples=-1, reuse_actors=True
                ),
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


def run_trial(config: Json, setup: EvaluationSetup, queue: Any, folder: str) -> dict[str, int]:
    """Evaluate the trial of ``{"task": Task}``, and put its result and files into the tuner's
    queue.

    Relative paths in commands refer to the tuner's working `folder`, where it exists here too.
    """
    task: Task = config["task"]
    tell = queue.actor.put.remote
    tell(Started(task.key))
    with environment_of_ray_start(), own_folder(TRIAL_FOLDER, task.node.name) as own:
        setup = replace(
            setup, folder=Path(own), notify=lambda text: tell(on_node(text, task.node.name))
        )
        (setup.folder / "trials").mkdir()
        with contextlib.chdir(folder if os.path.isdir(folder) else own):
            outcome = outcome_of(lambda trial: setup.evaluator()(trial), task.trial)
        if isinstance(outcome, TrialResult):
            gpu_ids = tuple(map(str, ray.get_gpu_ids()))
            outcome = replace(outcome, node=task.node.name, gpu_ids=gpu_ids)
        files = pack(setup.folder / "trials" / f"{task.trial.number:04d}")
        # Wait until it is in the queue, where it outlives this process.
        queue.put(Ended(task.key, outcome, files))
    return {"done": 1}


@contextlib.contextmanager
def environment_of_ray_start() -> Iterator[None]:
    """Restore a server's inherited environment to that of ``ray start``, as far as Ray has changed
    it.

    That is the number of threads, which Ray sets by its own count of processors: a server would run
    with one. And when memory is short, Linux would end the process of a trial and all below it
    first (``oom_score_adj``; ``man 5 proc``).
    """
    given = Path("/proc/self/environ").read_bytes().split(b"\0")
    is_set = any(line.startswith(b"OMP_NUM_THREADS=") for line in given)
    threads = None if is_set else os.environ.pop("OMP_NUM_THREADS", None)
    score = _OOM_SCORE.read_text()
    # Without Ray's privilege a score below Ray's is refused; then it stays.
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
    try:
        yield
    finally:
        _OOM_SCORE.write_text(score)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads


class RayExecutor(Executor):
    """An `autotune.tuner.executors.Executor`; arguments as of `factory.executor_for` and
    `cluster.Cluster`."""

    def __init__(
        self,
        address: str,
        own_cluster: bool,
        setup: EvaluationSetup,
        needs: Sequence[int],
        most_nodes: int,
    ) -> None:
        self._setup = setup
        self._least = min(needs, default=1)
        self._most = max(needs, default=1)
        self._pool = NodePool(most_nodes)
        self._cluster = Cluster(address, own_cluster, setup.spec)
        self._closed = False
        try:
            self._cluster.check(needs)
            self._refresh()
            self._queue = create_queue(self._cluster.driver_node_id)
            self._tune = TuneThread(
                setup=replace(setup, notify=silent), queue=self._queue, folder=os.getcwd()
            )
        except BaseException:
            self._cluster.close()
            raise
        self._running: dict[str, Task] = {}
        self._finished: list[Launch] = []
        self._events: list[Event] = []
        self._lost: list[str] = []
        self._losses: dict[str, tuple[int, int]] = {}
        self._serial = itertools.count(1)
        used = [f"{node.name} ({node.gpus} GPUs)" for node in self._pool.used]
        setup.notify(f"Ray: trials run on {', '.join(used)}")
        if unused := self._pool.unused:
            setup.notify(
                f"{len(used)} of {len(used) + unused} nodes are used: with {setup.spec.launches} "
                "launches more nodes would use too many of them for the baseline"
            )

    def places(self) -> Mapping[str, bool]:
        return {node.name: self._pool.free_gpus(node) >= self._least for node in self._pool.used}

    def launches(self, ask: NextTrial) -> Iterator[Launch]:
        while True:
            self._refresh()
            while self._pool.has_room(self._least) and (trial := ask()):
                self._start(trial)
                self._refresh()
            if not self._running and not self._finished:
                if not self._pool.used and ask():
                    raise CannotGoOn("No node remains to run trials.")
                return
            yield self._next_finished()

    def _next_finished(self) -> Launch:
        while not self._finished:
            if not self._events:
                # In this order: a result that was in the queue before its process was lost counts.
                while not self._tune.searcher.errors.empty():
                    self._lost.append(self._tune.searcher.errors.get())
                try:
                    events = take_events(self._queue, 0.0 if self._lost else POLL_S)
                except ray.exceptions.RayError as error:
                    raise head_is_gone(error) from error
                # Results first.
                self._events = sorted(
                    events,
                    key=lambda e: not (isinstance(e, Ended) and isinstance(e.outcome, TrialResult)),
                )
            # Handle one by one: an exception must not cost the results that came with it.
            while self._events and not self._finished:
                self._handle(self._events.pop(0))
            if not self._finished:
                self._recover()
        return self._finished.pop(0)

    def retire(self, node: str, why: str) -> bool:
        if node not in self._pool.retired:
            self._pool.retired[node] = why
            self._setup.notify(f"node {node} is excluded: {why}")
        return bool(self._pool.used)

    def close(self) -> None:
        """End the running trials and their servers."""
        if self._closed:
            return
        self._closed = True
        try:
            # Without a head node Ray Tune does not end.
            self._tune.close(CLOSE_S if self._cluster.answers() else 0.0)
        finally:
            self._cluster.close()

    def _refresh(self) -> None:
        # Leave out nodes that are too small for some candidate.
        nodes, refused = self._cluster.admitted(self._most)
        self._pool.update(nodes)
        for node, why in refused:
            self._setup.notify(f"node {node.name} is excluded: {why}")

    def _start(self, trial: Trial, tries: int = 1, avoid: str = "") -> None:
        spec = self._setup.spec
        gpus = gpus_of(trial.configuration, spec.gpus)
        # Each try has its own key: Ray Tune may still report the end of an earlier one.
        serial = next(self._serial)
        key = f"{trial.number}.{serial}"
        node = self._pool.assign(key, gpus, trial.node, avoid)
        if not node:
            why = "; ".join(f"{name}: {problem}" for name, problem in self._pool.retired.items())
            raise CannotGoOn(
                f"no {spec.hardware.name} node with {gpus} GPUs remains in the Ray cluster. {why}".strip()
            )
        needed = gpus if spec.hardware.vendor != "cpu" else 0
        task = self._running[key] = Task(key, trial, needed, node, tries, serial, time.monotonic())
        self._tune.searcher.tasks.put(task)

    def _handle(self, event: Event) -> None:
        if isinstance(event, str | Stage):
            self._setup.notify(event)
            return
        task = self._running.get(event.key)
        if not task:
            return
        if isinstance(event, Started):
            task.waiting_since_s = None
            return
        self._forget(task)
        outcome, trial, node = event.outcome, task.trial, task.node.name
        if isinstance(outcome, Bug):
            raise outcome.error(trial, node)
        if isinstance(outcome, AutotuneError):
            # Start the trial elsewhere, which is no further try.
            if not self.retire(node, str(outcome)):
                raise CannotGoOn(str(outcome))
            self._start(trial, task.tries, avoid=node)
            return
        self._losses.pop(node, None)
        unpack(event.files, self._setup.folder / "trials" / f"{trial.number:04d}")
        self._finished.append(Launch(trial, outcome))

    def _forget(self, task: Task) -> None:
        del self._running[task.key]
        self._pool.release(task.key)

    def _recover(self) -> None:
        """Start lost trials again after all events are handled; raises if nothing more can be
        launched."""
        self._cluster.check_head()
        self._report_waiting()
        while self._lost:
            self._retry(self._lost.pop(0))
        waiting = [task for task in self._running.values() if task.waiting_since_s is not None]
        if waiting:
            self._refresh()
        for task in waiting:
            # Ray would let a task wait for ever for a node that is gone.
            if task.node.node_id not in self._pool.present_ids:
                self._forget(task)
                self._start(task.trial, task.tries, avoid=task.node.name)
        if error := self._tune.error:
            gone = isinstance(error, ray.exceptions.RayError)
            raise head_is_gone(error) if gone else RuntimeError("Ray Tune has ended") from error

    def _report_waiting(self) -> None:
        """Report once that a trial waits for GPUs used by other work on the cluster."""
        for task in self._running.values():
            if task.waiting_since_s is None:
                continue
            if self._pool.free_gpus(task.node) < 0 and task.waiting_since_s < math.inf:
                task.waiting_since_s = time.monotonic()
            elif time.monotonic() - task.waiting_since_s > WAIT_S:
                task.waiting_since_s = math.inf
                self._setup.notify(
                    f"launch {task.trial.number} still waits for {task.gpus} GPUs of node "
                    f"{task.node.name}: other work on the Ray cluster may use them (see `ray "
                    "status`)"
                )

    def _retry(self, key: str) -> None:
        """Retry a trial without a result whose process or node is gone; else count it as failed."""
        task = self._running.get(key)
        if not task:
            return
        self._forget(task)
        name, trial = task.node.name, task.trial
        count, latest = self._losses.get(name, (0, 0))
        # Count simultaneous losses once, and none for a node that is gone.
        if not self._is_gone(task.node) and task.serial >= latest:
            self._losses[name] = count + 1, next(self._serial)
            if count + 1 >= TRIES and any(node.name != name for node in self._pool.used):
                self.retire(name, f"it lost the processes of {TRIES} trials in a row")
        if task.tries < TRIES:
            self._setup.notify(
                f"launch {trial.number}: node {name}, or its process there, is gone; it is retried "
                "once"
            )
            self._start(replace(trial, node=""), task.tries + 1, avoid=name)
            return
        lost = self._setup.lost(
            f"Node {name}, or the process there, was lost while the trial ran, as in the first try."
        )
        self._finished.append(Launch(trial, replace(lost, node=name)))

    def _is_gone(self, node: Node) -> bool:
        """Return whether a node is gone, or goes within `NOTICE_S`."""
        deadline_s = time.monotonic() + NOTICE_S
        self._refresh()
        while node.node_id in self._pool.present_ids and time.monotonic() < deadline_s:
            time.sleep(0.1)
            self._refresh()
        return node.node_id not in self._pool.present_ids
