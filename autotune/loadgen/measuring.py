"""One workload on one warm server: `measure(url, model, workload, seed, options) -> Measurement`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.loadgen.cache_use import CacheUse
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.open_files import allow_open_files
from autotune.loadgen.client.outcomes import Outcome, OutcomeKind
from autotune.loadgen.client.progress import Overview
from autotune.loadgen.client.prompts import PromptKey, Prompts
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.client.target import Target
from autotune.loadgen.client.worker_task import Share
from autotune.loadgen.early_stop import EarlyStop, LoadTotals, hopeless
from autotune.loadgen.measurement import Attempt, LoadOptions, Measurement, PointMeasurement, needed
from autotune.loadgen.prefix_cache import CacheReport
from autotune.loadgen.workers import WorkerDied, Workers, processors, workers_for
from autotune.loadgen.workloads import Workload
from autotune.metrics.formulas import summarize, summarize_loads
from autotune.metrics.steady import halves_disagree, steady
from autotune.study.spec import Slo
from autotune.trial import Metrics

_WARM_UP_CONCURRENCY = 128
_WARM_UP_OUTPUT = 32
_WARM_UP_INPUT_TOKENS = 200_000
"""Bounds of the warm-up: it must touch every code path and batch size, not cost as much as the load."""

_TEXT_MAY_BE_LONGER = 2.0
"""By what factor the server may count more tokens of a text than we do, templates included: a stop must be certain."""

_TRIES = 3
"""At one load point, each but the first with twice the workers of the one before."""


@dataclass(frozen=True, slots=True)
class _Try:
    """One try at a load point: what was seen, how workers and cache fared, what of the client was beyond its limits."""

    log: RequestLog
    workers: tuple[ClientHealth, ...]
    cache: CacheReport
    client_bound: str
    stopped: EarlyStop | None = None


class _Watch:
    """Looks on while a load runs: tells how far it is, and whether it is still worth going on.

    Attributes:
        stopped: why it is not.
    """

    def __init__(self, options: LoadOptions, workload: Workload, position: int, requests: Requests) -> None:
        self._options, self._point = options, workload.points[position]
        self._alone = len(workload.points) == 1
        self._requests = requests
        self.stopped: EarlyStop | None = None

    def keep_on(self, overview: Overview) -> bool:
        if self._options.on_progress is not None:
            self._options.on_progress(self._point.label, overview.progress)
        if self._alone and (self._options.must_beat is not None or self._options.stop_on_lost_slo):
            self.stopped = self._hopeless(overview)
        return self.stopped is None

    def _hopeless(self, overview: Overview) -> EarlyStop | None:
        snapshot = overview.snapshot()
        if not len(snapshot) or overview.now_s == -math.inf:
            return None
        requests, open_loop = self._requests, self._point.arrival.open_loop
        exact = not self._options.as_text and "chat" not in self._options.endpoint and not requests.contents
        plan = LoadTotals(
            requests=len(requests),
            input_tokens=float(requests.input_tokens.sum()) * (1.0 if exact else _TEXT_MAY_BE_LONGER),
            output_tokens=float(requests.output_tokens.sum()),
            last_send_s=float(snapshot.sent_s.min() + requests.send_s[-1]) if open_loop else -math.inf,
        )
        limits = self._limits(len(requests))
        return hopeless(snapshot, overview.now_s, plan, self._options.must_beat, limits, overview.heard_s())

    def _limits(self, requests: int) -> list[Slo]:
        if not self._options.stop_on_lost_slo:
            return []
        may_fail = requests - needed(self._options.min_success_rate, requests)
        return [*self._options.slos, Slo(metric="failed", sense="<=", limit=may_fail)]


def measure(url: str, model: str, workload: Workload, seed: int, options: LoadOptions | None = None) -> Measurement:
    """Send all load points of a workload to a server that is ready, and count.

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
    with Workers() as workers:
        return _Measuring(target, model, workload, seed, options, workers).run()


class _Measuring:
    """The load points of one workload, one after the other."""

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
            options.temperature,
            as_text=options.as_text,
        )
        self._warm_streams = 0
        self._warm_up_s = 0.0
        self._chunks_per_stream = 0.0  # per second, as last seen

    def run(self) -> Measurement:
        points: list[PointMeasurement] = []
        failed: tuple[Outcome, ...] = ()
        self._check_open_files()
        tokenizer, positions = self._options.tokenizer, range(len(self._workload.points))
        loads = [self._workload.draw(position, self._seed, tokenizer) for position in positions]
        for position, requests in enumerate(loads):
            failed = self._warm_up(requests, position)
            if failed:
                break
            points.append(self._point(requests, position))
        return Measurement(
            self._workload.name,
            self._seed,
            self._summary(points, len(failed)),
            tuple(points),
            self._warm_up_s,
            failed,
            self._options.min_success_rate,
        )

    def _check_open_files(self) -> None:
        """Before the first load, as the last one may be the one that needs the most."""
        for point in self._workload.points:
            streams = min(point.arrival.concurrency or point.prompts, point.prompts)
            workers = self._options.workers or workers_for(streams)
            if not point.arrival.open_loop:
                allow_open_files(math.ceil(streams / workers))

    def _point(self, requests: Requests, position: int) -> PointMeasurement:
        """A load in which the client does not keep up is thrown away and sent again by more workers."""
        thrown_away: list[Attempt] = []
        for attempt, workers in enumerate(self._tries(requests)):
            last = self._try(requests, position, workers, attempt)
            if not last.client_bound or self._failed(last.log):
                break
            thrown_away.append(Attempt(workers, last.client_bound))
        if thrown_away and last.client_bound == thrown_away[-1].reason:
            thrown_away.pop()  # the last one stays, for what it is worth
        point = self._workload.points[position]
        counted = last.log.counted
        metrics = summarize(counted, self._options.slos)
        metrics["client_bound"] = bool(last.client_bound)
        if last.cache.use is not None:
            metrics["cache_hit_rate"] = last.cache.use.hit_rate
        return PointMeasurement(
            label=point.label,
            arrival=point.arrival.describe(),
            log=last.log,
            workers=last.workers,
            metrics=metrics,
            client_bound=last.client_bound,
            thrown_away=tuple(thrown_away),
            cache=last.cache,
            steady=steady(counted),
            steady_drift=halves_disagree(counted),
            stopped=last.stopped,
        )

    def _failed(self, log: RequestLog) -> bool:
        """Whether too few succeeded of those that were not given up: then the server, not the client, is to blame."""
        ended = [outcome for outcome in log.outcomes if outcome.kind is not OutcomeKind.STOPPED]
        return sum(outcome.ok for outcome in ended) < needed(self._options.min_success_rate, len(ended))

    def _tries(self, requests: Requests) -> Iterator[int]:
        """With how many workers to try; no more than there are processors."""
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

    def _try(self, requests: Requests, position: int, workers: int, attempt: int) -> _Try:
        cache = self._options.cache
        emptied, before = cache.empty(), cache.probe()
        watch = _Watch(self._options, self._workload, position, requests)
        try:
            log, clients = self._send(requests, self._key(position, attempt), workers, watch.keep_on)
        except WorkerDied as error:
            return _Try(RequestLog.of([], [], np.empty(0)), (ClientHealth.nothing(),), CacheReport(), str(error))
        problem = ClientHealth.of_all(clients).excess(self._options.health)
        return _Try(log, clients, cache.report(requests, log, before, emptied), problem, watch.stopped)

    def _warm_up(self, requests: Requests, position: int) -> tuple[Outcome, ...]:
        """Send requests that are not counted; their outcomes when none succeeded, else nothing."""
        streams = min(requests.concurrency, _WARM_UP_CONCURRENCY)
        if not self._options.warm_up or streams <= self._warm_streams:
            return ()
        self._warm_streams = streams
        some = _warm_up_requests(requests, streams)
        workers = min(self._options.workers or self._needed(some), some.concurrency)
        try:
            log, clients = self._send(some, self._key(position), workers, warm_up=True)
        except WorkerDied:
            return ()  # the load itself will show whether it can be sent
        self._warm_up_s += ClientHealth.of_all(clients).span_s
        return () if any(outcome.ok for outcome in log.outcomes) else log.outcomes

    def _send(
        self,
        requests: Requests,
        key: PromptKey,
        workers: int,
        keep_on: Callable[[Overview], bool] | None = None,
        warm_up: bool = False,
    ) -> tuple[RequestLog, tuple[ClientHealth, ...]]:
        streaming, limits = self._workload.streaming, self._options.limits
        share = Share(self._target, self._prompts, requests, key, limits, streaming, warm_up)
        log, clients = self._workers.send(share, workers, keep_on)
        client = ClientHealth.of_all(clients)
        self._chunks_per_stream = client.chunks / client.span_s / min(requests.concurrency, len(requests))
        return log, clients

    def _key(self, position: int, attempt: int = 0) -> PromptKey:
        return PromptKey(self._workload.name, position, self._seed, attempt)

    def _summary(self, points: Sequence[PointMeasurement], failed: int) -> Metrics:
        metrics = summarize_loads([point.log.counted for point in points], self._options.slos)
        metrics["failed"] += failed
        metrics["client_bound"] = any(point.client_bound for point in points)
        use = CacheUse.total([point.cache.use for point in points])
        if use is not None:
            metrics["cache_hit_rate"] = use.hit_rate
        return metrics


def _warm_up_requests(requests: Requests, streams: int) -> Requests:
    """At least twice as many requests as streams, within the bounds, all at once, with short answers."""
    count = min(2 * streams, len(requests))
    within = int((np.cumsum(requests.input_tokens[:count]) <= _WARM_UP_INPUT_TOKENS).sum())
    count = max(within, 1)
    return replace(
        requests,
        input_tokens=requests.input_tokens[:count],
        output_tokens=np.minimum(requests.output_tokens[:count], _WARM_UP_OUTPUT),
        send_s=np.zeros(count),
        group=requests.group[:count],
        concurrency=min(streams, count),
    )
