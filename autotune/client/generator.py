"""Sends the requests of one load point and records what comes back.

A load is a `Schedule`, a value that is made before the clock starts. One process works through it here; several can
share it: each takes a part (`Schedule.part`) with the same absolute start, and `RequestLog.merged` joins the logs.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns

import numpy as np
import uvloop
from numpy.typing import NDArray

from autotune.client.connections import Connections
from autotune.client.health import ClientHealth, LoopMonitor
from autotune.client.open_files import allow_open_files
from autotune.client.request_log import RequestLog
from autotune.client.stream import Exchange
from autotune.client.target import Target
from autotune.client.watch import Stalls

_HEAD_START_NS = 20_000_000
"""From the last preparation to the first request."""

_BURST = 8
"""Requests sent between two looks at the sockets: the first answers come while the last requests still go out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give up on a request.

    Attributes:
        connect_s: for a connection to be made.
        stall_s: without an event: of its own once its answer has begun, before that of any request, as a request
            that waits in a busy server's queue is not stalled.
    """

    connect_s: float = 10.0
    stall_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is sent when: everything that can be made before the clock starts.

    Attributes:
        requests: whole HTTP requests, in the order of sending, n entries.
        send_s: seconds after the start at which each may be sent, shape (n,), ascending.
        output_tokens: how many tokens each must bring, shape (n,).
        concurrency: how many may be in flight.
        streaming: whether answers come as events.
        start_ns: on the clock of `time.perf_counter_ns`; 0 = at once. One machine's processes share that clock.
    """

    requests: Sequence[bytes]
    send_s: NDArray[np.float64]
    output_tokens: NDArray[np.int64]
    concurrency: int
    streaming: bool = True
    start_ns: int = 0

    def part(self, worker: int, workers: int) -> Schedule:
        """Every n-th request, for one of n workers; concurrency is split as evenly as it goes."""
        if not 0 <= worker < workers <= self.concurrency:
            raise ValueError(f"worker {worker} of {workers} at concurrency {self.concurrency}")
        share = self.concurrency // workers + (worker < self.concurrency % workers)
        chosen = slice(worker, None, workers)
        return replace(
            self,
            requests=self.requests[chosen],
            send_s=self.send_s[chosen],
            output_tokens=self.output_tokens[chosen],
            concurrency=share,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is."""

    sent: int
    finished: int
    failed: int
    total: int
    chunks: int


def run(
    target: Target, schedule: Schedule, limits: Limits, on_progress: Callable[[Progress], None] | None = None
) -> tuple[RequestLog, ClientHealth]:
    """Send a schedule and wait for every answer; no fault of the server raises.

    Args:
        on_progress: called about once a second.

    Raises:
        BadInput: too few open files are allowed, or the host has no address.
    """
    in_flight = min(schedule.concurrency, len(schedule.requests))
    allow_open_files(in_flight, surely=not (schedule.send_s > 0).any())
    load = _Load(target, schedule, limits)
    target.addresses  # noqa: B018  resolved here, where a name that does not exist can be told
    with _quiet_collector(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load.run(on_progress))


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No pauses for cyclic garbage within a load."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Load:
    """One run of one schedule, on one event loop."""

    def __init__(self, target: Target, schedule: Schedule, limits: Limits) -> None:
        self._schedule, self._limits = schedule, limits
        self._connections = Connections(target, limits.connect_s)
        self._redacted = target.redacted
        n = len(schedule.requests)
        self._exchanges: list[Exchange | None] = [None] * n
        self._retries = [0] * n
        self._delays_s = np.zeros(n)
        self._slots = asyncio.Semaphore(max(schedule.concurrency, 1))
        self._stalls = Stalls(limits.stall_s)
        self._chunks = self._finished = self._failed = 0

    async def run(self, on_progress: Callable[[Progress], None] | None) -> tuple[RequestLog, ClientHealth]:
        schedule = self._schedule
        try:
            await self._connections.open_ahead(self._ahead())
            start_ns = schedule.start_ns or perf_counter_ns() + _HEAD_START_NS
            await _until(start_ns)
            monitor = LoopMonitor()
            async with asyncio.TaskGroup() as helpers:
                beside = [helpers.create_task(work) for work in (monitor.run(), self._stalls.watch())]
                if on_progress is not None:
                    beside.append(helpers.create_task(self._tell(on_progress)))
                async with asyncio.TaskGroup() as group:
                    await self._dispatch(group, start_ns)
                for helper in beside:
                    helper.cancel()
            health = monitor.health(self._delays_s, self._connections.reads, self._chunks)
        finally:
            await self._connections.close()
        done = [exchange for exchange in self._exchanges if exchange is not None]
        return RequestLog.of(done, self._retries, self._delays_s), health

    def _ahead(self) -> int:
        """Connections to open before the start: all that are surely needed at once."""
        schedule = self._schedule
        together = int((schedule.send_s <= 0).sum())
        return min(schedule.concurrency, together)

    async def _dispatch(self, group: asyncio.TaskGroup, start_ns: int) -> None:
        for request, send_s in enumerate(self._schedule.send_s):
            await self._slots.acquire()
            if send_s > 0:
                due_ns = start_ns + int(send_s * 1e9)
                await _until(due_ns)
                self._delays_s[request] = (perf_counter_ns() - due_ns) / 1e9
            group.create_task(self._one(request))
            if request % _BURST == 0:
                await asyncio.sleep(0)

    async def _one(self, request: int) -> None:
        schedule = self._schedule
        exchange = Exchange(int(schedule.output_tokens[request]), schedule.streaming)
        self._exchanges[request] = exchange
        try:
            self._retries[request] = await self._connections.send(exchange, schedule.requests[request], self._stalls)
        finally:
            self._slots.release()
        outcome = exchange.outcome
        assert outcome is not None
        if not outcome.ok:
            exchange.outcome = replace(outcome, message=self._redacted(outcome.message))
            self._failed += 1
        self._chunks += len(exchange.events.times_ns)
        self._finished += 1

    async def _tell(self, on_progress: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(1.0)
            on_progress(self._progress())

    def _progress(self) -> Progress:
        under_way = [e for e in self._exchanges if e is not None]
        chunks = sum(len(e.events.times_ns) for e in under_way)
        return Progress(len(under_way), self._finished, self._failed, len(self._exchanges), chunks)


async def _until(due_ns: int) -> None:
    """Wait until a moment of the clock; the loop's timers are whole milliseconds, and never early."""
    while (left_ns := due_ns - perf_counter_ns()) > 0:
        await asyncio.sleep(left_ns / 1e9)
