"""How sure the calibrated simulator may be: `Errors` from what a fit and its left-out groups got wrong.

Quantiles, not variances: nine of ten errors lie within 1.645 standard deviations by construction, whatever their tails.
Of an engine's own errors it is their 90 % quantile. Of the errors of left-out groups, which are the only ones of
predictions, the rank is that of split conformal prediction, the ceiling of 0.9 (n + 1), so that few points give wide
intervals (Angelopoulos and Bates, arXiv:2107.07511). Fewer than nine points have no such rank: the fewer there are, the
more what is said without any calibration counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.simulate.uncertainty import HEADLINE, UNKNOWN, Z90, Covered, Errors, Spread

METRICS = (HEADLINE, "median_ttft_ms", "median_tpot_ms")
_LEAST = 0.03
"""No spread is stated below it: two launches of one configuration differ by as much."""

_TELLING = 9
"""Points from which on nine of ten errors can be told from all of them: 0.9 (n + 1) is at most n."""

_NOT_ASKED = dict.fromkeys(("engine", "gpu", "model", "workload"), 0.25)
"""Added for the unseen where no group was ever left out: all four together as unsure as without a calibration."""


@dataclass(frozen=True, slots=True)
class Missed:
    """ln(measured / predicted) of one point.

    Attributes:
        errors: by metric, of the fit to all points.
        unseen: ``engine``, ``gpu``, ``model``, ``workload`` -> the same by a fit that had not seen the point's group.
    """

    engine: str
    workload: str
    errors: Mapping[str, float]
    unseen: Mapping[str, Mapping[str, float]]


def errors_of(points: Sequence[Missed], covered: Iterable[Covered], before: Errors | None = None) -> Errors:
    """The errors to state for predictions from now on.

    Args:
        before: of the calibration that the fit began with. It still answers for what it had measured, so nothing gets
            surer than it was: the new points are few, near each other, and the fit has seen them.
    """
    before = before or Errors()
    by_engine: dict[str, list[Missed]] = defaultdict(list)
    for point in points:
        by_engine[point.engine].append(point)
    by_engine["any"] = list(points)
    engines = {
        name: {m: _believed(_spread(members, m), len(members), before.engines.get(name, {}).get(m)) for m in METRICS}
        for name, members in by_engine.items()
    }
    # An engine that nobody measured is not surer than any that somebody did.
    engines["any"] = {m: max((one[m] for one in engines.values()), key=_total) for m in METRICS}
    added = {kind: max(more, before.unseen.get(kind, 0.0)) for kind, more in _unseen(points).items()}
    return Errors(
        engines={**before.engines, **engines},
        unseen={**_NOT_ASKED, **before.unseen, **added},
        covered=[*before.covered, *(one for one in covered if one not in before.covered)],
    )


def _believed(found: Spread, points: int, before: Spread | None) -> Spread:
    """What so many points' errors let one state."""
    if before is not None:
        return Spread(group=max(found.group, before.group), row=max(found.row, before.row))
    told = min(1.0, points / _TELLING)

    def mixed(its: float, unknown: float) -> float:
        return _rounded(math.sqrt(told * its**2 + (1.0 - told) * unknown**2))

    return Spread(group=mixed(found.group, UNKNOWN.group), row=mixed(found.row, UNKNOWN.row))


def _spread(points: Sequence[Missed], metric: str) -> Spread:
    total = _scale([p.errors[metric] for p in points if metric in p.errors])
    by_workload: dict[str, list[float]] = defaultdict(list)
    for point in points:
        if metric in point.errors:
            by_workload[f"{point.engine} {point.workload}"].append(point.errors[metric])
    apart = [e - sum(es) / len(es) for es in by_workload.values() if len(es) > 1 for e in es]
    freedom = sum(len(es) - 1 for es in by_workload.values())
    row = math.sqrt(sum(e * e for e in apart) / freedom) if freedom else total
    row = min(total, max(_LEAST, row))
    return Spread(group=_rounded(math.sqrt(total**2 - row**2)), row=_rounded(row))


def _unseen(points: Sequence[Missed]) -> dict[str, float]:
    """What is added for a group that was not seen: as much as its left-out errors are wider than the fit's own."""
    found = {}
    for kind in ("engine", "gpu", "model", "workload"):
        both = [(p.errors[HEADLINE], p.unseen[kind][HEADLINE]) for p in points if HEADLINE in p.unseen.get(kind, {})]
        if both:
            own, out = (list(errors) for errors in zip(*both, strict=True))
            found[kind] = _rounded(math.sqrt(max(0.0, _predicted_scale(out) ** 2 - _scale(own) ** 2)))
    return found


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


def _total(spread: Spread) -> float:
    return math.hypot(spread.group, spread.row)


def _rounded(value: float) -> float:
    return round(value, 3)
