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
from dataclasses import astuple, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import perf_counter_ns
from types import TracebackType

from autotune.child import IMPORT_FOLDER
from autotune.errors import BadInput
from autotune.loadgen.client.generator import HEAD_START_NS, allow_open_files
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.messages import READY, Progress, TaskResult, WorkerTask
from autotune.loadgen.client.request_log import RequestLog

STREAMS_PER_WORKER = 250
CHUNKS_PER_WORKER = 4000
"""Per second. One process bears more, see ``benchmarks/client_self_test.py``; these leave room for a busy machine."""

_END_S = 5.0
"""For a worker to leave when its pipe is closed."""

_WORKER = "autotune.loadgen.client.worker"


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
class _Process:
    """A worker process and our ends of its pipes."""

    process: subprocess.Popen[bytes]
    tasks: Connection
    answers: Connection

    @classmethod
    def start(cls) -> _Process:
        worker_tasks, tasks = Pipe(duplex=False)
        answers, worker_answers = Pipe(duplex=False)
        with worker_tasks, worker_answers:
            # With the folder that this package was imported from.
            folders = os.pathsep.join(filter(None, (IMPORT_FOLDER, os.environ.get("PYTHONPATH"))))
            environment = {**os.environ, "PYTHONPATH": folders}
            ends = [worker_tasks.fileno(), worker_answers.fileno()]
            # -P: a folder that happens to be the current one must not put its own modules in front.
            command = [sys.executable, "-P", "-m", _WORKER, *map(str, ends)]
            with _interrupts_held_back():
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends, env=environment)
        return cls(process, tasks, answers)

    def send(self, message: object) -> None:
        with suppress(ConnectionError):  # `receive` raises why it ended
            self.tasks.send(message)

    def receive(self) -> TaskResult | Progress | str:
        try:
            message: TaskResult | Progress | str | BadInput = self.answers.recv()
        except (EOFError, OSError) as error:
            code = self.process.wait(_END_S)
            raise WorkerDied(f"a worker process of the load ended with code {code}") from error
        if isinstance(message, BadInput):
            raise message
        assert isinstance(message, TaskResult | Progress) or message == READY
        return message

    def end(self) -> None:
        """Close its pipes, which ends it; one that does not leave is killed."""
        self.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.tasks.close()
        self.answers.close()


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
        self._processes: list[_Process] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.process.pid for process in self._processes]

    def close(self) -> None:
        """End all of them; what they were sending is lost."""
        processes, self._processes = self._processes, []
        for process in processes:
            process.close()
        for process in processes:
            process.end()

    def send(
        self, task: WorkerTask, workers: int, on_progress: Callable[[Progress], None] | None = None
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        """Send a load point with so many workers and wait for every answer; no fault of the server raises.

        Args:
            task: the load, as if one worker sent it all.
            on_progress: called with the sum over all workers whenever one reports.

        Raises:
            BadInput: too few open files are allowed, or the host has no address.
            WorkerDied: a worker was ended from outside.
        """
        streams, burst = min(task.requests.concurrency, len(task.requests)), bool((task.requests.send_s <= 0).all())
        allow_open_files(math.ceil(streams / workers), surely=burst)
        allow_open_files(4 * workers)  # of ours: the pipes
        while len(self._processes) < workers:
            self._processes.append(_Process.start())
        processes = self._processes[:workers]
        try:
            for number, process in enumerate(processes):
                process.send(replace(task, worker=number, workers=workers))
            for process in processes:
                process.receive()  # READY: its connections are open
            start_ns = perf_counter_ns() + HEAD_START_NS
            for process in processes:
                process.send(start_ns)
            results = _results(len(task.requests), processes, on_progress)
        except BaseException:
            self.close()  # a worker in the middle of a load is of no use for the next
            raise
        return RequestLog.merged([one.log for one in results]), tuple(one.health for one in results)


def _results(
    requests: int, processes: Sequence[_Process], on_progress: Callable[[Progress], None] | None
) -> list[TaskResult]:
    """Each worker's result, once all have one; meanwhile their progress."""
    shares = [len(range(number, requests, len(processes))) for number in range(len(processes))]
    progress = [Progress(0, 0, 0, share, 0) for share in shares]
    pipes = {process.answers: number for number, process in enumerate(processes)}
    results: dict[int, TaskResult] = {}
    while len(results) < len(processes):
        for pipe in wait([pipe for pipe, number in pipes.items() if number not in results]):
            assert isinstance(pipe, Connection)
            number = pipes[pipe]
            message = processes[number].receive()
            if isinstance(message, TaskResult):
                results[number] = message
            elif isinstance(message, Progress):
                progress[number] = message
                if on_progress is not None:
                    on_progress(Progress(*map(sum, zip(*map(astuple, progress), strict=True))))
    return [results[number] for number in range(len(processes))]
