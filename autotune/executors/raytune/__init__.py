"""Trials on the nodes of a Ray cluster, through Ray Tune.

    places     which node runs which trial
    cluster    the connection, and which nodes will do
    tuning     Ray Tune, fed from a queue
    there      a trial on its node
    courier    brings results and files back

Only this package imports ray.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import ray

from autotune.errors import CannotGoOn
from autotune.executors import Work
from autotune.executors.raytune.cluster import Cluster
from autotune.executors.raytune.courier import Began, Item, Said, hire, unpack
from autotune.executors.raytune.places import Places
from autotune.executors.raytune.there import evaluate_there
from autotune.executors.raytune.tuning import Task, Tuning
from autotune.space.knobs import gpus_of
from autotune.trial import Failure, FailureKind, Launch, State, Trial, TrialResult

LOOK_S = 1.0
"""Between two looks at what Ray Tune says of lost trials."""
TRIES = 2
"""At a trial whose node or process vanishes."""
CLOSE_S = 30.0
WAIT_S = 60.0
"""Without its GPUs, though no trial of ours has them, before a person is told."""


@dataclass(frozen=True, slots=True)
class _Running:
    task: Task
    tries: int


class RayExecutor:
    """See `autotune.executors.Executor`; arguments as of `autotune.executors.executor_for`."""

    def __init__(self, address: str, work: Work, needs: Sequence[int], most_nodes: int) -> None:
        self._work, self._least = work, min(needs, default=1)
        self._places = Places(most_nodes)
        self._cluster: Cluster | None = Cluster(address, work.spec)
        try:
            self._cluster.check(needs)
            self._refresh(self._cluster)
            self._courier = hire(self._cluster.driver_node_id)
            parameters = {"work": replace(work, tell=_nobody), "courier": self._courier, "folder": os.getcwd()}
            self._tuning = Tuning(evaluate_there, parameters)
        except BaseException:
            self._cluster.close()
            raise
        self._running: dict[str, _Running] = {}
        self._finished: list[Launch] = []
        self._waiting: dict[str, float] = {}
        self._serial = itertools.count()
        self._introduce()

    def _introduce(self) -> None:
        """Say where trials will run."""
        work, used = self._work, self._places.used
        shown = ", ".join(f"{place.name} ({place.gpus} GPUs)" for place in used)
        work.tell(f"Ray: trials run on {shown}")
        if self._places.spare:
            work.tell(
                f"{len(used)} of {len(used) + self._places.spare} nodes are used: with {work.spec.launches} launches "
                "more would spend too many of them on the baseline"
            )

    @property
    def nodes(self) -> Sequence[str]:
        """See `Executor`."""
        return [place.name for place in self._places.used if self._places.free(place) >= self._least]

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
            lost = self._lost()
            for item in ray.get(self._courier.take.remote(0.0 if lost else LOOK_S)):
                self._received(item)
            for key in lost:
                self._retry(key)
            self._look_at_waiting()
            if self._tuning.problem is not None:
                raise RuntimeError("Ray Tune has ended") from self._tuning.problem
        return self._finished.pop(0)

    def retire(self, node: str) -> bool:
        """See `Executor`."""
        self._places.retire(node, "it was left in a state in which nothing can be trusted")
        return bool(self._places.used)

    def close(self) -> None:
        """See `Executor`: trials that run are ended, and with them their servers."""
        if self._cluster is None:
            return
        cluster, self._cluster = self._cluster, None
        try:
            self._tuning.close(CLOSE_S)
        finally:
            cluster.close()

    def _refresh(self, cluster: Cluster) -> None:
        self._places.update(cluster.places())

    def _begin(self, trial: Trial, tries: int, avoid: str = "") -> None:
        spec = self._work.spec
        gpus = gpus_of(trial.configuration, spec.gpus)
        key = f"{trial.number}.{next(self._serial)}"
        place = self._places.take(key, gpus, trial.node, avoid)
        if place is None:
            why = "; ".join(f"{name}: {problem}" for name, problem in self._places.retired.items())
            raise CannotGoOn(f"no {spec.hardware.name} node with {gpus} GPUs is left in the Ray cluster. {why}".strip())
        task = Task(key, trial, gpus if spec.hardware.vendor != "cpu" else 0, place)
        self._running[key] = _Running(task, tries)
        self._waiting[key] = time.monotonic()
        self._tuning.feed.tasks.put(task)

    def _received(self, item: Item) -> None:
        if isinstance(item, Said):
            self._work.tell(item.text)
            return
        if isinstance(item, Began):
            self._waiting.pop(item.key, None)
            return
        if item.key not in self._running:
            return
        running = self._forget(item.key)
        task = running.task
        if item.bug:
            raise RuntimeError(f"the evaluation of trial {task.trial.number} on {task.place.name} failed:\n{item.bug}")
        if item.result is None:
            self._unusable(running, item.problem)
            return
        unpack(item.files, self._work.folder / "trials" / f"{task.trial.number:04d}")
        self._finished.append(Launch(task.trial, item.result))

    def _look_at_waiting(self) -> None:
        """A trial that has not begun is moved when its node is gone, and told of when somebody else has the GPUs."""
        if not self._waiting or self._cluster is None:
            return
        self._refresh(self._cluster)
        for key, since_s in list(self._waiting.items()):
            task = self._running[key].task
            if not self._places.there(task.place):
                running = self._forget(key)
                self._begin(running.task.trial, running.tries)
            elif self._places.free(task.place) < 0:
                self._waiting[key] = time.monotonic()
            elif time.monotonic() - since_s > WAIT_S:
                del self._waiting[key]
                self._work.tell(
                    f"launch {task.trial.number} still waits for {task.gpus} GPUs of node {task.place.name}: other "
                    "work on the Ray cluster may have them (`ray status` tells)"
                )

    def _unusable(self, running: _Running, problem: str) -> None:
        """A node on which nothing can be launched is left out; its trial has not been tried yet."""
        name, trial = running.task.place.name, running.task.trial
        self._places.retire(name, problem)
        if not self._places.used:
            raise CannotGoOn(problem)
        self._work.tell(f"node {name} is left out: {problem}")
        self._begin(trial, running.tries, avoid=name)

    def _lost(self) -> list[str]:
        keys = []
        while not self._tuning.feed.errors.empty():
            keys.append(self._tuning.feed.errors.get())
        return keys

    def _retry(self, key: str) -> None:
        """A trial whose process or node is gone, and whose result was not brought."""
        if key not in self._running or self._cluster is None:
            return
        running = self._forget(key)
        self._refresh(self._cluster)
        name, trial = running.task.place.name, running.task.trial
        if running.tries < TRIES:
            # Which of the two it is Ray tells only later.
            self._work.tell(f"launch {trial.number}: node {name}, or its process there, is gone; it is tried once more")
            self._begin(replace(trial, node=""), running.tries + 1, avoid=name)
            return
        self._finished.append(Launch(trial, self._vanished(name)))

    def _forget(self, key: str) -> _Running:
        self._waiting.pop(key, None)
        self._places.give_back(key)
        return self._running.pop(key)

    def _vanished(self, name: str) -> TrialResult:
        message = (
            f"Node {name}, or the trial's process there, was gone before the trial ended; so it was at the first try."
        )
        return TrialResult(
            state=State.INVALID,
            evidence=self._work.evaluator().evidence,
            failure=Failure(FailureKind.INFRASTRUCTURE, message),
            gpus=self._work.spec.gpus,
            node=name,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


def _nobody(text: str) -> None:
    del text
