"""What a measurement is asked for and what came of it; `autotune.loadgen.measuring` makes one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.loadgen.client.generator import Limits
from autotune.loadgen.client.health import ClientHealth, HealthLimits
from autotune.loadgen.client.outcomes import Outcome, OutcomeKind, failure_sentence, tally
from autotune.loadgen.client.progress import Progress
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.tokenizers import Tokenizer
from autotune.loadgen.early_stop import EarlyStop
from autotune.loadgen.prefix_cache import CacheReport, PrefixCache
from autotune.metrics.steady import Steady
from autotune.study.spec import Slo
from autotune.trial import Metrics

_MAX_LENGTH_ERROR = 0.01
"""How far the mean output length may be off the one asked for. An engine that honours ``ignore_eos`` is exact; one that
did not wrote 300 tokens instead of 1023, and looked fast (aiperf#339)."""

_LENGTHS = "{:.1f} tokens per answer instead of {:.1f}; the server may not honour ignore_eos"


def needed(success_rate: float, requests: int) -> int:
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
        must_beat: total token throughput in tokens per s; a load that can no longer exceed it is stopped. Only for
            workloads of one load point.
        stop_on_lost_slo: whether a load that can no longer keep an SLO is stopped, too.
        workers: worker processes that send each load; None = as many as it needs, and more when the client did not
            keep up.
        health: beyond it a load is client-bound.
        min_success_rate: with a smaller share of requests that succeed the load has failed.
        on_progress: called about twice a second with the load point's label.
    """

    endpoint: str = "/v1/completions"
    api_key: str | None = field(default=None, repr=False)
    as_text: bool = False
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    temperature: float | None = 0.0
    limits: Limits = field(default_factory=Limits)
    cache: PrefixCache = field(default_factory=PrefixCache)
    warm_up: bool = True
    slos: Sequence[Slo] = ()
    must_beat: float | None = None
    stop_on_lost_slo: bool = False
    workers: int | None = None
    health: HealthLimits = field(default_factory=HealthLimits)
    min_success_rate: float = 1.0
    on_progress: Callable[[str, Progress], None] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a load point that was thrown away.

    Attributes:
        workers: how many sent it.
        reason: why its numbers are the client's.
    """

    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class PointMeasurement:
    """One load point: its requests, and how the client fared.

    Attributes:
        client: how the worst worker fared.
        workers: how each did.
        client_bound: what of the client was beyond its limits; empty when it kept up.
        thrown_away: tries before this one in which the client did not keep up.
        cache: the server's prefix cache's part in it.
        steady: its steady state, beside the whole run that the metrics are of.
        steady_drift: see `load.steady.halves_disagree`.
        stopped: why it was not run to its end; the metrics are then those of what had ended.
    """

    label: str
    arrival: str
    log: RequestLog
    workers: tuple[ClientHealth, ...]
    metrics: Metrics
    client_bound: str = ""
    thrown_away: tuple[Attempt, ...] = ()
    cache: CacheReport = field(default_factory=CacheReport)
    steady: Steady = field(default_factory=lambda: Steady(0.0, 0.0, ""))
    steady_drift: float | None = None
    stopped: EarlyStop | None = None

    @property
    def client(self) -> ClientHealth:
        return ClientHealth.of_all(self.workers)

    def to_json(self, columns: bool = False) -> dict[str, Any]:
        """The metrics with the counts and, on request, the per-request columns."""
        row: dict[str, Any] = {
            "label": self.label,
            "load": self.arrival,
            "metrics": self.metrics,
            "outcomes": self.log.tally,
            "client": self.client.to_json() | {"beyond_limits": self.client_bound or None},
            "cache": self.cache.to_json(),
            "steady": {
                "rule": self.steady.rule,
                "reason": self.steady.reason or None,
                "drift": self.steady_drift,
                **self.steady.metrics,
            },
            "stopped": {**asdict(self.stopped), "verdict": self.stopped.sentence()} if self.stopped else None,
            "workers": [worker.to_json() for worker in self.workers],
            "thrown_away": [{"workers": tried.workers, "reason": tried.reason} for tried in self.thrown_away],
        }
        return {**row, "requests": self.log.columns()} if columns else row


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of a workload.

    Attributes:
        metrics: of the whole workload, its load points one after the other, under the names of `metrics.METRICS`,
            with ``client_bound``, and ``cache_hit_rate`` when the server tells.
        points: in order; fewer than the workload has when the server answered no request of a warm-up.
        warm_up_s: seconds spent on requests that are not counted.
        warm_up_failed: how the warm-up's requests ended when none of them succeeded: then nothing else was sent.
        min_success_rate: see `LoadOptions`.
    """

    workload: str
    seed: int
    metrics: Metrics
    points: tuple[PointMeasurement, ...]
    warm_up_s: float = 0.0
    warm_up_failed: tuple[Outcome, ...] = ()
    min_success_rate: float = 1.0

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
        """One sentence on the requests that failed; empty when enough succeeded."""
        outcomes = [outcome for outcome in self.outcomes if outcome.kind is not OutcomeKind.STOPPED]
        good = sum(outcome.ok for outcome in outcomes)
        return failure_sentence(outcomes) if good < needed(self.min_success_rate, len(outcomes)) else ""

    @property
    def client_bound(self) -> str:
        """What of the client was beyond its limits, so that it and not the server may have set the numbers."""
        return "; ".join(dict.fromkeys(point.client_bound for point in self.points if point.client_bound))

    @property
    def invalid(self) -> str:
        """Why the numbers say nothing of the server: token counts that are missing or not as asked for, a client that
        did not keep up, prompts that an earlier load had left in the cache; empty when they are sound, or when requests
        failed in ways that are the server's."""
        failed = [o for o in self.outcomes if not o.ok and o.kind is not OutcomeKind.STOPPED]
        if self.failure and all(outcome.kind is OutcomeKind.NO_USAGE for outcome in failed):
            return self.failure
        if self.failure:
            return ""
        for log in (point.log for point in self.points):
            if log.length_error > _MAX_LENGTH_ERROR:
                return _LENGTHS.format(*log.mean_lengths)
        if self.client_bound:
            return f"the client did not keep up with the server: {self.client_bound}"
        return next((point.cache.stale for point in self.points if point.cache.stale), "")

    def to_json(self, columns: bool = False) -> dict[str, Any]:
        """The metrics with the counts, the load points and, on request, the per-request columns."""
        retries = sum(int(point.log.retries.sum()) for point in self.points)
        return {
            **self.metrics,
            "outcomes": self.tally,
            "failure": self.failure or None,
            "stale_connections": retries,
            "warm_up_s": self.warm_up_s,
            "points": [point.to_json(columns) for point in self.points],
        }
