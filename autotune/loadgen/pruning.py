"""Whether a load that is under way is worth going on with: a race against the best that a study has measured.

Every load begins as it would anyway, so a promising one loses nothing and counts as it always did. While it runs it is
forecast (`autotune.loadgen.forecast`), and it is cut short where

- a part of the time that it may take, `PATIENCE`, is over, and two windows, the two halves of its turnovers so far,
  *each* say that it takes longer than it may, by `SDS` standard deviations, and the second was not faster than the
  first by more than `WARMING`: so neither a cold first window nor a server that is still getting faster costs a winner
  its place; or
- it has taken longer than it may already, which is certain, and was not fast enough in the later half of its time;

and where so much of it is left that stopping is worth a figure that is less sure. There is no race with requests that
failed, that arrive at times of their own, or whose tokens only the server can count. Where a workload has several load
points, the race is for the sum of their times, and what is not sent yet is taken to cost no time at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.loadgen.client.progress import Overview
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.early_stop import EarlyStop
from autotune.loadgen.forecast import Forecast, Seen, Turnovers, forecast
from autotune.trial import Metrics

RACED = ("total_token_throughput", "output_throughput", "request_throughput")
"""The objectives that a race can be for: what is planned, over the time that it takes."""

SDS = 2.5
"""On 37 simulated configurations of DeepSeek-V3.2 under nine loads both halves were never more than 1.3 too slow."""

PATIENCE = 0.25
"""Of the time that the load may take, before which windows do not count: half of it may be cold, and more."""

WARMING = 0.1
WORTH = 0.1
"""Of the whole time that the load is expected to take: less than that is not worth a less sure figure."""

LEAST_S = 10.0
"""A load that the best one does in less is not raced: it is nothing beside a start, and its ramp is most of it."""


@dataclass(frozen=True, slots=True)
class Race:
    """What a load is up against.

    Attributes:
        metric: one of `RACED`.
        below: the value that it has to reach; more is better.
        least_s: a workload that does not take so long to reach it is not raced.
    """

    metric: str
    below: float
    least_s: float = LEAST_S


@dataclass(frozen=True, slots=True)
class Shortened:
    """What is known of a workload that was cut short.

    Attributes:
        stop: of the load point in which it was.
        metrics: the throughputs of the whole workload as forecast.
        sd: standard deviation of their logarithms.
        elapsed_s: how long the loads ran.
        saved_s: how much longer they were expected to run.
    """

    stop: EarlyStop
    metrics: Metrics
    sd: float
    elapsed_s: float
    saved_s: float

    def over(self, metrics: Mapping[str, Any]) -> Metrics:
        """The metrics of what was seen, with the forecast in place of what they say of the whole."""
        seen, whole = metrics.get("request_throughput", 0.0), self.metrics["request_throughput"]
        goodput = metrics.get("request_goodput", 0.0) * (whole / seen if seen else 0.0)
        return {**metrics, **self.metrics, "request_goodput": goodput, "saved_s": self.saved_s}

    def sentence(self) -> str:
        """For people: what became of the load, and what is thought of it."""
        metric = self.stop.metric
        figure = f"{self.metrics[metric]:,.4g} ± {100 * math.expm1(self.sd):.0f} %"
        return f"{self.stop.sentence()}; {metric} {figure} is forecast, {self.saved_s:.0f} s are saved"

    def to_json(self) -> dict[str, Any]:
        return {"sd": self.sd, "elapsed_s": self.elapsed_s, "saved_s": self.saved_s, "verdict": self.stop.sentence()}


def seen_of(requests: Requests, overview: Overview, streaming: bool) -> Seen | None:
    """A load as its workers tell it; None before each has told, and once a request has failed."""
    columns = overview.columns
    sent_s, first_s, finished_s, told, ok, _, chunks = columns.T
    ended = ~np.isnan(finished_s)
    if overview.now_s == -math.inf or np.isnan(sent_s).all() or (ok[ended] != 1.0).any():
        return None
    # An event may hold several tokens, as with speculation.
    per_chunk = float(told[ended].sum() / max(chunks[ended].sum(), 1.0)) if ended.any() else 1.0
    read, wanted = requests.input_tokens.astype(np.float64), requests.output_tokens.astype(np.float64)
    written = np.where(ended, wanted, np.minimum(np.nan_to_num(chunks) * per_chunk, wanted))
    return Seen(overview.now_s, read, wanted, sent_s, first_s if streaming else sent_s, finished_s, written)


class Racing:
    """The race of one workload, load point by load point.

    Args:
        loads: the requests of all its load points.

    Attributes:
        limit_s: how long all of them may take together.
    """

    def __init__(self, race: Race, loads: Sequence[Requests]) -> None:
        self._race = race
        self._tokens = [float(load.input_tokens.sum() + load.output_tokens.sum()) for load in loads]
        self._amounts: Metrics = {
            "total_token_throughput": sum(self._tokens),
            "output_throughput": float(sum(load.output_tokens.sum() for load in loads)),
            "request_throughput": float(sum(map(len, loads))),
        }
        self.limit_s: float = self._amounts[race.metric] / race.below
        self._on = self.limit_s >= race.least_s and not any(load.send_s.any() or load.contents for load in loads)
        self._done_s: list[float] = []

    def done(self, duration_s: float) -> None:
        """A load point is over."""
        self._done_s.append(duration_s)

    def judge(self, seen: Seen) -> Shortened | None:
        """Why the load point that is under way need not go on, and no later one be sent; None while it may win."""
        if not self._on or self._on_pace(seen):
            return None
        turnovers = Turnovers(seen)
        if self._hopeless(seen, turnovers) or self._too_late(seen):
            expected = self._whole(forecast(seen))
            elapsed_s = sum(self._done_s) + seen.elapsed_s
            if expected is not None and expected.duration_s - elapsed_s >= WORTH * expected.duration_s:
                return self._cut(seen, expected, elapsed_s)
        return None

    def _on_pace(self, seen: Seen) -> bool:
        """Whether it would be in time if it went on so; cheap, and asked at every look."""
        rest = sum(self._tokens[len(self._done_s) + 1 :])
        tokens = self._tokens[len(self._done_s)]
        share = seen.tokens_since(-math.inf) / (tokens + rest)
        return bool(seen.elapsed_s <= share * (self.limit_s - sum(self._done_s)))

    def _hopeless(self, seen: Seen, turnovers: Turnovers) -> bool:
        left_s = self.limit_s - sum(self._done_s)
        if not turnovers.enough or seen.elapsed_s < PATIENCE * left_s:
            return False
        first, second = turnovers.halves()
        warming = second.duration_s < first.duration_s * (1 - WARMING)
        return not warming and first.surely_above(left_s, SDS) and second.surely_above(left_s, SDS)

    def _too_late(self, seen: Seen) -> bool:
        if sum(self._done_s) + seen.elapsed_s <= self.limit_s:
            return False
        late_s = seen.elapsed_s / 2
        return bool(seen.tokens_since(seen.now_s - late_s) / late_s < sum(self._tokens) / self.limit_s)

    def _whole(self, point: Forecast | None) -> Forecast | None:
        """All load points: those to come take between no time and as long per token as the slowest so far."""
        if point is None:
            return None
        durations_s = [*self._done_s, point.duration_s]
        paces_s = [s / tokens for s, tokens in zip(durations_s, self._tokens, strict=False)]
        least_s = sum(durations_s)
        most_s = least_s + max(paces_s) * sum(self._tokens[len(durations_s) :])
        sd = math.hypot(point.sd, math.log(most_s / least_s) / math.sqrt(12))
        return Forecast(math.sqrt(least_s * most_s), sd)

    def _cut(self, seen: Seen, expected: Forecast, elapsed_s: float) -> Shortened:
        fraction = float((~np.isnan(seen.finished_s)).mean())
        values = {name: amount / expected.duration_s for name, amount in self._amounts.items()}
        highest = min(values[self._race.metric] * math.exp(SDS * expected.sd), self._race.below)
        stop = EarlyStop(fraction, highest, self._race.below, self._race.metric, "must reach")
        return Shortened(stop, values, expected.sd, elapsed_s, expected.duration_s - elapsed_s)
