"""Which autotune the nodes have: each is asked before it gets a trial, those that join later too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import ray

import autotune
from autotune.executors.ray.node_pool import Place

PROBE_S = 120.0
"""A node's first worker process may have to be read from a slow disk."""

Answer = Future[str]
"""A node's version of autotune, once it has told it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    answer: Answer
    since_s: float

    @property
    def over(self) -> bool:
        return self.answer.done() or time.monotonic() - self.since_s >= PROBE_S


def ask(place: Place) -> Answer:
    """Ask a node of the cluster."""
    remote = ray.remote(num_cpus=0, max_retries=0)(_version)
    answer: Answer = remote.options(label_selector={"ray.io/node-id": place.node_id}).remote().future()
    return answer


class Versions:
    """Lets those nodes in that have this autotune.

    Args:
        ask: asks a node.
    """

    def __init__(self, ask: Callable[[Place], Answer] = ask) -> None:
        self._ask = ask
        self._asked: dict[str, _Asked] = {}
        self._told: set[str] = set()

    def problems(self, places: Sequence[Place]) -> list[str]:
        """What is wrong with some nodes, a sentence for each; waits until all have answered."""
        self._heard(places)
        wait([self._asked[place.node_id].answer for place in places], PROBE_S)
        return [problem for place in places if (problem := self._problem(place))]

    def admit(self, places: Sequence[Place]) -> tuple[list[Place], list[tuple[Place, str]]]:
        """Those of some nodes that will do, and those that will not, once each, with what is wrong.

        Nodes that have yet to answer are in neither. While there are no others they are waited for.
        """
        over = self._heard(places)
        if places and not over:
            wait([self._asked[place.node_id].answer for place in places], PROBE_S, FIRST_COMPLETED)
            over = self._heard(places)
        problems = {place: self._problem(place) for place in over}
        refused = [(place, why) for place, why in problems.items() if why and place.node_id not in self._told]
        self._told |= {place.node_id for place, _ in refused}
        return [place for place, why in problems.items() if not why], refused

    def _heard(self, places: Sequence[Place]) -> list[Place]:
        for place in places:
            if place.node_id not in self._asked:
                self._asked[place.node_id] = _Asked(self._ask(place), time.monotonic())
        return [place for place in places if self._asked[place.node_id].over]

    def _problem(self, place: Place) -> str:
        """One sentence; empty where nothing is wrong."""
        answer, node = self._asked[place.node_id].answer, f"node {place.name} of the Ray cluster"
        if not answer.done():
            return f"{node} has not answered for {PROBE_S:g} s"
        error = answer.exception()
        if error is not None:
            return (
                f"{node} cannot run autotune: install autotune {autotune.__version__} in the environment in which "
                f"`ray start` runs there ({_last_line(error)})"
            )
        version = answer.result()
        return (
            "" if version == autotune.__version__ else f"{node} has autotune {version}; here is {autotune.__version__}"
        )


def _version() -> str:
    return autotune.__version__


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
