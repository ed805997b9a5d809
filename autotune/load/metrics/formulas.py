"""Formulas of the client's metrics, and limits on metrics (SLOs).

Names and definitions are those of ``vllm bench serve --save-result``
(https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py, `calculate_metrics`), but
that the clock of a chat stops at its first text (vLLM's up to 0.32 at the chunk that opens the
answer), and that ``max_output_tokens_per_s`` counts tokens (vLLM's chunks). Token throughput is
tokens per second of the whole run, ramp and drain included; TPOT of a request leaves its first
token out; percentiles are interpolated linearly. Ours are ``steady_total_token_throughput``, see
`steady`, and the derived ones of `autotune.load.metrics.table`. Latencies are in ms, throughputs in
1/s.

The steady state of a load is what a server does once its batch is full and before it runs empty.
The rule is *whole turnovers*. Let S be the most answers that were being written at once: from a
request's first token to its last, or from sending on where answers are not streamed. With the first
tokens in order, the window goes from the S-th to the S-th after it k times over, k as large as
there are requests. At its begin the batch has been filled once, at its end it is still full, and in
between each place in it has changed hands k times. That k is whole matters as much as cutting ramp
and drain: requests of one length that begin together end together, prompts and answers come in
waves, and a window of 2 1/2 waves gives too much weight to one of the two. The rule needs to know
neither the kind of load nor the limits of the server.

``docs/measuring.md`` has its measured error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Literal

import numpy as np

from autotune.base import BadInput, FloatDict, FloatMap, frozen
from autotune.base.arrays import Bools, Floats
from autotune.engines import Entry

from . import readable
from .records import RequestRecords, latencies, statistics, token_series, tpot_ms
from .table import METRICS, VIOLATIONS, Metrics, check_metric, metric_meant

SHORT_S = 20.0
"""Shortest load in seconds that is not dominated by ramp-up (prefill) and drain (a shrinking
batch)."""
TURNOVERS = 2
"""The fewest that are called a steady state: the load needs three requests per place in the batch,
one to fill it and two to measure. With one turnover chat lengths were 14 to 19 % off, with two 8 to
12 %, with four 5 %; five requests per stream, as SGLang's benchmark guide advises, give four."""

WHOLE_TURNOVERS = "whole turnovers"
DRAIN_CUT = "drain cut"


@frozen
class SteadyState:
    """Steady state of one run.

    Attributes:
        begin_s: of the window, on the records' clock; it does not belong to the window itself.
        end_s: of the window; it belongs to it.
        rule: ``whole turnovers``; ``drain cut`` where there is no steady state: from the first
            request sent to the last moment with half as many answers under way as at the peak;
            empty where nothing succeeded.
        metrics: empty where there is no steady state. Else ``duration`` in s, ``completed``:
            requests that ended in the window, ``request_throughput`` of these,
            ``output_throughput`` and ``total_token_throughput`` per s, ``share``: of all tokens,
            and the statistics of TTFT, TPOT and E2EL in ms *of the requests whose first token came
            in the window*, wherever they were sent or ended: they are chosen regardless of their
            lengths.
        drift: how much faster the second half of the window was than the first, as a share of their
            mean. Positive: the server was still warming up; negative: it slowed down. None where
            there is no steady state, or no token in it. The halves are whole turnovers, so that
            they are alike; of an odd number the second has one more. On a server that stays the
            same it is below 0.01 with equal lengths. Lengths as in chats differ from half to half
            by themselves: 0.37 on average with 16 requests in the window, 0.17 with 72, 0.05 with
            256, 0.02 with 1200.
        reason: why there is no steady state; empty where there is one.
    """

    begin_s: float
    end_s: float
    rule: str
    metrics: Metrics = field(default_factory=dict)
    drift: float | None = None
    reason: str = ""


def steady(records: RequestRecords) -> SteadyState:
    """Return the steady state of one load, whose records share a clock; failed requests are
    ignored."""
    done = records.successful()
    if not len(done):
        return SteadyState(0.0, 0.0, "", reason="no request succeeded")
    marks_s, streams = _window(done)
    begin_s = marks_s[0]
    end_s = marks_s[-1]
    if len(marks_s) <= TURNOVERS:
        reason = (
            f"{len(done)} requests, {streams} of them at once, are too few for a steady state: "
            f"it needs {(TURNOVERS + 1) * streams} or more"
        )
        return SteadyState(begin_s, end_s, DRAIN_CUT, reason=reason)
    middle_s = marks_s[(len(marks_s) - 1) // 2]
    first = _rate(done, begin_s, middle_s)
    second = _rate(done, middle_s, end_s)
    drift = 2 * (second - first) / (first + second) if first + second > 0 else None
    return SteadyState(begin_s, end_s, WHOLE_TURNOVERS, _metrics(done, begin_s, end_s), drift)


def steady_total_token_throughput(*runs: RequestRecords) -> float:
    """Return tokens per second of the steady windows of loads, with those of ``drain cut``; 0
    without a success."""
    parts = [steady_part(run) for run in runs]
    duration_s = sum(end_s - begin_s for begin_s, end_s, *_ in parts)
    tokens = sum(read + written for *_, read, written in parts)
    return tokens / duration_s if duration_s > 0 else 0.0


def steady_part(records: RequestRecords) -> tuple[float, float, float, float]:
    """Return start, end, input and output tokens of the window named by `steady`; zeros without a
    success."""
    done = records.successful()
    if not len(done):
        return 0.0, 0.0, 0.0, 0.0
    marks_s, _ = _window(done)
    begin_s = marks_s[0]
    end_s = marks_s[-1]
    return begin_s, end_s, *_tokens(done, begin_s, end_s)


def _window(done: RequestRecords) -> tuple[list[float], int]:
    """Return start and end of each turnover of the steady window, and the most answers in flight.

    Where there are fewer than `TURNOVERS`, begin and end of the window of ``drain cut``.
    """
    begun_s = _begun_s(done)
    moments_s = np.concatenate([begun_s, done.finished_s])
    change = np.repeat([1.0, -1.0], len(done))
    # A closed loop sends at the moment when an answer ends; a first token at the moment of another
    # answer's last one was made in the same step.
    order = np.lexsort((-change if begun_s is done.first_token_s else change, moments_s))
    moments_s = moments_s[order]
    streams = np.cumsum(change[order])
    most = max(int(streams.max()), 1)
    marks_s: list[float] = np.sort(begun_s)[most - 1 :: most].tolist()
    if len(marks_s) > TURNOVERS and marks_s[-1] > marks_s[0]:
        return marks_s, most
    busy = np.flatnonzero(streams >= most / 2)
    end_s = moments_s[min(busy[-1] + 1, len(moments_s) - 1)] if len(busy) else moments_s[-1]
    return [float(done.sent_s.min()), float(end_s)], most


def _begun_s(done: RequestRecords) -> Floats:
    """Return when each answer started, as far as a client can see: an unstreamed answer does not
    show it."""
    return done.first_token_s if (done.first_token_s < done.finished_s).any() else done.sent_s


def _tokens(done: RequestRecords, begin_s: float, end_s: float) -> tuple[float, float]:
    """Return input and output tokens of a window: prompts count at the first token, output tokens
    at their own time."""
    times_s, counts = token_series(done)
    written = counts[_within(times_s, begin_s, end_s)].sum()
    read = done.input_tokens[_within(done.first_token_s, begin_s, end_s)].sum()
    return float(read), float(written)


def _rate(done: RequestRecords, begin_s: float, end_s: float) -> float:
    return sum(_tokens(done, begin_s, end_s)) / (end_s - begin_s) if end_s > begin_s else 0.0


def _within(times_s: Floats, begin_s: float, end_s: float) -> Bools:
    return (times_s > begin_s) & (times_s <= end_s)


def _metrics(done: RequestRecords, begin_s: float, end_s: float) -> Metrics:
    duration_s = end_s - begin_s
    read, written = _tokens(done, begin_s, end_s)
    completed = int(_within(done.finished_s, begin_s, end_s).sum())
    all_tokens = float(done.input_tokens.sum() + done.output_tokens.sum())
    metrics: Metrics = {
        "duration": duration_s,
        "completed": completed,
        "request_throughput": completed / duration_s,
        "output_throughput": written / duration_s,
        "total_token_throughput": (read + written) / duration_s,
        "share": (read + written) / all_tokens if all_tokens else 0.0,
    }
    begun = replace(done, ok=_within(_begun_s(done), begin_s, end_s)).successful()
    for name, values in latencies(begun).items():
        if name != "itl":  # gaps are not kept by request or moment
            metrics.update(statistics(name, values))
    return metrics


_SLO = re.compile(r"\s*(?P<metric>[A-Za-z][\w-]*)\s*(?P<sense><=|>=|<|>)\s*(?P<limit>[^\s<>=]+)\s*")


class Slo(Entry):
    """A limit on a metric of the objective's workload, e.g. ``p99_ttft_ms<=2000``."""

    metric: str
    sense: Literal["<=", ">="]
    limit: float

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read ``metric<=limit`` or ``metric>=limit``; raises `BadInput` on anything else."""
        match = _SLO.fullmatch(text)
        try:
            limit = float(match["limit"]) if match else None
        except ValueError:
            limit = None
        if match is None or limit is None:
            raise BadInput(
                f"malformed SLO {text!r}: write metric<=limit or metric>=limit, e.g. 'p99_ttft_ms<=2000'"
            )
        if not math.isfinite(limit):
            raise BadInput(f"SLO {text!r}: the limit must be a finite number")
        sense: Literal["<=", ">="] = "<=" if match["sense"].startswith("<") else ">="
        return cls(metric=metric_meant(match["metric"]), sense=sense, limit=limit)

    def violation(self, value: float) -> float:
        """Return the excess of a value over the limit, in the metric's unit; <= 0 meets the SLO."""
        return value - self.limit if self.sense == "<=" else self.limit - value

    def excess(self, value: float) -> float:
        """Return `violation` as a share of the limit, for all units: 0.1 is 10 % beyond it;
        undivided for 0."""
        return self.violation(value) / (abs(self.limit) or 1.0)

    def __str__(self) -> str:
        return f"{self.metric}{self.sense}{self.limit:g}"

    @property
    def description(self) -> str:
        """Return the limit for people: as they type it, or in words if autotune added it."""
        if self.metric == VIOLATIONS:
            return f"{100 - self.limit:g} % of the requests within --goodput"
        return str(self)

    def broken_by(self, value: float) -> str:
        """Describe a value beyond the limit: by how much, or the share of the requests that met
        theirs."""
        if self.metric == VIOLATIONS:
            return f"{100 - value:.3g} % of the requests met the limits; {100 - self.limit:g} % were wanted"
        return f"{self} by {readable.beyond(self.excess(value))} ({readable.number(value)})"


def _good(done: RequestRecords, slos: Sequence[Slo]) -> int:
    """Return the requests within every SLO: a limit on a statistic of a latency applies to each
    request."""
    per_request = {**latencies(done), "tpot": tpot_ms(done)}
    good = np.ones(len(done), dtype=bool)
    for slo in slos:
        for latency in PER_REQUEST:
            if slo.metric.endswith(f"{latency}_ms"):
                excess = [slo.violation(value) for value in per_request[latency].tolist()]
                good &= np.array(excess) <= 0
    return int(good.sum())


def _peaks(done: RequestRecords) -> tuple[float, int]:
    """Return most output tokens and most requests in flight within a whole second since the first
    request, as vLLM."""
    start = done.sent_s.min()
    times, counts = token_series(done)
    tokens = np.bincount((times - start).astype(np.int64), weights=counts)
    begun, ended = (
        (times_s - start).astype(np.int64) for times_s in (done.sent_s, done.finished_s)
    )
    seconds = int(max(begun.max(), ended.max())) + 2
    in_flight = np.cumsum(
        np.bincount(begun, minlength=seconds) - np.bincount(ended + 1, minlength=seconds)
    )
    return float(tokens.max()), int(in_flight.max())


def summarize_loads(runs: Sequence[RequestRecords], slos: Sequence[Slo] = ()) -> Metrics:
    """Return all metrics of several loads, such as the points of a sweep, as one run without
    pauses."""
    metrics = summarize(RequestRecords.one_after_another(runs), slos)
    metrics["steady_total_token_throughput"] = steady_total_token_throughput(*runs)
    # Peaks are those of one load: the end of one and the begin of the next are no peak.
    for peak, name in enumerate(("max_output_tokens_per_s", "max_concurrent_requests")):
        metrics[name] = max(
            (_peaks(done)[peak] for run in runs if len(done := run.successful())), default=0
        )
    return metrics


def summarize(records: RequestRecords, slos: Sequence[Slo] = ()) -> Metrics:
    """Return all metrics of a run under vLLM's names.

    Args:
        records: one run on one clock.
        slos: limits for ``request_goodput``; those on ttft, tpot and e2el are applied to each
            request: of any statistic (``p99_ttft_ms``) or of none (``ttft_ms``).

    The duration is from the first request sent to the last one finished, failed ones included.
    A run without a successful request has every figure 0.
    """
    done = records.successful()
    duration = records.duration_s
    rate = 1.0 / duration if duration > 0 else 0.0
    read = float(done.input_tokens.sum())
    written = float(done.output_tokens.sum())
    peak_tokens, peak_requests = _peaks(done) if len(done) else (0.0, 0)
    summary: Metrics = {
        "duration": duration,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": int(read),
        "total_output_tokens": int(written),
        "request_throughput": len(done) * rate,
        "request_goodput": _good(done, slos) * rate,
        "output_throughput": written * rate,
        "total_token_throughput": (read + written) * rate,
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        "steady_total_token_throughput": steady_total_token_throughput(records),
    }
    for name, values in latencies(done).items():
        summary.update(statistics(name, values))
    return summary


PER_REQUEST = ("ttft", "tpot", "e2el")
"""Latencies with one value per request."""

MOST_VIOLATIONS = Slo(metric=VIOLATIONS, sense="<=", limit=55)
"""A study of goodput ends where this limit is out of reach (`autotune.tuner.search.reach`): at most 17 %
of the requests were good in each launch, and at most 28 % are foreseen to be of any configuration.
A gain then says little.

So V3.2's burst ends with 2 s and 100 ms a request (27 % foreseen, 11 % measured), and a burst of
256 that comes from 21 to 34 % goes on. The limit is on what is not good, as that is foreseen
better: 99.0 for 99.4 %, not 1.0 for 0.6 %."""

_FORM = "write latency:ms, …, e.g. 'ttft:2000 tpot:50'; the latencies are ttft, tpot and e2el, the limits milliseconds"


def parse_goodput(texts: Sequence[str]) -> FloatDict:
    """Parse latency to its limit in ms, from one text or several; raises `BadInput` on anything
    else."""
    limits: FloatDict = {}
    for word in (word for text in texts for word in text.split() or [text]):
        name, colon, number = word.partition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not colon or name not in PER_REQUEST or math.isnan(limit):
            raise BadInput(f"--goodput {word!r}: {_FORM}")
        if not (limit > 0 and math.isfinite(limit)):
            raise BadInput(f"--goodput {word!r}: the limit must be a number above 0")
        if limits.get(name, limit) != limit:
            raise BadInput(
                f"--goodput: {name} has two limits, {limits[name]:g} and {limit:g} ms; give it one"
            )
        limits[name] = limit
    return limits


def goodput_limits(limits: FloatMap) -> tuple[Slo, ...]:
    """Return limits in the form for `autotune.load.metrics.formulas.summarize`."""
    return tuple(
        Slo(metric=f"{name}_ms", sense="<=", limit=limit) for name, limit in limits.items()
    )


_LEAST_MS = 0.05
"""Shortest limit in ms that can be meant: no server answers so fast, and seconds look like it."""


def slos_of(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Parse the SLOs, each once; raises `BadInput` for an impossible limit or one in the wrong
    direction.

    And for two limits on one metric.
    """
    slos = tuple(dict.fromkeys(Slo.parse(text) for text in texts))
    of_metric: dict[str, Slo] = {}
    for slo in slos:
        other = of_metric.setdefault(slo.metric, slo)
        check_metric(slo.metric, "SLO metric")
        right = ">=" if METRICS[slo.metric].maximise else "<="
        if slo.sense != right:
            better = "more" if right == ">=" else "less"
            raise BadInput(
                f"--slo '{slo}': of {slo.metric} {better} is better; write '{slo.metric}{right}{slo.limit:g}'"
            )
        if right == "<=" and slo.limit < 0:
            raise BadInput(
                f"--slo '{slo}': no metric is ever below 0; the limit must be a number of at least 0"
            )
        if other is not slo:
            stricter = other if other.violation(slo.limit) > 0 else slo
            raise BadInput(
                f"--slo '{other}' and '{slo}': one limit for each metric; the stricter is '{stricter}'"
            )
        if slo.metric.endswith("_ms") and 0 < slo.limit < _LEAST_MS:
            seconds = f"{slo.metric}{right}{1000 * slo.limit:g}"
            raise BadInput(
                f"--slo '{slo}': limits are in milliseconds; {slo.limit:g} seconds are '{seconds}'"
            )
    return slos
