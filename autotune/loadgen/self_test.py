"""How far the client can be trusted on this machine: loads whose truth is known, at rising rates.

The paced server streams to the client that measures; what was seen is laid beside what was written, row by row, with
the figures by which the client judges its own health. From the rows at which it went wrong follow the limits beyond
which a measurement is not to be believed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from autotune.errors import BadInput
from autotune.loadgen.client import generator
from autotune.loadgen.client.generator import Limits, Schedule
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.open_files import allow_open_files
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.client.target import Target
from autotune.loadgen.client_bias import Bias, Emission, PacedServer, Seen

RATES = (1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000)
"""Tokens per second; a node of eight H200 makes some 14,000."""

MAX_TTFT_P50_MS = 6.0
MAX_TTFT_P99_MS = 10.0
MAX_ITL = 0.1
"""A load is measured truly up to these biases. The last chunks of a thousand that come in one instant wait some ms for
a single core, whoever reads them, and the shortest times to a first token that engines show are ten times that; gaps
get the share of their length by which two configurations may well differ."""

_LATE_SHARE = 1 / 4
_SPREAD_SHARE = 1 / 3
_LENGTH_SPREAD = 0.3
_PROMPT_TOKENS = 64

RunLoad: TypeAlias = Callable[[Target, Requests], tuple[RequestLog, Sequence[ClientHealth]]]
"""Sends requests to a server: what came back, in any order of requests, and how each worker fared."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a self-test goes through.

    Attributes:
        rates: tokens per second of all streams together, each with every emission.
        streams: in flight together.
        seconds: for which a stream goes on in the mean.
    """

    rates: tuple[float, ...] = RATES
    streams: int = 1000
    emissions: tuple[Emission, ...] = ("even", "lockstep")
    seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.rates or not self.emissions or min(self.rates) <= 0 or self.streams < 1 or self.seconds <= 0:
            raise BadInput("a self-test needs at least one rate above 0, one stream, and a time above 0 s")


@dataclass(frozen=True, slots=True)
class SelfTestRow:
    """One load.

    Attributes:
        asked: tokens per second asked of the server.
        bias: None when no request was seen whole.
        failed: requests that were not seen whole.
        health: the figures of the worst worker, by their names in `ClientHealth`.
        chunks_per_read: well above 1, chunks waited for the client.
        workers: how many sent the load.
    """

    emission: Emission
    asked: float
    bias: Bias | None
    failed: int
    health: Mapping[str, float]
    chunks_per_read: float = 0.0
    workers: int = 1

    @property
    def true(self) -> bool:
        """Whether the client saw the truth, within the tolerance."""
        bias = self.bias
        if bias is None or self.failed:
            return False
        return bias.ttft_p50_ms <= MAX_TTFT_P50_MS and bias.ttft_p99_ms <= MAX_TTFT_P99_MS and abs(bias.itl) <= MAX_ITL

    @property
    def kept_pace(self) -> bool:
        """Whether the server wrote what it was asked for; otherwise the row is of a lower rate."""
        return self.bias is not None and self.bias.rate >= 0.95 * self.asked

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SelfTestRow:
        """The reverse of `SelfTest.to_json`, for one row."""
        told = {name: value for name, value in document.items() if name not in ("true", "kept_pace")}
        return cls(**{**told, "bias": Bias(**told["bias"]) if told["bias"] else None})


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What came of it.

    Attributes:
        limits: of the figures of health, see `derive_limits`.
    """

    plan: Plan
    rows: tuple[SelfTestRow, ...]
    limits: Mapping[str, float]

    @property
    def untold(self) -> int:
        """Rows that are untrue and within all limits: where a measurement would be believed and be wrong."""
        return sum(not row.true and not row.failed and not beyond(row, self.limits) for row in self.rows)

    @property
    def highest_true(self) -> dict[Emission, float]:
        """By emission, the tokens per second up to which every row was true; 0 when the first was not."""
        found: dict[Emission, float] = {}
        for emission in self.plan.emissions:
            rows = sorted((row for row in self.rows if row.emission == emission), key=lambda row: row.asked)
            false = next((i for i, row in enumerate(rows) if not row.true), len(rows))
            found[emission] = max((row.bias.rate for row in rows[:false] if row.bias is not None), default=0.0)
        return found

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(row), "true": row.true, "kept_pace": row.kept_pace} for row in self.rows]
        found: dict[str, Any] = json.loads(json.dumps({"plan": asdict(self.plan), "rows": rows, "limits": self.limits}))
        return {**found, "highest_true": self.highest_true, "untold": self.untold}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SelfTest:
        """The reverse of `to_json`."""
        plan = document["plan"]
        rows = tuple(SelfTestRow.from_json(row) for row in document["rows"])
        return cls(
            Plan(tuple(plan["rates"]), plan["streams"], tuple(plan["emissions"]), plan["seconds"]),
            rows,
            document["limits"],
        )

    def table(self) -> list[str]:
        """Text lines: a heading, a line per row, and what follows from them."""
        best = ", ".join(f"{rate:,.0f} tokens/s {emission}" for emission, rate in self.highest_true.items())
        limits = ", ".join(f"{name} {value:g}" for name, value in self.limits.items())
        untold = f"{self.untold} of {len(self.rows)} loads went wrong unseen by them"
        return [heading(), *map(line, self.rows), f"true up to {best}", f"limits: {limits}; {untold}"]


_FORM = "{:<9} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8} {:>6} {:>5} {:>6} {:>8} {:>10} {:>7} {:>6}  {}"


def heading() -> str:
    """Above `line`."""
    words = ("emission", "asked/s", "got/s", "TTFT +p50", "TTFT +p99", "ITL p99", "true", "failed", "core", "delay")
    return _FORM.format(*words, "lag p99", "send delay", "ch/read", "worker", "verdict")


def line(row: SelfTestRow) -> str:
    """One row as text: biases and times in ms."""
    bias, health = row.bias, row.health
    found = ["-"] * 5
    if bias is not None:
        found = [f"{bias.rate:,.0f}", f"{bias.ttft_p50_ms:.2f}", f"{bias.ttft_p99_ms:.1f}"]
        found += [f"{bias.itl_p99_ms:.1f}", f"{bias.true_itl_p99_ms:.1f}"]
    shares = [f"{health[name]:.0%}" if name in health else "-" for name in ("cpu_share", "run_delay_share")]
    late = [f"{health.get(name, 0.0):.1f}" for name in ("loop_lag_p99_ms", "send_delay_p99_ms")]
    verdict = ("true" if row.true else "beyond tolerance") + ("" if row.kept_pace else ", the server fell behind")
    told = [row.failed, *shares, *late, f"{row.chunks_per_read:.2f}", row.workers]
    return _FORM.format(row.emission, f"{row.asked:,.0f}", *found, *told, verdict)


def self_test(
    defaults: Mapping[str, float],
    plan: Plan | None = None,
    run_load: RunLoad | None = None,
    on_row: Callable[[SelfTestRow], None] | None = None,
) -> SelfTest:
    """Send known loads, the slowest first.

    Args:
        defaults: the limits in force, by the names of the figures in `ClientHealth`; see `derive_limits`.
        run_load: what sends; None = one worker, in this process.
        on_row: called after each load.

    Raises:
        BadInput: too few open files are allowed.
    """
    plan = plan or Plan()
    allow_open_files(plan.streams)  # the server's too, which inherits it
    rows: list[SelfTestRow] = []
    for rate in sorted(plan.rates):
        for emission in plan.emissions:
            rows.append(_row(plan, rate, emission, run_load or in_this_process, list(defaults)))
            if on_row is not None:
                on_row(rows[-1])
    return SelfTest(plan, tuple(rows), derive_limits(rows, defaults))


def _row(plan: Plan, rate: float, emission: Emission, run_load: RunLoad, figures: Sequence[str]) -> SelfTestRow:
    requests = _requests(plan, rate)
    with PacedServer(rate, plan.streams, emission) as server:
        log, workers = run_load(server.target, requests)
        seen, truth = Seen.of(log), server.truth()
    bias = Bias.between(seen, truth)
    reads, chunks = sum(worker.reads for worker in workers), sum(worker.chunks for worker in workers)
    return SelfTestRow(
        emission=emission,
        asked=rate,
        bias=bias,
        failed=len(requests.send_s) - (bias.requests if bias else 0),
        health={name: max(float(getattr(worker, name)) for worker in workers) for name in figures},
        chunks_per_read=chunks / max(reads, 1),
        workers=len(workers),
    )


def _requests(plan: Plan, rate: float) -> Requests:
    """Most of them at once, as in a burst; the last ones by and by while the others stream: they have a planned time,
    and tell what a request sees that comes in the middle of a load. Lengths differ, so that ends are spread too."""
    count = plan.streams
    late = int(count * _LATE_SHARE)
    send_s = np.zeros(count)
    send_s[count - late :] = np.linspace(0, plan.seconds * _SPREAD_SHARE, late + 1)[1:]
    lengths = plan.seconds * rate / count * np.linspace(1 - _LENGTH_SPREAD, 1 + _LENGTH_SPREAD, count)
    return Requests(
        input_tokens=np.full(count, _PROMPT_TOKENS),
        output_tokens=np.maximum(np.random.default_rng(0).permutation(lengths.round().astype(int)), 2),
        send_s=send_s,
        group=np.full(count, -1),
        prefix_tokens=0,
        concurrency=count,
    )


def in_this_process(target: Target, requests: Requests) -> tuple[RequestLog, Sequence[ClientHealth]]:
    """One worker, here; the prompts are all the same, as the paced server does not read them."""
    bodies = [
        json.dumps({"model": "m", "prompt": [1] * int(read), "max_tokens": int(written), "stream": True}).encode()
        for read, written in zip(requests.input_tokens, requests.output_tokens, strict=True)
    ]
    sent = [target.request("/v1/completions", body) for body in bodies]
    schedule = Schedule(sent, requests.send_s, requests.output_tokens, requests.concurrency)
    log, health = generator.run(target, schedule, Limits())
    return log, [health]


def derive_limits(rows: Sequence[SelfTestRow], defaults: Mapping[str, float]) -> dict[str, float]:
    """Limits of the figures of health, none above its default, that tell untrue rows from true ones.

    A limit falls to just below the figure of an untrue row where that tells more untrue rows, of those that no limit
    tells yet, than true ones; the best such step first, until there is none. So a figure that no untrue row points at
    keeps its default, and a row that went wrong by a cause that no figure shows moves nothing. Rows with failed
    requests or with nothing seen are left out: their failures are told anyway.

    Args:
        defaults: by the names of the figures; each above 0.
    """
    limits = dict(defaults)
    judged = [row for row in rows if row.bias is not None and not row.failed]
    while True:
        steps = [
            (_told(judged, {**limits, name: limit}), limit / defaults[name], name, limit)
            for row in judged
            for name in limits
            if not row.true and 0 < row.health[name] <= limits[name]
            for limit in (float(np.nextafter(row.health[name], 0)),)
        ]
        best = max(steps, default=None)
        if best is None or best[0] <= _told(judged, limits):
            return limits
        limits[best[2]] = best[3]


def _told(rows: Sequence[SelfTestRow], limits: Mapping[str, float]) -> int:
    """How many untrue rows are beyond a limit, less how many true ones are."""
    return sum((-1 if row.true else 1) for row in rows if beyond(row, limits))


def beyond(row: SelfTestRow, limits: Mapping[str, float]) -> bool:
    """Whether any figure of health is beyond its limit: what a measurement would be distrusted for."""
    return any(row.health[name] > limit for name, limit in limits.items())
