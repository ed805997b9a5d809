"""Trials on the nodes of a Ray cluster, through Ray Tune.

    places     which node runs which trial
    cluster    the connection, and which nodes will do
    identity   which machine is which
    versions   which autotune the nodes have
    tuning     Ray Tune, fed from a queue
    there      a trial on its node
    courier    brings results and files back

Only this package imports ray.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import ray

from autotune.errors import CannotGoOn
from autotune.executors import Work
from autotune.executors.ray.cluster import Cluster, gone
from autotune.executors.ray.node_pool import Place, Places
from autotune.executors.ray.result_queue import Began, Ended, Item, Said, hire, unpack
from autotune.executors.ray.searcher import Task, Tuning
from autotune.executors.ray.worker import evaluate_there
from autotune.notify import silent
from autotune.space.knobs import gpus_of
from autotune.trial import Failure, FailureKind, Launch, State, Trial, TrialResult

LOOK_S = 1.0
"""Between two looks at what Ray Tune says of lost trials."""
TRIES = 2
"""At a trial whose node or process vanishes. So many in a row that lose their process, and their node is left out."""
CLOSE_S = 30.0
NOTICE_S = 5.0
"""Ray tells of a lost process somewhat before it tells that its node is gone."""
WAIT_S = 60.0
"""Without its GPUs, though no trial of ours has them, before a person is told."""


@dataclass(frozen=True, slots=True)
class _Running:
    task: Task
    tries: int
    serial: int


class RayExecutor:
    """See `autotune.executors.Executor`; arguments as of `autotune.executors.executor_for`."""

    def __init__(self, address: str, work: Work, needs: Sequence[int], most_nodes: int) -> None:
        self._work, self._least, self._most = work, min(needs, default=1), max(needs, default=1)
        self._places = Places(most_nodes)
        self._cluster: Cluster | None = Cluster(address, work.spec)
        try:
            self._cluster.check(needs)
            self._refresh(self._cluster)
            self._courier = hire(self._cluster.driver_node_id)
            parameters = {"work": replace(work, notify=silent), "courier": self._courier, "folder": os.getcwd()}
            self._tuning = Tuning(evaluate_there, parameters)
        except BaseException:
            self._cluster.close()
            raise
        self._running: dict[str, _Running] = {}
        self._finished: list[Launch] = []
        self._waiting: dict[str, float] = {}
        self._brought: list[Item] = []
        self._lost: list[str] = []
        self._losses: dict[str, tuple[int, int]] = {}
        self._serial = itertools.count(1)
        self._introduce()

    def _introduce(self) -> None:
        """Say where trials will run."""
        work, used = self._work, self._places.used
        shown = ", ".join(f"{place.name} ({place.gpus} GPUs)" for place in used)
        work.notify(f"Ray: trials run on {shown}")
        if self._places.spare:
            work.notify(
                f"{len(used)} of {len(used) + self._places.spare} nodes are used: with {work.spec.launches} launches "
                "more would spend too many of them on the baseline"
            )

    @property
    def nodes(self) -> Sequence[str]:
        """See `Executor`."""
        return [place.name for place in self._places.used if self._places.free(place) >= self._least]

    @property
    def busy(self) -> Sequence[str]:
        """See `Executor`."""
        return [place.name for place in self._places.used if self._places.free(place) < self._least]

    def has_room(self) -> bool:
        """See `Executor`."""
        if self._cluster is not None:
            self._refresh(self._cluster)
        return self._places.room(self._least)

    def submit(self, trial: Trial) -> None:
        """See `Executor`."""
        self._begin(trial, 1)

    def next_finished(self) -> Launch:
        """See `Executor`."""
        while not self._finished:
            if not self._brought:
                # In this order: a result that was brought before its process was lost counts.
                self._note_lost()
                self._take(0.0 if self._lost else LOOK_S)
            # One after the other: what raises must not cost the results that came with it.
            while self._brought and not self._finished:
                self._received(self._brought.pop(0))
            if not self._finished:
                self._look_after()
        return self._finished.pop(0)

    def retire(self, node: str, why: str) -> bool:
        """See `Executor`."""
        if node not in self._places.retired:
            self._places.retire(node, why)
            self._work.notify(f"node {node} is left out: {why}")
        return bool(self._places.used)

    def close(self) -> None:
        """See `Executor`: trials that run are ended, and with them their servers."""
        if self._cluster is None:
            return
        cluster, self._cluster = self._cluster, None
        try:
            # Without a head node Ray Tune does not end.
            self._tuning.close(CLOSE_S if cluster.answers() else 0.0)
        finally:
            cluster.close()

    def _refresh(self, cluster: Cluster) -> None:
        # A node that is too small for some of them would be asked for what it cannot run.
        places, refused = cluster.admitted(self._most)
        self._places.update(places)
        for place, why in refused:
            self._work.notify(f"node {place.name} is left out: {why}")

    def _take(self, wait_s: float) -> None:
        """Have brought what there is, results first."""
        try:
            items: list[Item] = ray.get(self._courier.take.remote(wait_s))
        except ray.exceptions.RayError as error:
            raise gone(error) from error
        self._brought = sorted(items, key=lambda item: not (isinstance(item, Ended) and item.result is not None))

    def _begin(self, trial: Trial, tries: int, avoid: str = "") -> None:
        spec = self._work.spec
        gpus = gpus_of(trial.configuration, spec.gpus)
        # No two tries have one key: Ray Tune may still tell of the end of an earlier one.
        serial = next(self._serial)
        key = f"{trial.number}.{serial}"
        place = self._places.take(key, gpus, trial.node, avoid)
        if place is None:
            why = "; ".join(f"{name}: {problem}" for name, problem in self._places.retired.items())
            raise CannotGoOn(f"no {spec.hardware.name} node with {gpus} GPUs is left in the Ray cluster. {why}".strip())
        task = Task(key, trial, gpus if spec.hardware.vendor != "cpu" else 0, place)
        self._running[key] = _Running(task, tries, serial)
        self._waiting[key] = time.monotonic()
        self._tuning.feed.tasks.put(task)

    def _received(self, item: Item) -> None:
        if isinstance(item, Said):
            self._work.notify(item.text)
            return
        self._waiting.pop(item.key, None)
        if isinstance(item, Began):
            return
        running = self._running.pop(item.key, None)
        if running is None:
            return
        self._places.give_back(item.key)
        task = running.task
        if item.bug:
            raise RuntimeError(f"the evaluation of trial {task.trial.number} on {task.place.name} failed:\n{item.bug}")
        if item.result is None:
            self._unusable(running, item.problem)
            return
        self._losses.pop(task.place.name, None)
        unpack(item.files, self._work.folder / "trials" / f"{task.trial.number:04d}")
        self._finished.append(Launch(task.trial, item.result))

    def _look_after(self) -> None:
        """What is to be done about trials that did not end by themselves, once all that was brought is read."""
        if self._cluster is not None:
            self._cluster.check_head()
        self._tell_of_waiting()
        while self._lost:
            self._retry(self._lost.pop(0))
        self._send_elsewhere()
        problem = self._tuning.problem
        if isinstance(problem, ray.exceptions.RayError):
            raise gone(problem) from problem
        if problem is not None:
            raise RuntimeError("Ray Tune has ended") from problem

    def _tell_of_waiting(self) -> None:
        """Say so, once, when a trial waits for GPUs that somebody else's work on the cluster has."""
        for key, since_s in list(self._waiting.items()):
            task = self._running[key].task
            if self._places.free(task.place) < 0 and since_s < math.inf:
                self._waiting[key] = time.monotonic()
            elif time.monotonic() - since_s > WAIT_S:
                # Told once; it waits on.
                self._waiting[key] = math.inf
                self._work.notify(
                    f"launch {task.trial.number} still waits for {task.gpus} GPUs of node {task.place.name}: other "
                    "work on the Ray cluster may have them (`ray status` tells)"
                )

    def _unusable(self, running: _Running, problem: str) -> None:
        """A node on which nothing can be launched is left out; its trial has not been tried yet."""
        name = running.task.place.name
        if not self.retire(name, problem):
            raise CannotGoOn(problem)
        self._begin(running.task.trial, running.tries, avoid=name)

    def _note_lost(self) -> None:
        while not self._tuning.feed.errors.empty():
            self._lost.append(self._tuning.feed.errors.get())

    def _send_elsewhere(self) -> None:
        """Trials that wait for a node that is gone, which Ray would have them do for ever."""
        if self._cluster is None or not self._waiting:
            return
        self._refresh(self._cluster)
        for key in [k for k in self._waiting if self._running[k].task.place.node_id not in self._places.there]:
            del self._waiting[key]
            running = self._running.pop(key)
            self._places.give_back(key)
            self._begin(running.task.trial, running.tries, avoid=running.task.place.name)

    def _retry(self, key: str) -> None:
        """A trial whose process or node is gone, and whose result was not brought."""
        running = self._running.pop(key, None)
        self._waiting.pop(key, None)
        if running is None or self._cluster is None:
            return
        self._places.give_back(key)
        name, trial = running.task.place.name, running.task.trial
        if not self._has_vanished(running.task.place, self._cluster):
            self._count_loss(running)
        if running.tries < TRIES:
            self._work.notify(
                f"launch {trial.number}: node {name}, or its process there, is gone; it is tried once more"
            )
            self._begin(replace(trial, node=""), running.tries + 1, avoid=name)
            return
        self._finished.append(Launch(trial, self._vanished(name)))

    def _has_vanished(self, place: Place, cluster: Cluster) -> bool:
        deadline_s = time.monotonic() + NOTICE_S
        self._refresh(cluster)
        while place.node_id in self._places.there and time.monotonic() < deadline_s:
            time.sleep(0.1)
            self._refresh(cluster)
        return place.node_id not in self._places.there

    def _count_loss(self, running: _Running) -> None:
        """Leave a node out that loses one trial after the other; those that ran side by side are lost at once."""
        name = running.task.place.name
        count, latest = self._losses.get(name, (0, 0))
        if running.serial < latest:
            return
        self._losses[name] = count + 1, next(self._serial)
        if count + 1 >= TRIES and any(place.name != name for place in self._places.used):
            self.retire(name, f"it lost the processes of {TRIES} trials in a row")

    def _vanished(self, name: str) -> TrialResult:
        message = f"Node {name}, or the process there, was gone while the trial ran; so it was at the first try."
        return TrialResult(
            state=State.INVALID,
            evidence=self._work.evaluator().evidence,
            failure=Failure(FailureKind.INFRASTRUCTURE, message),
            gpus=self._work.spec.gpus,
            node=name,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
