"""Load generator: sends the requests of a `Schedule`, which is made before the clock starts, and records the answers.

Several processes can share a load: each sends a schedule of its own from the same absolute start, and
`RequestLog.merged` joins what they saw.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import uvloop

from autotune.errors import BadInput
from autotune.loadgen.client.connections import Connections, StallTimeouts
from autotune.loadgen.client.conversations import AnswerStream, Conversation
from autotune.loadgen.client.health import ClientHealth, LoopMonitor
from autotune.loadgen.client.messages import Progress, RequestTimeouts, Schedule
from autotune.loadgen.client.outcomes import OutcomeKind, RequestOutcome
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.stream import Exchange
from autotune.loadgen.client.target import Target

HEAD_START_NS = 20_000_000
"""From the last preparation to the first request."""

_BURST = 8
"""Requests sent between two looks at the sockets: the first answers come while the last requests still go out."""

_REPORT_S = 0.5

_EXTRA_FILES = 64
"""For the log, the event loop, and what libraries open while a load runs."""


@contextmanager
def event_loop() -> Iterator[asyncio.Runner]:
    """The loop that a load runs on, without pauses for cyclic garbage."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            yield runner
    finally:
        if was_enabled:
            gc.enable()


class Generator:
    """One run of one schedule, on one event loop.

    Raises:
        BadInput: too few open files are allowed, or the host has no address.
    """

    def __init__(self, target: Target, schedule: Schedule, timeouts: RequestTimeouts) -> None:
        in_flight = min(schedule.concurrency, len(schedule))
        allow_open_files(in_flight, surely=schedule.at_once >= in_flight)
        target.addresses  # noqa: B018  resolved here, where a name that does not exist can be told
        self._schedule = schedule
        self._connections = Connections(target, timeouts.connect_s)
        self._redacted = target.redacted
        n = len(schedule)
        self._exchanges: dict[int, Exchange] = {}
        self._active: set[Exchange] = set()
        self._retries = [0] * n
        self._delays_s = np.zeros(n)
        self._slots = asyncio.Semaphore(0 if schedule.ramp_s else max(schedule.concurrency, 1))
        self._stalls = StallTimeouts(timeouts.stall_s)
        self._chunks = self._failed = 0

    async def run(
        self, start: Callable[[], int], on_progress: Callable[[Progress], None] | None = None
    ) -> tuple[RequestLog, ClientHealth]:
        """Open the connections, work through the schedule, and wait for every answer; no fault of the server raises.

        Args:
            start: called when the connections are open, and may block: the moment of the first request, on the clock
                of `time.perf_counter_ns`, which all processes of a machine share.
            on_progress: called about twice a second.
        """
        async with self._connections.opened(self._schedule.at_once):
            start_ns = await asyncio.to_thread(start)
            await _until(start_ns)
            monitor = LoopMonitor()
            async with asyncio.TaskGroup() as watchers:
                background = [watchers.create_task(work) for work in (monitor.run(), self._stalls.watch())]
                if on_progress is not None:
                    background.append(watchers.create_task(self._report(on_progress)))
                if self._schedule.ramp_s:
                    background.append(watchers.create_task(self._begin_streams(start_ns)))
                async with asyncio.TaskGroup() as group:
                    if self._schedule.conversations:
                        await self._start_sessions(group)
                    else:
                        await self._start_requests(group, start_ns)
                for helper in background:
                    helper.cancel()
            health = monitor.health(self._delays_s, self._connections.reads, self._chunks)
            exchanges = [self._exchanges[request] for request in range(len(self._schedule))]
            return RequestLog.of(exchanges, self._retries, self._delays_s), health

    async def _start_requests(self, group: asyncio.TaskGroup, start_ns: int) -> None:
        """Send each request when its time has come and a place is free."""
        for request, send_s in enumerate(self._schedule.send_s):
            await self._slots.acquire()
            if send_s > 0:
                due_ns = start_ns + int(send_s * 1e9)
                await _until(due_ns)
                self._delays_s[request] = (perf_counter_ns() - due_ns) / 1e9
            exchange = Exchange(int(self._schedule.output_tokens[request]), self._schedule.streaming)
            self._exchanges[request] = exchange
            self._active.add(exchange)
            group.create_task(self._send(request, exchange))
            if request % _BURST == 0:
                await asyncio.sleep(0)

    async def _start_sessions(self, group: asyncio.TaskGroup) -> None:
        """Begin the next session when a place is free."""
        for conversation in self._schedule.conversations:
            await self._slots.acquire()
            group.create_task(self._hold(conversation))

    async def _hold(self, conversation: Conversation) -> None:
        """Send the turns of a session, each when the answer before is there and its user has thought."""
        failed: RequestOutcome | None = None
        try:
            before_ns = perf_counter_ns()
            for number, place in enumerate(conversation.places):
                tokens = int(self._schedule.output_tokens[place])
                if failed is not None:
                    self._exchanges[place] = exchange = Exchange(tokens)
                    exchange.fail(failed)
                    self._failed += 1
                    continue
                data, think_s = conversation.request(number), conversation.think_s(number)
                if think_s > 0:
                    due_ns = before_ns + int(think_s * 1e9)
                    await _until(due_ns)
                    self._delays_s[place] = (perf_counter_ns() - due_ns) / 1e9
                answer = AnswerStream()
                self._exchanges[place] = exchange = Exchange(tokens, self._schedule.streaming, answer)
                self._active.add(exchange)
                await self._exchange(place, exchange, data)
                assert exchange.outcome is not None
                if not exchange.outcome.ok:
                    message = f"not sent, as turn {number + 1} of its session had failed: {exchange.outcome.message}"
                    failed = replace(exchange.outcome, message=message)
                conversation.answered(answer.text())
                before_ns = exchange.finished_ns
        finally:
            self._slots.release()

    async def _send(self, request: int, exchange: Exchange) -> None:
        """Send a request that has a place, and give the place back."""
        try:
            await self._exchange(request, exchange, self._schedule.requests[request])
        finally:
            self._slots.release()

    async def _exchange(self, request: int, exchange: Exchange, data: bytes) -> None:
        """Send a request on a kept connection or else a new one, and wait for its end.

        A kept connection that the server closed before it answered is no fault of the server: the request goes
        once more, over a new connection, and keeps the time at which it was first sent.
        """
        kept = self._connections.take()
        try:
            while True:
                connection = kept or await self._connections.open()
                if isinstance(connection, RequestOutcome):
                    exchange.fail(connection)
                    break
                with self._stalls.watching(exchange, connection):
                    await connection.run(exchange, data)
                self._connections.give_back(connection)
                assert exchange.outcome is not None
                if kept is None or exchange.started or exchange.outcome.kind is not OutcomeKind.CLOSED:
                    break
                kept, exchange.outcome, self._retries[request] = None, None, 1
        finally:
            self._active.discard(exchange)
        outcome = exchange.outcome
        assert outcome is not None
        if not outcome.ok:
            exchange.outcome = replace(outcome, message=self._redacted(outcome.message))
            self._failed += 1
        self._chunks += len(exchange.events.times_ns)

    async def _begin_streams(self, start_ns: int) -> None:
        """Let the streams of a closed loop begin one after the other."""
        streams = max(self._schedule.concurrency, 1)
        for stream in range(streams):
            await _until(start_ns + int(stream * self._schedule.ramp_s / streams * 1e9))
            self._slots.release()

    async def _report(self, on_progress: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            sent, active = len(self._exchanges), len(self._active)
            chunks = self._chunks + sum(len(exchange.events.times_ns) for exchange in self._active)
            on_progress(Progress(sent, sent - active, self._failed, len(self._schedule), chunks))


async def _until(due_ns: int) -> None:
    """Wait until a moment of the clock; the loop's timers are whole milliseconds, and never early."""
    while (left_ns := due_ns - perf_counter_ns()) > 0:
        await asyncio.sleep(left_ns / 1e9)


def allow_open_files(connections: int, surely: bool = True) -> None:
    """Raise ``RLIMIT_NOFILE`` so that this process may open so many more sockets.

    Args:
        surely: whether all of them will be open at once; an open loop may need fewer, and gets what there is.

    Raises `BadInput` when the hard limit is lower, before any request fails of it.
    """
    opened = Path("/proc/self/fd")
    need = connections + (len(list(opened.iterdir())) + _EXTRA_FILES if opened.is_dir() else 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need and not surely:
        need = hard
    if hard != resource.RLIM_INFINITY and hard < need:
        raise BadInput(
            f"{connections} connections at once in one process need {need} open files, but the hard limit is {hard}; "
            f"raise it with `ulimit -Hn {need}`, spread them with --workers, or ask for fewer with --concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
