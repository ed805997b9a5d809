"""The kept-alive connections of one load, and the timeouts of the requests on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter_ns

from autotune.loadgen.client.outcomes import OutcomeKind, RequestOutcome, malformed
from autotune.loadgen.client.stream import Connection, Exchange
from autotune.loadgen.client.target import Target

_AT_ONCE = 64
"""Connections opened at the same time before a load: fewer than the shortest usual backlog of a listening socket."""

_AFTER_DONE_S = 2.0
"""How long the end of the body may be waited for once the stream has said that it is over."""


class Connections:
    """Opens, lends and takes back connections to one server; the last one used is lent first."""

    def __init__(self, target: Target, connect_s: float) -> None:
        self._target, self._connect_s = target, connect_s
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._reads_of_closed = 0

    @property
    def reads(self) -> int:
        """How often a socket was read so far."""
        return self._reads_of_closed + sum(connection.reads for connection in self._all)

    @asynccontextmanager
    async def opened(self, count: int) -> AsyncIterator[None]:
        """Open so many before they are needed, and close all in the end.

        After the first failure no more are opened, the requests find out.
        """
        gate = asyncio.Semaphore(_AT_ONCE)
        failed = False

        async def open_one() -> None:
            nonlocal failed
            async with gate:
                connection = None if failed else await self.open()
            if isinstance(connection, Connection):
                self._idle.append(connection)
            else:
                failed = True

        try:
            await asyncio.gather(*(open_one() for _ in range(count)))
            yield
        finally:
            for connection in self._all:
                connection.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next round

    def take(self) -> Connection | None:
        """Lend the connection used last; None where none is idle."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
            self._drop(connection)
        return None

    def give_back(self, connection: Connection) -> None:
        """Take a connection back after its request."""
        if connection.open:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._reads_of_closed += connection.reads

    async def open(self) -> Connection | RequestOutcome:
        """Open a connection to lend; why there is none, where the server cannot be reached."""
        target, loop = self._target, asyncio.get_running_loop()
        problem = ""
        for address in target.addresses:
            try:
                async with asyncio.timeout(self._connect_s):
                    _, connection = await loop.create_connection(
                        Connection,
                        address,
                        target.port,
                        ssl=target.tls,
                        server_hostname=target.host if target.tls else None,
                    )
            except TimeoutError:
                problem = f"no connection to {target.authority} within {self._connect_s:g} s"
            except OSError as error:
                problem = f"no connection to {target.authority}: {error.strerror or error}"
            else:
                self._all.add(connection)
                return connection
        return RequestOutcome(OutcomeKind.CONNECT_ERROR, problem)


class StallTimeouts:
    """Ends requests of which nothing was heard for too long, and those that would never end.

    Args:
        limit_s: see `RequestTimeouts.stall_s`.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._active: dict[Exchange, Connection] = {}
        self._latest_ns = 0

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

    def over(self, now_ns: int) -> list[tuple[Exchange, RequestOutcome]]:
        """The requests to be ended at this moment, and how."""
        heard = [exchange.events.heard_ns for exchange in self._active]
        self._latest_ns = max([self._latest_ns, *heard])
        over = []
        for exchange in self._active:
            limit_s = min(self._limit_s, _AFTER_DONE_S) if exchange.events.done else self._limit_s
            since_ns = exchange.events.heard_ns or max(self._latest_ns, exchange.sent_ns)
            if exchange.runs_on:
                over.append((exchange, malformed("far more events than tokens asked for")))
            elif now_ns - since_ns > int(limit_s * 1e9):
                message = f"no further event for {self._limit_s:g} s, after {len(exchange.events.times_ns)} with text"
                if not exchange.events.heard_ns:
                    begun = f"HTTP {exchange.status} and then no event" if exchange.status else "no answer"
                    message = f"{begun}, and none to any other request, for {self._limit_s:g} s"
                over.append((exchange, RequestOutcome(OutcomeKind.STALL_TIMEOUT, message)))
        return over
