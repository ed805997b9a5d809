"""Trials on the nodes of a Ray cluster, through Ray Tune.

    cluster       the connection, which nodes fit, which autotune they have, and which of them runs which trial
    searcher      Ray Tune in a thread, fed from a queue; the evaluation of a trial on its node, and its results

Only this package imports ray.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import ray

from autotune.errors import AutotuneError, CannotGoOn
from autotune.executors import Bug, EvaluationSetup
from autotune.executors.ray.cluster import Cluster, Node, NodePool, head_is_gone
from autotune.executors.ray.searcher import Ended, Event, Started, Task, TuneThread, create_queue, take_events, unpack
from autotune.notify import Stage, silent
from autotune.space.context import gpus_of
from autotune.trial import Launch, Trial, TrialResult

POLL_S = 1.0
"""Between two looks at what Ray Tune says of lost trials."""
TRIES = 2
"""Of a trial whose node or process is lost. A node that loses so many processes in a row is left out."""
CLOSE_S = 30.0
NOTICE_S = 5.0
"""Ray reports a lost process somewhat before it reports that its node is gone."""
WAIT_S = 60.0
"""For GPUs that no trial of ours has, before a message says so."""


class RayExecutor:
    """An `autotune.executors.Executor`; arguments as of `factory.executor_for` and `cluster.Cluster`."""

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
            self._tune = TuneThread(setup=replace(setup, notify=silent), queue=self._queue, folder=os.getcwd())
        except BaseException:
            self._cluster.close()
            raise
        self._running: dict[str, Task] = {}
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
                self._start(trial)
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
                    events = take_events(self._queue, 0.0 if self._lost else POLL_S)
                except ray.exceptions.RayError as error:
                    raise head_is_gone(error) from error
                # Results first.
                self._events = sorted(
                    events, key=lambda e: not (isinstance(e, Ended) and isinstance(e.outcome, TrialResult))
                )
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
        """End the trials that run, and with them their servers."""
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

    def _start(self, trial: Trial, tries: int = 1, avoid: str = "") -> None:
        spec = self._setup.spec
        gpus = gpus_of(trial.configuration, spec.gpus)
        # No two tries have one key: Ray Tune may still report the end of an earlier one.
        serial = next(self._serial)
        key = f"{trial.number}.{serial}"
        node = self._pool.assign(key, gpus, trial.node, avoid)
        if node is None:
            why = "; ".join(f"{name}: {problem}" for name, problem in self._pool.retired.items())
            raise CannotGoOn(f"no {spec.hardware.name} node with {gpus} GPUs is left in the Ray cluster. {why}".strip())
        needed = gpus if spec.hardware.vendor != "cpu" else 0
        task = self._running[key] = Task(key, trial, needed, node, tries, serial, time.monotonic())
        self._tune.searcher.tasks.put(task)

    def _handle(self, event: Event) -> None:
        if isinstance(event, str | Stage):
            self._setup.notify(event)
            return
        task = self._running.get(event.key)
        if task is None:
            return
        if isinstance(event, Started):
            task.waiting_since_s = None
            return
        self._forget(task)
        outcome = event.outcome
        if isinstance(outcome, Bug):
            raise outcome.error(task.trial, task.node.name)
        if isinstance(outcome, AutotuneError):
            # Nothing can be launched there. The trial starts elsewhere, which is no further try.
            if not self.retire(task.node.name, str(outcome)):
                raise CannotGoOn(str(outcome))
            self._start(task.trial, task.tries, avoid=task.node.name)
            return
        self._losses.pop(task.node.name, None)
        unpack(event.files, self._setup.folder / "trials" / f"{task.trial.number:04d}")
        self._finished.append(Launch(task.trial, outcome))

    def _forget(self, task: Task) -> None:
        del self._running[task.key]
        self._pool.release(task.key)

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
        for task in self._running.values():
            if task.waiting_since_s is None:
                continue
            if self._pool.free_gpus(task.node) < 0 and task.waiting_since_s < math.inf:
                task.waiting_since_s = time.monotonic()
            elif time.monotonic() - task.waiting_since_s > WAIT_S:
                task.waiting_since_s = math.inf
                self._setup.notify(
                    f"launch {task.trial.number} still waits for {task.gpus} GPUs of node {task.node.name}: other "
                    "work on the Ray cluster may have them (`ray status` tells)"
                )

    def _reassign(self) -> None:
        """Start trials elsewhere that wait for a node that is gone, which Ray would have them do for ever."""
        waiting = [task for task in self._running.values() if task.waiting_since_s is not None]
        if not waiting:
            return
        self._refresh()
        for task in waiting:
            if task.node.node_id not in self._pool.present_ids:
                self._forget(task)
                self._start(task.trial, task.tries, avoid=task.node.name)

    def _retry(self, key: str) -> None:
        """Try a trial again whose process or node is gone and whose result did not come; else count it as failed."""
        task = self._running.get(key)
        if task is None:
            return
        self._forget(task)
        name, trial = task.node.name, task.trial
        if not self._is_gone(task.node):
            self._count_loss(task)
        if task.tries < TRIES:
            self._setup.notify(
                f"launch {trial.number}: node {name}, or its process there, is gone; it is tried once more"
            )
            self._start(replace(trial, node=""), task.tries + 1, avoid=name)
            return
        message = f"Node {name}, or the process there, was gone while the trial ran; so it was at the first try."
        self._finished.append(Launch(trial, replace(self._setup.lost(message), node=name)))

    def _is_gone(self, node: Node) -> bool:
        """Tell whether a node is gone, or goes within `NOTICE_S`."""
        deadline_s = time.monotonic() + NOTICE_S
        self._refresh()
        while node.node_id in self._pool.present_ids and time.monotonic() < deadline_s:
            time.sleep(0.1)
            self._refresh()
        return node.node_id not in self._pool.present_ids

    def _count_loss(self, task: Task) -> None:
        """Leave a node out that loses one trial after the other; those that ran side by side are lost at once."""
        name = task.node.name
        count, latest = self._losses.get(name, (0, 0))
        if task.serial < latest:
            return
        self._losses[name] = count + 1, next(self._serial)
        if count + 1 >= TRIES and any(node.name != name for node in self._pool.used):
            self.retire(name, f"it lost the processes of {TRIES} trials in a row")


def _is_result(event: Event) -> bool:
    return isinstance(event, Ended) and isinstance(event.outcome, TrialResult)
