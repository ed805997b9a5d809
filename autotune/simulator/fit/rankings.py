"""Are the best configurations predicted to be the best? Rank correlations and comparisons at one load.

A search acts on order, not on figures: a simulator that is 20 % off everywhere ranks perfectly.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.simulator.fit.points import MeasuredPoint, Predicted
from autotune.simulator.fit.rows import model_name
from autotune.simulator.node.uncertainty import HEADLINE

_LEAST = 4
"""Of fewer points a rank correlation says nothing."""

_LEAST_WEIGHT = 0.25
"""What counts for less (a run most of which a cold server was silent) is too uncertain for a rank."""

Pair = tuple[MeasuredPoint, Predicted]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Points under one load, of one engine or of all.

    Attributes:
        spearman: rank correlation of measured and predicted total token throughput; None for fewer than 4 points.
    """

    name: str
    points: int
    spearman: float | None


@dataclass(frozen=True, slots=True)
class BestEngine:
    """The engine of the best point of a model under a load, as measured and as predicted."""

    name: str
    measured: str
    predicted: str

    @property
    def right(self) -> bool:
        return self.measured == self.predicted


@dataclass(frozen=True, slots=True)
class ReplicaGain:
    """What attention replicas bring an engine: geometric mean of the points with data parallelism over the others'.

    Points with speculation are left out on both sides.

    Attributes:
        measured, predicted: the factor; above 1 = replicas are faster. None where a side is predicted not to run.
        spread: standard deviation of ln(measured) within the two sides: a gain below it is none.
    """

    name: str
    measured: float
    predicted: float | None
    spread: float


@dataclass(frozen=True, slots=True)
class Rankings:
    """Everything that can be said of order."""

    rankings: tuple[Ranking, ...]
    best_engine: tuple[BestEngine, ...]
    replica_gain: tuple[ReplicaGain, ...]


def rankings(points: Sequence[MeasuredPoint], predictions: Sequence[Predicted]) -> Rankings:
    """Orders at one load (model, node, workload); twins are one point, and what did not start has no rank."""
    at_one_load: dict[tuple[Hashable, ...], list[Pair]] = {}
    for point, predicted in zip(points, predictions, strict=True):
        if point.failure is None and point.weight >= _LEAST_WEIGHT:
            load = (point.model.id, point.gpu, point.resolved.context.gpus, point.workload.name)
            at_one_load.setdefault(load, []).append((point, predicted))
    of_several = [(_name(pairs), pairs) for pairs in at_one_load.values() if len({p.engine for p, _ in pairs}) > 1]
    of_one: list[tuple[str, list[Pair]]] = []
    for pairs in at_one_load.values():
        for engine in dict.fromkeys(point.engine for point, _ in pairs):
            its = [pair for pair in pairs if pair[0].engine == engine]
            of_one.append((f"{engine} {_name(its)}", its))
    subsets = [*((f"all engines, {name}", pairs) for name, pairs in of_several), *of_one]
    return Rankings(
        rankings=tuple(_ranking(name, pairs) for name, pairs in subsets if len(pairs) >= _LEAST),
        best_engine=tuple(_best(name, pairs) for name, pairs in of_several),
        replica_gain=tuple(gain for name, pairs in of_one if (gain := _gain(name, pairs)) is not None),
    )


def _name(pairs: Sequence[Pair]) -> str:
    point = pairs[0][0]
    return f"{model_name(point.model)} {point.resolved.context.gpus}×{point.gpu} {point.workload.name}"


def _ranking(name: str, pairs: Sequence[Pair]) -> Ranking:
    # Takes a second to import, which bad input need not wait for.
    from scipy.stats import spearmanr

    measured = [point.metrics[HEADLINE] for point, _ in pairs]
    predicted = [one.throughput for _, one in pairs]
    # Of figures that are all alike there is no order.
    if len(set(measured)) == 1 or len(set(predicted)) == 1:
        return Ranking(name, len(pairs), None)
    return Ranking(name, len(pairs), float(spearmanr(measured, predicted).statistic))


def _best(name: str, pairs: Sequence[Pair]) -> BestEngine:
    measured = max(pairs, key=lambda pair: pair[0].metrics[HEADLINE])[0]
    predicted = max(pairs, key=lambda pair: pair[1].throughput)[0]
    return BestEngine(name, measured.engine, predicted.engine)


def _gain(name: str, pairs: Sequence[Pair]) -> ReplicaGain | None:
    """None where either side is empty."""
    plain = [pair for pair in pairs if not _knob(pair[0], "speculative_tokens")]
    several = [pair for pair in plain if _knob(pair[0], "data_parallel") > 1]
    one = [pair for pair in plain if _knob(pair[0], "data_parallel") <= 1]
    if not several or not one:
        return None
    sides = (several, one)
    measured = [np.log([point.metrics[HEADLINE] for point, _ in side]) for side in sides]
    predicted = [[math.log(told.throughput) for _, told in side if told.failure is None] for side in sides]
    within = np.concatenate([side - side.mean() for side in measured])
    spread = math.sqrt(float((within**2).sum()) / max(len(within) - 2, 1))
    gain = math.exp(float(measured[0].mean() - measured[1].mean()))
    told = math.exp(float(np.mean(predicted[0]) - np.mean(predicted[1]))) if all(predicted) else None
    return ReplicaGain(name, gain, told, spread)


def _knob(point: MeasuredPoint, name: str) -> int:
    value = point.resolved.effective.configuration.knobs.get(name)
    return value if isinstance(value, int) else 0


def ranking_lines(found: Rankings) -> list[str]:
    """The orders in words, one sentence a line."""
    lines = [
        f"rank correlation (Spearman), {one.name}, {one.points} points: "
        + ("no order" if one.spearman is None else f"{one.spearman:.2f}")
        for one in found.rankings
    ]
    for best in found.best_engine:
        verdict = "right" if best.right else f"wrong: {best.predicted} is predicted"
        lines.append(f"best engine, {best.name}: {best.measured} measured, {verdict}")
    for gain in found.replica_gain:
        told = "predicted not to run" if gain.predicted is None else f"{gain.predicted - 1:+.0%} predicted"
        change = f"{gain.measured - 1:+.0%} measured (spread {gain.spread:.0%}), {told}"
        lines.append(f"attention replicas, {gain.name}: {change}")
    return lines
