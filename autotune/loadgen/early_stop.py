"""Early stop of a load: certain bounds on what it can still reach, whatever happens from now on.

Nothing is extrapolated. A request under way may end this instant, with all its tokens, or fail; one that is not sent
may take no time at all. Only what even that cannot mend is a reason to stop.

- *Throughput*: all planned tokens over the shortest time that the run can still take.
- *A percentile*: requests that succeed and cost nothing pull it down, so the best case has all the others be such. It
  is lost when the rank that it is read from still falls on a request beyond the limit. A request under way beyond
  the limit already is no certain burden, as it may fail and then counts in nothing: it only is not one of those that
  cost nothing. With an SLO ``failed<=k`` at most k may fail, or that SLO is lost instead; the rest do burden.
- *A mean*: the same best case, with the waiting requests from the shortest waiting on as far as they lower the mean.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autotune.arrays import Floats
from autotune.metrics.formulas import Slo
from autotune.metrics.records import LATENCIES, QUANTILES, RequestRecords, tpot_ms

_CLEARLY = 1e-9
"""By how much, as a share of the limit, a bound must miss it: rounding must not stop a run."""


@dataclass(frozen=True, slots=True)
class LoadTotals:
    """What a load is to send.

    Attributes:
        requests: how many.
        input_tokens: of all of them, as the server will count them; more than that only delays a stop.
        output_tokens: of all of them.
        last_send_s: on the records' clock, before which the last request is not sent; where the times of sending
            are not planned there is no such moment.
    """

    requests: int
    input_tokens: float
    output_tokens: float
    last_send_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Why a load was stopped.

    Attributes:
        fraction: of the planned *requests*, how many had ended, failed ones included.
        bound: the best value of the metric that could still have come out.
        limit: what it had to reach.
        metric: under its name in `autotune.metrics.formulas`.
        reason: what was asked of it: ``must beat``, ``must be at least`` or ``must be at most``.
    """

    fraction: float
    bound: float
    limit: float
    metric: str
    reason: str

    def sentence(self) -> str:
        """For a verdict: how far it came, what was still possible, and what would have been needed."""
        bound = f"{_number(self.bound)} {_unit(self.metric)}".rstrip()
        done = math.floor(self.fraction * 100 + 1e-9)
        return f"stopped early at {done} % with bound {bound}: {self.metric} {self.reason} {_number(self.limit)}"


def stop_reason(
    snapshot: RequestRecords,
    now_s: float,
    plan: LoadTotals,
    must_beat: float | None,
    slos: Sequence[Slo],
    heard_s: Floats | None = None,
) -> EarlyStop | None:
    """Why the rest of a load need not be run, or None while anything is still possible.

    Args:
        snapshot: one element per request sent so far; NaN where something has not happened yet, so a request whose
            `finished_s` is NaN is under way and its `ok` and token counts say nothing. `itl_ms` holds the gaps of
            requests that have succeeded, and of no others.
        now_s: when the snapshot was taken, on the records' clock. Where several processes tell, the earliest of
            their moments: what happened after it may be missing.
        must_beat: total token throughput in tokens per s that the load must exceed; None = nothing to beat.
        slos: limits on the run. Those on the steady window, on standard deviations and on peaks are not judged.

        heard_s: when the last event of each request came, NaN before the first, shape as the snapshot's: one under way
            may have had its last token then, and only its token counts are still to come; None = now.

    Once it says stop it says so at any later moment of the same run.
    """
    state = _State(snapshot, now_s, plan, slos, heard_s)
    return next(state.lost(must_beat), None)


class _State:
    """What is certain of a run at one moment."""

    def __init__(
        self,
        snapshot: RequestRecords,
        now_s: float,
        plan: LoadTotals,
        slos: Sequence[Slo],
        heard_s: Floats | None,
    ) -> None:
        self._seen, self._now_s, self._plan, self._slos = snapshot, now_s, plan, slos
        self._ended = np.isfinite(snapshot.finished_s)
        self._done = replace(snapshot, ok=self._ended & snapshot.ok).successful()
        # The earliest that a request under way can turn out to have ended.
        last_s = np.full(len(snapshot), np.nan) if heard_s is None else heard_s
        self._least_end_s = np.where(np.isnan(last_s), now_s, last_s)
        self._unsent = max(plan.requests - len(snapshot), 0)
        self._failed = int((self._ended & ~snapshot.ok).sum())

    def lost(self, must_beat: float | None) -> Iterator[EarlyStop]:
        """Everything that cannot be reached any more."""
        highest = self._highest("total_token_throughput")
        if must_beat is not None and highest is not None and highest < must_beat - _slack(must_beat):
            yield self._stop(highest, must_beat, "total_token_throughput", "must beat")
        for slo in self._slos:
            if slo.sense == ">=":
                bound = self._highest(slo.metric)
                if bound is not None and bound < slo.limit - _slack(slo.limit):
                    yield self._stop(bound, slo.limit, slo.metric, "must be at least")
            else:
                bound = self._lowest(slo.metric, slo.limit + _slack(slo.limit))
                if bound is not None and bound > slo.limit + _slack(slo.limit):
                    yield self._stop(bound, slo.limit, slo.metric, "must be at most")

    def _stop(self, bound: float, limit: float, metric: str, reason: str) -> EarlyStop:
        return EarlyStop(int(self._ended.sum()) / max(self._plan.requests, 1), bound, limit, metric, reason)

    @cached_property
    def _shortest_s(self) -> float:
        """The least that the run's duration can be."""
        seen = self._seen
        if not len(seen):
            return 0.0
        ends_s = [float(seen.finished_s[self._ended].max())] if self._ended.any() else []
        if not self._ended.all():
            ends_s.append(float(self._least_end_s[~self._ended].max()))
        if self._unsent:
            ends_s += [self._now_s, self._plan.last_send_s]
        return max(ends_s) - float(seen.sent_s.min())

    @cached_property
    def _may_fail(self) -> int:
        """How many more requests may fail before that alone loses the run."""
        limits = [int(slo.limit) for slo in self._slos if slo.metric == "failed" and slo.sense == "<="]
        return max(min(limits, default=self._plan.requests) - self._failed, 0)

    def _highest(self, metric: str) -> float | None:
        """The most that a throughput or a count can still be; None for metrics that have no such bound."""
        plan = self._plan
        successes = float(len(self._seen) + self._unsent - self._failed)
        if metric == "completed":
            return successes
        amounts = {
            "total_token_throughput": plan.input_tokens + plan.output_tokens,
            "output_throughput": plan.output_tokens,
            "request_throughput": successes,
            "request_goodput": successes,
        }
        if metric not in amounts:
            return None
        return amounts[metric] / self._shortest_s if self._shortest_s > 0 else math.inf

    def _lowest(self, metric: str, limit: float) -> float | None:
        """The least that a metric can still be; None for those without such a bound, and for percentiles within it."""
        if metric in ("failed", "duration"):
            return float(self._failed) if metric == "failed" else self._shortest_s
        statistic, _, latency = metric.removesuffix("_ms").partition("_")
        if latency not in LATENCIES or not (statistic == "mean" or statistic in QUANTILES):
            return None
        samples = self._samples(latency)
        return samples.mean() if statistic == "mean" else samples.percentile(QUANTILES[statistic], limit)

    def _samples(self, latency: str) -> _Samples:
        done, under_way, now_s = self._done, ~self._ended, self._now_s
        sent_s, first_s = self._seen.sent_s[under_way], self._seen.first_token_s[under_way]
        none = np.empty(0)
        if latency == "itl":  # no answer has more gaps than tokens
            left = max(int(self._plan.output_tokens) - len(done.itl_ms), 0)
            return _Samples(done.itl_ms, none, left, 0)
        if latency == "tpot":
            known = tpot_ms(done)[done.output_tokens > 1]
            return _Samples(known, none, self._unsent + len(sent_s), 0)
        if latency == "ttft":
            known, reached_s = done.first_token_s - done.sent_s, np.where(np.isnan(first_s), now_s, first_s)
        else:
            known, reached_s = done.finished_s - done.sent_s, self._least_end_s[under_way]
        return _Samples(known * 1e3, np.sort(reached_s - sent_s) * 1e3, self._unsent, self._may_fail)


@dataclass(frozen=True, slots=True)
class _Samples:
    """What is known of a latency's samples, in ms.

    Attributes:
        known: of what has succeeded, in any order, shape (n,).
        waiting: what those under way have reached already, ascending, shape (m,): each will be more, or fail.
        free: how many more may come, of which nothing is known.
        may_fail: how many of the waiting ones may fail.
    """

    known: Floats
    waiting: Floats
    free: int
    may_fail: int

    def mean(self) -> float:
        """The least that it can be: all the free ones are 0, and those fail that wait longest, as far as it helps."""
        sums = self.known.sum() + np.cumsum(np.concatenate([np.zeros(1), self.waiting]))
        counts = len(self.known) + self.free + np.arange(len(sums))
        least = max(len(self.waiting) - self.may_fail, 0)
        return float((sums / np.maximum(counts, 1))[least:].min())

    def percentile(self, quantile: float, limit: float) -> float | None:
        """The least that it can be if that is beyond the limit, else None.

        With n samples the figure lies between those of the ranks floor(quantile (n - 1)) and the next. The lower of
        these stays beyond the limit when another sample beyond the limit joins, so it is enough to judge the case in
        which as many as may fail do.
        """
        beyond, late = self.known[self.known > limit], self.waiting[self.waiting > limit]
        within = self.free + len(self.known) - len(beyond) + len(self.waiting) - len(late)
        fewest = max(len(late) - self.may_fail, 0)
        if _rank(quantile, within + len(beyond) + fewest) < within:
            return None
        case = sorted([*beyond.tolist(), *late[:fewest].tolist()])
        least = math.inf
        for value in [*late[fewest:].tolist(), None]:
            least = min(least, case[_rank(quantile, within + len(case)) - within])
            if value is not None:
                insort(case, value)
        return least


def _rank(quantile: float, samples: int) -> int:
    """The lower of the two ranks, from 0, between which numpy's percentile interpolates; -1 of no samples."""
    return math.floor(quantile * (samples - 1))


def _slack(limit: float) -> float:
    return _CLEARLY * abs(limit)


def _unit(metric: str) -> str:
    if metric.endswith("_ms"):
        return "ms"
    units = {"duration": "s", "request_throughput": "req/s", "request_goodput": "req/s"}
    return "tok/s" if metric in ("total_token_throughput", "output_throughput") else units.get(metric, "")


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0") if abs(value) >= 100 else f"{value:.4g}"
