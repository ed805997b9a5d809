"""Priors from physics: the calibrated simulator's fast prediction, and the unfitted roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.errors import BadInput
from autotune.loadgen.workloads import Workload, load_workload
from autotune.metrics.formulas import METRICS
from autotune.prepare.candidates import Prepared
from autotune.search.prior import Prior
from autotune.search.priors.rows import Meaning, meanings
from autotune.simulator.node import ServerSetup
from autotune.simulator.node.calibration import Calibration, calibration_of
from autotune.simulator.node.roofline import HOPELESS, roofline
from autotune.simulator.node.steady import LEAST_ODDS, SteadyNode, SteadyPrediction
from autotune.simulator.node.uncertainty import spread_of
from autotune.simulator.prediction_intervals import errors_for, subject_of
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
Meanings = Sequence[Meaning | None]
"""Of all candidates, in their order."""


def physical(prepared: Prepared) -> list[Prior]:
    """The simulator's prior where trials are measured or replayed, and the roofline's.

    Where the evidence is the simulator itself, its own prediction would be the answer: there the roofline stands alone
    (``docs/decisions/0003``). Nothing is said of a workload that is known by no name, as a replayed table's may be.
    """
    spec = prepared.spec
    try:
        loads = [(load_workload(name, prepared.library), share) for name, share in _shares(spec)]
    except BadInput:
        return []
    found = meanings(prepared)
    if not any(found):
        return []
    measured = spec.on not in ("simulator", "emulator") and spec.hardware.vendor != "cpu"
    priors = [_calibrated(prepared, found, loads) if measured else None, _crude(spec, found, loads)]
    return [prior for prior in priors if prior is not None]


def _shares(spec: StudySpec) -> list[tuple[str, float]]:
    given = {name: weight for name, weight in spec.weights.items() if weight > 0} or {spec.workloads[0]: 1.0}
    total = math.fsum(given.values())
    return [(name, weight / total) for name, weight in given.items()]


def _calibrated(prepared: Prepared, found: Meanings, loads: Shares) -> Prior | None:
    """The simulator's fast prediction, each candidate with the part of its error that is its own."""
    spec, calibration = prepared.spec, calibration_of(prepared.library)
    metric = _SAME.get(spec.objective, spec.objective)
    sign = 1.0 if METRICS[metric].maximise else -1.0
    mean, sd, starts = np.zeros(len(found)), np.zeros(len(found)), np.ones(len(found))
    launch_s = np.zeros(len(found))
    for workload, share in loads:
        node = SteadyNode(spec.model, spec.hardware, spec.gpus, workload, calibration)
        spreads: dict[str, float] = {}
        for i, meaning in enumerate(found):
            predicted = None if meaning is None else _predicted(node, meaning)
            if meaning is None or predicted is None:
                mean[i] = sd[i] = launch_s[i] = np.nan
                continue
            value = predicted.metrics.get(metric, 0.0)
            mean[i] += share * sign * math.log(value) if 0 < value < math.inf else np.nan
            if meaning.engine not in spreads:
                spreads[meaning.engine] = _spread(prepared, calibration, meaning, workload, metric)
            # The errors of one configuration under several workloads go together.
            sd[i] += share * spreads[meaning.engine]
            loading_s = predicted.metrics.get("duration", np.nan)
            launch_s[i] += loading_s + (0.0 if launch_s[i] else predicted.startup_s)
            starts[i] = min(starts[i], LEAST_ODDS if meaning.refused else predicted.starts)
    return Prior("the simulator", mean, sd, starts, launch_s) if np.isfinite(mean).any() else None


def _predicted(node: SteadyNode, meaning: Meaning) -> SteadyPrediction | None:
    try:
        return node.predict(meaning.engine, meaning.version, meaning.knobs)
    except (BadInput, ArithmeticError, ValueError, TypeError):
        # An engine without figures, or a row whose values are of no configuration that there could be.
        return None


def _spread(prepared: Prepared, calibration: Calibration, meaning: Meaning, workload: Workload, metric: str) -> float:
    """Standard deviation of ln(measured / predicted) that a configuration has for itself."""
    spec = prepared.spec
    setup = ServerSetup(
        meaning.engine, meaning.version, meaning.knobs, spec.model, spec.hardware, spec.gpus, calibration
    )
    errors = errors_for(setup)
    latency = next((name for name in _APPROXIMATION if f"_{name}_" in metric), None)
    known_as = metric if latency is None else f"median_{latency}_ms"
    missing = subject_of(setup, workload).unseen(errors)
    unseen = math.hypot(*(errors.unseen.get(name, 0.0) for name in missing))
    approximation = _OF_RATES if latency is None else _APPROXIMATION[latency]
    return math.hypot(spread_of(errors, meaning.engine, known_as).row, _UNSEEN_SHARE * unseen, approximation)


def _crude(spec: StudySpec, found: Meanings, loads: Shares) -> Prior | None:
    """The roofline: of throughputs only. What does not fit by its arithmetic is as slow as the slowest that does."""
    if METRICS[spec.objective].time_power != 1:
        return None
    known = [i for i, meaning in enumerate(found) if meaning is not None]
    configurations = [Configuration(m.engine, m.knobs) for m in found if m is not None]
    mean, starts = np.full(len(found), np.nan), np.ones(len(found))
    mean[known] = 0.0
    for workload, share in loads:
        told = roofline(configurations, spec.model, spec.hardware, spec.gpus, workload)
        hopeless = told <= math.log(HOPELESS)
        starts[np.array(known)[hopeless]] = _CRUDE_ODDS
        told[hopeless] = told[~hopeless].min() if (~hopeless).any() else 0.0
        mean[known] += share * told
    return Prior("the roofline", mean, None, starts)
