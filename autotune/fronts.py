"""The front of two goals, of one load or over the loads of a ladder."""

from __future__ import annotations

import numpy as np

from autotune import curves
from autotune.comparison import Sheet
from autotune.search import objective
from autotune.search.decide.estimate import Spread, mean
from autotune.search.front import dominated
from autotune.study.recommendation import FrontPoint
from autotune.trial import Role


def front(sheet: Sheet) -> list[FrontPoint]:
    """The non-dominated ones of all measured configurations that keep the SLOs, the best of the first goal first.

    Empty where one goal was asked for.
    """
    spec = sheet.spec
    if spec.front_on_ladder:
        return _on_ladder(sheet)
    if spec.pareto is None:
        return []
    feasible = [p for p in sheet.history.by_position if sheet.history.feasible(p, Role.FINAL)]
    seconds = {p: scores for p in feasible if (scores := sheet.seconds(p))}
    choices = {p: sheet.choice(p) for p in seconds}
    sign = 1 if objective.maximises(spec.objective) else -1
    firsts = {p: sign * float(np.log(choice.objective.value)) for p, choice in choices.items()}
    points = np.array([(firsts[p], mean(seconds[p])) for p in choices]).reshape(-1, 2)
    kept = [p for p, beaten in zip(choices, dominated(points), strict=True) if not beaten]
    spread = Spread.pooled(seconds.values())
    return [
        FrontPoint(
            **choices[p].model_dump(),
            second=sheet.goal(spec.pareto, spec.workloads[0], seconds[p], spread),
            evidence=sheet.measured(p)[-1].result.evidence,
        )
        for p in sorted(kept, key=lambda p: -firsts[p])
    ]


def _on_ladder(sheet: Sheet) -> list[FrontPoint]:
    """For each engine the loads of its configurations that no other such load of it beats."""
    spec, groups = sheet.spec, dict[str, list[tuple[int, int | None, list[tuple[float, float]]]]]()
    for position in (p for p in sheet.history.by_position if sheet.history.feasible(p, Role.FINAL)):
        name = sheet.history.candidates.items[position].configuration.engine
        loads = curves.loads_of(spec, sheet.measured(position))
        groups.setdefault(name, []).extend((position, load, scores) for load, scores in loads.items())
    points = []
    for group in filter(None, groups.values()):
        means = np.array([[mean(column) for column in zip(*scores, strict=True)] for _, _, scores in group])
        spreads = [Spread.pooled([[both[goal] for both in row[2]] for row in group]) for goal in (0, 1)]
        beaten = dominated(means)
        for i in sorted(np.flatnonzero(~beaten).tolist(), key=lambda i: -means[i, 0]):
            position, load, scores = group[i]
            goals = [
                sheet.goal(metric, spec.workloads[0], [both[goal] for both in scores], spreads[goal])
                for goal, metric in enumerate((spec.objective, spec.pareto or spec.objective))
            ]
            points.append(
                FrontPoint(
                    **{**sheet.choice(position).model_dump(), "objective": goals[0]},
                    second=goals[1],
                    concurrency=load,
                    evidence=sheet.measured(position)[-1].result.evidence,
                )
            )
    return points
