"""How sure the calibrated simulator may be: `PredictionErrors` from what a fit and its left-out groups got wrong.

Quantiles, not variances: nine of ten errors lie within 1.645 standard deviations by construction, whatever their tails.
An engine's spread is the 90 % quantile of its errors: of throughput, where that is known, by fits that had not seen the
workload. Of the errors of other left-out groups the rank is that of split conformal prediction, the ceiling of
0.9 (n + 1), so that few points give wide intervals (Angelopoulos and Bates, arXiv:2107.07511). Fewer than nine points
have no such rank: the fewer there are, the more what is said without any calibration counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autotune.metrics.formulas import HEADLINE
from autotune.simulator.node.uncertainty import UNKNOWN, Z90, Covered, ErrorSpread, PredictionErrors

METRICS = (HEADLINE, "median_ttft_ms", "median_tpot_ms")
_LEAST = 0.03
"""No spread is stated below it: two launches of one configuration differ by as much."""

_TELLING = 9
"""Points from which on nine of ten errors can be told from all of them: 0.9 (n + 1) is at most n."""

_NEW = ("engine", "version", "gpu", "model", "workload")
_NOT_ASKED = dict.fromkeys(_NEW, 0.25)
"""Added for the unseen where no group was ever left out: four together as unsure as without a calibration."""


@dataclass(frozen=True, slots=True)
class Missed:
    """ln(measured / predicted) of one point.

    Attributes:
        load: model, node, version of the engine and workload.
        errors: by metric, of the fit to all points.
        unseen: kind of `PredictionErrors.unseen` -> that of the total token throughput, by a fit that had not seen the
            point's group of that kind.
    """

    engine: str
    load: str
    errors: Mapping[str, float]
    unseen: Mapping[str, float]


def errors_of(
    points: Sequence[Missed], covered: Iterable[Covered], before: PredictionErrors | None = None
) -> PredictionErrors:
    """The errors to state for predictions from now on.

    Args:
        before: of the calibration that the fit began with. It still answers for what it had measured, so nothing gets
            surer than it was: the new points are few, near each other, and the fit has seen them.
    """
    before = before or PredictionErrors()
    by_engine: dict[str, list[Missed]] = defaultdict(list)
    for point in points:
        by_engine[point.engine].append(point)
    by_engine["any"] = list(points)
    shared = _shared(points)
    engines = {
        name: {m: _stated(members, m, shared, before.engines.get(name, {}).get(m)) for m in METRICS}
        for name, members in by_engine.items()
    }
    # An engine that nobody measured is not surer than any that somebody did.
    engines["any"] = {
        m: max((one[m] for one in engines.values()), key=lambda spread: math.hypot(spread.group, spread.row))
        for m in METRICS
    }
    added = {kind: max(more, before.unseen.get(kind, 0.0)) for kind, more in _unseen(points).items()}
    return PredictionErrors(
        engines={**before.engines, **engines},
        unseen={**_NOT_ASKED, **before.unseen, **added},
        covered=[*before.covered, *(one for one in covered if one not in before.covered)],
    )


def _stated(points: Sequence[Missed], metric: str, shared: float, before: ErrorSpread | None) -> ErrorSpread:
    """What the errors of points let one state of a metric."""
    total = _scale([_foreseen(p, metric) for p in points if metric in p.errors])
    group, row = round(total * math.sqrt(shared), 3), round(total * math.sqrt(1.0 - shared), 3)
    if before is not None:
        return ErrorSpread(group=max(group, before.group), row=max(row, before.row))
    known = min(1.0, len(points) / _TELLING)

    def mixed(stated: float, unknown: float) -> float:
        return round(math.sqrt(known * stated**2 + (1.0 - known) * unknown**2), 3)

    return ErrorSpread(group=mixed(group, UNKNOWN.group), row=mixed(row, UNKNOWN.row))


def _foreseen(point: Missed, metric: str) -> float:
    """The error of a prediction, where one was made: of throughput, by the fit that had not seen the workload.

    A fit's own errors are too small, the more so the fewer points an engine has.
    """
    own = point.errors[metric]
    return point.unseen.get("workload", own) if metric == HEADLINE else own


def _shared(points: Sequence[Missed]) -> float:
    """Which share of the variance the configurations of one engine under one load have in common.

    By the differences of their errors, over all engines: what they tell apart is little. Kept from the ends, where a
    comparison within an engine would be as unsure as one between engines, or certain.
    """
    loads: dict[str, list[float]] = defaultdict(list)
    for point in points:
        if HEADLINE in point.errors:
            loads[f"{point.engine} {point.load}"].append(point.errors[HEADLINE])
    apart = [one - other for errors in loads.values() for one, other in combinations(errors, 2)]
    if not apart or len(loads) < _TELLING:
        return 0.5
    total = _scale([error for errors in loads.values() for error in errors])
    return min(0.8, max(0.2, 1.0 - (_scale(apart) / total) ** 2 / 2.0))


def _unseen(points: Sequence[Missed]) -> dict[str, float]:
    """What is added for a group that was not seen: as much as its left-out errors are wider than the fit's own."""
    added = {}
    for kind in _NEW:
        seen = [p for p in points if HEADLINE in p.errors and kind in p.unseen]
        own, out = [_foreseen(p, HEADLINE) for p in seen], [p.unseen[kind] for p in seen]
        if kind == "workload" and seen:
            added[kind] = 0.0  # the engines' spreads are those of unseen workloads already
        elif seen:
            added[kind] = round(math.sqrt(max(0.0, _predicted_scale(out) ** 2 - _scale(own) ** 2)), 3)
    return added


def _scale(errors: Sequence[float]) -> float:
    """The standard deviation whose 90 % interval holds nine of ten errors."""
    if not errors:
        return 0.5
    return max(_LEAST, float(np.quantile(np.abs(errors), 0.9)) / Z90)


def _predicted_scale(errors: Sequence[float]) -> float:
    """The same for errors of predictions, so that the next one lies within it with odds of 9 to 1."""
    ordered = sorted(abs(e) for e in errors)
    rank = min(len(ordered), math.ceil(0.9 * (len(ordered) + 1)))
    return max(_LEAST, ordered[rank - 1] / Z90)
