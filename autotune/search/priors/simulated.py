"""Priors from physics: the calibrated simulator's fast prediction, and the unfitted roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.engines import engine
from autotune.errors import BadInput
from autotune.loadgen.workloads import Workload, load_workload
from autotune.metrics.formulas import METRICS
from autotune.prepare.candidates import Prepared
from autotune.replay import file_of
from autotune.search.gp.kernels import Prior
from autotune.search.objective import weights
from autotune.simulator.node import ServerSetup
from autotune.simulator.node.calibration import Calibration, calibration_of
from autotune.simulator.node.roofline import HOPELESS, roofline
from autotune.simulator.node.steady import SteadyNode, SteadyPrediction
from autotune.simulator.node.uncertainty import spread_of
from autotune.simulator.prediction_intervals import errors_for, subject_of
from autotune.space.context import Context
from autotune.space.enumeration import Candidate
from autotune.study.spec import StudySpec
from autotune.trial import Configuration

_SAME = {"steady_total_token_throughput": "total_token_throughput"}
"""Objective to the predicted metric that orders the candidates alike."""
_APPROXIMATION = {"tpot": 0.15, "ttft": 0.2, "e2el": 0.1}
"""Standard deviation of ln(simulator / its fast prediction) of latencies, from ``benchmarks/priors.py``."""
_OF_RATES = 0.1
"""The same of everything else."""
_UNSEEN_SHARE = 1 / 3
"""Of what an unmeasured version, GPU or model adds to a prediction's error, how much each candidate has for itself: a
choice. Most of it is alike for all candidates of an engine, and moves none above another."""
_CRUDE_ODDS = 0.1
"""Of starting, where the roofline's arithmetic leaves no room for the longest request."""

Shares = Sequence[tuple[Workload, float]]
"""The objective's workloads, each with its share of it."""
Setups = Sequence[Candidate | None]
"""Of all candidates, in their order, with every knob of their engine; None: not known to the simulator."""


def physical(prepared: Prepared) -> list[Prior]:
    """The simulator's prior where trials are measured or replayed, and the roofline's.

    Where the evidence is the simulator itself, its own prediction would be the answer: there the roofline stands alone
    (``docs/decisions/0003``). Nothing is said of a workload that is known by no name, as a replayed table's may be.
    """
    spec = prepared.spec
    try:
        loads = [(load_workload(name, prepared.library), share) for name, share in weights(spec).items()]
    except BadInput:
        return []
    found = [_setup(prepared, candidate) for candidate in prepared.candidates.items]
    if not any(found):
        return []
    measured = spec.on not in ("simulator", "emulator") and spec.hardware.vendor != "cpu"
    priors = [_calibrated(prepared, found, loads) if measured else None, _crude(spec, found, loads)]
    return [prior for prior in priors if prior is not None]


def _setup(prepared: Prepared, candidate: Candidate) -> Candidate | None:
    """A candidate with all its engine's knobs; None for a replayed row with columns or values that are no knobs'."""
    spec, configuration = prepared.spec, candidate.configuration
    if file_of(spec.on) is None:
        return candidate
    try:
        kind = engine(configuration.engine, prepared.library)
    except BadInput:
        return None
    row = {name: value for name, value in configuration.knobs.items() if value is not None}
    if not row or any(name not in kind.card.knobs or kind.card.knobs[name].refuses(row[name]) for name in row):
        return None
    context = Context(spec.model, spec.hardware, spec.gpus, kind.version())
    return Candidate(Configuration(kind.name, kind.default_knobs(context, row)), context.version)


def _calibrated(prepared: Prepared, found: Setups, loads: Shares) -> Prior | None:
    """The simulator's fast prediction, each candidate with the part of its error that is its own."""
    spec, calibration = prepared.spec, calibration_of(prepared.library)
    metric = _SAME.get(spec.objective, spec.objective)
    sign = 1.0 if METRICS[metric].maximise else -1.0
    mean, sd, starts = np.zeros(len(found)), np.zeros(len(found)), np.ones(len(found))
    launch_s = np.zeros(len(found))
    for workload, share in loads:
        node = SteadyNode(spec.model, spec.hardware, spec.gpus, workload, calibration)
        spreads: dict[str, float] = {}
        for i, setup in enumerate(found):
            predicted = None if setup is None else _predicted(node, setup)
            if setup is None or predicted is None:
                mean[i] = sd[i] = launch_s[i] = np.nan
                continue
            value = predicted.metrics.get(metric, 0.0)
            mean[i] += share * sign * math.log(value) if 0 < value < math.inf else np.nan
            name = setup.configuration.engine
            if name not in spreads:
                spreads[name] = _spread(prepared, calibration, setup, workload, metric)
            # The errors of one configuration under several workloads go together.
            sd[i] += share * spreads[name]
            loading_s = predicted.metrics.get("duration", np.nan)
            launch_s[i] += loading_s + (0.0 if launch_s[i] else predicted.startup_s)
            starts[i] = min(starts[i], predicted.starts)
    return Prior("the simulator", mean, sd, starts, launch_s) if np.isfinite(mean).any() else None


def _predicted(node: SteadyNode, setup: Candidate) -> SteadyPrediction | None:
    try:
        return node.predict(setup.configuration.engine, setup.engine_version, setup.configuration.knobs)
    except (BadInput, ArithmeticError, ValueError, TypeError):
        # An engine without figures, or a row whose values are of no configuration that there could be.
        return None


def _spread(
    prepared: Prepared, calibration: Calibration, candidate: Candidate, workload: Workload, metric: str
) -> float:
    """Standard deviation of ln(measured / predicted) that a configuration has for itself."""
    spec = prepared.spec
    engine_name, knobs = candidate.configuration.engine, candidate.configuration.knobs
    setup = ServerSetup(engine_name, candidate.engine_version, knobs, spec.model, spec.hardware, spec.gpus, calibration)
    errors = errors_for(setup)
    latency = next((name for name in _APPROXIMATION if f"_{name}_" in metric), None)
    known_as = metric if latency is None else f"median_{latency}_ms"
    missing = subject_of(setup, workload).unseen(errors)
    unseen = math.hypot(*(errors.unseen.get(name, 0.0) for name in missing))
    approximation = _OF_RATES if latency is None else _APPROXIMATION[latency]
    return math.hypot(spread_of(errors, engine_name, known_as).row, _UNSEEN_SHARE * unseen, approximation)


def _crude(spec: StudySpec, found: Setups, loads: Shares) -> Prior | None:
    """The roofline: of throughputs only. What does not fit by its arithmetic is as slow as the slowest that does."""
    if METRICS[spec.objective].time_power != 1:
        return None
    known = [i for i, setup in enumerate(found) if setup is not None]
    configurations = [setup.configuration for setup in found if setup is not None]
    mean, starts = np.full(len(found), np.nan), np.ones(len(found))
    mean[known] = 0.0
    for workload, share in loads:
        told = roofline(configurations, spec.model, spec.hardware, spec.gpus, workload)
        hopeless = told <= math.log(HOPELESS)
        starts[np.array(known)[hopeless]] = _CRUDE_ODDS
        told[hopeless] = told[~hopeless].min() if (~hopeless).any() else 0.0
        mean[known] += share * told
    return Prior("the roofline", mean, None, starts)
