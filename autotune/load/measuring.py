"""Measure a workload on one warm server: `measure(url, model, workload, seed, options) ->
Measurement`.

Several worker processes send one load together. One Python process reads some thousand chunks per
second faithfully; a node makes more. Each worker has an interpreter to itself, its share of the
requests, and the same start on the clock that all processes of a machine share.

The energy of the server's GPUs in the steady part of a load is integrated from the power that the
driver reports, which is read and never capped.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from threading import Event, Thread
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from autotune.base import AutotuneError, ClientFailed, Json, Notify, frozen, silent
from autotune.base.child import IMPORT_FOLDER, start_python, wait_or_kill

from .capacity.search import FoundLoad, Probe, extra_metrics
from .client.generator import HEAD_START_NS, allow_open_files
from .client.messages import (
    Answer,
    ClientHealth,
    OnProgress,
    Progress,
    RequestLog,
    RequestTimeouts,
    WorkerResult,
    WorkerTask,
)
from .client.stream import OutcomeKind, RequestOutcome, failure_sentence, tally
from .client.target import Target
from .load import Load
from .metrics.formulas import Slo, steady, steady_part, summarize, summarize_loads
from .metrics.records import RequestRecords
from .metrics.table import ENERGY, Metrics
from .prefix_cache import CacheReport, CacheUse, DraftUse, PrefixCache, ReadDrafts, acceptance
from .prompts import NOTHING_REFUSED, PromptKey, Prompts, Refused
from .request_file import LoadLog
from .requests import Requests
from .tokenizers import Tokenizer
from .workloads import LoadPoint, Workload

_MAX_LENGTH_ERROR = 0.01
"""Largest relative error of the mean output length. An engine that honours ``ignore_eos`` is exact;
a server that did not wrote 300 tokens instead of 1023, and looked fast (aiperf#339)."""


PERIOD_S = 0.2
"""Seconds between two readings; drivers refresh their figures about ten times a second."""

ReadPower = Callable[[], float | None]
"""Read the power of some GPUs, in W; None if it is unknown now."""


class Energy(NamedTuple):
    """Energy, output tokens and seconds of the steady part of a load."""

    joules: float
    tokens: float
    seconds: float


class Meter:
    """Read power during a load, as a context manager; without a source it reads nothing."""

    def __init__(self, read: ReadPower | None) -> None:
        self._read = read or (lambda: None)
        self._over = Event()
        self._readings: list[tuple[float, float]] = []
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while (watts := self._read()) is not None:
            self._readings.append((perf_counter(), watts))
            if over:
                return
            over = self._over.wait(PERIOD_S)

    def steady_energy(self, records: RequestRecords) -> Energy | None:
        """Return the energy of the steady part of a load, by this machine's clock; None if readings
        do not cover it."""
        begin_s, end_s, _, tokens = steady_part(records)
        if len(self._readings) < 2 or not tokens:
            return None
        at_s, watts = np.array(self._readings).T
        joules = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * (watts[1:] + watts[:-1]) / 2)])
        first, last = np.interp([begin_s, end_s], at_s, joules, left=np.nan, right=np.nan).tolist()
        return Energy(last - first, tokens, end_s - begin_s) if last > first else None


def energy_metrics(loads: Sequence[Energy | None]) -> Metrics:
    """Return the metrics of some loads together; none unless the energy of all is known."""
    known = [one for one in loads if one is not None]
    if not known or len(known) < len(loads):
        return {}
    joules, tokens, seconds = (sum(column) for column in zip(*known, strict=True))
    return dict(zip(ENERGY, (joules / tokens, joules / seconds), strict=False))


@frozen
class LoadOptions:
    """Options for sending a workload.

    Attributes:
        endpoint, as_text, vocabulary, tokenizer: see `Prompts`.
        cache: the server's prefix cache, emptied before each load and watched during it; by default
            only new prompts keep one load from finding another's.
        drafts: reads the server's counts of drafted tokens; by default there are none.
        power: reads the power of the server's GPUs; None: it is unknown.
        warm_up: whether to send requests that are not counted before a load of more streams than
            any before.
        slos: limits for ``request_goodput``.
        workers: worker processes that send each load; None = as many as it needs, and more when the
            client did not keep up.
        on_progress: called about twice a second with the load point's label.
    """

    endpoint: str = "/v1/completions"
    api_key: str | None = field(default=None, repr=False)
    as_text: bool | None = None
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    cache: PrefixCache = field(default_factory=PrefixCache)
    drafts: ReadDrafts = lambda: None
    power: ReadPower | None = None
    warm_up: bool = True
    slos: Sequence[Slo] = ()
    workers: int | None = None
    on_progress: Callable[[str, Progress], None] = silent


class LoadResult(NamedTuple):
    """Result of one load point: its requests, and the client's health.

    Attributes:
        workers: the client's health in each worker process.
        client_bound: the client's figures beyond their limits; empty when it kept up.
        cache: figures of the server's prefix cache.
        drafts: drafted and accepted tokens; None where the server does not report them, or drafts
            nothing.
        energy: of its steady part; None where it is unknown.
        slos: limits for ``request_goodput``.
        discarded: earlier tries in which the client did not keep up: the number of workers, and
            the figures beyond the limits.
    """

    point: LoadPoint
    log: RequestLog
    workers: tuple[ClientHealth, ...]
    client_bound: str = ""
    cache: CacheReport = CacheReport()
    drafts: DraftUse | None = None
    energy: Energy | None = None
    slos: Sequence[Slo] = ()
    discarded: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Measurement:
    """Result of a workload under one seed.

    Attributes:
        points: in order; fewer than the workload has when the server answered no request of a
            warm-up.
        warm_up_s: seconds spent on requests that are not counted.
        warm_up_failed: how the warm-up's requests ended when none of them succeeded: then nothing
            else was sent.
        balancing: see `Target.balancing`.
        died: whether a load search ended with the server's death; without a search a death is a
            `failure`.
        refused: parts of a request that the server refuses, without which it was loaded.
    """

    seed: int
    points: tuple[LoadResult, ...]
    warm_up_s: float = 0.0
    warm_up_failed: tuple[RequestOutcome, ...] = ()
    balancing: Json = field(default_factory=dict)
    died: bool = False
    refused: Refused = NOTHING_REFUSED

    @cached_property
    def metrics(self) -> Metrics:
        """Return metrics of the workload, under the names of
        `autotune.load.metrics.table.METRICS`, see `pooled_metrics`."""
        return pooled_metrics([self])

    @property
    def outcomes(self) -> tuple[RequestOutcome, ...]:
        """Return the outcome of each request, over all load points."""
        return (*(o for point in self.points for o in point.log.outcomes), *self.warm_up_failed)

    @property
    def logs(self) -> list[LoadLog]:
        """Return the logs of all loads, in order."""
        return [LoadLog(point.point.label, self.seed, point.log) for point in self.points]

    @property
    def failure(self) -> str:
        """Return one sentence on the failed requests; empty if all succeeded."""
        return failure_sentence(self.outcomes)

    @property
    def invalid(self) -> str:
        """Return why the measurement is invalid; empty if it is valid, or if the server failed
        requests.

        Token counts may be missing or not as asked for, the client may not have kept up, or prompts
        of an earlier load may have been in the cache.
        """
        if self.failure:
            uncounted = all(
                outcome.ok or outcome.kind is OutcomeKind.NO_USAGE for outcome in self.outcomes
            )
            return self.failure if uncounted else ""
        for point in self.points:
            if point.log.length_error > _MAX_LENGTH_ERROR and not self.refused.any_length:
                written, expected = point.log.mean_lengths
                lengths = f"{written:.1f} tokens per answer instead of {expected:.1f}"
                return f"{lengths}; the server may not honour ignore_eos"
        bound = dict.fromkeys(load.client_bound for load in self.points if load.client_bound)
        if bound:
            return f"the client did not keep up with the server: {'; '.join(bound)}"
        return next((point.cache.stale for point in self.points if point.cache.stale), "")

    @property
    def described(self) -> Sequence[Measurement]:
        """Return the measurements that the metrics describe."""
        return [self]

    def to_json(self) -> Json:
        return to_json(self.described)


@dataclass(frozen=True)
class FoundCapacity(Measurement):
    """Result of a load search: the bracket, all probes, and those `shown`, which the metrics
    describe."""

    _: KW_ONLY
    found: FoundLoad
    shown: Sequence[Measurement]
    probes: Sequence[Measurement]

    @classmethod
    def of_search(
        cls, seed: int, found: FoundLoad, probes: Sequence[tuple[Probe, Measurement]]
    ) -> FoundCapacity:
        """Summarise a search that is over, or was stopped after a probe without information."""
        load = found.missed[1] if found.missed else found.capacity
        every = [measurement for _, measurement in probes]
        shown = [measurement for probe, measurement in probes[1:] if probe.load == load]
        shown = shown or every[:1]
        points = tuple(point for measurement in shown for point in measurement.points)
        warm_up_s = sum(measurement.warm_up_s for measurement in every)
        died = found.died_at is not None
        return cls(seed, points, warm_up_s, died=died, found=found, shown=shown, probes=every)

    @property
    def metrics(self) -> Metrics:
        """Return metrics of the capacity's load, with the capacity and the curve."""
        return self.found.metrics

    @property
    def logs(self) -> list[LoadLog]:
        return [log for probe in self.probes for log in probe.logs]

    @property
    def failure(self) -> str:
        """Return one sentence if the server stopped answering before any load met the limits."""
        last = self.probes[-1]
        return last.failure if not last.metrics["completed"] and not self.died else ""

    @property
    def invalid(self) -> str:
        """Return why the numbers are invalid: the reason of the probe that ended the search."""
        return self.probes[-1].invalid

    @property
    def described(self) -> Sequence[Measurement]:
        return self.shown

    def to_json(self) -> Json:
        return {**super().to_json(), **self.metrics}


def pooled_metrics(runs: Sequence[Measurement]) -> Metrics:
    """Return metrics of all loads of some measurements as one run without pauses, failed warm-up
    requests included."""
    metrics = _pooled([load for run in runs for load in run.points])
    metrics["failed"] += sum(len(run.warm_up_failed) for run in runs)
    return metrics


def _pooled(loads: Sequence[LoadResult]) -> Metrics:
    slos = loads[0].slos if loads else ()
    return _with_client(summarize_loads([load.log.records for load in loads], slos), loads)


def _with_client(metrics: Metrics, loads: Sequence[LoadResult]) -> Metrics:
    """Return metrics of loads with ``client_bound``, and with cache hits, accepted drafts and
    energy if reported."""
    use = CacheUse.total([load.cache.use for load in loads])
    hit_rate: Metrics = {} if use is None else {"cache_hit_rate": use.hit_rate}
    return {
        **metrics,
        "client_bound": any(load.client_bound for load in loads),
        **hit_rate,
        **acceptance([load.drafts for load in loads]),
        **energy_metrics([load.energy for load in loads]),
    }


def to_json(runs: Sequence[Measurement]) -> Json:
    """Return metrics, counts and load points of repeats as one run; a run that ended early has
    fewer load points."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    loads = [load for run in runs for load in run.points]
    repeats = zip_longest(*(run.points for run in runs))
    result = {
        **_with_sound_steady(pooled_metrics(runs), loads),
        "outcomes": tally(outcomes),
        "failure": failure_sentence(outcomes) or None,
        "stale_connections": sum(int(load.log.retries.sum()) for load in loads),
        "warm_up_s": sum(run.warm_up_s for run in runs),
        "notes": list(dict.fromkeys(note for run in runs for note in run.refused.sentences())),
        "points": [_point_json([load for load in loads if load is not None]) for loads in repeats],
    }
    return result | (runs[0].balancing if runs else {})


def _with_sound_steady(metrics: Metrics, loads: Sequence[LoadResult]) -> Metrics:
    """Return metrics as in a result: no steady throughput if one of the loads has no steady
    state."""
    sound = not any(steady(load.log.records).reason for load in loads)
    return metrics if sound else {**metrics, "steady_total_token_throughput": None}


def _point_json(loads: Sequence[LoadResult]) -> Json:
    """Return one load point, its repeats joined; only a single load has one steady state."""
    first = loads[0]
    clients = [
        ClientHealth.of_all(load.workers).to_json() | {"beyond_limits": load.client_bound or None}
        for load in loads
    ]
    state_json: Json | None = None
    if len(loads) == 1:
        metrics = _with_client(summarize(first.log.records, first.slos), loads)
        state = steady(first.log.records)
        state_json = {"rule": state.rule, "reason": state.reason or None, "drift": state.drift}
        state_json |= state.metrics
    else:
        metrics = _pooled(loads)
    return {
        "label": first.point.label,
        "load": first.point.arrival.describe(),
        "metrics": _with_sound_steady(metrics, loads),
        "outcomes": tally(outcome for load in loads for outcome in load.log.outcomes),
        "client": worst_client(clients),
        "cache": CacheReport.joined([load.cache for load in loads]).to_json(),
        "steady": state_json,
        "workers": [worker.to_json() for load in loads for worker in load.workers],
        "thrown_away": [
            {"workers": workers, "reason": reason}
            for load in loads
            for workers, reason in load.discarded
        ],
    }


def worst_client(clients: Sequence[Json]) -> Json:
    """Return for each figure the largest of several loads; the first limit that was exceeded."""
    worst: Json = {"beyond_limits": None}
    for client in clients:
        for name, value in client.items():
            if name == "beyond_limits":
                worst[name] = worst[name] or value
            else:
                worst[name] = max(value, worst.get(name, value))
    return worst


def send(
    url: str, model: str, load: Load, options: LoadOptions, on_probe: Notify = silent
) -> Measurement:
    """Send a load: the workload itself, or all probes of its load search.

    Each probe finds an empty prefix cache, no queue, and prompts of its own. A search ends early
    where the server answers nothing, or a load was measured wrong. If a load kills the server, the
    heaviest load that met the limits before stands. `on_probe` is called with a line for each
    probe.
    Raises `BadInput` and `ClientFailed` as `measure` does.
    """
    search = load.search
    if search is None:
        return measure(url, model, load.workload, load.seed, options)
    probes = []
    heaviest = 0.0
    while (probe := search.ask()) is not None:
        streams = probe.load if probe.by == "concurrency" else float(probe.requests)
        how = replace(options, warm_up=options.warm_up and streams > heaviest)
        heaviest = max(heaviest, streams)
        measurement = measure(url, model, probe.workload(load.workload), probe.seed(load.seed), how)
        probes.append((probe, measurement))
        if measurement.invalid:
            break
        if not measurement.metrics["completed"]:
            if search.found.capacity:
                on_probe(search.give_up())
            break
        on_probe(search.tell(measurement.points[0].log.records, extra_metrics(measurement.metrics)))
    return FoundCapacity.of_search(load.seed, search.found, probes)


STREAMS_PER_WORKER = 250
CHUNKS_PER_WORKER = 4000
"""Chunks per second of a worker: less than one process can do
(``benchmarks/load/client_self_test.py``)."""

_TRIES = 3  # Tries at one load point, each with twice the workers of the previous one

_END_S = 5.0  # Seconds for a worker to end after its pipe is closed

_WORKER = "autotune.load.client.generator"


def workers_for(streams: int, chunks_per_s: float = 0.0, cores: int | None = None) -> int:
    """Return the workers of a load, half of the cores at most (a local server needs the rest); 0
    chunks: unknown."""
    needed = max(
        math.ceil(streams / STREAMS_PER_WORKER), math.ceil(chunks_per_s / CHUNKS_PER_WORKER), 1
    )
    return min(needed, max((cores or len(os.sched_getaffinity(0))) // 2, 1), streams)


class _Process(NamedTuple):
    """A worker process and the parent's ends of its pipes."""

    process: subprocess.Popen[bytes]
    tasks: Connection
    answers: Connection

    @classmethod
    def start(cls) -> _Process:
        worker_tasks, tasks = Pipe(duplex=False)
        answers, worker_answers = Pipe(duplex=False)
        with worker_tasks, worker_answers:
            # The folder that this package was imported from comes first.
            folders = os.pathsep.join(filter(None, (IMPORT_FOLDER, os.environ.get("PYTHONPATH"))))
            environment = {**os.environ, "PYTHONPATH": folders}
            ends = [worker_tasks.fileno(), worker_answers.fileno()]
            process = start_python(["-m", _WORKER, *map(str, ends)], ends, environment)
        return cls(process, tasks, answers)

    def send(self, message: object) -> None:
        with suppress(ConnectionError):  # `receive` raises why it ended
            self.tasks.send(message)

    def receive(self) -> Answer:
        try:
            message: Answer | AutotuneError = self.answers.recv()
        except (EOFError, OSError) as error:
            code = self.process.wait(_END_S)
            problem = f"the load client failed: a worker process of it ended with code {code}"
            raise ClientFailed(problem) from error
        if isinstance(message, AutotuneError):
            raise message
        return message


class Workers:
    """Worker processes, started when a load needs them and reused for the next; use as a context
    manager.

    Attributes:
        refused: what the server has refused so far.
    """

    def __init__(self) -> None:
        self._processes: list[_Process] = []
        self._chunks_per_stream = 0.0  # per second, as last seen
        self.refused = NOTHING_REFUSED

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.process.pid for process in self._processes]

    def close(self) -> None:
        """End all by closing their pipes; requests in flight are lost, and workers that do not end
        are killed."""
        processes = self._processes
        self._processes = []
        for worker in processes:
            worker.tasks.close()
            worker.answers.close()
        for worker in processes:
            wait_or_kill(worker.process, _END_S)

    def counts(self, requests: Requests, asked: int | None) -> Iterator[int]:
        """Return the workers of each try: the requested number, once; else as the streams need,
        then twice that."""
        if asked is not None:
            yield min(asked, requests.concurrency)
            return
        streams = min(requests.concurrency, len(requests))
        workers = workers_for(streams, self._chunks_per_stream * streams)
        for _ in range(_TRIES):
            yield workers
            workers = max(
                workers, min(2 * workers, len(os.sched_getaffinity(0)), requests.concurrency)
            )

    def send(
        self, task: WorkerTask, workers: int, on_progress: OnProgress = silent
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        """Send a load point with this number of workers and wait for every answer; server failures
        do not raise.

        A load that the server refuses for a part of its form is sent again without that part.

        Args:
            task: the load, as if one worker sent it all.
            on_progress: called with the sum over all workers whenever one reports.

        Raises:
            BadInput: too few open files are allowed, or the host has no address.
            ClientFailed: a worker was ended from outside, or has a fault, whose traceback is on
                stderr.
        """
        while True:
            prompts = replace(task.prompts, refused=self.refused)
            log, clients = self._send_once(task._replace(prompts=prompts), workers, on_progress)
            refused = self.refused.with_refusal(log.refusal)
            if task.prompts.as_text is not None:
                refused = refused._replace(ids=False)  # Asked for by the user
            if refused == self.refused:
                return log, clients
            self.refused = refused

    def _send_once(
        self, task: WorkerTask, workers: int, on_progress: OnProgress
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        streams = min(task.requests.concurrency, len(task.requests))
        burst = bool((task.requests.send_s <= 0).all())
        allow_open_files(math.ceil(streams / workers), surely=burst)
        allow_open_files(4 * workers)  # the pipes of this process
        while len(self._processes) < workers:
            self._processes.append(_Process.start())
        processes = self._processes[:workers]
        try:
            for number, process in enumerate(processes):
                process.send(task._replace(worker=number, workers=workers))
            for process in processes:
                process.receive()  # READY: its connections are open
            start_ns = perf_counter_ns() + HEAD_START_NS
            for process in processes:
                process.send(start_ns)
            places = [task.requests.dealt(number, workers) for number in range(workers)]
            results = _results(list(map(len, places)), processes, on_progress)
            logs, clients = zip(*results, strict=True)
        except BaseException:
            self.close()  # a worker in the middle of a load is of no use for the next
            raise
        worst = ClientHealth.of_all(clients)
        self._chunks_per_stream = worst.chunks / worst.span_s / streams
        return RequestLog.merged(logs, places), clients


def _results(
    shares: Sequence[int], processes: Sequence[_Process], on_progress: OnProgress
) -> list[WorkerResult]:
    """Return each worker's result once all have one; until then report progress."""
    progress = [Progress(0, 0, 0, share, 0) for share in shares]
    busy: dict[Any, int] = {process.answers: number for number, process in enumerate(processes)}
    results = {}
    while busy:
        for pipe in wait(list(busy)):
            number = busy[pipe]
            message = processes[number].receive()
            if isinstance(message, Progress):
                progress[number] = message
                on_progress(Progress(*map(sum, zip(*progress, strict=True))))
            elif isinstance(message, tuple):
                results[number] = message
                del busy[pipe]
    return [results[number] for number in range(len(processes))]


_WARM_UP_CONCURRENCY = 128
_WARM_UP_OUTPUT = 32
_WARM_UP_INPUT_TOKENS = 200_000
"""Bounds of the warm-up, for each server: it must cover all code paths and batch sizes, and cost
less than the load."""


def measure(
    url: str, model: str, workload: Workload, seed: int, options: LoadOptions | None = None
) -> Measurement:
    """Send all load points of a workload to a ready server, one after the other.

    A load in which the client does not keep up is sent again by more workers.

    Args:
        url: ``http://HOST:PORT``; of several servers that share the load, with commas between.
        seed: fixes lengths, prompts and send times; another seed gives new prompts.

    Returns:
        Faults of the server are counted in it, request by request. A server that answers no request
        of a warm-up gets no load.

    Raises:
        BadInput: a malformed URL, an unknown host, or too few open files allowed.
        ClientFailed: the client itself failed.
    """
    options = options or LoadOptions()
    target = Target.parse(url, options.api_key)
    # Before the first load, as the last one may need the most.
    for point in workload.points:
        if not point.arrival.open_loop:
            streams = int(point.in_flight)
            allow_open_files(math.ceil(streams / (options.workers or workers_for(streams))))
    prompts = Prompts(
        model,
        options.endpoint,
        options.vocabulary,
        options.tokenizer,
        options.as_text,
        workload.streaming,
    )
    tasks = [
        WorkerTask(
            target,
            prompts,
            workload.draw(position, seed, options.tokenizer),
            PromptKey(workload.name, position, seed),
            options.timeouts,
        )
        for position in range(len(workload.points))
    ]
    loads = []
    warm_up = _WarmUp(options)
    with Workers() as workers:
        for task, point in zip(tasks, workload.points, strict=True):
            if not warm_up.answered(task, workers):
                break
            loads.append(_sent(task, point, workers, options))
    return Measurement(
        seed,
        tuple(loads),
        warm_up.seconds,
        warm_up.failed,
        target.balancing(),
        refused=workers.refused,
    )


def _sent(task: WorkerTask, point: LoadPoint, workers: Workers, options: LoadOptions) -> LoadResult:
    """Send a load point, again by more workers where the client does not keep up."""
    requests = task.requests
    on_progress = partial(options.on_progress, point.label)
    discarded = []
    for attempt, count in enumerate(workers.counts(requests, options.workers)):
        cache_before = options.cache.begin()
        drafts_before = options.drafts()
        with Meter(options.power) as meter:
            attempted = task._replace(key=task.key._replace(attempt=attempt))
            log, clients = workers.send(attempted, count, on_progress)
        bound = ClientHealth.of_all(clients).excess(burst=not requests.ramp_s)
        cache = options.cache.report(requests, log, *cache_before)
        drafts_after = None if cache.partial else options.drafts()
        drafts = DraftUse.between(drafts_before, drafts_after)
        energy = meter.steady_energy(log.records)
        load = LoadResult(point, log, clients, bound, cache, drafts, energy, options.slos)
        if not bound or not all(outcome.ok for outcome in log.outcomes):
            break  # where requests failed the server, not the client, is to blame
        discarded.append((count, bound))
    else:
        discarded.pop()  # the last try is the result, although the client did not keep up
    return load._replace(discarded=tuple(discarded))


@dataclass
class _WarmUp:
    """Uncounted requests before each load of more streams than any before."""

    options: LoadOptions
    streams: int = 0
    seconds: float = 0.0
    failed: tuple[RequestOutcome, ...] = ()

    def answered(self, task: WorkerTask, workers: Workers) -> bool:
        """Send the warm-up of a load if needed; returns whether the server answered any of it."""
        requests = task.requests
        addresses = len(task.target)
        streams = min(requests.concurrency, addresses * _WARM_UP_CONCURRENCY)
        if not self.options.warm_up or streams <= self.streams:
            return True
        self.streams = streams
        # At least twice as many requests as streams, within the bounds, all at once, with short
        # answers.
        tokens = np.cumsum(requests.input_tokens[: 2 * streams])
        count = max(int((tokens <= addresses * _WARM_UP_INPUT_TOKENS).sum()), 1)
        some = replace(
            requests,
            input_tokens=requests.input_tokens[:count],
            output_tokens=np.minimum(requests.output_tokens[:count], _WARM_UP_OUTPUT),
            send_s=np.zeros(count),
            group=requests.group[:count],
            blocks=(),
            turns=None,
            concurrency=min(streams, count),
        )
        task = task._replace(requests=some, key=task.key._replace(warm_up=True))
        log, clients = workers.send(task, next(workers.counts(some, self.options.workers)))
        self.seconds += ClientHealth.of_all(clients).span_s
        if not any(outcome.ok for outcome in log.outcomes):
            self.failed = log.outcomes
        return not self.failed
