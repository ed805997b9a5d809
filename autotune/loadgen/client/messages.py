"""Messages between the worker processes of a load and the process that started them.

For each load, in this order: in comes a `WorkerTask`, out goes `READY`, in comes the start in ns or `STOP`, out go
`Report`s, during which `STOP` may come, out goes a `TaskResult`. A task that cannot be sent is answered with a
`BadInput`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.target import Target
from autotune.loadgen.prompts import PromptKey, Prompts
from autotune.loadgen.requests import Requests
from autotune.metrics.records import RequestRecords

READY = "ready"
STOP = "stop"


@dataclass(frozen=True, slots=True)
class RequestTimeouts:
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
    """Requests and when they are sent: everything that can be made before the clock starts.

    Attributes:
        requests: whole HTTP requests, in the order of sending, n entries.
        send_s: seconds after the start at which each may be sent, shape (n,), ascending.
        output_tokens: how many tokens each must bring, shape (n,).
        concurrency: how many may be in flight.
        streaming: whether answers come as events.
    """

    requests: Sequence[bytes]
    send_s: Floats
    output_tokens: Ints
    concurrency: int
    streaming: bool = True

    @property
    def at_once(self) -> int:
        """How many are surely in flight together from the start."""
        return min(self.concurrency, int((self.send_s <= 0).sum()))


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """Every n-th request of a load point, for one of n workers; concurrency is split as evenly as possible.

    Attributes:
        requests: of the whole load point: what a prompt says depends on the request's number in it.
        warm_up: whether to send other prompts than the load's.
        worker: of `workers`, from 0.
    """

    target: Target
    prompts: Prompts
    requests: Requests
    key: PromptKey
    timeouts: RequestTimeouts
    streaming: bool = True
    warm_up: bool = False
    worker: int = 0
    workers: int = 1

    def schedule(self) -> Schedule:
        """Make the request bodies of this task; workers make theirs side by side."""
        requests, prompts, target = self.requests, self.prompts, self.target
        chosen = slice(self.worker, None, self.workers)
        bodies = prompts.bodies(requests, self.key, self.streaming, chosen, self.warm_up)
        return Schedule(
            requests=[target.request(prompts.endpoint, body) for body in bodies],
            send_s=requests.send_s[chosen],
            output_tokens=requests.output_tokens[chosen],
            concurrency=requests.concurrency // self.workers + (self.worker < requests.concurrency % self.workers),
            streaming=self.streaming,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a load, in counts since its start."""

    sent: int
    finished: int
    failed: int
    total: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Report:
    """Progress of one worker's task, sent about twice a second.

    Attributes:
        progress: of this worker's requests.
        now_s: when it was sent, in seconds of ``CLOCK_MONOTONIC``.
        rows: positions, within the task, of the requests that changed since the last report, shape (k,).
        columns: of each of them, shape (k, 6): when it was sent, when its first token came, when it finished (seconds
            of ``CLOCK_MONOTONIC``, NaN = not yet), its output tokens (NaN = not yet known), 1 if it succeeded,
            and when its last event with a choice came.
    """

    progress: Progress
    now_s: float
    rows: Ints
    columns: Floats


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a worker's task."""

    log: RequestLog
    health: ClientHealth


class LoadState:
    """State of a load under way: the reports of all workers, joined.

    Args:
        requests: how many the load has.
        input_tokens: of each, shape (requests,).
        workers: how many share it; request i is number i // workers of worker i % workers.
    """

    def __init__(self, requests: int, input_tokens: Ints, workers: int) -> None:
        self._input_tokens, self._workers = input_tokens, workers
        self._columns = np.full((requests, 6), np.nan)
        self._progress = [Progress(0, 0, 0, 0, 0)] * workers
        self._reported_s = [-np.inf] * workers
        self._total = requests

    def add(self, worker: int, report: Report) -> None:
        """Replace what was known of the requests in a worker's report."""
        self._progress[worker], self._reported_s[worker] = report.progress, report.now_s
        self._columns[report.rows * self._workers + worker] = report.columns

    @property
    def progress(self) -> Progress:
        """The sum over the workers."""
        sent, finished, failed, chunks = (
            sum(int(getattr(progress, name)) for progress in self._progress)
            for name in ("sent", "finished", "failed", "chunks")
        )
        return Progress(sent, finished, failed, self._total, chunks)

    @property
    def now_s(self) -> float:
        """Until when everything is known: the earliest of the workers' last reports; -inf before each has reported."""
        return float(min(self._reported_s))

    def heard_s(self) -> Floats:
        """When the last event of each request of the snapshot came, NaN before the first, shape (requests sent,)."""
        heard: Floats = self._columns[~np.isnan(self._columns[:, 0]), 5]
        return heard

    def snapshot(self) -> RequestRecords:
        """One element per request sent so far, NaN for what has not happened yet."""
        sent = ~np.isnan(self._columns[:, 0])
        columns = self._columns[sent]
        return RequestRecords(
            columns[:, 0],
            columns[:, 1],
            columns[:, 2],
            self._input_tokens[sent].astype(np.float64),
            columns[:, 3],
            ok=columns[:, 4] == 1.0,
        )
