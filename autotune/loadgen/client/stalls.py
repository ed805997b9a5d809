"""What keeps a load from hanging."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from autotune.loadgen.client.outcomes import Outcome, OutcomeKind, malformed
from autotune.loadgen.client.stream import Connection, Exchange

_AFTER_DONE_S = 2.0
"""How long the end of the body may be waited for once the stream has said that it is over."""


class Stalls:
    """Ends requests of which nothing was heard for too long, and those that would never end.

    Args:
        limit_s: see `Limits.stall_s`.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._active: dict[Exchange, Connection] = {}
        self._latest_ns = 0
        self._given_up: Outcome | None = None

    @contextmanager
    def watching(self, exchange: Exchange, connection: Connection) -> Iterator[None]:
        """Watch a request while it is under way."""
        self._active[exchange] = connection
        try:
            yield
        finally:
            del self._active[exchange]
            self._latest_ns = max(self._latest_ns, exchange.events.heard_ns)
            # An end that the server brought about is a sign of life; one request given up must not keep the others.
            if exchange.outcome is not None and exchange.outcome.kind is not OutcomeKind.STALL_TIMEOUT:
                self._latest_ns = max(self._latest_ns, exchange.finished_ns)

    async def watch(self) -> None:
        """Look at all requests a few times per limit, or once a second, until cancelled."""
        while True:
            await asyncio.sleep(min(self._limit_s / 4, 1.0))
            for exchange, outcome in self.over(perf_counter_ns()):
                self._active[exchange].abort(outcome)

    def give_up(self, outcome: Outcome) -> None:
        """End every request, those that only begin now with the next look at them."""
        self._given_up = outcome
        for connection in list(self._active.values()):
            connection.abort(outcome)

    def over(self, now_ns: int) -> list[tuple[Exchange, Outcome]]:
        """The requests to be ended at this moment, and how."""
        heard = [exchange.events.heard_ns for exchange in self._active]
        self._latest_ns = max([self._latest_ns, *heard])
        judged = [(exchange, self._judge(exchange, now_ns)) for exchange in self._active]
        return [(exchange, outcome) for exchange, outcome in judged if outcome is not None]

    def _judge(self, exchange: Exchange, now_ns: int) -> Outcome | None:
        if self._given_up is not None:
            return self._given_up
        if exchange.runs_on:
            return malformed("far more events than tokens asked for")
        limit_s = min(self._limit_s, _AFTER_DONE_S) if exchange.events.done else self._limit_s
        since_ns = exchange.events.heard_ns or max(self._latest_ns, exchange.sent_ns)
        if now_ns - since_ns <= int(limit_s * 1e9):
            return None
        return Outcome(OutcomeKind.STALL_TIMEOUT, self._words(exchange))

    def _words(self, exchange: Exchange) -> str:
        count = len(exchange.events.times_ns)
        if not exchange.events.heard_ns:
            begun = f"HTTP {exchange.status} and then no event" if exchange.status else "no answer"
            return f"{begun}, and none to any other request, for {self._limit_s:g} s"
        return f"no further event for {self._limit_s:g} s, after {count} with text"
