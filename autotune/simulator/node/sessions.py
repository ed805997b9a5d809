"""The client of a load of sessions in virtual time: a turn is sent when its user has read and thought."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from autotune.loadgen.requests import Turns


class SessionClient:
    """Keeps so many sessions open; the next one begins when one ends."""

    def __init__(self, turns: Turns, concurrency: int) -> None:
        self._think_s = turns.think_s.tolist()
        after = turns.after.tolist()
        self._next = {before: request for request, before in enumerate(after) if before >= 0}
        self._begins = iter([request for request, before in enumerate(after) if before < 0])
        self._due: list[tuple[float, int]] = []
        for _ in range(concurrency):
            self._begin(0.0)

    def _begin(self, now_s: float) -> None:
        """Open the next session, where there is one."""
        request = next(self._begins, None)
        if request is not None:
            self._plan(request, now_s)

    def _plan(self, request: int, now_s: float) -> None:
        heapq.heappush(self._due, (now_s + self._think_s[request], request))

    def next_s(self) -> float:
        """When the next turn is sent, as far as it is known; infinite while all wait for answers."""
        return self._due[0][0] if self._due else math.inf

    def take(self) -> int:
        """The request that is sent then."""
        return heapq.heappop(self._due)[1]

    def ended(self, requests: Iterable[int], seen_s: float) -> None:
        """These answers are there."""
        for request in requests:
            following = self._next.get(request)
            if following is None:
                self._begin(seen_s)
            else:
                self._plan(following, seen_s)
