"""What stands beside the recommendation: the finalists on every workload, the front of two goals, and the nodes.

The first two take the same launches as the recommendation: those of the finals where a configuration has any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from autotune.search import objective
from autotune.search.decide.estimate import Spread, mean, percent
from autotune.search.decide.verdict import Judgement
from autotune.search.front import dominated
from autotune.search.history import History
from autotune.search.nodes import contrast
from autotune.study.recommendation import Choice, FrontPoint, MatrixCell, MatrixRow, NodeShare, Objective
from autotune.trial import Launch, Role

Measured = Callable[[int], Sequence[Launch]]
"""The launches behind the figures of the candidate at a position."""
Chosen = Callable[[int], Choice | None]
"""The candidate at a position with its command and what it achieves."""


def matrix(history: History, judgement: Judgement, measured: Measured, chosen: Chosen) -> list[MatrixRow]:
    """The baseline and the finalists that keep the SLOs, the recommended one first among them, on every workload.

    Gains are ratios of geometric means; of several nodes, by launches on the same ones.
    """
    base = history.candidates.baseline
    contenders = dict.fromkeys(entry.position for entry in history.of_role(Role.FINAL))
    kept = [p for p in contenders if history.feasible(p, Role.FINAL)]
    others = [p for p in dict.fromkeys([judgement.winner, *kept]) if p is not None and p != base]
    listed = [*([base] if history.scores(base) else []), *others]
    eligible = {p for p in listed if p != base or history.feasible(base)}
    cells: dict[int, dict[str, MatrixCell]] = {p: {} for p in listed}
    for name in history.spec.workloads:
        for position, cell in _column(history, judgement, name, {p: measured(p) for p in listed}, eligible).items():
            cells[position][name] = cell
    rows = []
    for position in listed:
        if (choice := chosen(position)) is not None:
            role: Literal["baseline", "recommended", "finalist"]
            role = "baseline" if position == base else "recommended" if position == judgement.winner else "finalist"
            rows.append(MatrixRow(**choice.model_dump(), role=role, workloads=cells[position]))
    return rows


def _column(
    history: History, judgement: Judgement, workload: str, launches: Mapping[int, Sequence[Launch]], eligible: set[int]
) -> dict[int, MatrixCell]:
    """One workload: position to its cell, of those that were measured on it."""
    spec, base = history.spec, history.candidates.baseline
    nodes_of = {entry.number: entry.node for entry in history}
    placed = {
        position: [
            (nodes_of[row.trial.number], s) for row in rows if (s := objective.score(spec, row, workload)) is not None
        ]
        for position, rows in launches.items()
    }
    groups = {position: [score for _, score in rows] for position, rows in placed.items() if rows}
    spread = Spread.pooled(groups.values())
    best = max((p for p in groups if p in eligible), key=lambda p: mean(groups[p]), default=None)
    cells = {}
    for position, scores in groups.items():
        gain, interval = None, None
        if position != base and base in groups:
            gain, _ = contrast(placed[position], placed[base])
            half = spread.half_width((len(scores), len(groups[base])))
            interval = None if half is None else (gain - half, gain + half)
            if position == judgement.winner and judgement.gain and list(objective.weights(spec)) == [workload]:
                gain, interval = judgement.gain.log, judgement.gain.interval  # One gain has one interval.
        cells[position] = MatrixCell(
            value=objective.from_score(spec, mean(scores)),
            gain_percent=None if gain is None else percent(gain),
            ci95=None if interval is None else (percent(interval[0]), percent(interval[1])),
            repeats=len(scores),
            best=position == best,
        )
    return cells


def nodes(history: History) -> list[NodeShare]:
    """The nodes that ran the study, in the order of their names; none where there was one.

    Args:
        history: scores as they were measured.
    """
    names = sorted({entry.node for entry in history if entry.node})
    if len(names) < 2:
        return []
    base, known = history.candidates.baseline, history.node_offsets
    scores = {name: [score for node, score in history.node_scores(base) if node == name] for name in names}
    means = {name: mean(found) for name, found in scores.items() if found}
    shares = []
    for name in names:
        others = [value for other, value in means.items() if other != name]
        difference = percent(means[name] - mean(others)) if name in means and others else None
        shares.append(
            NodeShare(
                node=name,
                launches=sum(entry.node == name for entry in history),
                baseline=objective.from_score(history.spec, means[name]) if name in means else None,
                difference_percent=difference,
                offset_percent=percent(known[name].offset) if name in known else 0.0,
                certain=name in history.off_nodes,
            )
        )
    return shares


def front(history: History, measured: Measured, chosen: Chosen) -> list[FrontPoint]:
    """The non-dominated ones of all measured configurations that keep the SLOs, the best of the first goal first.

    Empty where one goal was asked for.
    """
    spec = history.spec
    if spec.pareto is None:
        return []
    feasible = [p for p in history.by_position if history.feasible(p, Role.FINAL)]
    seconds = {
        p: scores
        for p in feasible
        if (scores := [s for row in measured(p) if (s := objective.second(spec, row)) is not None])
    }
    choices = {p: choice for p in seconds if (choice := chosen(p)) is not None}
    sign = 1 if objective.maximises(spec.objective) else -1
    firsts = {p: sign * float(np.log(choice.objective.value)) for p, choice in choices.items()}
    points = np.array([(firsts[p], mean(seconds[p])) for p in choices]).reshape(-1, 2)
    kept = [p for p, beaten in zip(choices, dominated(points), strict=True) if not beaten]
    spread = Spread.pooled(seconds.values())
    return [
        FrontPoint(
            **choices[p].model_dump(),
            second=_second(history, spec.pareto, seconds[p], spread),
            evidence=measured(p)[-1].result.evidence,
        )
        for p in sorted(kept, key=lambda p: -firsts[p])
    ]


def _second(history: History, metric: str, scores: Sequence[float], spread: Spread) -> Objective:
    spec, middle = history.spec, mean(scores)
    half = spread.half_width((len(scores),)) if len(scores) > 1 else None
    ends = [] if half is None else [objective.from_score(spec, middle + side * half, metric) for side in (-1, 1)]
    return Objective(
        metric=metric,
        workload=spec.workloads[0],
        value=objective.from_score(spec, middle, metric),
        ci95=(min(ends), max(ends)) if ends else None,
        repeats=len(scores),
    )
