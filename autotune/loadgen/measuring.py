"""Measurement of a workload on one warm server: `measure(url, model, workload, seed, options) -> Measurement`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from autotune.loadgen.client.generator import allow_open_files
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.messages import WorkerTask
from autotune.loadgen.client.outcomes import RequestOutcome
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.target import Target
from autotune.loadgen.prompts import PromptKey, Prompts
from autotune.loadgen.requests import Requests
from autotune.loadgen.results import (
    DiscardedLoad,
    LoadOptions,
    LoadResult,
    Measurement,
    needed_successes,
    pooled_metrics,
)
from autotune.loadgen.workers import WorkerDied, Workers, processors, workers_for
from autotune.loadgen.workloads import Workload

_WARM_UP_CONCURRENCY = 128
_WARM_UP_OUTPUT = 32
_WARM_UP_INPUT_TOKENS = 200_000
"""Bounds of the warm-up: it must touch every code path and batch size, not cost as much as the load."""

_TRIES = 3
"""At one load point, each but the first with twice the workers of the one before."""


def measure(url: str, model: str, workload: Workload, seed: int, options: LoadOptions | None = None) -> Measurement:
    """Send all load points of a workload to a server that is ready, one after the other.

    Args:
        url: ``http://HOST:PORT``.
        seed: fixes lengths, prompts and send times; another seed gives new prompts.

    Returns:
        Faults of the server are counted in it, request by request. A server that answers no request of a warm-up
        gets no load.

    Raises:
        BadInput: a malformed URL, an unknown host, or too few open files allowed.
    """
    options = options or LoadOptions()
    target = Target.parse(url, options.api_key)
    for point in workload.points:  # before the first load, as the last one may be the one that needs the most
        streams = min(point.arrival.concurrency or point.prompts, point.prompts)
        if not point.arrival.open_loop:
            allow_open_files(math.ceil(streams / (options.workers or workers_for(streams))))
    drawn = [workload.draw(position, seed, options.tokenizer) for position in range(len(workload.points))]
    loads: list[LoadResult] = []
    failed: tuple[RequestOutcome, ...] = ()
    with Workers() as workers:
        sender = _Sender(target, model, workload, seed, options, workers)
        for position, requests in enumerate(drawn):
            failed = sender.warm_up(requests, position)
            if failed:
                break
            loads.append(sender.send(requests, position))
    metrics = pooled_metrics(loads, options.slos)
    metrics["failed"] += len(failed)
    return Measurement(workload.name, seed, metrics, tuple(loads), sender.warm_up_s, failed, options.min_success_rate)


class _Sender:
    """Sends the load points of one workload.

    Attributes:
        warm_up_s: seconds spent on requests that are not counted.
    """

    def __init__(
        self, target: Target, model: str, workload: Workload, seed: int, options: LoadOptions, workers: Workers
    ) -> None:
        self._target, self._workload, self._seed = target, workload, seed
        self._options, self._workers = options, workers
        self._prompts = Prompts(
            model,
            options.endpoint,
            options.vocabulary,
            options.tokenizer,
            as_text=options.as_text,
        )
        self._warm_streams = 0
        self.warm_up_s = 0.0
        self._chunks_per_stream = 0.0  # per second, as last seen

    def send(self, requests: Requests, position: int) -> LoadResult:
        """Send a load; one in which the client does not keep up is discarded and sent again by more workers."""
        discarded, options = list[DiscardedLoad](), self._options
        for attempt, workers in enumerate(self._worker_counts(requests)):
            result = self._send_once(requests, position, workers, attempt)
            good = sum(outcome.ok for outcome in result.log.outcomes)
            if not result.client_bound or good < needed_successes(options.min_success_rate, len(result.log)):
                break  # with too few successes the server, not the client, is to blame
            discarded.append(DiscardedLoad(workers, result.client_bound))
        if discarded and result.client_bound == discarded[-1].reason:
            discarded.pop()  # the last one stays, for what it is worth
        return replace(result, discarded=tuple(discarded))

    def _send_once(self, requests: Requests, position: int, workers: int, attempt: int) -> LoadResult:
        options, point = self._options, self._workload.points[position]
        emptied = options.cache.reset() if options.cache.reset is not None else None
        before = options.cache.read()
        on_progress = partial(options.on_progress, point.label) if options.on_progress is not None else None
        try:
            log, clients = self._workers.send(self._task(requests, position, attempt), workers, on_progress)
        except WorkerDied as error:
            return LoadResult.of(point, RequestLog.of([], [], np.empty(0)), (ClientHealth.nothing(),), str(error))
        client = self._note_pace(requests, clients)
        report = options.cache.report(requests, log, before, emptied)
        return LoadResult.of(point, log, clients, client.excess(), report, options.slos)

    def _worker_counts(self, requests: Requests) -> Iterator[int]:
        """How many workers send each attempt; no more than there are processors."""
        if self._options.workers is not None:
            yield min(self._options.workers, requests.concurrency)
            return
        workers = self._needed(requests)
        for _ in range(_TRIES):
            yield workers
            workers = max(workers, min(2 * workers, processors(), requests.concurrency))

    def _needed(self, requests: Requests) -> int:
        streams = min(requests.concurrency, len(requests))
        return workers_for(streams, self._chunks_per_stream * streams)

    def warm_up(self, requests: Requests, position: int) -> tuple[RequestOutcome, ...]:
        """Send requests that are not counted; their outcomes when none succeeded, else nothing."""
        streams = min(requests.concurrency, _WARM_UP_CONCURRENCY)
        if not self._options.warm_up or streams <= self._warm_streams:
            return ()
        self._warm_streams = streams
        # At least twice as many requests as streams, within the bounds, all at once, with short answers.
        count = min(2 * streams, len(requests))
        count = max(int((np.cumsum(requests.input_tokens[:count]) <= _WARM_UP_INPUT_TOKENS).sum()), 1)
        some = replace(
            requests,
            input_tokens=requests.input_tokens[:count],
            output_tokens=np.minimum(requests.output_tokens[:count], _WARM_UP_OUTPUT),
            send_s=np.zeros(count),
            group=requests.group[:count],
            concurrency=min(streams, count),
        )
        workers = min(self._options.workers or self._needed(some), some.concurrency)
        try:
            log, clients = self._workers.send(self._task(some, position, warm_up=True), workers)
        except WorkerDied:
            return ()  # the load itself will show whether it can be sent
        self.warm_up_s += self._note_pace(some, clients).span_s
        return () if any(outcome.ok for outcome in log.outcomes) else log.outcomes

    def _task(self, requests: Requests, position: int, attempt: int = 0, warm_up: bool = False) -> WorkerTask:
        key = PromptKey(self._workload.name, position, self._seed, attempt)
        timeouts, streaming = self._options.timeouts, self._workload.streaming
        return WorkerTask(self._target, self._prompts, requests, key, timeouts, streaming, warm_up)

    def _note_pace(self, requests: Requests, clients: Sequence[ClientHealth]) -> ClientHealth:
        """Keep how many chunks per second a stream had; returns how the worst worker fared."""
        client = ClientHealth.of_all(clients)
        self._chunks_per_stream = client.chunks / client.span_s / min(requests.concurrency, len(requests))
        return client
