"""Measured rows, and the points that they are: equivalent rows as one point with its spread.

Rows are equivalent when they are one effective configuration (`space.fingerprint`), of one version of its engine,
serving one model on one node under one load. Their difference is the noise of a launch: it belongs to the point, and no
fit may be asked to explain it. A cross-validation leaves out whole groups, never random rows: a row's neighbours, which
differ from it by an option, would give its value away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from packaging.version import Version

from autotune.loadgen.workloads import Workload
from autotune.loadgen.workloads.lengths import FixedLengths, Lengths, LibraryTextLengths, ShareGPTLengths, TableLengths
from autotune.metrics.table import HEADLINE
from autotune.simulator.resolve_command import ResolvedCommand
from autotune.space.cards import ModelCard
from autotune.space.fingerprint import broken_rules
from autotune.trial import Evidence, FailureKind

_ANOTHER_THING = 0.5
"""Weight of a row that measures something else than its configuration: a cap that the engine sets by itself, or a
combination that only slows it down. The simulator has both, but all of such a row rests on one figure."""

_CAP = "speculative-caps-requests"

LEAST_S = 8.0
LEAST_SHARE = 0.25
_ERROR_S = 2.0
"""Standard deviation of a cold start's estimate: its difference from the simulated server's own is within twice it."""

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
        resolved: its command, parsed as the measured version does.
        metrics: under the names of `autotune.metrics.formulas`, as measured; empty when it failed.
        failure: the measured failure's text.
    """

    label: str
    source: str
    resolved: ResolvedCommand
    workload: Workload
    metrics: Mapping[str, float]
    failure: str | None
    evidence: Evidence = Evidence.MEASURED

    @cached_property
    def cold_start_s(self) -> float:
        """Seconds at the beginning in which the server answered nobody; 0 where it was not cold, or is not known.

        The first load after a start compiles and tunes kernels for the shapes that it brings. The simulated server is
        warm; a fit that sees a cold one would learn a slow engine.

        With all requests sent at once they queue up, and the times to the first token are spread about evenly between
        the first and the last. Half of their sum is the mean, the last is about the 99th percentile; so the first token
        comes at about 2 x mean - p99: within some 4 s of the simulated server's own in nearly all of the performance
        lab's rows, and at 11 to 17 s in three that nobody warmed up. Long queues are not quite even: a server that runs
        48 requests at a time gives 14 to 17 s of 176 to 261 s, and is not cold. So a silence must be longer than
        `LEAST_S` and at least `LEAST_SHARE` of the 99th percentile.
        """
        loads, metrics = self.workload.points, self.metrics
        needed = ("mean_ttft_ms", "p99_ttft_ms", "duration")
        if len(loads) > 1 or loads[0].arrival.kind != "all_at_once" or any(name not in metrics for name in needed):
            return 0.0
        mean, last, duration = (metrics[name] for name in needed)
        first_s = (2 * mean - last) / 1e3
        cold = first_s > LEAST_S and first_s >= LEAST_SHARE * last / 1e3 and first_s < duration
        return first_s if cold else 0.0

    @property
    def warm(self) -> Mapping[str, float]:
        """The metrics less the silent seconds: what the simulated server, which is warm, is compared with.

        Rates over the whole run grow, times from the sending of a request shrink; what happens between tokens stays.
        """
        silent = self.cold_start_s
        changed = dict(self.metrics)
        if not silent:
            return changed
        duration = self.metrics["duration"]
        for name, value in self.metrics.items():
            statistic, _, rest = name.partition("_")
            if name in _RATES:
                changed[name] = value * duration / (duration - silent)
            elif statistic != "std" and rest.removesuffix("_ms") in _FROM_SENDING:
                changed[name] = max(value - silent * 1e3, 1.0)
        changed["duration"] = duration - silent
        return changed

    @cached_property
    def deductions(self) -> Mapping[str, float]:
        """Why it counts for less than another, and by which factor."""
        factors: dict[str, float] = {}
        if silent := self.cold_start_s:
            # Against a run of a warm server, by the variances of both.
            error = _ERROR_S / (self.metrics["duration"] - silent)
            reason = f"its server was cold: it answered nobody for {silent:.0f} s"
            factors[reason] = _NOISE**2 / (_NOISE**2 + math.pow(error, 2))
        resolved = self.resolved
        if any(effect.name == _CAP for effect in resolved.effective.effects):
            factors["it measures the cap on running requests that comes with speculation"] = _ANOTHER_THING
        # Rules of combinations that run but are never worth it.
        for rule in broken_rules(resolved.card, resolved.effective.configuration, resolved.context):
            if rule.kind is FailureKind.RULE:
                factors[f"it breaks the rule {rule.name}"] = _ANOTHER_THING
        return factors

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


def model_name(model: ModelCard) -> str:
    """The last part of a model's id."""
    return model.id.rstrip("/").rsplit("/", 1)[-1]


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
    if isinstance(lengths, LibraryTextLengths):
        return f"{lengths.text} {lengths.input_tokens}→{lengths.output_tokens}"
    return "ShareGPT" if isinstance(lengths, ShareGPTLengths) else lengths.file


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One effective configuration under one load, measured once or more.

    Attributes:
        members: its rows.
        metrics: geometric means over the members that have a metric, each less its own silent seconds; empty when it
            did not start.
        spread: ln of the highest total token throughput over the lowest; 0 for a single row.
        weight: of its squared error: the mean of the members'.
    """

    members: tuple[MeasuredRow, ...]
    metrics: Mapping[str, float]
    spread: float
    weight: float

    @property
    def label(self) -> str:
        """The members' labels: ``16+27``."""
        return "+".join(row.label for row in self.members)

    @property
    def resolved(self) -> ResolvedCommand:
        """How the measured version understands the first member; the others' differ in nothing that counts."""
        return self.members[0].resolved

    @property
    def workload(self) -> Workload:
        return self.members[0].workload

    @property
    def failure(self) -> str | None:
        """The measured failure's text; None for a point that ran."""
        return self.members[0].failure

    @property
    def engine(self) -> str:
        return self.resolved.card.engine

    @property
    def era(self) -> str:
        """The engine with the first two numbers of its version: ``vllm 0.11``."""
        return f"{self.engine} {'.'.join(map(str, Version(self.resolved.context.version).release[:2]))}"

    @property
    def gpu(self) -> str:
        """The name of the node's hardware."""
        return self.resolved.context.hardware.name

    @property
    def model(self) -> ModelCard:
        return self.resolved.context.model

    @property
    def measured(self) -> float:
        """Total token throughput, tokens per second, as measured: with the seconds in which nobody was answered."""
        return _geometric_mean([row.metrics[HEADLINE] for row in self.members])


def points_of(rows: Sequence[MeasuredRow]) -> list[MeasuredPoint]:
    """Rows with equivalent ones merged, in the order of the first of each."""
    equivalents: dict[tuple[str, ...], list[MeasuredRow]] = {}
    for row in rows:
        context = row.resolved.context
        identity = (
            row.resolved.effective.configuration.fingerprint,
            context.version,
            context.model.id,
            context.hardware.model_dump_json(),
            str(context.gpus),
            # A client that lost a request in fifty sent the same load; its name is the same.
            row.workload.name,
            f"{shape(row.workload)} {[point.arrival for point in row.workload.points]}",
            "failed" if row.failure is not None else row.evidence,
        )
        equivalents.setdefault(identity, []).append(row)
    return [_merged(tuple(members)) for members in equivalents.values()]


def _merged(members: tuple[MeasuredRow, ...]) -> MeasuredPoint:
    warm = [row.warm for row in members]
    names = dict.fromkeys(name for metrics in warm for name in metrics)
    means = {name: _geometric_mean([m[name] for m in warm if name in m]) for name in names}
    headline = [math.log(metrics[HEADLINE]) for metrics in warm if metrics]
    spread = max(headline) - min(headline) if headline else 0.0
    return MeasuredPoint(members, means, spread, float(np.mean([row.weight for row in members])))


def _geometric_mean(values: Sequence[float]) -> float:
    """Of counts that may be 0 (failed requests) the plain mean."""
    figures = np.array(values, dtype=float)
    return float(np.exp(np.log(figures).mean()) if (figures > 0).all() else figures.mean())


_KINDS = {"engine", "version", "gpu", "model"}
"""Kinds of group of which one may be all that there is of another."""


def groups(points: Sequence[MeasuredPoint]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Group the points that a cross-validation leaves out together: kind -> name -> places in the list, ascending.

    Kinds are ``engine``, ``gpu``, ``workload``, ``curve`` (all loads of one shape), ``model`` (a family) and
    ``version``; one of which the points know only one group is left out. Points that did not start are in a group too.
    """
    kinds: dict[str, Callable[[MeasuredPoint], str]] = {
        "engine": lambda point: point.engine,
        "gpu": lambda point: point.gpu,
        "workload": lambda point: point.workload.name,
        "curve": lambda point: shape(point.workload),
        # What an interval counts as one model: checkpoints and sizes of one family are built alike.
        "model": lambda point: point.model.family,
        "version": lambda point: point.era,
    }
    named: dict[str, dict[str, tuple[int, ...]]] = {}
    for kind, name_of in kinds.items():
        names = [name_of(point) for point in points]
        if len(set(names)) > 1:
            places = {name: tuple(i for i, other in enumerate(names) if other == name) for name in dict.fromkeys(names)}
            named[kind] = places
    return named


def alone(points: Sequence[MeasuredPoint]) -> list[set[str]]:
    """Per point the kinds of group whose leaving out leaves no engine, version, GPU or model of it unmeasured beside.

    The rows of an early DeepSeek-R1 are all that there is of some versions: what a fit without that model gets wrong of
    them says little of models.
    """
    kinds = groups(points)
    found = [set(kinds) for _ in points]
    for kind in _KINDS & kinds.keys():
        others = _KINDS - {kind, "version" if kind == "engine" else kind}
        for members in kinds[kind].values():
            lost = [group for other in others for group in kinds.get(other, {}).values() if set(group) <= set(members)]
            for place in set().union(*lost):
                found[place].discard(kind)
    return found
