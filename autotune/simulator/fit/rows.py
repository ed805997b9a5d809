"""A measured row: a command as the version that was measured understands it, its load, and what came of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.engines import recognise
from autotune.engines.installed_options import as_measured
from autotune.errors import BadInput
from autotune.loadgen.workloads import Workload
from autotune.simulator.fit import cold_start as cold
from autotune.simulator.fit.loads import workload_of
from autotune.simulator.fit.raw import RawRow
from autotune.simulator.resolve_command import Understood, understand_as
from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.context import Context
from autotune.space.fingerprint import broken_rules
from autotune.space.library import Library
from autotune.trial import Command, Evidence, FailureKind

_NODE = re.compile(r"(\d+)\s*[x×]\s*(\S.*)")
_ANOTHER_THING = 0.5
"""Weight of a row that measures something else than its configuration: a cap that the engine sets by itself, or a
combination that only slows it down. The simulator has both, but all of such a row rests on one figure."""

_CAP = "speculative-caps-requests"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured benchmark, or one server that did not start.

    Attributes:
        label: short: ``3``, ``MI300X vllm c64``, ``study/0007``.
        source: file name, or the study's.
        command: as typed.
        understood: parsed as the measured version does.
        metrics: under the names of `autotune.metrics.formulas`, as measured; empty when it failed.
        failure: the measured failure's text.
        weight: of its squared error; 1 = a run like any other.
        silent_s: at its beginning the server answered nobody for so long; see `cold`.
        notes: why `weight` is not 1.
    """

    label: str
    source: str
    command: Command
    understood: Understood
    workload: Workload
    metrics: Mapping[str, float]
    failure: str | None
    weight: float = 1.0
    silent_s: float = 0.0
    evidence: str = "measured"
    notes: tuple[str, ...] = ()

    @property
    def warm(self) -> Mapping[str, float]:
        """The metrics less the silent seconds: what the simulated server, which is warm, is compared with."""
        return cold.warm(self.metrics, self.silent_s)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that teaches nothing, and why."""

    label: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row comes from: its label, its file's or study's name, and what kind of evidence it is."""

    label: str
    source: str
    evidence: Evidence = Evidence.MEASURED


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: metrics, or the text of a failure."""

    metrics: Mapping[str, float]
    failure: str | None = None


def row_of(raw: RawRow, library: Library) -> MeasuredRow | LeftOut:
    """A file's row, understood; left out where its engine, model or hardware is not known or its command is refused."""
    origin = Origin(raw.label, raw.place.path.name)
    try:
        workload = workload_of(raw.load, library)
        hardware, gpus = _node(raw, library)
        engine, version = as_measured(recognise(raw.command.argv, library), raw.engine_version)
        named = raw.model or engine.parse(raw.command, version).model
        context = Context(library.model(named), hardware, gpus, version)
        return measured(origin, raw.command, context, library, workload, Outcome(raw.metrics, raw.failure))
    except BadInput as error:
        return LeftOut(raw.label, origin.source, str(error))


def measured(
    origin: Origin, command: Command, context: Context, library: Library, workload: Workload, outcome: Outcome
) -> MeasuredRow:
    """A row whose model and hardware are known.

    Args:
        context: its version is the measured one; the longest request is taken from the workload.

    Raises:
        BadInput: the measured version's parser refuses the command.
    """
    engine, version = as_measured(recognise(command.argv, library), context.version)
    context = Context(context.model, context.hardware, context.gpus, version, workload.longest_request)
    understood = understand_as(engine, command, context, version)
    silent = cold.silent_s(workload, outcome.metrics)
    deductions = dict(_deductions(understood, outcome, silent))
    return MeasuredRow(
        label=origin.label,
        source=origin.source,
        command=command,
        understood=understood,
        workload=workload,
        metrics=outcome.metrics,
        failure=outcome.failure,
        weight=math.prod(deductions.values()),
        silent_s=silent,
        evidence=origin.evidence.value,
        notes=tuple(deductions),
    )


def _deductions(understood: Understood, outcome: Outcome, silent: float) -> Iterator[tuple[str, float]]:
    """Why a row counts for less than another, and by which factor."""
    if silent:
        yield f"its server was cold: it answered nobody for {silent:.0f} s", cold.trust(outcome.metrics, silent)
    if any(effect.name == _CAP for effect in understood.effective.effects):
        yield "it measures the cap on running requests that comes with speculation", _ANOTHER_THING
    # Rules of combinations that run but are never worth it.
    for rule in broken_rules(understood.card, understood.effective.configuration, understood.context):
        if rule.kind is FailureKind.RULE:
            yield f"it breaks the rule {rule.name}", _ANOTHER_THING


def _node(raw: RawRow, library: Library) -> tuple[HardwareCard, int]:
    match = _NODE.fullmatch(raw.hardware.strip())
    hardware = library.node(match[2].strip() if match else raw.hardware.strip())
    gpus = raw.gpus or (int(match[1]) if match else hardware.gpus)
    if not 0 < gpus <= hardware.gpus:
        raise BadInput(f"{gpus} GPUs: nodes of {hardware.name} have 1 to {hardware.gpus}")
    return hardware, gpus


def model_name(model: ModelCard) -> str:
    """The last part of a model's id."""
    return model.id.rstrip("/").rsplit("/", 1)[-1]
