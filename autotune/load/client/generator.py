"""Load generator: send the requests of a `Schedule`, built before the clock starts, and record the
answers.

Several processes can share a load: each sends a schedule of its own from the same absolute start,
and `RequestLog.merged` joins what they saw. Such a worker is ``python -m
autotune.load.client.generator IN OUT``: its messages are those of
`autotune.load.client.messages`, IN and OUT ends of two one-way `multiprocessing.Pipe`. It lives
as long as the other end of IN is held: when the process that started it is gone, by whatever
signal, it ends.
"""

import asyncio
import gc
import os
import resource
import select
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import uvloop

from autotune.base import AutotuneError, BadInput, ClientFailed

from .messages import (
    READY,
    Conversation,
    LoopMonitor,
    OnProgress,
    Progress,
    RequestLog,
    RequestTimeouts,
    Schedule,
    WorkerResult,
    WorkerTask,
)
from .stream import (
    AnswerStream,
    Connection,
    EventStream,
    Exchange,
    OutcomeKind,
    RequestOutcome,
    malformed,
)
from .target import Target

_AT_ONCE = 64
"""Connections opened at the same time before a load: fewer than the smallest usual backlog of a
listening socket."""

_AFTER_DONE_S = 2.0  # Longest wait for the end of the body after the end of the stream
HEAD_START_NS = 20_000_000
"""Nanoseconds from the last preparation to the first request."""
_BURST = 8
"""Requests sent between two polls of the sockets: first answers arrive before the last request is
sent."""
_REPORT_S = 0.5
_EXTRA_FILES = 64  # Additional open files: the log, the event loop, and library files during a load


@dataclass(eq=False, slots=True)
class Server:
    """One of the servers of a load, with its idle connections and its requests in flight."""

    target: Target
    idle: list[Connection] = field(default_factory=list)
    in_flight: int = 0


class Connections:
    """Open, lend and take back connections; the most recently used is lent first.

    A request goes to the server with the fewest in flight, chosen longest ago of several.
    """

    def __init__(self, target: Target, connect_s: float) -> None:
        self._servers = [Server(address) for address in target]
        for server in self._servers:
            server.target.addresses  # noqa: B018  resolved here, where an unknown name can be reported
        self._connect_s = connect_s
        self._all: set[Connection] = set()

    @asynccontextmanager
    async def opened(self, count: int) -> AsyncIterator[None]:
        """Open this number of connections in advance, spread evenly, and close all at the end.

        After a server's first failure no more are opened to it, the requests find out.
        """
        gate = asyncio.Semaphore(_AT_ONCE)
        failed = set[Server]()

        async def open_one(server: Server) -> None:
            async with gate:
                connection = None if server in failed else await self.open(server)
            if isinstance(connection, Connection):
                server.idle.append(connection)
            else:
                failed.add(server)

        try:
            await asyncio.gather(
                *(open_one(self._servers[i % len(self._servers)]) for i in range(count))
            )
            yield
        finally:
            for connection in self._all:
                connection.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next round

    @contextmanager
    def chosen(self) -> Iterator[Server]:
        """Choose the server of a request, and count the request there."""
        server = min(self._servers, key=lambda one: one.in_flight)
        self._servers.remove(server)
        self._servers.append(server)
        server.in_flight += 1
        try:
            yield server
        finally:
            server.in_flight -= 1

    def take(self, server: Server) -> Connection | None:
        """Lend the most recently used connection; None if none is idle."""
        while server.idle:
            connection = server.idle.pop()
            if connection.open:
                return connection
            self._all.discard(connection)
        return None

    def give_back(self, server: Server, connection: Connection) -> None:
        """Take a connection back after its request."""
        if connection.open:
            server.idle.append(connection)
        else:
            self._all.discard(connection)

    async def open(self, server: Server) -> Connection | RequestOutcome:
        """Open a connection to lend; if the server is unreachable, the outcome gives the reason."""
        target = server.target
        loop = asyncio.get_running_loop()
        host = target.host if target.tls else None
        problem = ""
        for address in target.addresses:
            try:
                async with asyncio.timeout(self._connect_s):
                    _, connection = await loop.create_connection(
                        Connection, address, target.port, ssl=target.tls, server_hostname=host
                    )
            except TimeoutError:
                problem = f"no connection to {target.authority} within {self._connect_s:g} s"
            except OSError as error:
                problem = f"no connection to {target.authority}: {error.strerror or error}"
            else:
                self._all.add(connection)
                return connection
        return RequestOutcome(OutcomeKind.CONNECT_ERROR, problem)


@dataclass
class StallTimeouts:
    """End requests without an event for `limit_s`, and endless ones."""

    limit_s: float
    _active: dict[Exchange, Connection] = field(default_factory=dict)
    _latest_ns: int = 0

    @contextmanager
    def watching(self, exchange: Exchange, connection: Connection) -> Iterator[None]:
        """Watch a request while it is in flight."""
        self._active[exchange] = connection
        try:
            yield
        finally:
            del self._active[exchange]
            self._latest_ns = max(self._latest_ns, exchange.events.heard_ns)
            # An end by the server is a sign of life; a timeout must not prolong the others.
            outcome = exchange.outcome
            if outcome is not None and outcome.kind is not OutcomeKind.STALL_TIMEOUT:
                self._latest_ns = max(self._latest_ns, exchange.finished_ns)

    @property
    def chunks(self) -> int:
        """Number of events with text of the requests in flight."""
        return sum(len(exchange.events.times_ns) for exchange in self._active)

    async def watch(self) -> None:
        """Look at all requests a few times per limit, or once a second, until cancelled."""
        while True:
            await asyncio.sleep(min(self.limit_s / 4, 1.0))
            for exchange, outcome in self.over(perf_counter_ns()):
                self._active[exchange].abort(outcome)

    def over(self, now_ns: int) -> list[tuple[Exchange, RequestOutcome]]:
        """Return the requests to end now, with their outcomes."""
        heard = [exchange.events.heard_ns for exchange in self._active]
        self._latest_ns = max([self._latest_ns, *heard])
        over = []
        for exchange in self._active:
            events = exchange.events
            limit_s = min(self.limit_s, _AFTER_DONE_S) if events.done else self.limit_s
            since_ns = events.heard_ns or max(self._latest_ns, exchange.sent_ns)
            if exchange.runs_on:
                over.append((exchange, malformed("far more events than requested tokens")))
            elif now_ns - since_ns > int(limit_s * 1e9):
                if events.heard_ns:
                    count = len(events.times_ns)
                    message = f"no further event for {self.limit_s:g} s, after {count} with text"
                else:
                    begun = "no answer"
                    if exchange.status:
                        begun = f"HTTP {exchange.status} and then no event"
                    message = f"{begun}, and none to any other request, for {self.limit_s:g} s"
                over.append((exchange, RequestOutcome(OutcomeKind.STALL_TIMEOUT, message)))
        return over


@contextmanager
def event_loop() -> Iterator[asyncio.Runner]:
    """Open the event loop of a load, without pauses for cyclic garbage collection."""
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
    """One run of one schedule, on one event loop; raises `BadInput` for too few open files, or no
    address."""

    def __init__(self, target: Target, schedule: Schedule, timeouts: RequestTimeouts) -> None:
        in_flight = min(schedule.concurrency, len(schedule))
        allow_open_files(in_flight, surely=schedule.at_once >= in_flight)
        self._schedule = schedule
        self._connections = Connections(target, timeouts.connect_s)
        self._redacted = target.redacted
        n = len(schedule)
        self._exchanges: dict[int, Exchange] = {}
        self._retries = [0] * n
        self._delays_s = np.zeros(n)
        self._slots = asyncio.Semaphore(0 if schedule.ramp_s else max(schedule.concurrency, 1))
        self._stalls = StallTimeouts(timeouts.stall_s)
        self._chunks = self._finished = self._failed = 0

    async def run(
        self, start: Callable[[], int], on_progress: OnProgress | None = None
    ) -> WorkerResult:
        """Open the connections, send the schedule, and wait for every answer; server failures do
        not raise.

        Args:
            start: called when the connections are open, and may block: the moment of the first
                request, on the clock of `time.perf_counter_ns`, which all processes of a machine
                share.
            on_progress: called about twice a second.
        """
        async with self._connections.opened(self._schedule.at_once):
            start_ns = await asyncio.to_thread(start)
            await _until(start_ns)
            monitor = LoopMonitor()
            async with asyncio.TaskGroup() as watchers:
                helpers = [monitor.run(), self._stalls.watch()]
                if on_progress is not None:
                    helpers.append(self._report(on_progress))
                if self._schedule.ramp_s:
                    helpers.append(self._begin_streams(start_ns))
                background = [watchers.create_task(helper) for helper in helpers]
                async with asyncio.TaskGroup() as group:
                    for conversation in self._schedule.conversations:
                        await self._slots.acquire()
                        group.create_task(self._hold(conversation))
                    if not self._schedule.conversations:
                        await self._start_requests(group, start_ns)
                for task in background:
                    task.cancel()
            health = monitor.health(self._delays_s, self._chunks)
            exchanges = [self._exchanges[request] for request in range(len(self._schedule))]
            return RequestLog.from_exchanges(exchanges, self._retries, self._delays_s), health

    async def _start_requests(self, group: asyncio.TaskGroup, start_ns: int) -> None:
        """Send each request at its time, when a slot is free."""
        for request, send_s in enumerate(self._schedule.send_s):
            await self._slots.acquire()
            if send_s > 0:
                self._delays_s[request] = await _until(start_ns + int(send_s * 1e9))
            exchange = self._begun(request)
            data = self._schedule.requests[request]
            group.create_task(self._send(request, exchange, data, self._slots.release))
            if request % _BURST == 0:
                await asyncio.sleep(0)

    def _begun(self, request: int, events: EventStream | None = None) -> Exchange:
        tokens = int(self._schedule.output_tokens[request])
        exchange = Exchange(tokens, self._schedule.streaming, events or EventStream())
        self._exchanges[request] = exchange
        return exchange

    async def _hold(self, conversation: Conversation) -> None:
        """Send the turns of a session, each after the previous answer and its think time."""
        failed = None
        before_ns = perf_counter_ns()
        try:
            for number, (_, place, _) in enumerate(conversation.turns):
                if failed is not None:
                    self._begun(place).fail(failed)
                    self._failed += 1
                    self._finished += 1
                    continue
                data, think_s = conversation.request(number)
                if think_s > 0:
                    self._delays_s[place] = await _until(before_ns + int(think_s * 1e9))
                answer = AnswerStream()
                exchange = self._begun(place, answer)
                await self._send(place, exchange, data)
                outcome = exchange.outcome
                assert outcome is not None
                if not outcome.ok:
                    turn = f"turn {number + 1} of its session"
                    message = f"not sent because {turn} failed: {outcome.message}"
                    failed = outcome._replace(message=message)
                conversation.answered(answer.text())
                before_ns = exchange.finished_ns
        finally:
            self._slots.release()

    async def _send(
        self, request: int, exchange: Exchange, data: bytes, done: Callable[[], None] | None = None
    ) -> None:
        """Send a request on an idle connection or a new one, wait for its end, and call `done`.

        A kept connection that the server closed before it answered is no fault of the server: the
        request goes once more, over a new connection, and keeps the time at which it was first
        sent.
        """
        connections = self._connections
        try:
            with connections.chosen() as server:
                kept = connections.take(server)
                while True:
                    connection = kept or await connections.open(server)
                    if isinstance(connection, RequestOutcome):
                        exchange.fail(connection)
                        break
                    with self._stalls.watching(exchange, connection):
                        await connection.run(exchange, data)
                    connections.give_back(server, connection)
                    outcome = exchange.outcome
                    closed = outcome is not None and outcome.kind is OutcomeKind.CLOSED
                    if kept is None or exchange.started or not closed:
                        break
                    kept = None
                    exchange.outcome = None
                    self._retries[request] = 1
            outcome = exchange.outcome
            assert outcome is not None
            if not outcome.ok:
                exchange.outcome = outcome._replace(message=self._redacted(outcome.message))
                self._failed += 1
            self._finished += 1
            self._chunks += len(exchange.events.times_ns)
        finally:
            if done is not None:
                done()

    async def _begin_streams(self, start_ns: int) -> None:
        streams = max(self._schedule.concurrency, 1)
        for stream in range(streams):
            await _until(start_ns + int(stream * self._schedule.ramp_s / streams * 1e9))
            self._slots.release()

    async def _report(self, on_progress: OnProgress) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            sent = len(self._exchanges)
            chunks = self._chunks + self._stalls.chunks
            on_progress(Progress(sent, self._finished, self._failed, len(self._schedule), chunks))


async def _until(due_ns: int) -> float:
    """Wait until a time of the clock; returns the delay in seconds.

    The loop's timers are whole milliseconds, and never early.
    """
    while (left_ns := due_ns - perf_counter_ns()) > 0:
        await asyncio.sleep(left_ns / 1e9)
    return -left_ns / 1e9


def allow_open_files(connections: int, surely: bool = True) -> None:
    """Allow this number of further sockets; raises `BadInput` beyond the hard limit if they will
    `surely` be open."""
    opened = Path("/proc/self/fd")
    need = connections + (len(list(opened.iterdir())) + _EXTRA_FILES if opened.is_dir() else 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    limited = hard != resource.RLIM_INFINITY and hard < need
    if limited and not surely:
        need = hard
    elif limited:
        raise BadInput(
            f"{connections} connections at once in one process need {need} open files, but the hard limit is {hard}; "
            f"raise it with `ulimit -Hn {need}`, spread them with --workers, or ask for fewer with --concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def serve(tasks: connection.Connection, answers: connection.Connection) -> None:
    """Process tasks until the other end of `tasks` is closed."""

    def start_ns() -> int:
        answers.send(READY)
        return int(tasks.recv())

    while True:
        task: WorkerTask = tasks.recv()
        try:
            schedule = task.schedule()
            target = task.target.beginning_with(task.worker)
            with event_loop() as runner:
                generator = Generator(target, schedule, task.timeouts)
                result: WorkerResult | BadInput
                result = runner.run(generator.run(start_ns, answers.send))
        except AutotuneError as error:
            result = BadInput(str(error))
        except Exception as error:
            # Print first: the receiver of the answer closes the pipes, which ends this process.
            traceback.print_exc()
            answers.send(ClientFailed(f"the load client failed: {type(error).__name__}: {error}"))
            sys.exit(1)
        answers.send(result)


def main() -> None:
    """Serve the pipes with the numbers of the two arguments."""
    tasks = connection.Connection(int(sys.argv[1]), writable=False)
    answers = connection.Connection(int(sys.argv[2]), readable=False)
    poll = select.poll()
    poll.register(tasks.fileno(), 0)  # a hang-up is reported without being asked for

    def exit_with_parent() -> None:
        """End when the other end of the pipe is closed, even in the middle of work."""
        poll.poll()
        os._exit(0)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):
        serve(tasks, answers)


if __name__ == "__main__":
    main()
