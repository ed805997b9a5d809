"""Below which value of the objective a load of the search may be cut short.

Cutting a load saves seconds of a node, cutting the best configuration costs the study its answer, so the margin is
wide: two launches of equal configurations are `MARGIN` spreads of one launch apart in 1 of 90,000 cases, and where the
incumbent was lucky by two of them, as the best of 30 is, in 1 of 30,000.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from autotune.loadgen.pruning import RACED
from autotune.search import objective
from autotune.search.decide.estimate import Spread
from autotune.search.nodes import Effect
from autotune.study.spec import StudySpec
from autotune.trial import Launch, Role

MARGIN = 6.0
"""In standard deviations of one launch, of ln(objective); a difference of two launches has 1.41 of these."""

UNKNOWN_NOISE = 0.06
"""Of one launch where nobody knows it: twice what is given to simulated ones. Repeats come late, and only widen it."""

_ENOUGH = 2
"""Degrees of freedom from which on the spread of repeats is believed where it is larger."""


def hopeless_below(
    spec: StudySpec, role: Role, launches: Sequence[Launch], effects: Mapping[str, Effect] | None = None
) -> float | None:
    """The objective's value below which a launch is of no use to the study; None = its load runs to its end.

    Only in the search, where a launch tells where not to go on, and only where the objective is one throughput and
    nothing else: latencies, SLOs and a second workload or metric need whole loads. None until something was measured.

    On which of several nodes the launch will run is not known yet, and it may be tried again on another: the value is
    one that the best configuration reaches on the slowest of them. What a fast node adds to the best is taken off, what
    a slow one costs it is not added: nodes can only make the value lower.

    Args:
        launches: those that the launch can know of.
        effects: node to what it does to scores, where there are several.
    """
    alone = not (spec.slos or spec.weights or spec.pareto)
    if role is not Role.SEARCH or not alone or spec.objective not in RACED:
        return None
    known: list[tuple[str, float, float]] = []
    for row in launches:
        score = None if spec.workloads[0] in row.result.shortened else objective.score(spec, row)
        if score is not None:
            effect = (effects or {}).get(row.result.node or row.trial.node)
            offset = effect.at(row.trial.number).offset if effect is not None else 0.0
            known.append((row.trial.configuration.fingerprint, score, offset))
    if not known:
        return None
    best = max(score - max(0.0, offset) for _, score, offset in known)
    slowest = min([0.0, *(effect.now.offset - effect.now.sd for effect in (effects or {}).values())])
    noise = _noise(spec, [(fingerprint, score - offset) for fingerprint, score, offset in known])
    return objective.from_score(spec, best + slowest - MARGIN * noise)


def _noise(spec: StudySpec, scores: Iterable[tuple[str, float]]) -> float:
    groups: dict[str, list[float]] = {}
    for fingerprint, score in scores:
        groups.setdefault(fingerprint, []).append(score)
    repeats = Spread.pooled(groups.values())
    least = spec.noise or UNKNOWN_NOISE
    return max(least, repeats.sd) if repeats.degrees >= _ENOUGH and math.isfinite(repeats.sd) else least
