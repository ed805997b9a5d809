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
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import perf_counter_ns

from autotune.child import IMPORT_FOLDER
from autotune.errors import AutotuneError, ClientFailed
from autotune.loadgen.client.generator import HEAD_START_NS, allow_open_files
from autotune.loadgen.client.messages import Answer, ClientHealth, Progress, RequestLog, WorkerTask
from autotune.loadgen.requests import Requests

STREAMS_PER_WORKER = 250
CHUNKS_PER_WORKER = 4000
"""Per second. One process bears more, see ``benchmarks/client_self_test.py``; these leave room for a busy machine."""

_TRIES = 3
"""At one load point, each but the first with twice the workers of the one before."""

_END_S = 5.0
"""For a worker to leave when its pipe is closed."""

_WORKER = "autotune.loadgen.client.worker"


def workers_for(streams: int, chunks_per_s: float = 0.0, cores: int | None = None) -> int:
    """Return the number of workers of a load: half the processors at most, as a local server needs its own.

    Args:
        streams: requests in flight together.
        chunks_per_s: what the server is expected to send; 0 = not known.
        cores: that this process may use; None = those of this machine.
    """
    needed = max(math.ceil(streams / STREAMS_PER_WORKER), math.ceil(chunks_per_s / CHUNKS_PER_WORKER), 1)
    return min(needed, max((cores or len(os.sched_getaffinity(0))) // 2, 1), streams)


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
            # A worker never gets a Ctrl-C, which goes to the whole group: we decide what it means.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends, env=environment)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return cls(process, tasks, answers)

    def send(self, message: object) -> None:
        with suppress(ConnectionError):  # `receive` raises why it ended
            self.tasks.send(message)

    def receive(self) -> Answer:
        try:
            message: Answer | AutotuneError = self.answers.recv()
        except (EOFError, OSError) as error:
            code = self.process.wait(_END_S)
            raise ClientFailed(f"the load client failed: a worker process of it ended with code {code}") from error
        if isinstance(message, AutotuneError):
            raise message
        return message


class Workers:
    """Worker processes, started when a load needs them and kept for the next; use it as a context manager."""

    def __init__(self) -> None:
        self._processes: list[_Process] = []
        self._chunks_per_stream = 0.0  # per second, as last seen

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.process.pid for process in self._processes]

    def close(self) -> None:
        """End all of them by closing their pipes; what they were sending is lost, and who does not leave is killed."""
        processes, self._processes = self._processes, []
        for worker in processes:
            worker.tasks.close()
            worker.answers.close()
        for worker in processes:
            try:
                worker.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def counts(self, requests: Requests, asked: int | None) -> Iterator[int]:
        """Return the number of workers for each try of a load, no more than it may have in flight.

        Args:
            asked: so many, in a single try; None = as many as its streams need at the pace of the last load, and twice
                as many in each further try, no more than there are processors.
        """
        if asked is not None:
            yield min(asked, requests.concurrency)
            return
        streams = min(requests.concurrency, len(requests))
        workers = workers_for(streams, self._chunks_per_stream * streams)
        for _ in range(_TRIES):
            yield workers
            workers = max(workers, min(2 * workers, len(os.sched_getaffinity(0)), requests.concurrency))

    def send(
        self, task: WorkerTask, workers: int, on_progress: Callable[[Progress], None] | None = None
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        """Send a load point with so many workers and wait for every answer; no fault of the server raises.

        Args:
            task: the load, as if one worker sent it all.
            on_progress: called with the sum over all workers whenever one reports.

        Raises:
            BadInput: too few open files are allowed, or the host has no address.
            ClientFailed: a worker was ended from outside, or has a fault, whose traceback is on stderr.
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
            places = [task.requests.dealt(number, workers) for number in range(workers)]
            logs, clients = zip(*_results(list(map(len, places)), processes, on_progress), strict=True)
        except BaseException:
            self.close()  # a worker in the middle of a load is of no use for the next
            raise
        worst = ClientHealth.of_all(clients)
        self._chunks_per_stream = worst.chunks / worst.span_s / streams
        return RequestLog.merged(logs, places), clients


def _results(
    shares: Sequence[int], processes: Sequence[_Process], on_progress: Callable[[Progress], None] | None
) -> list[tuple[RequestLog, ClientHealth]]:
    """Each worker's result, once all have one; meanwhile their progress.

    Args:
        shares: how many requests each sends.
    """
    progress = [Progress(0, 0, 0, share, 0) for share in shares]
    pipes = {process.answers: number for number, process in enumerate(processes)}
    results: dict[int, tuple[RequestLog, ClientHealth]] = {}
    while len(results) < len(processes):
        for pipe in wait([pipe for pipe, number in pipes.items() if number not in results]):
            assert isinstance(pipe, Connection)
            number = pipes[pipe]
            message = processes[number].receive()
            if isinstance(message, tuple):
                results[number] = message
            elif isinstance(message, Progress):
                progress[number] = message
                if on_progress is not None:
                    on_progress(Progress(*map(sum, zip(*map(astuple, progress), strict=True))))
    return [results[number] for number in range(len(processes))]
