"""Tell what is known to fail without a launch: an engine that is not there, weights that fit nowhere, a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.engines import Engine
from autotune.engines.detect import why_missing
from autotune.errors import BadInput
from autotune.serving.docker_run import no_image
from autotune.simulator.node.memory import plan_memory
from autotune.simulator.node.server import ServerSetup, SimulatedServer
from autotune.simulator.node.weights import weight_bytes_per_gpu
from autotune.space.context import Context
from autotune.space.fingerprint import as_failure, broken_rules, unsuited
from autotune.space.library import packaged
from autotune.space.schema import EngineCard
from autotune.study.spec import AUTO, StudySpec
from autotune.trial import Configuration, FailureKind, Scalar

_DECIDE = ("tensor_parallel", "data_parallel", "pipeline_parallel", "speculative_tokens")
"""The knobs that decide how many weights a GPU holds."""


def too_heavy(configurations: Sequence[Configuration], context: Context) -> tuple[str, str] | None:
    """Say that the weights alone fill a GPU in every layout of an engine: all of them, and those of one GPU.

    None where a layout may hold them, of an engine whose memory plan is not known, and on a CPU.
    """
    hardware, gpus = context.hardware, context.gpus
    memory = hardware.driver_memory_gb or hardware.memory_gb
    total = weight_bytes_per_gpu(context.model.architecture, 1, 1, 1, mtp=False) / 1e9
    known = hardware.vendor != "cpu" and packaged("simulation", configurations[0].engine).is_file()
    # A plan is made only where it may matter: a layout seldom doubles the weights.
    if not known or total < 0.5 * memory * gpus:
        return None
    layouts = {tuple(c.knobs.get(name) for name in _DECIDE): c for c in configurations}
    setups = [ServerSetup(c.engine, context.version, c.knobs, context.model, hardware, gpus) for c in layouts.values()]
    least = min(plan_memory(SimulatedServer(setup)).weights for setup in setups) / 1e9
    if least <= memory:
        return None
    where = f"{gpus} x {hardware.name}"
    return (
        f"{total:,.0f} GB of weights, {gpus * hardware.memory_gb:,.0f} GB of memory on {where}",
        f"even in the best layout a GPU would hold {least:.1f} GB of weights, of the {memory:.1f} GB that it has",
    )


def check_baseline(card: EngineCard, configuration: Configuration, context: Context) -> None:
    """Raise `BadInput` for a baseline that its engine would refuse, by what its card knows."""
    where = f"{card.title} {context.version}"
    if (reason := unsuited(card, context)) is not None:
        raise BadInput(f"{where} cannot serve it: {reason}")
    broken = (rule for rule in broken_rules(card, configuration, context) if rule.kind is not FailureKind.RULE)
    if (rule := next(broken, None)) is not None:
        raise BadInput(f"{where} would refuse it ({rule.kind.value}): {rule.message}; {as_failure(rule).message}")


def unavailable(spec: StudySpec, kind: Engine) -> str | None:
    """Why the study's trials cannot run an engine; None where they can."""
    if spec.on == "process":
        if kind.name in spec.installed:
            return None
        return why_missing(kind.card) or f"{kind.card.title} was not installed when the study began"
    if spec.on == "docker":
        return None if kind.name in spec.images else no_image(kind.card, spec.hardware)
    needed = {"simulator": ("simulation",), "emulator": ("simulation", "emulation")}.get(spec.on, ())
    absent = [path for folder in needed if not (path := packaged(folder, kind.name)).is_file()]
    return f"the {spec.on} knows nothing of {kind.name}: there is no {absent[0]}; use --on process" if absent else None


def unpinnable(card: EngineCard, pins: Mapping[str, Scalar]) -> str | None:
    """Why an engine cannot take a pin; None where it takes all of those that it has."""
    for name, value in pins.items():
        knob = card.knobs.get(name)
        if knob is not None and value != AUTO and (reason := knob.refuses(value)):
            return f"it cannot take {name}={value} ({reason})"
    return None
