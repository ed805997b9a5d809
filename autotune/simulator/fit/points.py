"""Measured points: equivalent rows as one point with its spread, and the groups that a cross-validation leaves out.

Rows are equivalent when they are one effective configuration (`space.fingerprint`), of one version of its engine,
serving one model on one node under one load. Their difference is the noise of a launch: it belongs to the point, and
no fit may be asked to explain it. A cross-validation leaves out whole groups, never random rows: a row's neighbours,
which differ from it by an option, would give its value away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from packaging.version import Version

from autotune.loadgen.workloads import Workload
from autotune.simulator.fit.rows import MeasuredRow, model_name, shape
from autotune.simulator.node.uncertainty import HEADLINE
from autotune.simulator.resolve_command import ResolvedCommand
from autotune.space.cards import Architecture, ModelCard


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


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulated node says of one point, under the workload that was measured.

    Attributes:
        metrics: under the names of `autotune.metrics.formulas`, with figures fitted to all points; empty where it is
            predicted not to run.
        low, high: ends of the 90 % interval of the total token throughput, tokens per second.
        failure: why it is predicted not to run; None where it does.
        left_out: kind of group to the total token throughput with figures fitted to all points but those of this
            point's group; 0 where it is predicted not to run.
    """

    metrics: Mapping[str, float]
    low: float = 0.0
    high: float = math.inf
    failure: str | None = None
    left_out: Mapping[str, float] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Total token throughput, tokens per second; 0 where it is predicted not to run."""
        return self.metrics.get(HEADLINE, 0.0)


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
            shape(row.workload),
            "failed" if row.failure is not None else row.evidence,
        )
        equivalents.setdefault(identity, []).append(row)
    return [_merged(tuple(members)) for members in equivalents.values()]


def _merged(members: tuple[MeasuredRow, ...]) -> MeasuredPoint:
    warm = [row.warm for row in members]
    names = dict.fromkeys(name for metrics in warm for name in metrics)
    found = {name: _geometric_mean([m[name] for m in warm if name in m]) for name in names}
    headline = [math.log(metrics[HEADLINE]) for metrics in warm if metrics]
    spread = max(headline) - min(headline) if headline else 0.0
    return MeasuredPoint(members, found, spread, float(np.mean([row.weight for row in members])))


def _geometric_mean(values: Sequence[float]) -> float:
    """Of counts that may be 0 (failed requests) the plain mean."""
    figures = np.array(values, dtype=float)
    return float(np.exp(np.log(figures).mean()) if (figures > 0).all() else figures.mean())


@dataclass(frozen=True, slots=True)
class Group:
    """Points that are left out together.

    Attributes:
        kind: ``engine``, ``gpu``, ``workload``, ``curve``, ``model`` or ``version``; a curve is all loads of one shape.
        members: places in the list of points, ascending; those that did not start are in it as well.
    """

    kind: str
    name: str
    members: tuple[int, ...]


def groups(points: Sequence[MeasuredPoint]) -> list[Group]:
    """The groups to be left out, kind after kind; a kind of which the points know only one group is none."""
    alike: dict[Architecture, str] = {}
    for point in points:
        alike.setdefault(point.model.architecture, model_name(point.model))
    kinds: dict[str, Callable[[MeasuredPoint], str]] = {
        "engine": lambda point: point.engine,
        "gpu": lambda point: point.gpu,
        "workload": lambda point: point.workload.name,
        "curve": lambda point: shape(point.workload),
        # Two checkpoints of one architecture are one model to the arithmetic.
        "model": lambda point: alike[point.model.architecture],
        "version": era_of,
    }
    found: list[Group] = []
    for kind, name_of in kinds.items():
        members: dict[str, list[int]] = {}
        for place, point in enumerate(points):
            members.setdefault(name_of(point), []).append(place)
        if len(members) > 1:
            found += [Group(kind, name, tuple(places)) for name, places in members.items()]
    return found


def era_of(point: MeasuredPoint) -> str:
    """The engine with the first two numbers of its version: ``vllm 0.11``."""
    return f"{point.engine} {'.'.join(map(str, Version(point.resolved.context.version).release[:2]))}"
