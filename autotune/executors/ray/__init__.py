"""Trials on the nodes of a Ray cluster, through Ray Tune.

    node_pool     which node runs which trial; names of nodes
    cluster       the connection, which nodes fit, and which autotune they have
    searcher      Ray Tune in a thread, fed from a queue; the evaluation of a trial on its node, and its results

Only this package imports ray.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import ray

from autotune.errors import CannotGoOn
from autotune.executors import EvaluationSetup
from autotune.executors.ray.cluster import Cluster, head_is_gone
from autotune.executors.ray.node_pool import Node, NodePool
from autotune.executors.ray.searcher import Ended, Event, Started, Task, TuneThread, create_queue, run_trial, unpack
from autotune.notify import Stage, silent
from autotune.space.context import gpus_of
from autotune.trial import Launch, Trial

POLL_S = 1.0
"""Between two looks at what Ray Tune says of lost trials."""
TRIES = 2
"""Of a trial whose node or process is lost. A node that loses so many processes in a row is left out."""
CLOSE_S = 30.0
NOTICE_S = 5.0
"""Ray reports a lost process somewhat before it reports that its node is gone."""
WAIT_S = 60.0
"""For GPUs that no trial of ours has, before a message says so."""


@dataclass(slots=True)
class _Running:
    """A task under way.

    Attributes:
        serial: numbers tasks in the order in which they were submitted.
        waiting_since_s: for its GPUs; None once it has them, infinite once that was said.
    """

    task: Task
    tries: int
    serial: int
    waiting_since_s: float | None


class RayExecutor:
    """An `autotune.executors.Executor`; its docstrings hold.

    Args:
        address: ``HOST:PORT`` of the head node; empty: see `Cluster`.
        own_cluster: whether a cluster of this machine alone is started.
        needs: the numbers of GPUs that candidates need, each once.
        most_nodes: the most nodes to use.
    """

    def __init__(
        self, address: str, own_cluster: bool, setup: EvaluationSetup, needs: Sequence[int], most_nodes: int
    ) -> None:
        self._setup, self._least, self._most = setup, min(needs, default=1), max(needs, default=1)
        self._pool = NodePool(most_nodes)
        self._cluster, self._closed = Cluster(address, own_cluster, setup.spec), False
        try:
            self._cluster.check(needs)
            self._refresh()
            self._queue = create_queue(self._cluster.driver_node_id)
            parameters = {"setup": replace(setup, notify=silent), "queue": self._queue, "folder": os.getcwd()}
            self._tune = TuneThread(run_trial, parameters)
        except BaseException:
            self._cluster.close()
            raise
        self._running: dict[str, _Running] = {}
        self._finished: list[Launch] = []
        self._events: list[Event] = []
        self._lost: list[str] = []
        self._losses: dict[str, tuple[int, int]] = {}
        self._serial = itertools.count(1)
        used, unused = self._pool.used, self._pool.unused
        setup.notify(f"Ray: trials run on {', '.join(f'{node.name} ({node.gpus} GPUs)' for node in used)}")
        if unused:
            setup.notify(
                f"{len(used)} of {len(used) + unused} nodes are used: with {setup.spec.launches} launches "
                "more would spend too many of them on the baseline"
            )

    @property
    def nodes(self) -> Sequence[str]:
        return [node.name for node in self._pool.used if self._pool.free_gpus(node) >= self._least]

    @property
    def busy(self) -> Sequence[str]:
        return [node.name for node in self._pool.used if self._pool.free_gpus(node) < self._least]

    def launches(self, ask: Callable[[], Trial | None]) -> Iterator[Launch]:
        while True:
            while self._has_room() and (trial := ask()) is not None:
                self._start(trial, 1)
            if not self._running and not self._finished:
                if not self._pool.used and ask() is not None:
                    raise CannotGoOn("No node is left that trials could run on.")
                return
            yield self._next_finished()

    def _has_room(self) -> bool:
        self._refresh()
        return self._pool.has_room(self._least)

    def _next_finished(self) -> Launch:
        while not self._finished:
            if not self._events:
                # In this order: a result that was in the queue before its process was lost counts.
                while not self._tune.searcher.errors.empty():
                    self._lost.append(self._tune.searcher.errors.get())
                try:
                    events: list[Event] = ray.get(self._queue.get.remote(0.0 if self._lost else POLL_S))
                except ray.exceptions.RayError as error:
                    raise head_is_gone(error) from error
                # Results first.
                self._events = sorted(events, key=lambda e: not (isinstance(e, Ended) and e.result is not None))
            # One after the other: what raises must not cost the results that came with it.
            while self._events and not self._finished:
                self._handle(self._events.pop(0))
            if not self._finished:
                self._recover()
        return self._finished.pop(0)

    def retire(self, node: str, why: str) -> bool:
        if node not in self._pool.retired:
            self._pool.retired[node] = why
            self._setup.notify(f"node {node} is left out: {why}")
        return bool(self._pool.used)

    def close(self) -> None:
        """See `Executor`. Trials that run are ended, and with them their servers."""
        if self._closed:
            return
        self._closed = True
        try:
            # Without a head node Ray Tune does not end.
            self._tune.close(CLOSE_S if self._cluster.answers() else 0.0)
        finally:
            self._cluster.close()

    def _refresh(self) -> None:
        # A node that is too small for some of them would be asked for what it cannot run.
        nodes, refused = self._cluster.admitted(self._most)
        self._pool.update(nodes)
        for node, why in refused:
            self._setup.notify(f"node {node.name} is left out: {why}")

    def _start(self, trial: Trial, tries: int, avoid: str = "") -> None:
        spec = self._setup.spec
        gpus = gpus_of(trial.configuration, spec.gpus)
        # No two tries have one key: Ray Tune may still report the end of an earlier one.
        serial = next(self._serial)
        key = f"{trial.number}.{serial}"
        node = self._pool.assign(key, gpus, trial.node, avoid)
        if node is None:
            why = "; ".join(f"{name}: {problem}" for name, problem in self._pool.retired.items())
            raise CannotGoOn(f"no {spec.hardware.name} node with {gpus} GPUs is left in the Ray cluster. {why}".strip())
        task = Task(key, trial, gpus if spec.hardware.vendor != "cpu" else 0, node)
        self._running[key] = _Running(task, tries, serial, time.monotonic())
        self._tune.searcher.tasks.put(task)

    def _handle(self, event: Event) -> None:
        if isinstance(event, str | Stage):
            self._setup.notify(event)
            return
        running = self._running.get(event.key)
        if running is None:
            return
        if isinstance(event, Started):
            running.waiting_since_s = None
            return
        del self._running[event.key]
        self._pool.release(event.key)
        task = running.task
        if event.bug:
            raise RuntimeError(f"the evaluation of trial {task.trial.number} on {task.node.name} failed:\n{event.bug}")
        if event.result is None:
            # Nothing can be launched there. The trial starts elsewhere, which is no further try.
            if not self.retire(task.node.name, event.problem):
                raise CannotGoOn(event.problem)
            self._start(task.trial, running.tries, avoid=task.node.name)
            return
        self._losses.pop(task.node.name, None)
        unpack(event.files, self._setup.folder / "trials" / f"{task.trial.number:04d}")
        self._finished.append(Launch(task.trial, event.result))

    def _recover(self) -> None:
        """Start lost trials again, once all events are handled; raises where nothing more can be launched."""
        self._cluster.check_head()
        self._report_waiting()
        while self._lost:
            self._retry(self._lost.pop(0))
        self._reassign()
        error = self._tune.error
        if isinstance(error, ray.exceptions.RayError):
            raise head_is_gone(error) from error
        if error is not None:
            raise RuntimeError("Ray Tune has ended") from error

    def _report_waiting(self) -> None:
        """Say once that a trial waits for GPUs that other work on the cluster has."""
        for running in self._running.values():
            task, since_s = running.task, running.waiting_since_s
            if since_s is None:
                continue
            if self._pool.free_gpus(task.node) < 0 and since_s < math.inf:
                running.waiting_since_s = time.monotonic()
            elif time.monotonic() - since_s > WAIT_S:
                running.waiting_since_s = math.inf
                self._setup.notify(
                    f"launch {task.trial.number} still waits for {task.gpus} GPUs of node {task.node.name}: other "
                    "work on the Ray cluster may have them (`ray status` tells)"
                )

    def _reassign(self) -> None:
        """Start trials elsewhere that wait for a node that is gone, which Ray would have them do for ever."""
        waiting = [running for running in self._running.values() if running.waiting_since_s is not None]
        if not waiting:
            return
        self._refresh()
        for running in waiting:
            task = running.task
            if task.node.node_id not in self._pool.present_ids:
                del self._running[task.key]
                self._pool.release(task.key)
                self._start(task.trial, running.tries, avoid=task.node.name)

    def _retry(self, key: str) -> None:
        """Try a trial again whose process or node is gone and whose result did not come; else count it as failed."""
        running = self._running.pop(key, None)
        if running is None:
            return
        self._pool.release(key)
        name, trial = running.task.node.name, running.task.trial
        if not self._is_gone(running.task.node):
            self._count_loss(running)
        if running.tries < TRIES:
            self._setup.notify(
                f"launch {trial.number}: node {name}, or its process there, is gone; it is tried once more"
            )
            self._start(replace(trial, node=""), running.tries + 1, avoid=name)
            return
        message = f"Node {name}, or the process there, was gone while the trial ran; so it was at the first try."
        self._finished.append(Launch(trial, replace(self._setup.lost(message), node=name)))

    def _is_gone(self, node: Node) -> bool:
        """Whether a node is gone, or goes within `NOTICE_S`."""
        deadline_s = time.monotonic() + NOTICE_S
        self._refresh()
        while node.node_id in self._pool.present_ids and time.monotonic() < deadline_s:
            time.sleep(0.1)
            self._refresh()
        return node.node_id not in self._pool.present_ids

    def _count_loss(self, running: _Running) -> None:
        """Leave a node out that loses one trial after the other; those that ran side by side are lost at once."""
        name = running.task.node.name
        count, latest = self._losses.get(name, (0, 0))
        if running.serial < latest:
            return
        self._losses[name] = count + 1, next(self._serial)
        if count + 1 >= TRIES and any(node.name != name for node in self._pool.used):
            self.retire(name, f"it lost the processes of {TRIES} trials in a row")
