"""The kept-alive connections of one load."""

from __future__ import annotations

import asyncio

from autotune.loadgen.client.outcomes import Outcome, OutcomeKind
from autotune.loadgen.client.stalls import Stalls
from autotune.loadgen.client.stream import Connection, Exchange
from autotune.loadgen.client.target import Target

_AT_ONCE = 64
"""Connections opened at the same time before a load: fewer than the shortest usual backlog of a listening socket."""


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

    async def open_ahead(self, count: int) -> None:
        """Open so many before they are needed; after the first failure no more, the requests find out."""
        gate = asyncio.Semaphore(_AT_ONCE)
        failed = False

        async def open_one() -> None:
            nonlocal failed
            async with gate:
                connection = None if failed else await self._open()
            if isinstance(connection, Connection):
                self._idle.append(connection)
            else:
                failed = True

        await asyncio.gather(*(open_one() for _ in range(count)))

    async def send(self, exchange: Exchange, request: bytes, stalls: Stalls) -> int:
        """Send a request and wait for its end; returns how many stale connections were met.

        A kept connection that the server closed before it answered is no fault of the server: the request goes
        once more, over a new connection, and keeps the time at which it was first sent.
        """
        stale = 0
        connection = self._take()
        if connection is not None:
            await self._run(connection, exchange, request, stalls)
            if exchange.started or not _is_closed(exchange):
                return stale
            stale, exchange.outcome = 1, None
        fresh = await self._open()
        if isinstance(fresh, Outcome):
            exchange.fail(fresh)
        else:
            await self._run(fresh, exchange, request, stalls)
        return stale

    async def close(self) -> None:
        """Close all of them."""
        for connection in self._all:
            connection.close()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round

    async def _run(self, connection: Connection, exchange: Exchange, request: bytes, stalls: Stalls) -> None:
        with stalls.watching(exchange, connection):
            await connection.run(exchange, request)
        if connection.open:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._reads_of_closed += connection.reads

    async def _open(self) -> Connection | Outcome:
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
        return Outcome(OutcomeKind.CONNECT_ERROR, problem)


def _is_closed(exchange: Exchange) -> bool:
    return exchange.outcome is not None and exchange.outcome.kind is OutcomeKind.CLOSED
