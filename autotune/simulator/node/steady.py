"""A fast prediction of the calibrated simulator for every candidate: the search's prior where trials are measured.

The memory plan, the step times and the fitted figures are the simulator's own; what it follows request by request is
taken as a fluid here (`autotune.simulator.node.fluid`). Candidates that differ in nothing that this arithmetic reads
are computed once: it is noted which knobs were read, so no list of them has to be kept by hand.

`SteadyNode.predict` takes the figures as they are; `SteadyNode.draws` draws them from what the calibration left open.
Both are one computation: the figures are numbers in one, arrays of draws in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from autotune.arrays import Floats
from autotune.loadgen.workloads import Workload
from autotune.metrics.records import QUANTILES
from autotune.simulator.node import beyond_step, too_long
from autotune.simulator.node.calibration import (
    Calibration,
    Factor,
    coefficients_of,
    factors_of,
    groups_of,
    packaged_calibration,
    packaged_physics,
)
from autotune.simulator.node.coefficients import Coefficients, speed_card
from autotune.simulator.node.fluid import Flow, LoadSummary, flow_of, sequences_held
from autotune.simulator.node.memory import plan_memory, startup_s
from autotune.simulator.node.server import RecordedKnobs, ServerSetup, SimulatedServer
from autotune.simulator.node.steptime import Seconds
from autotune.simulator.node.uncertainty import HEADLINE
from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.enumeration import Candidate
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
    """

    metrics: Mapping[str, float]
    starts: float
    doubt: str
    startup_s: float


@dataclass(frozen=True, slots=True)
class SteadyDraws:
    """Predictions of candidates with figures drawn from what is not known of them.

    Attributes:
        ln_throughput: of the total token throughput in tokens per second given that a candidate starts, shape
            (draws, candidates); NaN where the layout needs more GPUs than there are.
        starts: the odds that it starts and takes the workload's requests, shape (candidates,).
        factors: which factors were drawn. Level ``engine`` and ``engine_era`` are of the engine that the group begins
            with, ``own`` of engine and node, the others of all engines alike.
        moved: by how much ln(factor) is off, shape (draws, factors).
    """

    ln_throughput: Floats
    starts: Floats
    factors: tuple[Factor, ...]
    moved: Floats


class SteadyNode:
    """Predicts configurations of any engine under one workload on one node.

    Args:
        moved: by how much the logarithms of factors are off, shape (draws,).
    """

    def __init__(
        self,
        model: ModelCard,
        hardware: HardwareCard,
        gpus: int,
        workload: Workload,
        calibration: Calibration | None = None,
        moved: Mapping[Factor, Floats] | None = None,
    ) -> None:
        self._moved = moved
        self._model, self._hardware, self._gpus = model, hardware, gpus
        self._calibration = calibration or packaged_calibration()
        self._workload = workload
        self._loads = [LoadSummary.of(workload.draw(position, 0)) for position in range(len(workload.points))]
        self._coefficients = _Memo(self._compute_coefficients)
        self._starts = _Memo(self._compute_start)
        self._flows = _Memo(self._compute_flows)
        self._logs = _Memo(self._compute_logs)

    def predict(self, engine: str, version: str, knobs: Mapping[str, Scalar]) -> SteadyPrediction:
        """The prediction for effective knobs; raises `UnknownName` for an engine that the simulator does not know."""
        odds, doubt, ready_s, running = self._starts(knobs, engine, version)
        metrics = self._flows(knobs, engine, version, running) if running else {}
        return SteadyPrediction(metrics, odds, doubt, ready_s)

    def draws(self, candidates: Sequence[Candidate], n: int, seed: int) -> SteadyDraws:
        """Predict candidates with n draws of the figures; half of them mirror the others, so that the mean is central.

        Raises `UnknownName` for an engine that the simulator does not know.
        """
        pairs = {(one.configuration.engine, one.engine_version) for one in candidates}
        groups = [groups_of(speed_card(engine), version, self._hardware) for engine, version in sorted(pairs)]
        physics = packaged_physics()
        factors = tuple(dict.fromkeys(which for members in groups for which in factors_of(physics, members)))
        half = np.random.default_rng(seed).standard_normal(((n + 1) // 2, len(factors)))
        deviations = np.array([self._calibration.deviation(which, physics) for which in factors])
        moved = np.concatenate([half, -half])[:n] * deviations
        columns = dict(zip(factors, moved.T, strict=True))
        drawn = SteadyNode(self._model, self._hardware, self._gpus, self._workload, self._calibration, columns)
        rates, starts = np.full((n, len(candidates)), np.nan), np.zeros(len(candidates))
        for i, one in enumerate(candidates):
            about = (one.configuration.knobs, one.configuration.engine, one.engine_version)
            starts[i], _, _, running = self._starts(*about)
            if running:
                rates[:, i] = drawn._logs(*about, running)[HEADLINE]
        return SteadyDraws(rates, starts, factors, moved)

    def logs(self, engine: str, version: str, knobs: Mapping[str, Scalar]) -> dict[str, Floats]:
        """ln of metrics, shape (draws,): the total token throughput, and means of the latencies of a single load."""
        running = self._starts(knobs, engine, version)[3]
        return self._logs(knobs, engine, version, running) if running else {}

    @property
    def computed(self) -> int:
        """Configurations that were computed; the others were known."""
        return len(self._flows)

    def _server(self, knobs: Mapping[str, Scalar], engine: str, version: str) -> SimulatedServer:
        setup = ServerSetup(engine, version, knobs, self._model, self._hardware, self._gpus, self._calibration)
        return SimulatedServer(setup, self._coefficients(knobs, engine, version))

    def _compute_coefficients(self, knobs: Mapping[str, Scalar], engine: str, version: str) -> Coefficients:
        scope = {"model": self._model, "hardware": self._hardware, "gpus": self._gpus}
        return coefficients_of(speed_card(engine), self._calibration, version, knobs, scope, self._moved)

    def _compute_start(
        self, knobs: Mapping[str, Scalar], engine: str, version: str
    ) -> tuple[float, str, float, tuple[int, ...]]:
        """Odds of starting, what is against it, seconds to ready, and sequences per load; none: too many GPUs."""
        server = self._server(knobs, engine, version)
        if server.gpus > server.setup.gpus:
            return LEAST_ODDS, "length", 0.0, ()
        plan = plan_memory(server)
        limit = server.running_limit * server.data_parallel
        # What does not fit is predicted as if it did: if it starts all the same, the cache's size is wrong too.
        held = [sequences_held(server, load, plan.capacity_tokens) if plan.starts else limit for load in self._loads]
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
    ) -> dict[str, float]:
        return _metrics(self._loads, self._flows_of(knobs, engine, version, running))

    def _compute_logs(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, running: tuple[int, ...]
    ) -> dict[str, Floats]:
        flows, loads = self._flows_of(knobs, engine, version, running), self._loads
        tokens = sum(load.requests * (load.read + load.written) for load in loads)
        logs = {HEADLINE: np.log(tokens / sum(flow.seconds for flow in flows))}
        if len(flows) == 1:
            logs["mean_tpot_ms"] = np.log(1e3 * flows[0].mean_token_s)
            if flows[0].wait_s is None:
                logs["mean_ttft_ms"] = np.log(1e3 * flows[0].mean_wait_s)
        return logs

    def _flows_of(self, knobs: Mapping[str, Scalar], engine: str, version: str, running: tuple[int, ...]) -> list[Flow]:
        server, loads = self._server(knobs, engine, version), self._loads
        return [flow_of(server, load, most) for load, most in zip(loads, running, strict=True)]


class _Memo(Generic[Value]):
    """A function of knobs and more arguments, computed once for all knobs that agree in what it reads.

    Who agrees with an earlier one in every knob that any call has read takes the same path through the function.
    """

    def __init__(self, compute: Callable[..., Value]) -> None:
        self._compute = compute
        self._names: tuple[str, ...] = ()
        self._known: dict[tuple[Any, ...], Value] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, knobs: Mapping[str, Scalar], *more: Any) -> Value:
        found = self._known.get(self._key(knobs, more))
        if found is not None:
            return found
        read = set(self._names)
        value = self._compute(RecordedKnobs(knobs, read), *more)
        if len(read) > len(self._names):
            self._names = tuple(sorted(read))
            self._known.clear()
        self._known[self._key(knobs, more)] = value
        return value

    def _key(self, knobs: Mapping[str, Scalar], more: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(map(knobs.get, self._names))
        # 1 and True are equal to a dictionary, and not to an engine.
        return (more, *values, *map(type, values))


def _metrics(loads: list[LoadSummary], flows: list[Flow]) -> dict[str, float]:
    """The metrics of loads one after the other; of one set of figures."""
    seconds = float(sum(flow.seconds for flow in flows))
    requests = sum(load.requests for load in loads)
    read = sum(load.requests * load.read for load in loads)
    written = sum(load.requests * load.written for load in loads)
    found = {
        "duration": seconds,
        "request_throughput": requests / seconds,
        "output_throughput": written / seconds,
        "total_token_throughput": (read + written) / seconds,
    }

    def mean(values: Sequence[Seconds]) -> float:
        """Over the requests, milliseconds."""
        return float(1e3 * sum(load.requests * v for load, v in zip(loads, values, strict=True)) / requests)

    answers = [flow.mean_wait_s + flow.answer_s for flow in flows]
    found["mean_e2el_ms"] = mean(answers)
    for name, quantile in {"mean": None, **QUANTILES}.items():
        found[f"{name}_tpot_ms"] = mean([flow.token_s(quantile) for flow in flows])
        if all(flow.wait_s is None for flow in flows):
            found[f"{name}_ttft_ms"] = mean([flow.first_token_s(quantile) for flow in flows])
    return found
