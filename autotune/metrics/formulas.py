"""Formulas of the metrics that a client counts, and limits on metrics (SLOs).

Names and definitions are those of ``vllm bench serve --save-result``
(https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py, `calculate_metrics`):
token throughput is tokens per second of the whole run, ramp and drain included; TPOT of a request
leaves its first token out; percentiles are interpolated linearly. Ours are ``steady_total_token_throughput``, see
`autotune.metrics.steady`, and the derived ones of `autotune.metrics.table`. Latencies are in ms, throughputs in 1/s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from autotune.errors import BadInput
from autotune.metrics.records import RequestRecords, latencies, statistics, token_series, tpot_ms
from autotune.metrics.steady import steady_total_token_throughput
from autotune.metrics.table import VIOLATIONS, metric_meant
from autotune.trial import Metrics

_SLO = re.compile(r"\s*(?P<metric>[A-Za-z][\w-]*)\s*(?P<sense><=|>=|<|>)\s*(?P<limit>[^\s<>=]+)\s*")


class Slo(BaseModel):
    """A limit on a metric of the objective's workload, e.g. ``p99_ttft_ms<=2000``."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

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
            raise BadInput(f"malformed SLO {text!r}: write metric<=limit or metric>=limit, e.g. 'p99_ttft_ms<=2000'")
        if not math.isfinite(limit):
            raise BadInput(f"SLO {text!r}: the limit must be a finite number")
        sense: Literal["<=", ">="] = "<=" if match["sense"].startswith("<") else ">="
        return cls(metric=metric_meant(match["metric"]), sense=sense, limit=limit)

    def violation(self, value: float) -> float:
        """Return by how much a value is beyond the limit, in the metric's unit; <= 0 keeps the SLO."""
        return value - self.limit if self.sense == "<=" else self.limit - value

    def excess(self, value: float) -> float:
        """`violation` as a share of the limit, so that limits in several units can be compared; of a limit 0 as it is.

        0.1: 10 % beyond it.
        """
        return self.violation(value) / (abs(self.limit) or 1.0)

    def __str__(self) -> str:
        return f"{self.metric}{self.sense}{self.limit:g}"


def without_capacity(metrics: Mapping[str, object]) -> bool:
    """Return whether the metrics are those of a load search whose lightest load broke an SLO: their capacity is 0."""
    return 0 in (metrics.get("capacity_concurrency"), metrics.get("capacity_request_rate"))


def _good(done: RequestRecords, slos: Sequence[Slo]) -> int:
    """Requests within every SLO: a limit on any statistic of a latency holds each request to that limit."""
    per_request = {**latencies(done), "tpot": tpot_ms(done)}
    good = np.ones(len(done), dtype=bool)
    for slo in slos:
        *_, latency, unit = ("", *slo.metric.split("_"))
        values = per_request.get(latency) if unit == "ms" and latency != "itl" else None
        if values is not None:
            good &= np.array([slo.violation(float(v)) <= 0 for v in values], dtype=bool)
    return int(good.sum())


def _peaks(done: RequestRecords) -> tuple[float, int]:
    """Most output tokens and most requests in flight within a whole second since the first was sent, as vLLM counts."""
    start = done.sent_s.min()
    times, counts = token_series(done)
    tokens = np.bincount((times - start).astype(np.int64), weights=counts)
    begun = np.bincount((done.sent_s - start).astype(np.int64), minlength=2)
    ended = np.bincount((done.finished_s - start).astype(np.int64) + 1, minlength=2)
    size = max(len(begun), len(ended))
    in_flight = np.cumsum(np.pad(begun, (0, size - len(begun))) - np.pad(ended, (0, size - len(ended))))
    return float(tokens.max()), int(in_flight.max())


def summarize_loads(runs: Sequence[RequestRecords], slos: Sequence[Slo] = ()) -> Metrics:
    """All metrics of several loads, such as the points of a sweep, as one run without pauses."""
    metrics = summarize(RequestRecords.one_after_another(runs), slos)
    metrics["steady_total_token_throughput"] = steady_total_token_throughput(*runs)
    for peak, name in enumerate(("max_output_tokens_per_s", "max_concurrent_requests")):
        # Of one load at a time: the end of one and the begin of the next are no peak.
        metrics[name] = max((_peaks(done)[peak] for run in runs if len(done := run.successful())), default=0)
    return metrics


def summarize(records: RequestRecords, slos: Sequence[Slo] = ()) -> Metrics:
    """All metrics of a run under vLLM's names.

    Args:
        records: one run on one clock.
        slos: limits for ``request_goodput``; those on ttft, tpot and e2el are applied to each request: of any
            statistic (``p99_ttft_ms``) or of none (``ttft_ms``).

    The duration is from the first request sent to the last one finished, failed ones included.
    A run without a successful request has every figure 0.
    """
    done = records.successful()
    duration = float(records.finished_s.max() - records.sent_s.min()) if len(records) else 0.0
    rate = 1.0 / duration if duration > 0 else 0.0
    read, written = float(done.input_tokens.sum()), float(done.output_tokens.sum())
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


LATENCIES = ("ttft", "tpot", "e2el")
"""Latencies that a request has one of."""

MOST_VIOLATIONS = Slo(metric=VIOLATIONS, sense="<=", limit=55)
"""A study of goodput ends where this limit is out of reach (`autotune.search.reach`): at most 17 % of the requests were
good in each launch, and at most 28 % are foreseen to be of any configuration. A gain then says little.

So V3.2's burst ends with 2 s and 100 ms a request (27 % foreseen, 11 % measured), and a burst of 256 that comes from 21
to 34 % goes on. The limit is on what is not good, as that is foreseen better: 99.0 for 99.4 %, not 1.0 for 0.6 %."""

_FORM = "write latency:ms, …, e.g. 'ttft:2000 tpot:50'; the latencies are ttft, tpot and e2el, the limits milliseconds"


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Latency to its limit in ms, from one text or several; raises `BadInput` on anything else."""
    limits: dict[str, float] = {}
    for word in (word for text in texts for word in text.split() or [text]):
        name, colon, number = word.partition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not colon or name not in LATENCIES or math.isnan(limit):
            raise BadInput(f"--goodput {word!r}: {_FORM}")
        if not (limit > 0 and math.isfinite(limit)):
            raise BadInput(f"--goodput {word!r}: the limit must be a number above 0")
        if limits.get(name, limit) != limit:
            raise BadInput(f"--goodput: {name} has two limits, {limits[name]:g} and {limit:g} ms; give it one")
        limits[name] = limit
    return limits


def goodput_limits(limits: Mapping[str, float]) -> tuple[Slo, ...]:
    """Limits as `autotune.metrics.formulas.summarize` takes them."""
    return tuple(Slo(metric=f"{name}_ms", sense="<=", limit=limit) for name, limit in limits.items())
