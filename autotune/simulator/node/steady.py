"""A fast prediction of the calibrated simulator for every candidate: the search's prior where trials are measured.

The memory plan, the step times and the fitted figures are the simulator's own; what it follows request by request is
taken as a fluid here (`autotune.simulator.node.fluid`). Candidates that differ in nothing that this arithmetic reads
are computed once: it is noted which knobs were read, so no list of them has to be kept by hand.

Where draws of the figures are given, one computation predicts with the figures as they are and with each draw: they are
arrays then, the figures as they are first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from autotune.arrays import Floats
from autotune.loadgen.workloads import Workload
from autotune.metrics.formulas import HEADLINE, Slo
from autotune.metrics.goodput import GOODPUT
from autotune.metrics.records import QUANTILES
from autotune.simulator.node import beyond_step, too_long
from autotune.simulator.node.calibration import (
    Calibration,
    Factor,
    coefficients_of,
    packaged_calibration,
)
from autotune.simulator.node.carried import IN_FLIGHT, carried
from autotune.simulator.node.coefficients import Coefficients, speed_card
from autotune.simulator.node.fluid import Flow, flow_of, sequences_held
from autotune.simulator.node.good import good_share
from autotune.simulator.node.load_summary import LoadSummary
from autotune.simulator.node.memory import plan_memory, startup_s
from autotune.simulator.node.server import RecordedKnobs, ServerSetup, SimulatedServer
from autotune.simulator.node.steptime import Seconds
from autotune.space.cards import HardwareCard, ModelCard
from autotune.trial import Scalar

Value = TypeVar("Value")

LEAST_ODDS, BEST_ODDS = 0.02, 0.98
"""Of starting: the memory plan is not surer than that."""


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
        self._coefficients = _Memo(self._compute_coefficients)
        self._starts = _Memo(self._compute_start)
        self._flows = _Memo(self._compute_flows)

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
        plan = plan_memory(server)
        limit, starts = server.running_limit * server.data_parallel, plan.starts
        # What does not fit is predicted as if it did: if it starts all the same, the cache's size is wrong too.
        held = [sequences_held(server, load, plan.capacity_tokens) if starts else limit for load in self._loads]
        running = tuple(min(load.in_flight, limit, most) for load, most in zip(self._loads, held, strict=True))
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
        """Metrics with the figures as they are, and logarithms with each draw."""
        server, loads = self._server(knobs, engine, version, drawn=True), self._loads
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


class _Memo(Generic[Value]):
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
