"""Options and results of a measurement; `autotune.loadgen.measuring` makes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

from autotune.loadgen.capacity.search import FoundLoad, Probe
from autotune.loadgen.client.messages import ClientHealth, Progress, RequestLog, RequestTimeouts
from autotune.loadgen.client.stream import OutcomeKind, RequestOutcome, failure_sentence, tally
from autotune.loadgen.client.target import BALANCING
from autotune.loadgen.prefix_cache import CacheReport, CacheUse, DraftUse, PrefixCache, ReadDrafts, acceptance
from autotune.loadgen.request_file import LoadLog
from autotune.loadgen.tokenizers import Tokenizer
from autotune.loadgen.workloads import LoadPoint
from autotune.metrics.formulas import Slo, steady, summarize, summarize_loads
from autotune.trial import Metrics

_MAX_LENGTH_ERROR = 0.01
"""Share by which the mean output length may be off the one asked for. An engine that honours ``ignore_eos`` is exact; a
server that did not wrote 300 tokens instead of 1023, and looked fast (aiperf#339)."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of sending a workload.

    Attributes:
        endpoint, as_text, vocabulary, tokenizer: see `Prompts`.
        cache: the server's prefix cache, emptied before each load and watched during it; by default only new prompts
            keep one load from finding another's.
        drafts: reads what the server says of its drafts; by default it says nothing.
        warm_up: whether to send requests that are not counted before a load of more streams than any before.
        slos: limits for ``request_goodput``.
        workers: worker processes that send each load; None = as many as it needs, and more when the client did not
            keep up.
        on_progress: called about twice a second with the load point's label.
    """

    endpoint: str = "/v1/completions"
    api_key: str | None = field(default=None, repr=False)
    as_text: bool = False
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    timeouts: RequestTimeouts = field(default_factory=RequestTimeouts)
    cache: PrefixCache = field(default_factory=PrefixCache)
    drafts: ReadDrafts = field(default=lambda: None)
    warm_up: bool = True
    slos: Sequence[Slo] = ()
    workers: int | None = None
    on_progress: Callable[[str, Progress], None] | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Result of one load point: its requests, and how the client fared.

    Attributes:
        workers: how the client fared in each worker process.
        client_bound: what of the client was beyond its limits; empty when it kept up.
        cache: the part that the server's prefix cache had in it.
        drafts: what the server drafted and kept in it; None where it does not tell, or drafts nothing.
        slos: limits for ``request_goodput``.
        discarded: loads before this one in which the client did not keep up: by how many workers each was sent, and
            what was beyond the limits.
    """

    point: LoadPoint
    log: RequestLog
    workers: tuple[ClientHealth, ...]
    client_bound: str = ""
    cache: CacheReport = field(default_factory=CacheReport)
    drafts: DraftUse | None = None
    slos: Sequence[Slo] = ()
    discarded: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Measurement:
    """Result of a workload under one seed.

    Attributes:
        points: in order; fewer than the workload has when the server answered no request of a warm-up.
        warm_up_s: seconds spent on requests that are not counted.
        warm_up_failed: how the warm-up's requests ended when none of them succeeded: then nothing else was sent.
        servers: that shared it.
    """

    seed: int
    points: tuple[LoadResult, ...]
    warm_up_s: float = 0.0
    warm_up_failed: tuple[RequestOutcome, ...] = ()
    servers: int = 1

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of the whole workload, under the names of `autotune.metrics.table.METRICS`, see `pooled_metrics`."""
        return pooled_metrics([self])

    @property
    def outcomes(self) -> tuple[RequestOutcome, ...]:
        """Outcome of each request, over all load points."""
        return (*(o for point in self.points for o in point.log.outcomes), *self.warm_up_failed)

    @property
    def logs(self) -> list[LoadLog]:
        """Every load that was made, in order."""
        return [LoadLog(point.point.label, self.seed, point.log) for point in self.points]

    @property
    def failure(self) -> str:
        """One sentence on the requests that failed; empty when all succeeded."""
        return "" if all(outcome.ok for outcome in self.outcomes) else failure_sentence(self.outcomes)

    @property
    def invalid(self) -> str:
        """Reason why the measurement is invalid; empty when it is valid, or when the server failed requests.

        Token counts may be missing or not as asked for, the client may not have kept up, or prompts of an earlier load
        may have been in the cache.
        """
        if self.failure:
            uncounted = all(outcome.ok or outcome.kind is OutcomeKind.NO_USAGE for outcome in self.outcomes)
            return self.failure if uncounted else ""
        for log in (point.log for point in self.points):
            if log.length_error > _MAX_LENGTH_ERROR:
                written, expected = log.mean_lengths
                return (
                    f"{written:.1f} tokens per answer instead of {expected:.1f}; the server may not honour ignore_eos"
                )
        bound = dict.fromkeys(load.client_bound for load in self.points if load.client_bound)
        if bound:
            return f"the client did not keep up with the server: {'; '.join(bound)}"
        return next((point.cache.stale for point in self.points if point.cache.stale), "")

    @property
    def died(self) -> bool:
        """True if a load search ended with the server's death: of a load by itself that is its `failure`."""
        return False

    def to_json(self) -> dict[str, Any]:
        return to_json([self])


@dataclass(frozen=True)
class FoundCapacity(Measurement):
    """Result of a load search: a measurement by the probes behind the metrics, and the bracket that they found.

    Attributes:
        shown: the probes behind the metrics: of the capacity, else of the lightest load.
        probes: everything that was sent, in order.
    """

    found: FoundLoad = field(kw_only=True)
    shown: Sequence[Measurement] = field(kw_only=True)
    probes: Sequence[Measurement] = field(kw_only=True)

    @classmethod
    def of(cls, seed: int, found: FoundLoad, probes: Sequence[tuple[Probe, Measurement]]) -> FoundCapacity:
        """Sum up a search that is over, or that was broken off after a probe that says nothing."""
        load = found.capacity or (found.missed[1] if found.missed else None)
        shown = [sent for probe, sent in probes[1:] if probe.load == load] or [sent for _, sent in probes[:1]]
        every = [sent for _, sent in probes]
        points = tuple(point for sent in shown for point in sent.points)
        return cls(seed, points, sum(sent.warm_up_s for sent in every), found=found, shown=shown, probes=every)

    @property
    def metrics(self) -> Metrics:
        """Metrics of the load that is the capacity, with the capacity and the curve."""
        return self.found.metrics

    @property
    def logs(self) -> list[LoadLog]:
        return [log for sent in self.probes for log in sent.logs]

    @property
    def failure(self) -> str:
        """One sentence where the server answered nothing any more, before any load kept the limits."""
        last = self.probes[-1]
        return last.failure if not last.metrics["completed"] and not self.died else ""

    @property
    def invalid(self) -> str:
        """Reason why the numbers say nothing of the server: that of the probe at which the search ended for it."""
        return self.probes[-1].invalid

    @property
    def died(self) -> bool:
        return self.found.died_at is not None

    def to_json(self) -> dict[str, Any]:
        return {**to_json(self.shown), **self.metrics}


def pooled_metrics(runs: Sequence[Measurement]) -> Metrics:
    """Metrics of all loads of some measurements as one run without pauses, a failed warm-up's requests with them."""
    metrics = _pooled([load for run in runs for load in run.points])
    metrics["failed"] += sum(len(run.warm_up_failed) for run in runs)
    return metrics


def _pooled(loads: Sequence[LoadResult]) -> Metrics:
    return _with_client(summarize_loads([load.log.records for load in loads], loads[0].slos if loads else ()), loads)


def _with_client(metrics: Metrics, loads: Sequence[LoadResult]) -> Metrics:
    """Metrics of loads with ``client_bound``, and with the cache's hits and the drafts' acceptance where it is told."""
    use = CacheUse.total([load.cache.use for load in loads])
    drafts = acceptance([load.drafts for load in loads])
    hit_rate: Metrics = {} if use is None else {"cache_hit_rate": use.hit_rate}
    return {**metrics, "client_bound": any(load.client_bound for load in loads), **hit_rate, **drafts}


def to_json(runs: Sequence[Measurement]) -> dict[str, Any]:
    """One measurement, or repeats of one under other seeds as one run: metrics, counts and load points.

    A repeat that ended early has fewer load points than others.
    """
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    repeats = zip_longest(*(run.points for run in runs))
    return {
        **_told(pooled_metrics(runs), [load for run in runs for load in run.points]),
        "outcomes": tally(outcomes),
        "failure": failure_sentence(outcomes) if any(run.failure for run in runs) else None,
        "stale_connections": sum(int(load.log.retries.sum()) for run in runs for load in run.points),
        "warm_up_s": sum(run.warm_up_s for run in runs),
        "points": [_point_json([load for load in loads if load is not None]) for loads in repeats],
        **({"servers": runs[0].servers, "balancing": BALANCING} if runs and runs[0].servers > 1 else {}),
    }


def _told(metrics: Metrics, loads: Sequence[LoadResult]) -> Metrics:
    """Metrics as a result states them: no steady throughput where one of the loads has no steady state."""
    sound = not any(steady(load.log.records).reason for load in loads)
    return metrics if sound else {**metrics, "steady_total_token_throughput": None}


def _point_json(loads: Sequence[LoadResult]) -> dict[str, Any]:
    """One load point, its repeats joined; only a single load has one steady state."""
    first, alone = loads[0], len(loads) == 1
    clients = [
        ClientHealth.of_all(load.workers).to_json() | {"beyond_limits": load.client_bound or None} for load in loads
    ]
    state = steady(first.log.records) if alone else None
    metrics = _with_client(summarize(first.log.records, first.slos), loads) if alone else _pooled(loads)
    return {
        "label": first.point.label,
        "load": first.point.arrival.describe(),
        "metrics": _told(metrics, loads),
        "outcomes": tally(outcome for load in loads for outcome in load.log.outcomes),
        "client": worst_client(clients),
        "cache": CacheReport.joined([load.cache for load in loads]).to_json(),
        "steady": state and {"rule": state.rule, "reason": state.reason or None, "drift": state.drift, **state.metrics},
        "workers": [worker.to_json() for load in loads for worker in load.workers],
        "thrown_away": [{"workers": workers, "reason": reason} for load in loads for workers, reason in load.discarded],
    }


def worst_client(clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figure by figure the largest of several loads."""
    worst: dict[str, Any] = {"beyond_limits": None}
    for client in clients:
        for name, value in client.items():
            worst[name] = max(value, worst.get(name, value)) if name != "beyond_limits" else worst.get(name) or value
    return worst
