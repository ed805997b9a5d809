"""A measured row: a command as the version that was measured understands it, its load, and what came of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autotune.engines import recognise
from autotune.engines.installed_options import as_measured
from autotune.errors import BadInput
from autotune.loadgen.workloads import LoadPoint, Workload, load_workload, workload_names
from autotune.loadgen.workloads.arrivals import Arrival, arrival_of
from autotune.loadgen.workloads.lengths import FixedLengths, Lengths, ShareGPTLengths, TableLengths
from autotune.simulator.fit.own_table import RawRow
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


LEAST_S = 8.0
LEAST_SHARE = 0.25
_ERROR_S = 2.0
"""Standard deviation of the estimate; its difference from the simulated server's own is within twice that."""

_NOISE = 0.1
"""Standard deviation of ln(throughput) of single runs of one configuration: 5 % in vLLM, 15 % in SGLang."""

_RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
_FROM_SENDING = ("ttft", "e2el")


@dataclass(frozen=True)
class MeasuredRow:
    """One measured benchmark, or one server that did not start.

    Attributes:
        label: short: ``3``, ``MI300X vllm c64``, ``study/0007``.
        source: file name, or the study's.
        command: as typed.
        resolved: parsed as the measured version does.
        metrics: under the names of `autotune.metrics.formulas`, as measured; empty when it failed.
        failure: the measured failure's text.
    """

    label: str
    source: str
    command: Command
    resolved: ResolvedCommand
    workload: Workload
    metrics: Mapping[str, float]
    failure: str | None
    evidence: Evidence = Evidence.MEASURED

    @cached_property
    def cold_start_s(self) -> float:
        """At its beginning the server answered nobody for so long."""
        return cold_start_s(self.workload, self.metrics)

    @property
    def warm(self) -> Mapping[str, float]:
        """The metrics less the silent seconds: what the simulated server, which is warm, is compared with."""
        return without_cold_start(self.metrics, self.cold_start_s)

    @cached_property
    def deductions(self) -> Mapping[str, float]:
        """Why it counts for less than another, and by which factor."""
        found: dict[str, float] = {}
        if silent := self.cold_start_s:
            found[f"its server was cold: it answered nobody for {silent:.0f} s"] = cold_weight(self.metrics, silent)
        resolved = self.resolved
        if any(effect.name == _CAP for effect in resolved.effective.effects):
            found["it measures the cap on running requests that comes with speculation"] = _ANOTHER_THING
        # Rules of combinations that run but are never worth it.
        for rule in broken_rules(resolved.card, resolved.effective.configuration, resolved.context):
            if rule.kind is FailureKind.RULE:
                found[f"it breaks the rule {rule.name}"] = _ANOTHER_THING
        return found

    @property
    def weight(self) -> float:
        """Of its squared error; 1 = a run like any other."""
        return math.prod(self.deductions.values())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that teaches nothing, and why."""

    label: str
    source: str
    reason: str


def row_of(raw: RawRow, library: Library) -> MeasuredRow | LeftOut:
    """A file's row, resolved; left out where its engine, model or hardware is not known or its command is refused."""
    source = raw.place.path.name
    try:
        workload = _workload(raw, library)
        hardware, gpus = _node(raw, library)
        engine, version = as_measured(recognise(raw.command.argv, library), raw.engine_version)
        model = library.model(raw.model or engine.parse(raw.command, version).model)
        context = Context(model, hardware, gpus, version, workload.longest_request)
        resolved = resolve_for(engine, raw.command, context, version)
    except BadInput as error:
        return LeftOut(raw.label, source, str(error))
    return MeasuredRow(raw.label, source, raw.command, resolved, workload, raw.metrics, raw.failure)


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


def _workload(raw: RawRow, library: Library) -> Workload:
    """The workload that was served: one that has a name, where it is the same, else one of its own.

    Where up to one request in twenty did not come back (a client out of file descriptors), only those that did count:
    the others were no load.

    Raises:
        BadInput: an unknown name, figures that make no load, or too many requests that did not come back.
    """
    arrival = arrival_of(raw.concurrency, raw.request_rate)
    if not raw.workload:
        workload = _of_lengths(raw, arrival, library)
    else:
        workload = load_workload(raw.workload, library)
        if raw.concurrency is not None or raw.request_rate is not None:
            workload = workload.with_arrival(arrival)
    sent = sum(point.prompts for point in workload.points)
    completed = int(raw.metrics.get("completed", sent))
    if completed >= sent:
        return workload
    if completed < _ENOUGH * sent or len(workload.points) > 1:
        raise BadInput(f"only {completed} of {sent} requests came back, so the load was not the one that was asked for")
    return workload.model_copy(update={"points": [workload.points[0].model_copy(update={"prompts": completed})]})


def _of_lengths(raw: RawRow, arrival: Arrival, library: Library) -> Workload:
    lengths = FixedLengths(input_tokens=raw.input_tokens, output_tokens=raw.output_tokens)
    point = LoadPoint(prompts=raw.prompts, arrival=arrival, lengths=lengths)
    for name in workload_names(library):
        known = load_workload(name, library)
        if known.prefix is None and [one.model_copy(update={"label": ""}) for one in known.points] == [point]:
            return known
    name = f"random:{raw.input_tokens}:{raw.output_tokens}:{raw.prompts}"
    if arrival.concurrency is not None:
        name += f" c{arrival.concurrency}"
    elif arrival.request_rate is not None:
        name += f" {arrival.request_rate:g}/s"
    return Workload(name=name, description=f"{raw.prompts} prompts", origin="a measured row", points=[point])


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


def cold_start_s(workload: Workload, metrics: Mapping[str, float]) -> float:
    """Seconds at the beginning of a run in which the server answered nobody; 0 where it is not cold, or not known.

    The first load after a start compiles and tunes kernels for the shapes that it brings. Nothing of that is in the
    simulated server, which is warm; a fit that sees it would learn a slow engine.

    With all requests sent at once they queue up, and the times to the first token are spread about evenly between the
    first and the last. Half of their sum is the mean, the last is about the 99th percentile; so the first token comes
    at about 2 x mean - p99. On the performance lab's rows that is 11 to 17 s for three that nobody warmed up, and
    within some 4 s of the simulated server's own in nearly all others. Long queues are not quite even: a server that
    runs 48 requests at a time gives 14 to 17 s of 176 to 261 s by the same formula, and is not cold. So a silence must
    be longer than `LEAST_S` and at least `LEAST_SHARE` of the 99th percentile.
    """
    at_once = len(workload.points) == 1 and workload.points[0].arrival.kind == "all_at_once"
    needed = ("mean_ttft_ms", "p99_ttft_ms", "duration")
    if not at_once or any(name not in metrics for name in needed):
        return 0.0
    mean, last, duration = (metrics[name] for name in needed)
    first_s = (2 * mean - last) / 1e3
    cold = first_s > LEAST_S and first_s >= LEAST_SHARE * last / 1e3 and first_s < duration
    return first_s if cold else 0.0


def without_cold_start(metrics: Mapping[str, float], silent: float) -> dict[str, float]:
    """The metrics of the run less the silent seconds: what the fit is compared with.

    Rates over the whole run grow, times from the sending of a request shrink; what happens between tokens stays.
    """
    if not silent:
        return dict(metrics)
    duration = metrics["duration"]
    changed = dict(metrics)
    for name, value in metrics.items():
        statistic, _, rest = name.partition("_")
        if name in _RATES:
            changed[name] = value * duration / (duration - silent)
        elif statistic != "std" and rest.removesuffix("_ms") in _FROM_SENDING:
            changed[name] = max(value - silent * 1e3, 1.0)
    changed["duration"] = duration - silent
    return changed


def cold_weight(metrics: Mapping[str, float], silent: float) -> float:
    """Weight of a run whose silence was taken off, against one of a warm server: by the variances of both."""
    if not silent:
        return 1.0
    error = _ERROR_S / (metrics["duration"] - silent)
    return _NOISE**2 / (_NOISE**2 + math.pow(error, 2))
