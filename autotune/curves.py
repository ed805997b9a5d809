"""The curves of two configurations over a ladder of concurrencies, and where they cross.

At each concurrency the gain is a ratio of geometric means over launches. A launch is faster or slower as a whole, at
all its loads, so the noise is that from launch to launch, as the finals show it; where they are too few to show it, or
are one recorded launch that was read again, 3 % are taken. One configuration is faster where the gain's 95 % interval
by that noise excludes zero. Between concurrencies the gain and the ends of its interval are interpolated on the
logarithm of the concurrency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.metrics.table import HEADLINE, METRICS
from autotune.search import objective
from autotune.search.decide.estimate import FEW_DEGREES, LAUNCH_NOISE, Spread, Z, mean, percent
from autotune.study.recommendation import Crossing, LadderComparison, LadderPoint, Side
from autotune.study.spec import StudySpec
from autotune.trial import Launch, Metrics


@dataclass(frozen=True, slots=True)
class Difference:
    """How far the recommended configuration is ahead at a concurrency, in logarithms; `half` of its 95 % interval."""

    concurrency: int
    log: float
    half: float

    @property
    def faster(self) -> Side | None:
        """Who is, beyond noise."""
        if abs(self.log) <= self.half:
            return None
        return "recommended" if self.log > 0 else "baseline"


def compare(
    spec: StudySpec, spread: Spread, baseline: Sequence[Launch], recommended: Sequence[Launch]
) -> LadderComparison | None:
    """The curves of the objective; of total token throughput where the loads of a ladder have no such metric.

    Args:
        spread: of the objective from launch to launch.
        baseline, recommended: the launches that count; the second are none where the baseline is recommended.
    """
    curves = [_scores(spec, spec.objective, rows) for rows in (baseline, recommended)]
    metric = spec.objective if any(curves) else HEADLINE
    theirs, mine = curves if any(curves) else [_scores(spec, metric, rows) for rows in (baseline, recommended)]
    if not theirs and not mine:
        return None
    differences = [
        Difference(c, mean(mine[c]) - mean(theirs[c]), half_width(spread, (len(mine[c]), len(theirs[c]))))
        for c in sorted(mine.keys() & theirs.keys())
    ]
    by_load = {one.concurrency: one for one in differences}
    return LadderComparison(
        metric=metric,
        workload=spec.workloads[0],
        noise_percent=percent(_noise(spread)),
        launches=(_most(theirs), _most(mine)),
        points=[_point(metric, c, theirs, mine, by_load.get(c)) for c in sorted(mine.keys() | theirs.keys())],
        crossings=crossings(differences),
    )


def _scores(spec: StudySpec, metric: str, launches: Sequence[Launch]) -> dict[int, list[float]]:
    """Concurrency to the scores of the launches there."""
    scores: dict[int, list[float]] = {}
    for launch in launches if metric in METRICS else ():
        for concurrency, row in objective.curve(launch, spec.workloads[0]).items():
            score = objective.score_of(metric, row.get(metric, 0.0))
            if score is not None:
                scores.setdefault(concurrency, []).append(score)
    return scores


def _most(scores: Mapping[int, Sequence[float]]) -> int:
    return max(map(len, scores.values()), default=0)


def _point(
    metric: str,
    concurrency: int,
    theirs: Mapping[int, Sequence[float]],
    mine: Mapping[int, Sequence[float]],
    difference: Difference | None,
) -> LadderPoint:
    values = [objective.value_of(metric, mean(s[concurrency])) if concurrency in s else None for s in (theirs, mine)]
    if difference is None:
        return LadderPoint(concurrency=concurrency, baseline=values[0], recommended=values[1])
    low, high = difference.log - difference.half, difference.log + difference.half
    return LadderPoint(
        concurrency=concurrency,
        baseline=values[0],
        recommended=values[1],
        gain_percent=percent(difference.log),
        ci95=(percent(low), percent(high)),
        faster=difference.faster,
    )


def half_width(spread: Spread, counts: Sequence[int]) -> float:
    """Half the 95 % interval of a difference of means of so many launches."""
    if spread.sd == 0:
        counts = [1 for _ in counts]
    elif spread.degrees > FEW_DEGREES:
        return spread.half_width(counts) or 0.0
    return Z * _noise(spread) * math.sqrt(sum(1 / n for n in counts))


def _noise(spread: Spread) -> float:
    """Of one launch; what is usual where few repeats show less, or equal ones none at all."""
    few = spread.sd == 0 or spread.degrees <= FEW_DEGREES
    return max(spread.sd, LAUNCH_NOISE) if few else spread.sd


def crossings(differences: Sequence[Difference]) -> list[Crossing]:
    """Where the faster one changes.

    Args:
        differences: by rising concurrency.
    """
    found = []
    decided = [i for i, one in enumerate(differences) if one.faster is not None]
    for first, last in pairwise(decided):
        below, above = differences[first].faster, differences[last].faster
        if below is None or above is None or below == above:
            continue
        way = list(differences[first : last + 1])
        # From here on falling from above zero to below it.
        sign = 1.0 if below == "recommended" else -1.0
        middle = _zero(way, [sign * one.log for one in way])
        low = _zero(way, [sign * one.log - one.half for one in way])
        backward = way[::-1]
        high = _zero(backward, [-sign * one.log - one.half for one in backward])
        found.append(Crossing(concurrency=middle, between=(low, high), below=below, above=above))
    return found


def _zero(way: Sequence[Difference], heights: Sequence[float]) -> float:
    """Concurrency at which a curve that starts above zero first reaches zero, log-interpolated; else the last.

    Args:
        heights: of the curve at each of the differences' concurrencies.
    """
    for (a, b), (one, other) in zip(pairwise(way), pairwise(heights), strict=True):
        if other <= 0:
            share = one / (one - other)
            logs = math.log(a.concurrency), math.log(b.concurrency)
            return float(f"{math.exp(logs[0] + share * (logs[1] - logs[0])):.4g}")
    return float(way[-1].concurrency)


def loads_of(spec: StudySpec, launches: Sequence[Launch]) -> dict[int | None, list[tuple[float, float]]]:
    """Concurrency to the scores of both goals in each launch; None is the workload as it is."""
    points: dict[int | None, list[tuple[float, float]]] = {}
    for launch in launches:
        as_it_is = launch.result.metrics.get(spec.workloads[0], {})
        loads: list[tuple[int | None, Metrics]] = [(None, as_it_is)]
        loads += objective.curve(launch, spec.workloads[0]).items()
        for load, metrics in loads:
            goals = (spec.objective, spec.pareto or spec.objective)
            one, other = (objective.score_of(metric, metrics.get(metric, 0.0)) for metric in goals)
            if one is not None and other is not None:
                points.setdefault(load, []).append((one, other))
    return points
