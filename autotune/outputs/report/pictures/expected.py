"""What physics expected of the launched configurations before the first launch."""

from __future__ import annotations

import math
from statistics import median

from autotune.errors import BadInput
from autotune.loadgen.workloads import load_workload
from autotune.metrics.formulas import METRICS
from autotune.outputs.report import StudyRecord
from autotune.replay import file_of
from autotune.search.objective import achieved, weights
from autotune.simulator.node.calibration import calibration_of, nothing_learned
from autotune.simulator.node.steady import SteadyNode
from autotune.study.user_library import library_of
from autotune.trial import Launch


def expected(study: StudyRecord) -> dict[int, float]:
    """Launch number to the objective that its configuration was expected to reach; without those of which none was.

    As the search's own prior of physics (`autotune.search.priors`): calibrated where trials are measured. Of a prior
    only the differences count, so its level is set to the median of the launches.
    """
    spec = study.spec
    if file_of(spec.on) is not None or spec.hardware.vendor == "cpu" or spec.objective not in METRICS:
        return {}
    try:
        library = library_of(spec)
        loads = [(load_workload(name, library), share) for name, share in weights(spec).items()]
    except BadInput:  # a file that is gone
        return {}
    learned = nothing_learned() if spec.on in ("simulator", "emulator") else calibration_of(library)
    nodes = [(SteadyNode(spec.model, spec.hardware, spec.gpus, load, learned), share) for load, share in loads]
    guesses: dict[int, float] = {}
    offsets = []
    for launch in study.launches:
        guess = _guess(launch, nodes, spec.objective)
        if guess is None:
            continue
        guesses[launch.trial.number] = guess
        value = achieved(spec, launch)
        if value:
            offsets.append(math.log(value) - guess)
    if not offsets:
        return {}
    level = median(offsets)
    return {number: math.exp(guess + level) for number, guess in guesses.items()}


def _guess(launch: Launch, nodes: list[tuple[SteadyNode, float]], metric: str) -> float | None:
    """The logarithm of the objective; None where it is not predicted."""
    total, made = 0.0, launch.trial.configuration
    for node, share in nodes:
        try:
            predicted = node.predict(made.engine, launch.trial.engine_version, made.knobs)
        except (BadInput, ArithmeticError, ValueError, TypeError):
            return None  # an engine without figures
        value = predicted.metrics.get(metric.removeprefix("steady_"), 0.0)
        if not 0 < value < math.inf:
            return None
        total += share * math.log(value)
    return total
