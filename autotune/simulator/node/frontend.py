"""The front end: what lies between the client's connection and the scheduler, on both ways.

Each way is a process, or several, that takes what comes one after the other. Neither slows the engine's steps; when it
saturates, requests reach the scheduler late, or tokens the client.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from autotune.arrays import Floats
from autotune.simulator.node.server import SimulatedServer


class FrontEnd:
    """HTTP and tokeniser: each of its processes reads requests one after the other."""

    def __init__(self, server: SimulatedServer) -> None:
        c = server.coefficients
        self._request_s, self._token_s = c.request_ms * 1e-3, c.prompt_token_us * 1e-6
        self._free_s = [0.0] * server.front_ends
        self._reading: list[tuple[float, int]] = []  # a heap: (when it is done with it, request)

    def accept(self, request: int, at_s: float, tokens: int) -> None:
        """A request of so many prompt tokens arrives; 0 when they came as token ids."""
        done_s = max(self._free_s[0], at_s) + self._request_s + tokens * self._token_s
        heapq.heapreplace(self._free_s, done_s)
        heapq.heappush(self._reading, (done_s, request))

    def done(self, now_s: float) -> list[int]:
        """The requests that it has read since the last call."""
        ready = []
        while self._reading and self._reading[0][0] <= now_s:
            ready.append(heapq.heappop(self._reading)[1])
        return ready

    def next_s(self) -> float:
        """When it is done with the next one; infinite when it has none."""
        return self._reading[0][0] if self._reading else math.inf

    def drop(self, request: int) -> bool:
        """Give a request up; returns whether it was here."""
        kept = [item for item in self._reading if item[1] != request]
        found = len(kept) < len(self._reading)
        heapq.heapify(kept)
        self._reading = kept
        return found


class BackEnd:
    """Detokeniser and HTTP: sends the tokens of a step when those of the steps before are sent."""

    def __init__(self, server: SimulatedServer) -> None:
        # The tokens of a step are of many requests, which are spread over the processes.
        self._token_s = server.coefficients.output_token_us * 1e-6 / server.front_ends
        self._free_s = 0.0

    def send(self, at_s: float, tokens: float) -> float:
        """When the tokens of a step that ends at a time have reached their clients."""
        self._free_s = max(self._free_s, at_s) + tokens * self._token_s
        return self._free_s

    def send_steps(self, at_s: Floats, tokens: float) -> Floats:
        """The same for steps of equally many tokens, one after the other; shape (steps,)."""
        if not self._token_s:
            return at_s
        work = tokens * self._token_s * np.arange(1, len(at_s) + 1)
        # Sent once it has ended and all before it are sent: the latest begin of any of them, and the work since.
        begins = at_s - work + tokens * self._token_s
        begins[0] = max(begins[0], self._free_s)
        sent: Floats = np.maximum.accumulate(begins) + work
        self._free_s = float(sent[-1])
        return sent
