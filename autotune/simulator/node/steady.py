"""A fast prediction of the calibrated simulator for every candidate: the search's prior where trials are measured.

The memory plan, the step times and the fitted figures are the simulator's own; what it follows request by request is
taken as a fluid here (`autotune.simulator.node.fluid`). Candidates that differ in nothing that this arithmetic reads
are computed once: it is noted which knobs were read, so no list of them has to be kept by hand.

Where draws of the figures are given, one computation predicts with the figures as they are and with each draw: they are
arrays then, the figures as they are first.

The share of a load's requests that keeps limits comes from the fluid as well. The first batch waits for its prompts,
evenly up to the end of the ramp; who is admitted later waits evenly up to the end of the full stage. Of each a twelfth
is looked at, with answers of each length of `LoadSummary.lengths`.

What a server carries within limits on its latencies comes from the fluid at a few closed loops. A quantile is taken as
a multiple of the mean. Where the worst of the limits is reached lies between two loads, on straight lines through
logarithms. An open loop is carried as the closed one that holds as many in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from autotune.arrays import Floats
from autotune.loadgen.workloads import Workload
from autotune.metrics.formulas import Slo
from autotune.metrics.records import QUANTILES
from autotune.metrics.table import GOODPUT, HEADLINE
from autotune.simulator.node import beyond_step, too_long
from autotune.simulator.node.calibration import (
    Calibration,
    Factor,
    coefficients_of,
    packaged_calibration,
)
from autotune.simulator.node.coefficients import Coefficients, speed_card
from autotune.simulator.node.fluid import SHARES, Flow, LoadSummary, flow_of, sequences_held
from autotune.simulator.node.memory import plan_memory, startup_s
from autotune.simulator.node.server import RecordedKnobs, ServerSetup, SimulatedServer
from autotune.simulator.node.steptime import Seconds
from autotune.space.cards import HardwareCard, ModelCard
from autotune.trial import Scalar

IN_FLIGHT = (8, 32, 128, 512)
"""The loads at which the fluid is looked at."""
_UPPER_TTFT, _UPPER_TPOT = 2.0, 1.4
"""A 90th percentile or higher over the mean, of chats on the simulated node below saturation; a third more or less."""
_SPREAD = {"ttft": 0.2, "tpot": 0.15, "e2el": 0.1}
"""Standard deviation of ln(latency of a request / what the fluid says of it), so that no request is good or bad for
sure: that of the means (``benchmarks/priors.py``), as requests of one kind fare much alike."""
Value = TypeVar("Value")
LEAST_ODDS, BEST_ODDS = 0.02, 0.98
"""Of starting: the memory plan is not surer than that."""


def carried(loads: Sequence[LoadSummary], flows: Sequence[Flow], slos: Sequence[Slo]) -> tuple[Floats, Floats]:
    """Tokens per second and requests in flight at the capacity, logarithms; of draws arrays of shape (draws,).

    Args:
        loads: closed loops, ascending, of the same prompts.
        slos: limits on anything else than a latency of requests hold nothing back.

    A server that breaks a limit at the lightest load has less than that load's throughput, by as much as it is beyond.
    """
    beyond, speeds = [], []
    for load, flow in zip(loads, flows, strict=True):
        wait_s, token_s = np.asarray(flow.mean_wait_s), np.asarray(flow.mean_token_s)
        limits = [_beyond(slo, load, wait_s, token_s) for slo in slos]
        beyond.append(np.max([one for one in limits if one is not None], axis=0))
        # Little's law.
        speeds.append(np.log(load.in_flight * (load.read + load.written) / (wait_s + flow.answer_s)))
    places = np.log([load.in_flight for load in loads])
    speed, place = np.asarray(speeds[-1]), np.asarray(speeds[-1]) * 0 + places[-1]
    for i in range(len(loads) - 2, -1, -1):
        rise = np.maximum(beyond[i + 1] - beyond[i], 1e-9)
        share = np.clip(-beyond[i] / rise, 0.0, 1.0)
        crossed = beyond[i + 1] > 0
        speed = np.where(crossed, speeds[i] + share * (speeds[i + 1] - speeds[i]), speed)
        place = np.where(crossed, places[i] + share * (places[i + 1] - places[i]), place)
    short = np.maximum(beyond[0], 0.0)
    return np.asarray(speed - short), np.asarray(place - short)


def _beyond(slo: Slo, load: LoadSummary, wait_s: Seconds, token_s: Seconds) -> Floats | None:
    """ln(latency / limit); None of what is not foreseen."""
    statistic, _, rest = slo.metric.partition("_")
    if statistic not in (*QUANTILES, "mean") or slo.sense != "<=" or slo.limit <= 0:
        return None
    upper = QUANTILES.get(statistic, 0.5) > 0.5
    first_s, each_s = (_UPPER_TTFT * wait_s, _UPPER_TPOT * token_s) if upper else (wait_s, token_s)
    length = float(np.quantile(load.lengths, QUANTILES[statistic])) if upper else load.written
    values = {"ttft_ms": first_s, "tpot_ms": each_s, "itl_ms": each_s, "e2el_ms": first_s + length * each_s}
    return np.asarray(np.log(1e3 * values[rest] / slo.limit)) if rest in values else None


def good_share(load: LoadSummary, flow: Flow, limits: Sequence[Slo]) -> float | None:
    """Share of the requests that keep every limit, at least half of one; None where waits decide that are not foreseen.

    Limits on anything else than TTFT, TPOT and E2EL hold nothing back, see `autotune.metrics.formulas.summarize`.
    """
    asked = [(slo, latency) for slo in limits if (latency := _latency(slo)) is not None]
    if flow.wait_s is not None and any(latency != "tpot" for _, latency in asked):
        return None
    from scipy.special import ndtr  # Half a second to load.

    share = 0.0
    begins_s, ends_s = (0.0, float(flow.ramp_s)), (float(flow.ramp_s), float(flow.ramp_s + flow.full_s))
    for part, (begin_s, end_s), token_s in zip(
        (flow.first, 1 - flow.first), (begins_s, ends_s), flow.per_token_s, strict=True
    ):
        latencies = _latencies(load, begin_s + SHARES * (end_s - begin_s), token_s)
        good = np.ones((len(SHARES), len(SHARES)))
        for slo, latency in asked:
            beyond = np.log(np.maximum(latencies[latency], 1e-9) * 1e3 / max(slo.limit, 1e-9)) / _SPREAD[latency]
            good = np.minimum(good, ndtr(-beyond if slo.sense == "<=" else beyond))
        share += part * float(good.mean())
    return max(share, 0.5 / load.requests)


def _latencies(load: LoadSummary, wait_s: Floats, token_s: Floats) -> dict[str, Floats]:
    """Seconds by latency, shape (waits, lengths)."""
    first_s, each_s = np.broadcast_arrays(wait_s[:, None], token_s)
    return {"ttft": first_s, "tpot": each_s, "e2el": first_s + np.maximum(load.lengths - 1, 0) * each_s}


def _latency(slo: Slo) -> str | None:
    """Latency of single requests that an SLO bounds; None for one of throughput or of another quantity."""
    *_, latency, unit = ("", *slo.metric.split("_"))
    return latency if unit == "ms" and latency in _SPREAD else None


@dataclass(frozen=True, slots=True)
class SteadyPrediction:
    """What is predicted of one configuration under one workload.

    Attributes:
        metrics: under the names of `autotune.metrics.formulas`, as if it started: throughputs, ``duration``, TPOT, mean
            E2EL, and TTFT where all requests are sent at once: of other loads it is not foreseen well enough. Empty
            where the layout needs more GPUs than there are.
        starts: the odds that it starts and takes the workload's requests.
        doubt: what speaks against that: ``memory`` or ``length``; empty where nothing does.
        startup_s: from launch to ready.
        drawn: ln of the total token throughput and of mean latencies with each draw of the figures, shape (draws,), as
            if it started; of a server that is loaded to its capacity, of the total token throughput there alone. Empty
            without draws.
    """

    metrics: Mapping[str, float]
    starts: float
    doubt: str
    startup_s: float
    drawn: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on latencies within which a metric counts.

    Attributes:
        capacity: the server is loaded as far as they are kept; empty: by the workload as it is.
        request: what a request keeps to count in ``request_goodput``; None: that is not asked for.
    """

    capacity: tuple[Slo, ...] = ()
    request: tuple[Slo, ...] | None = None


NO_LIMITS = Limits()


class SteadyNode:
    """Predicts configurations of any engine under one workload on one node.

    Args:
        moved: draws of the figures: by how much ln(factor) is off, shape (draws,) each, as of `drawn_factors`.
    """

    def __init__(
        self,
        model: ModelCard,
        hardware: HardwareCard,
        gpus: int,
        workload: Workload,
        calibration: Calibration | None = None,
        moved: Mapping[Factor, Floats] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._limits = limits
        self._moved = {which: np.append(0.0, values) for which, values in (moved or {}).items()}
        self._model, self._hardware, self._gpus = model, hardware, gpus
        self._calibration = calibration or packaged_calibration()
        self._workload = workload = workload.with_concurrencies(IN_FLIGHT) if limits.capacity else workload
        self._loads = [LoadSummary.of(workload.draw(position, 0)) for position in range(len(workload.points))]
        self._coefficients = Memo(self._compute_coefficients)
        self._starts = Memo(self._compute_start)
        self._flows = Memo(self._compute_flows)

    def predict(self, engine: str, version: str, knobs: Mapping[str, Scalar]) -> SteadyPrediction:
        """The prediction for effective knobs; raises `UnknownName` for an engine that the simulator does not know."""
        odds, doubt, ready_s, running = self._starts(knobs, engine, version)
        metrics, drawn = self._flows(knobs, engine, version, running) if running else ({}, {})
        return SteadyPrediction(metrics, odds, doubt, ready_s, drawn)

    @property
    def computed(self) -> int:
        """Configurations that were computed; the others were known."""
        return len(self._flows)

    def _server(self, knobs: Mapping[str, Scalar], engine: str, version: str, drawn: bool = False) -> SimulatedServer:
        setup = ServerSetup(engine, version, knobs, self._model, self._hardware, self._gpus, self._calibration)
        return SimulatedServer(setup, self._coefficients(knobs, engine, version, drawn))

    def _compute_coefficients(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, drawn: bool
    ) -> Coefficients:
        scope = {"model": self._model, "hardware": self._hardware, "gpus": self._gpus}
        moved = self._moved if drawn else None
        return coefficients_of(speed_card(engine), self._calibration, version, knobs, scope, moved)

    def _compute_start(
        self, knobs: Mapping[str, Scalar], engine: str, version: str
    ) -> tuple[float, str, float, tuple[int, ...]]:
        """Odds of starting, what is against it, seconds to ready, and sequences per load; none: too many GPUs."""
        server = self._server(knobs, engine, version)
        if server.gpus > server.setup.gpus:
            return LEAST_ODDS, "length", 0.0, ()
        plan, loads = plan_memory(server), [load.share(server.replicas) for load in self._loads]
        limit, starts = server.running_limit * server.data_parallel, plan.starts
        # What does not fit is predicted as if it did: if it starts all the same, the cache's size is wrong too.
        held = [sequences_held(server, load, plan.capacity_tokens) if starts else limit for load in loads]
        running = tuple(min(load.in_flight, limit, most) for load, most in zip(loads, held, strict=True))
        longest = max(load.longest_prompt for load in self._loads)
        fits = min(plan.fit_probability, plan.holds(self._workload.longest_request))
        refused = too_long(server, plan, self._workload) is not None
        doubt = "memory" if fits < 0.5 or refused else ""
        if beyond_step(server, longest) or self._workload.longest_request > server.context_length:
            refused, doubt = True, "length"
        odds = LEAST_ODDS if refused else min(BEST_ODDS, max(LEAST_ODDS, fits))
        return odds, doubt, startup_s(server, plan), running

    def _compute_flows(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, running: tuple[int, ...]
    ) -> tuple[dict[str, float], dict[str, Floats]]:
        """Metrics with the figures as they are, and logarithms with each draw; several servers share the load."""
        server = self._server(knobs, engine, version, drawn=True)
        loads = [load.share(server.replicas) for load in self._loads]
        flows = [flow_of(server, load, most) for load, most in zip(loads, running, strict=True)]
        return self._metrics_of([flow.first_draw() for flow in flows]), self._drawn_of(flows) if self._moved else {}

    def _metrics_of(self, flows: Sequence[Flow]) -> dict[str, float]:
        metrics = _metrics(self._loads, flows)
        if self._limits.capacity:
            speed, place = (float(np.exp(one)) for one in carried(self._loads, flows, self._limits.capacity))
            metrics |= {"capacity_total_token_throughput": speed, "capacity_concurrency": place}
            metrics["capacity_request_rate"] = speed / (self._loads[0].read + self._loads[0].written)
        elif (request := self._limits.request) is not None:
            shares = [good_share(load, flow, request) for load, flow in zip(self._loads, flows, strict=True)]
            good = [share * load.requests for load, share in zip(self._loads, shares, strict=True) if share is not None]
            metrics |= {GOODPUT: sum(good) / metrics["duration"]} if len(good) == len(shares) else {}
        return metrics

    def _drawn_of(self, flows: Sequence[Flow]) -> dict[str, Floats]:
        if self._limits.capacity:
            found = {HEADLINE: carried(self._loads, flows, self._limits.capacity)[0]}
        else:
            found = {name: np.log(value) for name, value in _central(self._loads, flows).items()}
        count = len(next(iter(self._moved.values())))
        return {name: np.broadcast_to(logs, (count,))[1:] for name, logs in found.items()}


class Memo(Generic[Value]):
    """A function of knobs, an engine and more arguments, computed once for all knobs that agree in what it reads.

    Who agrees with an earlier one in every knob that any call of that engine has read takes the same path through the
    function.
    """

    def __init__(self, compute: Callable[..., Value]) -> None:
        self._compute = compute
        self._names: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, dict[tuple[Any, ...], Value]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def __call__(self, knobs: Mapping[str, Scalar], engine: str, *more: Any) -> Value:
        known, names = self._known.setdefault(engine, {}), self._names.get(engine, ())
        found = known.get(_key(names, knobs, more))
        if found is not None:
            return found
        read = set(names)
        value = self._compute(RecordedKnobs(knobs, read), engine, *more)
        if len(read) > len(names):
            self._names[engine] = names = tuple(sorted(read))
            known.clear()
        known[_key(names, knobs, more)] = value
        return value


def _key(names: tuple[str, ...], knobs: Mapping[str, Scalar], more: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(map(knobs.get, names))
    # 1 and True are equal to a dictionary, and not to an engine.
    return (more, *values, *map(type, values))


def _central(loads: Sequence[LoadSummary], flows: Sequence[Flow]) -> dict[str, Seconds]:
    """Throughput and mean latencies of loads one after the other; of draws of the figures, arrays of shape (draws,)."""
    requests = sum(load.requests for load in loads)
    tokens = sum(load.requests * (load.read + load.written) for load in loads)

    def mean(values: Sequence[Seconds]) -> Seconds:
        """Over the requests, milliseconds."""
        return 1e3 * sum(load.requests * v for load, v in zip(loads, values, strict=True)) / requests

    found = {
        HEADLINE: tokens / sum(flow.seconds for flow in flows),
        "mean_e2el_ms": mean([flow.mean_wait_s + flow.answer_s for flow in flows]),
        "mean_tpot_ms": mean([flow.mean_token_s for flow in flows]),
    }
    if all(flow.wait_s is None for flow in flows):
        found["mean_ttft_ms"] = mean([flow.mean_wait_s for flow in flows])
    return found


def _metrics(loads: Sequence[LoadSummary], flows: Sequence[Flow]) -> dict[str, float]:
    """All metrics of loads one after the other; of one set of figures."""
    found = {name: float(value) for name, value in _central(loads, flows).items()}
    seconds, requests = float(sum(flow.seconds for flow in flows)), sum(load.requests for load in loads)
    found |= {
        "duration": seconds,
        "request_throughput": requests / seconds,
        "output_throughput": sum(load.requests * load.written for load in loads) / seconds,
    }
    shares = [load.requests / requests for load in loads]
    for name, quantile in QUANTILES.items():
        parts = [share * flow.token_s(quantile) for share, flow in zip(shares, flows, strict=True)]
        found[f"{name}_tpot_ms"] = 1e3 * sum(parts)
        if "mean_ttft_ms" in found:
            waits = [share * flow.first_token_s(quantile) for share, flow in zip(shares, flows, strict=True)]
            found[f"{name}_ttft_ms"] = float(1e3 * sum(waits))
    return found
