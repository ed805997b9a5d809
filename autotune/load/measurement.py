"""One workload on one warm server: `measure(url, model, workload, seed, options) -> Measurement`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.client import generator
from autotune.client.generator import Limits, Progress, Schedule
from autotune.client.health import ClientHealth
from autotune.client.open_files import allow_open_files
from autotune.client.outcomes import Outcome, OutcomeKind, failure_sentence, tally
from autotune.client.prompts import Prompts, Tokenizer
from autotune.client.records import RequestRecords
from autotune.client.request_log import RequestLog
from autotune.client.requests import Requests
from autotune.client.target import Target
from autotune.load.metrics import Limit, summarize
from autotune.load.workloads import LoadPoint, Workload
from autotune.trial import Metrics

_WARM_UP_CONCURRENCY = 128
_WARM_UP_OUTPUT = 32
_WARM_UP_INPUT_TOKENS = 200_000
"""Bounds of the warm-up: it must touch every code path and batch size, not cost as much as the load."""

_MAX_LENGTH_ERROR = 0.01
"""How far the mean output length may be off the one asked for. An engine that honours ``ignore_eos`` is exact; one that
did not wrote 300 tokens instead of 1023, and looked fast (aiperf#339)."""

_LENGTHS = "{:.1f} tokens per answer instead of {:.1f}; the server may not honour ignore_eos"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a workload is sent.

    Attributes:
        vocabulary: tokens of the model; None = not known, ids that every model has.
        reset_cache: empties the server's prefix cache, called before each load; None = only new prompts keep
            one load from finding another's.
        warm_up: whether to send requests that are not counted before a load of more streams than any before.
        slos: limits for ``request_goodput``.
        on_progress: called about once a second with the load point's label.
    """

    endpoint: str = "/v1/completions"
    api_key: str | None = field(default=None, repr=False)
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    temperature: float | None = 0.0
    limits: Limits = field(default_factory=Limits)
    reset_cache: Callable[[], object] | None = None
    warm_up: bool = True
    slos: Sequence[Limit] = ()
    on_progress: Callable[[str, Progress], None] | None = None


@dataclass(frozen=True, slots=True)
class PointMeasurement:
    """One load point: its requests, and how the client fared."""

    label: str
    arrival: str
    log: RequestLog
    client: ClientHealth
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of a workload.

    Attributes:
        metrics: of the whole workload, its load points one after the other, under the names of `metrics.METRICS`,
            with ``client_bound``, and ``cache_hit_rate`` when every answer tells its cached tokens.
        points: in order; fewer than the workload has when the server answered no request of a warm-up.
        warm_up_s: seconds spent on requests that are not counted.
        warm_up_failed: how the warm-up's requests ended when none of them succeeded: then nothing else was sent.
    """

    workload: str
    seed: int
    metrics: Metrics
    points: tuple[PointMeasurement, ...]
    warm_up_s: float = 0.0
    warm_up_failed: tuple[Outcome, ...] = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How each request ended, over all load points."""
        return (*(o for point in self.points for o in point.log.outcomes), *self.warm_up_failed)

    @property
    def tally(self) -> dict[str, int]:
        """How many requests ended in which way."""
        return tally(self.outcomes)

    @property
    def failure(self) -> str:
        """One sentence on the requests that failed; empty when every one succeeded."""
        return failure_sentence(self.outcomes)

    @property
    def client_bound(self) -> bool:
        """Whether the client, not the server, may have set the numbers of any load point."""
        return any(point.client.bound for point in self.points)

    @property
    def invalid(self) -> str:
        """Why the numbers say nothing of the server: token counts that are missing or not as asked for, or a client
        that did not keep up; empty when they are sound, or when requests failed in ways that are the server's."""
        failed = [outcome for outcome in self.outcomes if not outcome.ok]
        if failed:
            return self.failure if all(outcome.kind is OutcomeKind.NO_USAGE for outcome in failed) else ""
        for log in (point.log for point in self.points):
            if log.length_error > _MAX_LENGTH_ERROR:
                return _LENGTHS.format(*log.mean_lengths)
        return "the client did not keep up with the server" if self.client_bound else ""

    def to_json(self, columns: bool = False) -> dict[str, Any]:
        """The metrics with the counts, the load points and, on request, the per-request columns."""
        points = [_point_json(point, columns) for point in self.points]
        retries = sum(int(point.log.retries.sum()) for point in self.points)
        return {
            **self.metrics,
            "outcomes": self.tally,
            "failure": self.failure or None,
            "stale_connections": retries,
            "warm_up_s": self.warm_up_s,
            "points": points,
        }


def _point_json(point: PointMeasurement, columns: bool) -> dict[str, Any]:
    row = {
        "label": point.label,
        "load": point.arrival,
        "metrics": point.metrics,
        "outcomes": point.log.tally,
        "client": point.client.to_json(),
    }
    return {**row, "requests": point.log.columns()} if columns else row


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
    return _Measuring(Target.parse(url, options.api_key if options else None), model, workload, seed, options).run()


class _Measuring:
    """The load points of one workload, one after the other."""

    def __init__(self, target: Target, model: str, workload: Workload, seed: int, options: LoadOptions | None) -> None:
        self._target, self._workload, self._seed = target, workload, seed
        self._options = options = options or LoadOptions()
        self._prompts = Prompts(model, options.endpoint, options.vocabulary, options.tokenizer, options.temperature)
        self._warm_streams = 0
        self._warm_up_s = 0.0

    def run(self) -> Measurement:
        points: list[PointMeasurement] = []
        failed: tuple[Outcome, ...] = ()
        closed = [min(p.arrival.concurrency or p.prompts, p.prompts) for p in self._workload.points if not _open(p)]
        allow_open_files(max(closed, default=1))
        for position in range(len(self._workload.points)):
            requests = self._workload.draw(position, self._seed)
            failed = self._warm_up(requests, position)
            if failed:
                break
            if self._options.reset_cache is not None:
                self._options.reset_cache()
            points.append(self._load(requests, position))
        return Measurement(
            self._workload.name, self._seed, self._summary(points, len(failed)), tuple(points), self._warm_up_s, failed
        )

    def _load(self, requests: Requests, position: int) -> PointMeasurement:
        point, tell = self._workload.points[position], self._options.on_progress
        bodies = self._prompts.bodies(requests, self._key(position), self._workload.streaming)
        log, client = self._send(requests, bodies, None if tell is None else lambda done: tell(point.label, done))
        metrics = summarize(log.records, self._options.slos)
        metrics["client_bound"] = client.bound
        if log.cache_hit_rate is not None:
            metrics["cache_hit_rate"] = log.cache_hit_rate
        return PointMeasurement(point.label, point.arrival.describe(), log, client, metrics)

    def _warm_up(self, requests: Requests, position: int) -> tuple[Outcome, ...]:
        """Send requests that are not counted; their outcomes when none succeeded, else nothing."""
        streams = min(requests.concurrency, _WARM_UP_CONCURRENCY)
        if not self._options.warm_up or streams <= self._warm_streams:
            return ()
        self._warm_streams = streams
        some = _warm_up_requests(requests, streams)
        bodies = self._prompts.warm_up(some, self._key(position), self._workload.streaming)
        log, client = self._send(some, bodies, None)
        self._warm_up_s += client.span_s
        return () if any(outcome.ok for outcome in log.outcomes) else log.outcomes

    def _send(
        self, requests: Requests, bodies: Sequence[bytes], tell: Callable[[Progress], None] | None
    ) -> tuple[RequestLog, ClientHealth]:
        schedule = Schedule(
            requests=[self._target.request(self._options.endpoint, body) for body in bodies],
            send_s=requests.send_s,
            output_tokens=requests.output_tokens,
            concurrency=requests.concurrency,
            streaming=self._workload.streaming,
        )
        return generator.run(self._target, schedule, self._options.limits, tell)

    def _key(self, position: int) -> tuple[str, int, int]:
        return self._workload.name, position, self._seed

    def _summary(self, points: Sequence[PointMeasurement], failed: int) -> Metrics:
        records = [point.log.records for point in points]
        whole = RequestRecords.one_after_another(records) if records else RequestRecords.empty()
        metrics = summarize(whole, self._options.slos)
        metrics["failed"] += failed
        metrics["client_bound"] = any(point.client.bound for point in points)
        rates = [point.log.cache_hit_rate for point in points]
        tokens = [float(point.log.records.input_tokens[point.log.records.ok].sum()) for point in points]
        known = [(rate, read) for rate, read in zip(rates, tokens, strict=True) if rate is not None]
        if known and len(known) == len(points):
            metrics["cache_hit_rate"] = sum(rate * read for rate, read in known) / sum(tokens)
        return metrics


def _open(point: LoadPoint) -> bool:
    return point.arrival.kind == "rate"


def _warm_up_requests(requests: Requests, streams: int) -> Requests:
    """At least twice as many requests as streams, within the bounds, all at once, with short answers."""
    count = min(2 * streams, len(requests.input_tokens))
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
