"""Which attention replica a request goes to; the rules by version are in ``search_spaces/<engine>/simulator.yaml``."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.simulator.node.replica import Replica
from autotune.simulator.node.server import Server

_WAITING_WEIGHT = 4.0
"""A waiting request counts as so many running ones (vLLM 0.11: v1/engine/core_client.py)."""
_PRESSURE_WEIGHT, _PRESSURE_FROM = 6.0, 0.5
"""vLLM 0.32, same file: waiting requests count more, the fuller the pool is beyond its half."""


class Dispatch:
    """The balancer in front of the replicas; it knows their state exactly, where engines know it some 0.1 s late."""

    def __init__(self, server: Server, replicas: Sequence[Replica]) -> None:
        self._rule, self._replicas = server.coefficients.dispatch, replicas
        self._turn = 0

    def pick(self) -> int:
        """The number of the replica that gets the next request; equal ones take turns."""
        n = len(self._replicas)
        turn, self._turn = self._turn, (self._turn + 1) % n
        if n == 1 or self._rule == "round_robin":
            return turn
        return min(((turn + i) % n for i in range(n)), key=lambda number: self._load(self._replicas[number]))

    def _load(self, replica: Replica) -> tuple[float, float]:
        waiting = len(replica.waiting)
        if self._rule == "waiting_weighted":
            return _WAITING_WEIGHT * waiting + replica.in_flight - waiting, 0.0
        if self._rule == "kv_pressure":
            pressure = max(0.0, replica.used / replica.capacity - _PRESSURE_FROM)
            return replica.in_flight + waiting * _PRESSURE_WEIGHT * pressure, 0.0
        return replica.in_flight, replica.prompt_tokens
