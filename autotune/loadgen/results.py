"""Options and results of a measurement; `autotune.loadgen.measuring` makes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.messages import Progress, RequestTimeouts
from autotune.loadgen.client.outcomes import OutcomeKind, RequestOutcome, failure_sentence, tally
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.prefix_cache import CacheReport, CacheUse, PrefixCache
from autotune.loadgen.tokenizers import Tokenizer
from autotune.loadgen.workloads import LoadPoint
from autotune.metrics.formulas import Slo, summarize, summarize_loads
from autotune.metrics.steady import SteadyState, halves_disagree, steady
from autotune.trial import Metrics

_MAX_LENGTH_ERROR = 0.01
"""How far the mean output length may be off the one asked for. An engine that honours ``ignore_eos`` is exact; one that
did not wrote 300 tokens instead of 1023, and looked fast (aiperf#339)."""


def needed_successes(success_rate: float, requests: int) -> int:
    """How many of the requests must succeed; a rate that is a whole number of requests but for rounding is that."""
    return math.ceil(success_rate * requests - 1e-9)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a workload is sent.

    Attributes:
        as_text: random prompts are text where token ids are possible.
        vocabulary: tokens of the model; None = not known, ids that every model has.
        cache: the server's prefix cache, emptied before each load and watched during it; by default only new prompts
            keep one load from finding another's.
        warm_up: whether to send requests that are not counted before a load of more streams than any before.
        slos: limits for ``request_goodput``.
        workers: worker processes that send each load; None = as many as it needs, and more when the client did not
            keep up.
        min_success_rate: with a smaller share of requests that succeed the load has failed.
        on_progress: called about twice a second with the load point's label.
    """

    endpoint: str = "/v1/completions"
    api_key: str | None = field(default=None, repr=False)
    as_text: bool = False
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    cache: PrefixCache = field(default_factory=PrefixCache)
    warm_up: bool = True
    slos: Sequence[Slo] = ()
    workers: int | None = None
    min_success_rate: float = 1.0
    on_progress: Callable[[str, Progress], None] | None = None


@dataclass(frozen=True, slots=True)
class DiscardedLoad:
    """A load that was sent again, as the client had not kept up.

    Attributes:
        workers: how many sent it.
        reason: why its numbers are the client's.
    """

    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of one load point: its requests, and how the client fared.

    Attributes:
        workers: how the client fared in each worker process.
        client_bound: what of the client was beyond its limits; empty when it kept up.
        cache: the part that the server's prefix cache had in it.
        metrics: of the whole run, under the names of `autotune.metrics.formulas.METRICS`, with ``client_bound``, and
            ``cache_hit_rate`` when the server reports it.
        steady: its steady state.
        steady_drift: see `autotune.metrics.steady.halves_disagree`.
        discarded: loads before this one in which the client did not keep up.
    """

    label: str
    arrival: str
    log: RequestLog
    workers: tuple[ClientHealth, ...]
    client_bound: str
    cache: CacheReport
    metrics: Metrics
    steady: SteadyState
    steady_drift: float | None
    discarded: tuple[DiscardedLoad, ...] = ()

    @classmethod
    def of(
        cls,
        point: LoadPoint,
        log: RequestLog,
        workers: tuple[ClientHealth, ...],
        client_bound: str = "",
        cache: CacheReport | None = None,
        slos: Sequence[Slo] = (),
    ) -> LoadResult:
        """Compute the metrics of a load that has ended."""
        cache, records = cache or CacheReport(), log.records
        metrics = summarize(records, slos)
        metrics["client_bound"] = bool(client_bound)
        if cache.use is not None:
            metrics["cache_hit_rate"] = cache.use.hit_rate
        arrival, drift = point.arrival.describe(), halves_disagree(records)
        return cls(point.label, arrival, log, workers, client_bound, cache, metrics, steady(records), drift)

    def to_json(self) -> dict[str, Any]:
        """The metrics with the counts."""
        return {
            "label": self.label,
            "load": self.arrival,
            "metrics": self.metrics,
            "outcomes": self.log.tally,
            "client": ClientHealth.of_all(self.workers).to_json() | {"beyond_limits": self.client_bound or None},
            "cache": self.cache.to_json(),
            "steady": {
                "rule": self.steady.rule,
                "reason": self.steady.reason or None,
                "drift": self.steady_drift,
                **self.steady.metrics,
            },
            "workers": [worker.to_json() for worker in self.workers],
            "thrown_away": [asdict(load) for load in self.discarded],
        }


def pooled_metrics(loads: Sequence[LoadResult], slos: Sequence[Slo]) -> Metrics:
    """Metrics of several loads, one after the other, as one run without pauses."""
    metrics = summarize_loads([load.log.records for load in loads], slos)
    metrics["client_bound"] = any(load.client_bound for load in loads)
    use = CacheUse.total([load.cache.use for load in loads])
    return metrics if use is None else {**metrics, "cache_hit_rate": use.hit_rate}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of a workload.

    Attributes:
        metrics: of the whole workload, see `pooled_metrics`.
        points: in order; fewer than the workload has when the server answered no request of a warm-up.
        warm_up_s: seconds spent on requests that are not counted.
        warm_up_failed: how the warm-up's requests ended when none of them succeeded: then nothing else was sent.
        min_success_rate: see `LoadOptions`.
    """

    workload: str
    seed: int
    metrics: Metrics
    points: tuple[LoadResult, ...]
    warm_up_s: float = 0.0
    warm_up_failed: tuple[RequestOutcome, ...] = ()
    min_success_rate: float = 1.0

    @property
    def outcomes(self) -> tuple[RequestOutcome, ...]:
        """How each request ended, over all load points."""
        return (*(o for point in self.points for o in point.log.outcomes), *self.warm_up_failed)

    @property
    def tally(self) -> dict[str, int]:
        """How many requests ended in which way."""
        return tally(self.outcomes)

    @property
    def failure(self) -> str:
        """One sentence on the requests that failed; empty when enough succeeded."""
        outcomes = self.outcomes
        good = sum(outcome.ok for outcome in outcomes)
        return failure_sentence(outcomes) if good < needed_successes(self.min_success_rate, len(outcomes)) else ""

    @property
    def client_bound(self) -> str:
        """What of the client was beyond its limits, so that it and not the server may have set the numbers."""
        return "; ".join(dict.fromkeys(point.client_bound for point in self.points if point.client_bound))

    @property
    def invalid(self) -> str:
        """Why the numbers say nothing of the server: token counts that are missing or not as asked for, a client that
        did not keep up, prompts that an earlier load had left in the cache; empty when they are sound, or when requests
        failed in ways that are the server's."""
        if self.failure:
            uncounted = all(outcome.ok or outcome.kind is OutcomeKind.NO_USAGE for outcome in self.outcomes)
            return self.failure if uncounted else ""
        for log in (point.log for point in self.points):
            if log.length_error > _MAX_LENGTH_ERROR:
                written, expected = log.mean_lengths
                return (
                    f"{written:.1f} tokens per answer instead of {expected:.1f}; the server may not honour ignore_eos"
                )
        if self.client_bound:
            return f"the client did not keep up with the server: {self.client_bound}"
        return next((point.cache.stale for point in self.points if point.cache.stale), "")

    def to_json(self) -> dict[str, Any]:
        """The metrics with the counts, and the load points."""
        retries = sum(int(point.log.retries.sum()) for point in self.points)
        return {
            **self.metrics,
            "outcomes": self.tally,
            "failure": self.failure or None,
            "stale_connections": retries,
            "warm_up_s": self.warm_up_s,
            "points": [point.to_json() for point in self.points],
        }
