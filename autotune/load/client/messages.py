"""Messages between the worker processes of a load and the process that started them.

For each load, in this order: in comes a `WorkerTask`, out goes `READY`, in comes the start in ns,
out go `Progress` about twice a second and at last a pair of `RequestLog` and `ClientHealth`. A task
that cannot be sent is answered with a `BadInput`, a fault of the worker itself with a
`ClientFailed`.

`RequestLog` has a load in columns, one element per request. `ClientHealth` says whether the client
kept up, the first thing to distrust in a measurement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autotune.base import Json, StringDict, frozen
from autotune.base.arrays import Floats, Ints

from ..metrics.records import COLUMNS, SERIES, RequestRecords
from ..prompts import PromptKey, Prompts
from ..requests import Requests
from .stream import Exchange, RequestOutcome
from .target import Target

_TICK_S = 0.02
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Times of the thread: ns on a CPU, ns runnable but not running, time slices (the kernel's
sched-stats.rst)."""


_FORM_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_SPAN_S = 2.0
"""Shortest load that is judged: shorter ones have few samples, dominated by the initial burst."""
_SPAN_WITHOUT_BURST_S = 0.5  # The same for a load whose streams start one after the other

_LIMITS: tuple[tuple[str, float, str, str], ...] = (
    ("cpu_share", 0.9, "{:.0%}", "{} of a core"),
    ("run_delay_share", 0.25, "{:.0%}", "kept from running {} of the time"),
    ("loop_lag_p99_ms", 100.0, "{:.0f} ms", "event loop lag p99 {}"),
    ("send_delay_p99_ms", 100.0, "{:.0f} ms", "send delay p99 {}"),
)
"""Limits beyond which the client may have determined the numbers: figure, limit, format, and words.

``benchmarks/load/client_self_test.py`` compares them with the truth. On two cores shared with other
work, 1,000 to 40,000 chunks per second, they detected every load whose p99 of TTFT was more than 20
ms late; biases of 10 to 20 ms passed in 3 of 16 loads. The run delay detected them: accurate loads
had at most 15 %, others mostly over 20 %.
"""


class ClientHealth(NamedTuple):
    """Figures of the client during one load; for several workers, the worst; zeros if none
    reported.

    Attributes:
        cpu_share: of one core, by the thread that sends and reads.
        run_delay_share: of the load's time in which that thread could have run and was not let.
        loop_lag_p99_ms: by how much a timer of the event loop is late.
        send_delay_p99_ms: by how much requests with a planned time are late.
    """

    span_s: float = 0.0
    cpu_share: float = 0.0
    run_delay_share: float = 0.0
    loop_lag_p99_ms: float = 0.0
    send_delay_p99_ms: float = 0.0
    chunks: int = 0

    @classmethod
    def of_all(cls, workers: Sequence[ClientHealth]) -> ClientHealth:
        """Return the worst of each figure over the workers, and the sum of their chunks."""
        worst = cls(*map(max, zip(*workers, strict=True)))
        return worst._replace(chunks=sum(worker.chunks for worker in workers))

    def excess(self, burst: bool = True) -> str:
        """Name the figures beyond the limits; empty if the client kept up. A burst sends all
        requests at once."""
        if self.span_s < (_SPAN_S if burst else _SPAN_WITHOUT_BURST_S):
            return ""
        beyond = [
            f"{words.format(form.format(getattr(self, name)))} (limit {form.format(limit)})"
            for name, limit, form, words in _LIMITS
            if getattr(self, name) > limit
        ]
        return ", ".join(beyond)

    def to_json(self) -> Json:
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }


class LoopMonitor:
    """Sample an event loop and its thread from within during a load."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._began_s = time.perf_counter()
        self._cpu_s = time.thread_time()
        self._waited_s = _run_delay_s()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lags_s.append(max(time.perf_counter() - due, 0.0))

    def health(self, send_delay_s: Floats, chunks: int) -> ClientHealth:
        """Return the figures of the samples so far."""
        span_s = time.perf_counter() - self._began_s
        return ClientHealth(
            span_s=span_s,
            cpu_share=(time.thread_time() - self._cpu_s) / span_s,
            run_delay_share=(_run_delay_s() - self._waited_s) / span_s,
            loop_lag_p99_ms=_p99(np.array(self._lags_s)) * 1e3,
            send_delay_p99_ms=_p99(send_delay_s) * 1e3,
            chunks=chunks,
        )


def _run_delay_s() -> float:
    """Return the seconds in which this thread was runnable but not running; 0 if the kernel does
    not count them."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _p99(values: Floats) -> float:
    return float(np.percentile(values, 99)) if len(values) else 0.0


@frozen
class RequestLog:
    """Log of the requests of one load, or of one worker's part of it.

    Attributes:
        records: source of the metrics; times in seconds of ``CLOCK_MONOTONIC``, one clock for all
            processes of a machine. A failed request has NaN for unknown values.
        retries: connections that turned out stale before the request was answered, shape (n,).
        send_delay_s: how much later than planned each was sent, shape (n,); zeros in a closed loop.
        cached_tokens: prompt tokens from the server's cache, shape (n,); NaN where it does not
            report them.
        expected_tokens: requested tokens of each answer, shape (n,).
    """

    records: RequestRecords
    outcomes: tuple[RequestOutcome, ...]
    retries: Ints
    send_delay_s: Floats
    cached_tokens: Floats
    chunks: Ints
    expected_tokens: Ints

    def __len__(self) -> int:
        return len(self.outcomes)

    @classmethod
    def from_exchanges(
        cls, exchanges: Sequence[Exchange], retries: Sequence[int], send_delay_s: Floats
    ) -> RequestLog:
        """Build the columns from finished exchanges."""
        outcomes = tuple(exchange.outcome for exchange in exchanges if exchange.outcome is not None)
        assert len(outcomes) == len(exchanges), "a load ends after all its requests"
        ok = np.array([outcome.ok for outcome in outcomes], bool)
        usage = [exchange.usage or (None, None, None) for exchange in exchanges]
        counts = np.array(usage, np.float64).reshape(-1, 3)  # NaN where there is None
        times = [np.frombuffer(exchange.events.times_ns, np.int64) for exchange in exchanges]
        chunks = np.array([len(t) for t in times], np.int64)
        none = np.empty(0, np.int64)
        good = [t for t, fine in zip(times, ok, strict=True) if fine]
        records = RequestRecords(
            sent_s=np.array([exchange.sent_ns for exchange in exchanges]) / 1e9,
            first_token_s=np.array([t[0] if len(t) else np.nan for t in times]) / 1e9,
            finished_s=np.array([exchange.finished_ns for exchange in exchanges]) / 1e9,
            input_tokens=counts[:, 0],
            output_tokens=counts[:, 1],
            ok=ok,
            itl_ms=np.concatenate([none, *(np.diff(t) for t in good)]) / 1e6,
            token_s=np.concatenate([none, *good]) / 1e9,
            # A chunk may carry several tokens and does not say how many: the request's tokens,
            # spread evenly.
            token_n=np.repeat(counts[ok, 1] / np.maximum(chunks[ok], 1), chunks[ok]),
        )
        expected = np.array([exchange.expected_tokens for exchange in exchanges], np.int64)
        return cls(
            records,
            outcomes,
            np.array(retries, np.int64),
            send_delay_s,
            counts[:, 2],
            chunks,
            expected,
        )

    @classmethod
    def merged(cls, logs: Sequence[RequestLog], places: Sequence[Ints]) -> RequestLog:
        """Merge the logs of several workers; raw samples are joined, never their statistics.

        Args:
            logs: by worker.
            places: of each worker's requests in the load, ascending.
        """
        workers = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
        dealt = np.lexsort((workers, np.concatenate(places)))
        outcomes = [outcome for log in logs for outcome in log.outcomes]
        records = [log.records for log in logs]
        columns = {name: _joined(records, name)[dealt] for name in COLUMNS}
        # The series hold the successful requests one after the other: of each, its chunks, or the
        # gaps between them.
        chunks = np.where(_joined(records, "ok"), _joined(logs, "chunks"), 0)
        for name, lengths in zip(SERIES, (np.maximum(chunks - 1, 0), chunks, chunks), strict=True):
            pieces = np.split(_joined(records, name), np.cumsum(lengths)[:-1])
            columns[name] = np.concatenate([pieces[place] for place in dealt])
        others = ("retries", "send_delay_s", "cached_tokens", "chunks", "expected_tokens")
        return cls(
            RequestRecords(**columns),
            tuple(outcomes[place] for place in dealt),
            *(_joined(logs, name)[dealt] for name in others),
        )

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Return mean tokens per successful answer, measured and requested; zeros for none."""
        ok = self.records.ok
        count = max(int(ok.sum()), 1)
        written = float(self.records.output_tokens[ok].sum())
        return written / count, float(self.expected_tokens[ok].sum()) / count

    @property
    def refusal(self) -> str:
        """Return the server's words if it refused every request for its form; empty if not."""
        refused = [one.message for one in self.outcomes if one.status in _FORM_REFUSED]
        return refused[0] if refused and len(refused) == len(self) else ""

    @property
    def length_error(self) -> float:
        """Return the relative error of the mean output length over successful requests; 0 for
        none."""
        written, expected = self.mean_lengths
        return abs(written / expected - 1) if expected else 0.0


def _joined(parts: Sequence[RequestLog] | Sequence[RequestRecords], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in parts])


READY = "ready"


class RequestTimeouts(NamedTuple):
    """Timeouts of a request: `stall_s` without an event of its stream, or before the first event of
    any stream."""

    connect_s: float = 10.0
    stall_s: float = 600.0


@dataclass(slots=True)
class Conversation:
    """A session in progress: a turn's body needs the previous answer, which is part of the history.

    Attributes:
        turns: for each its number in the load, its place in the schedule of the worker that sends
            it, and the user's text, made before the clock starts.
    """

    target: Target
    prompts: Prompts
    requests: Requests
    turns: list[tuple[int, int, str]] = field(default_factory=list)
    messages: list[StringDict] = field(default_factory=list)

    def request(self, number: int) -> tuple[bytes, float]:
        """Return the HTTP request of a turn, with the whole history, and the think time before it
        in seconds."""
        turns = self.requests.turns
        request, _, text = self.turns[number]
        assert turns is not None
        place = turns.system[request]
        system, tools = turns.systems[place] if place >= 0 else ("", ())
        if number == 0 and system:
            self.messages.append({"role": "system", "content": system})
        self.messages.append({"role": "user", "content": text})
        tokens = int(self.requests.output_tokens[request])
        body = self.prompts.history_body(self.messages, tools, tokens)
        return self.target.request(self.prompts.endpoint, body), float(turns.think_s[request])

    def answered(self, text: str) -> None:
        """Add the answer of the last turn to the history."""
        self.messages.append({"role": "assistant", "content": text})


@frozen
class Schedule:
    """Requests and their send times: everything that can be prepared before the clock starts.

    Attributes:
        requests: whole HTTP requests, in the order of sending, n entries.
        send_s: seconds after the start at which each may be sent, shape (n,), ascending.
        output_tokens: how many tokens each must bring, shape (n,).
        conversations: of sessions, whose requests are made when the previous answers are there;
            then `requests` is empty and `concurrency` counts sessions.
        ramp_s: seconds in which the streams of a closed loop begin, evenly; 0 = all at once.
    """

    requests: Sequence[bytes]
    send_s: Floats
    output_tokens: Ints
    concurrency: int
    streaming: bool = True
    conversations: Sequence[Conversation] = ()
    ramp_s: float = 0.0

    def __len__(self) -> int:
        return len(self.output_tokens)

    @property
    def at_once(self) -> int:
        """Number of requests certainly in flight together at the start."""
        return min(self.concurrency, int((self.send_s <= 0).sum()))


class WorkerTask(NamedTuple):
    """Every n-th request (or session) of a load point, for one of n workers; concurrency is split
    evenly.

    Attributes:
        requests: of the whole load point, as a prompt depends on the request's number in it.
        worker: of `workers`, from 0.
    """

    target: Target
    prompts: Prompts
    requests: Requests
    key: PromptKey
    timeouts: RequestTimeouts
    worker: int = 0
    workers: int = 1

    def schedule(self) -> Schedule:
        """Make the request bodies of this task; workers do it in parallel."""
        prompts = self.prompts
        own = self.requests.part(self.worker, self.workers)
        bodies = list[bytes]()
        begun = []
        if (turns := self.requests.turns) is None:
            bodies = prompts.bodies(self.requests, self.key, slice(self.worker, None, self.workers))
        else:
            places = self.requests.dealt(self.worker, self.workers)
            for place, request in enumerate(places.tolist()):
                if turns.after[request] < 0:
                    begun.append(Conversation(self.target, prompts, self.requests))
                content = self.requests.contents[request]
                if content is None:
                    content = prompts.random_text(int(turns.own_tokens[request]), request, self.key)
                assert isinstance(content, str)
                begun[-1].turns.append((request, place, content))
        return Schedule(
            requests=[self.target.request(prompts.endpoint, body) for body in bodies],
            send_s=own.send_s,
            output_tokens=own.output_tokens,
            concurrency=own.concurrency,
            streaming=prompts.streaming,
            conversations=begun,
            ramp_s=own.ramp_s,
        )


class Progress(NamedTuple):
    """Progress of a load, in counts since its start."""

    sent: int
    finished: int
    failed: int
    total: int
    chunks: int


OnProgress: TypeAlias = Callable[[Progress], None]

WorkerResult: TypeAlias = tuple[RequestLog, ClientHealth]
Answer: TypeAlias = str | Progress | WorkerResult
"""Answer of a worker whose task can be sent."""
