"""Worker processes that send one load together.

One Python process reads some thousand chunks per second faithfully; a node makes more. Each worker has an interpreter
to itself, its share of the requests, and the same start on the clock that all processes of a machine share.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import perf_counter_ns
from types import TracebackType

from autotune.child import IMPORT_FOLDER
from autotune.errors import BadInput
from autotune.loadgen.client.generator import HEAD_START_NS
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.open_files import allow_open_files
from autotune.loadgen.client.progress import Overview, Report
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.worker import READY, STOP, Done
from autotune.loadgen.client.worker_task import Share

STREAMS_PER_WORKER = 250
CHUNKS_PER_WORKER = 4000
"""Per second. One process bears more, see ``benchmarks/client_self_test.py``; these leave room for a busy machine."""

_END_S = 5.0
"""For a worker to leave when its pipe is closed."""

_WORKER = "autotune.loadgen.client"


class WorkerDied(Exception):
    """A worker process ended in the middle of a load, by something outside it; the load says nothing."""


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def workers_for(streams: int, chunks_per_s: float = 0.0, cores: int | None = None) -> int:
    """How many workers a load needs: half the processors at most, as a server on this machine needs its own.

    Args:
        streams: requests in flight together.
        chunks_per_s: what the server is expected to send; 0 = not known.
    """
    needed = max(math.ceil(streams / STREAMS_PER_WORKER), math.ceil(chunks_per_s / CHUNKS_PER_WORKER), 1)
    return min(needed, max((cores or processors()) // 2, 1), streams)


@dataclass(frozen=True, slots=True)
class _Member:
    """A worker process and our ends of its pipes."""

    process: subprocess.Popen[bytes]
    orders: Connection
    answers: Connection

    @classmethod
    def start(cls) -> _Member:
        taken, orders = Pipe(duplex=False)
        answers, told = Pipe(duplex=False)
        with taken, told:
            ends = [taken.fileno(), told.fileno()]
            # -P: a folder that happens to be the current one must not put its own modules in front.
            command = [sys.executable, "-P", "-m", _WORKER, *map(str, ends)]
            with _interrupts_held_back():
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends, env=_environment())
        return cls(process, orders, answers)

    def end(self) -> None:
        """Close its pipes, which ends it; one that does not leave is killed."""
        self.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.orders.close()
        self.answers.close()


def _environment() -> dict[str, str]:
    """Ours, with the folder that this package was imported from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (IMPORT_FOLDER, os.environ.get("PYTHONPATH"))))}


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A process that is started here never gets a Ctrl-C, which goes to the whole group: we decide what it means."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Worker processes, started when a load needs them and kept for the next; use it as a context manager."""

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members]

    def close(self) -> None:
        """End all of them; what they were sending is lost."""
        members, self._members = self._members, []
        for member in members:
            member.close()
        for member in members:
            member.end()

    def send(
        self, share: Share, workers: int, keep_on: Callable[[Overview], bool] | None = None
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        """Send a load point with so many workers and wait for every answer; no fault of the server raises.

        Args:
            share: the load, as if one worker sent it all.
            keep_on: called whenever a worker tells how far it is; False gives the load up.

        Raises:
            BadInput: too few open files are allowed, or the host has no address.
            WorkerDied: a worker was ended from outside.
        """
        allow_open_files(
            math.ceil(min(share.requests.concurrency, len(share.requests)) / workers), surely=_burst(share)
        )
        allow_open_files(4 * workers)  # of ours: the pipes
        while len(self._members) < workers:
            self._members.append(_Member.start())
        try:
            return self._sent(share, self._members[:workers], keep_on)
        except BaseException:
            self.close()  # a worker in the middle of a load is of no use for the next
            raise

    def _sent(
        self, share: Share, members: Sequence[_Member], keep_on: Callable[[Overview], bool] | None
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        for number, member in enumerate(members):
            _tell(member, replace(share, worker=number, workers=len(members)))
        for member in members:
            _hear(member)  # READY: its connections are open
        start_ns = perf_counter_ns() + HEAD_START_NS
        for member in members:
            _tell(member, start_ns)
        done = self._all_done(share, members, keep_on or (lambda _: True))
        return RequestLog.merged([one.log for one in done]), tuple(one.health for one in done)

    @staticmethod
    def _all_done(share: Share, members: Sequence[_Member], keep_on: Callable[[Overview], bool]) -> list[Done]:
        overview = Overview(len(share.requests), share.requests.input_tokens, len(members))
        pipes = {member.answers: number for number, member in enumerate(members)}
        done: dict[int, Done] = {}
        going_on = True
        while len(done) < len(members):
            for pipe in wait([pipe for pipe, number in pipes.items() if number not in done]):
                assert isinstance(pipe, Connection)
                number = pipes[pipe]
                message = _hear(members[number])
                if isinstance(message, Done):
                    done[number] = message
                elif isinstance(message, Report):
                    overview.add(number, message)
            if going_on and len(done) < len(members) and not keep_on(overview):
                going_on = False
                for member in members:
                    _tell(member, STOP)
        return [done[number] for number in range(len(members))]


def _burst(share: Share) -> bool:
    return bool((share.requests.send_s <= 0).all())


def _tell(member: _Member, message: object) -> None:
    with suppress(ConnectionError):  # hearing of it says why it ended
        member.orders.send(message)


def _hear(member: _Member) -> Done | Report | str:
    try:
        message: Done | Report | str | BadInput = member.answers.recv()
    except (EOFError, OSError) as error:
        code = member.process.wait(_END_S)
        raise WorkerDied(f"a worker process of the load ended with code {code}") from error
    if isinstance(message, BadInput):
        raise message
    assert isinstance(message, Done | Report) or message == READY
    return message
