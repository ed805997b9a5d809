"""A measured row: a command as the version that was measured understands it, its load, and what came of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.engines import recognise
from autotune.engines.installed_options import as_measured
from autotune.errors import BadInput
from autotune.loadgen.workloads import LoadPoint, Workload, load_workload, workload_names
from autotune.loadgen.workloads.arrivals import Arrival, arrival_of
from autotune.loadgen.workloads.lengths import FixedLengths, Lengths, ShareGPTLengths, TableLengths
from autotune.simulator.fit import cold_start
from autotune.simulator.fit.own_table import LoadColumns, RawRow
from autotune.simulator.resolve_command import ResolvedCommand, resolve_for
from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.context import Context
from autotune.space.fingerprint import broken_rules
from autotune.space.library import Library
from autotune.trial import Command, Evidence, FailureKind

_NODE = re.compile(r"(\d+)\s*[x×]\s*(\S.*)")
_ANOTHER_THING = 0.5
"""Weight of a row that measures something else than its configuration: a cap that the engine sets by itself, or a
combination that only slows it down. The simulator has both, but all of such a row rests on one figure."""

_ENOUGH = 0.95
"""Of the requests that were sent; where fewer came back, the load was another one than was asked for."""

_CAP = "speculative-caps-requests"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured benchmark, or one server that did not start.

    Attributes:
        label: short: ``3``, ``MI300X vllm c64``, ``study/0007``.
        source: file name, or the study's.
        command: as typed.
        resolved: parsed as the measured version does.
        metrics: under the names of `autotune.metrics.formulas`, as measured; empty when it failed.
        failure: the measured failure's text.
        weight: of its squared error; 1 = a run like any other.
        cold_start_s: at its beginning the server answered nobody for so long; see `cold_start`.
        notes: why `weight` is not 1.
    """

    label: str
    source: str
    command: Command
    resolved: ResolvedCommand
    workload: Workload
    metrics: Mapping[str, float]
    failure: str | None
    weight: float = 1.0
    cold_start_s: float = 0.0
    evidence: str = "measured"
    notes: tuple[str, ...] = ()

    @property
    def warm(self) -> Mapping[str, float]:
        """The metrics less the silent seconds: what the simulated server, which is warm, is compared with."""
        return cold_start.without_cold_start(self.metrics, self.cold_start_s)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that teaches nothing, and why."""

    label: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where a row comes from: its label, its file's or study's name, and what kind of evidence it is."""

    label: str
    source: str
    evidence: Evidence = Evidence.MEASURED


@dataclass(frozen=True, slots=True)
class MeasuredOutcome:
    """What came of a run: metrics, or the text of a failure."""

    metrics: Mapping[str, float]
    failure: str | None = None


def row_of(raw: RawRow, library: Library) -> MeasuredRow | LeftOut:
    """A file's row, resolved; left out where its engine, model or hardware is not known or its command is refused."""
    origin = RowOrigin(raw.label, raw.place.path.name)
    try:
        workload = workload_of(raw.load, library)
        hardware, gpus = _node(raw, library)
        engine, version = as_measured(recognise(raw.command.argv, library), raw.engine_version)
        named = raw.model or engine.parse(raw.command, version).model
        context = Context(library.model(named), hardware, gpus, version)
        return measured(origin, raw.command, context, library, workload, MeasuredOutcome(raw.metrics, raw.failure))
    except BadInput as error:
        return LeftOut(raw.label, origin.source, str(error))


def measured(
    origin: RowOrigin,
    command: Command,
    context: Context,
    library: Library,
    workload: Workload,
    outcome: MeasuredOutcome,
) -> MeasuredRow:
    """A row whose model and hardware are known.

    Args:
        context: its version is the measured one; the longest request is taken from the workload.

    Raises:
        BadInput: the measured version's parser refuses the command.
    """
    engine, version = as_measured(recognise(command.argv, library), context.version)
    context = Context(context.model, context.hardware, context.gpus, version, workload.longest_request)
    resolved = resolve_for(engine, command, context, version)
    silent = cold_start.cold_start_s(workload, outcome.metrics)
    deductions = dict(_deductions(resolved, outcome, silent))
    return MeasuredRow(
        label=origin.label,
        source=origin.source,
        command=command,
        resolved=resolved,
        workload=workload,
        metrics=outcome.metrics,
        failure=outcome.failure,
        weight=math.prod(deductions.values()),
        cold_start_s=silent,
        evidence=origin.evidence.value,
        notes=tuple(deductions),
    )


def _deductions(resolved: ResolvedCommand, outcome: MeasuredOutcome, silent: float) -> Iterator[tuple[str, float]]:
    """Why a row counts for less than another, and by which factor."""
    if silent:
        yield f"its server was cold: it answered nobody for {silent:.0f} s", cold_start.weight(outcome.metrics, silent)
    if any(effect.name == _CAP for effect in resolved.effective.effects):
        yield "it measures the cap on running requests that comes with speculation", _ANOTHER_THING
    # Rules of combinations that run but are never worth it.
    for rule in broken_rules(resolved.card, resolved.effective.configuration, resolved.context):
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


def workload_of(load: LoadColumns, library: Library) -> Workload:
    """The workload that was served: one that has a name, where it is the same, else one of its own.

    Where up to one request in twenty did not come back (a client out of file descriptors), only those that did count:
    the others were no load.

    Raises:
        BadInput: an unknown name, figures that make no load, or too many requests that did not come back.
    """
    if load.name:
        workload = load_workload(load.name, library)
        if load.concurrency is not None or load.request_rate is not None:
            workload = workload.with_arrival(arrival_of(load.concurrency, load.request_rate))
    else:
        workload = _made(load, library)
    return _served(workload, load.completed)


def _made(load: LoadColumns, library: Library) -> Workload:
    lengths = FixedLengths(input_tokens=load.input_tokens, output_tokens=load.output_tokens)
    arrival = arrival_of(load.concurrency, load.request_rate)
    point = LoadPoint(prompts=load.prompts, arrival=arrival, lengths=lengths)
    for name in workload_names(library):
        known = load_workload(name, library)
        if known.prefix is None and [one.model_copy(update={"label": ""}) for one in known.points] == [point]:
            return known
    name = f"random:{load.input_tokens}:{load.output_tokens}:{load.prompts}{_suffix(arrival)}"
    return Workload(name=name, description=f"{load.prompts} prompts", origin="a measured row", points=[point])


def _served(workload: Workload, completed: int | None) -> Workload:
    sent = sum(point.prompts for point in workload.points)
    if completed is None or completed >= sent:
        return workload
    if completed < _ENOUGH * sent or len(workload.points) > 1:
        raise BadInput(f"only {completed} of {sent} requests came back, so the load was not the one that was asked for")
    return workload.model_copy(update={"points": [workload.points[0].model_copy(update={"prompts": completed})]})


def _suffix(arrival: Arrival) -> str:
    if arrival.concurrency is not None:
        return f" c{arrival.concurrency}"
    return "" if arrival.request_rate is None else f" {arrival.request_rate:g}/s"


def shape(workload: Workload) -> str:
    """The class of a workload: its lengths and how it arrives, without the figures of the arrival.

    Points of one curve, 4 at a time to 128, are one class: a fit that knows one of them knows the others.
    """
    kinds = [f"{_lengths(point.lengths)} {point.arrival.kind.replace('_', ' ')}" for point in workload.points]
    text = " + ".join(dict.fromkeys(kinds))
    return f"{text}, alike" if workload.prefix is not None else text


def _lengths(lengths: Lengths) -> str:
    if isinstance(lengths, FixedLengths):
        return f"{lengths.input_tokens}→{lengths.output_tokens}"
    if isinstance(lengths, TableLengths):
        return lengths.stand_in_for or "chat"
    return "ShareGPT" if isinstance(lengths, ShareGPTLengths) else lengths.file
