"""A fast prediction of the calibrated simulator for every candidate: the search's prior where trials are measured.

The memory plan, the step times and the fitted figures are the simulator's own; what it follows request by request is
taken as a fluid here (`autotune.simulator.node.fluid`). Candidates that differ in nothing that this arithmetic reads
are computed once: it is noted which knobs were read, so no list of them has to be kept by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from autotune.loadgen.workloads import Workload
from autotune.metrics.records import QUANTILES
from autotune.simulator.node import beyond_step, too_long
from autotune.simulator.node.calibration import Calibration, coefficients_of, packaged_calibration
from autotune.simulator.node.coefficients import Coefficients, speed_card
from autotune.simulator.node.fluid import Flow, LoadSummary, flow_of, sequences_held
from autotune.simulator.node.memory import plan_memory, startup_s
from autotune.simulator.node.server import RecordedKnobs, ServerSetup, SimulatedServer
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
    """

    metrics: Mapping[str, float]
    starts: float
    doubt: str
    startup_s: float


class SteadyNode:
    """Predicts configurations of any engine under one workload on one node."""

    def __init__(
        self,
        model: ModelCard,
        hardware: HardwareCard,
        gpus: int,
        workload: Workload,
        calibration: Calibration | None = None,
    ) -> None:
        self._model, self._hardware, self._gpus = model, hardware, gpus
        self._calibration = calibration or packaged_calibration()
        self._workload = workload
        self._loads = [LoadSummary.of(workload.draw(position, 0)) for position in range(len(workload.points))]
        self._coefficients = _Memo(self._compute_coefficients)
        self._starts = _Memo(self._compute_start)
        self._flows = _Memo(self._compute_flows)

    def predict(self, engine: str, version: str, knobs: Mapping[str, Scalar]) -> SteadyPrediction:
        """The prediction for effective knobs; raises `UnknownName` for an engine that the simulator does not know."""
        odds, doubt, ready_s, running = self._starts(knobs, engine, version)
        metrics = self._flows(knobs, engine, version, running) if running else {}
        return SteadyPrediction(metrics, odds, doubt, ready_s)

    @property
    def computed(self) -> int:
        """Configurations that were computed; the others were known."""
        return len(self._flows)

    def _server(self, knobs: Mapping[str, Scalar], engine: str, version: str) -> SimulatedServer:
        setup = ServerSetup(engine, version, knobs, self._model, self._hardware, self._gpus, self._calibration)
        return SimulatedServer(setup, self._coefficients(knobs, engine, version))

    def _compute_coefficients(self, knobs: Mapping[str, Scalar], engine: str, version: str) -> Coefficients:
        scope = {"model": self._model, "hardware": self._hardware, "gpus": self._gpus}
        return coefficients_of(speed_card(engine), self._calibration, version, knobs, scope)

    def _compute_start(
        self, knobs: Mapping[str, Scalar], engine: str, version: str
    ) -> tuple[float, str, float, tuple[int, ...]]:
        """Odds of starting, what is against it, seconds to ready, and sequences per load; none: too many GPUs."""
        server = self._server(knobs, engine, version)
        if server.gpus > server.setup.gpus:
            return LEAST_ODDS, "length", 0.0, ()
        plan = plan_memory(server)
        limit = server.running_limit * server.data_parallel
        longest = max(load.longest_prompt for load in self._loads)
        refused = too_long(server, plan, self._workload) is not None
        odds = min(BEST_ODDS, max(LEAST_ODDS, plan.fit_probability))
        doubt = "memory" if odds < 0.5 or refused else ""
        # If it starts all the same, the plan is wrong, and so is the cache's size by it.
        held = [limit if doubt else sequences_held(server, load, plan.capacity_tokens) for load in self._loads]
        if beyond_step(server, longest) or self._workload.longest_request > server.context_length:
            refused, doubt = True, "length"
        running = tuple(min(load.in_flight, limit, most) for load, most in zip(self._loads, held, strict=True))
        return LEAST_ODDS if refused else odds, doubt, startup_s(server, plan), running

    def _compute_flows(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, running: tuple[int, ...]
    ) -> dict[str, float]:
        server, loads = self._server(knobs, engine, version), self._loads
        return _metrics(loads, [flow_of(server, load, most) for load, most in zip(loads, running, strict=True)])


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
    """The metrics of loads one after the other."""
    seconds = sum(flow.seconds for flow in flows)
    requests = sum(load.requests for load in loads)
    read = sum(load.requests * load.read for load in loads)
    written = sum(load.requests * load.written for load in loads)
    found = {
        "duration": seconds,
        "request_throughput": requests / seconds,
        "output_throughput": written / seconds,
        "total_token_throughput": (read + written) / seconds,
    }

    def mean(values: list[float]) -> float:
        """Over the requests, milliseconds."""
        return 1e3 * sum(load.requests * value for load, value in zip(loads, values, strict=True)) / requests

    answers = [flow.mean_wait_s + flow.answer_s for flow in flows]
    found["mean_e2el_ms"] = mean(answers)
    for name, quantile in {"mean": None, **QUANTILES}.items():
        found[f"{name}_tpot_ms"] = mean([flow.token_s(quantile) for flow in flows])
        if all(flow.wait_s is None for flow in flows):
            found[f"{name}_ttft_ms"] = mean([flow.first_token_s(quantile) for flow in flows])
    return found
