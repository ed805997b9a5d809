"""Tell whether the nodes that run a study are alike, and compare launches on several of them.

The baseline is launched on each node. A node whose mean is far from the median of all is off by that much: the search
takes the scores of its launches less this offset. Once a second launch there says the same, nothing more runs there.

The finals do not rely on it: there a configuration is compared with the baseline on the same node only (`contrast`),
and the spread of a launch is what a node and a configuration, each with a part of its own, leave unexplained
(`additive_spread`). Both follow from least squares with a constant for each node, so that successive looks have the
joint distribution that the test of `sequential_test` counts on.

Launches that share a node may slow each other. The first launches of the baseline decide that once: alone on a share,
then on all shares at once. They are compared as two means with the usual noise of a launch (`LAUNCH_NOISE`, 3 %): where
those beside others are slower by more than `LIMIT` standard errors of that difference, the study goes on one launch at
a time. A node without interference is taken for one with it in 5 % of studies, and then nothing is lost but time. A
slowdown below the limit (6 % on two shares) may stay unseen; it is in all launches alike. Launches beside others on a
node that slows them count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high
from typing import Protocol

import numpy as np
from scipy.special import ndtri

from autotune.search.decide.sequential_test import LAUNCH_NOISE, Spread, mean, percent
from autotune.study.places import is_alone, is_beside

ERROR_RATE = 0.05
"""False alarms: share of studies without interference that are said to have it, at the usual launch noise."""
LIMIT = float(-ndtri(ERROR_RATE))
_BESIDE = 0.5
"""The share of its time that a launch must have run beside others to tell what they do to it."""


class ControlRun(Protocol):
    """A launch of the baseline that was its first on a place; attributes as of `history.Entry`."""

    @property
    def node(self) -> str: ...
    @property
    def score(self) -> float | None: ...
    @property
    def broke(self) -> bool: ...
    @property
    def pending(self) -> bool: ...
    @property
    def began_s(self) -> float: ...
    @property
    def seconds(self) -> float: ...


def one_at_a_time(control: Sequence[ControlRun]) -> str:
    """Say why launches may not run side by side; empty where they may, or where that is not decided.

    Args:
        control: the baseline's first launches on every place.
    """
    together = [run for run in control if is_beside(run.node)]
    before = next((run.score for run in control if is_alone(run.node) and run.score is not None), None)
    if before is None or len(together) < 2 or any(run.pending for run in control):
        return ""
    if any(run.broke for run in together):
        return "the baseline runs alone on its share of the GPUs and fails beside others: one at a time from here on"
    beside = [run.score for run in together if run.score is not None and _ran_beside(run, together)]
    if len(beside) < 2:
        return "what launches side by side do to each other could not be measured: one at a time from here on"
    slower, error = before - mean(beside), LAUNCH_NOISE * math.sqrt(1 + 1 / len(beside))
    if slower <= LIMIT * error:
        return ""
    return f"launches side by side slow each other by {-percent(-slower):.0f} %: one at a time from here on"


def _ran_beside(run: ControlRun, others: Iterable[ControlRun]) -> bool:
    """Tell whether another one of these launches ran for most of a launch."""
    ends = run.began_s + run.seconds
    both_s = [min(ends, one.began_s + one.seconds) - max(run.began_s, one.began_s) for one in others if one is not run]
    return max(both_s, default=0.0) >= _BESIDE * run.seconds


def open_places(control: Sequence[ControlRun], decided: str, places: Sequence[str]) -> Sequence[str]:
    """Return those of an executor's free places on which to launch next, in the order of the control; none: wait.

    Args:
        decided: what `one_at_a_time` says.
        places: where none is alone, they are nodes of their own, and all of them are open.
    """
    if not any(map(is_alone, (*places, *(run.node for run in control)))):
        return places
    if decided or not any(is_alone(run.node) and run.score is not None for run in control):
        return [place for place in places if is_alone(place)]
    shares = [place for place in places if is_beside(place)]
    new = [place for place in shares if all(run.node != place for run in control)]
    return new or ([] if any(run.pending for run in control) else shares)


NodeScore = tuple[str, float]
"""A launch's node and its score."""

CLEAR = 4.0
"""Standard errors by which a node's mean must miss the median to be off."""
LEAST_LAUNCHES = 2
"""Launches of the baseline before a node is said to be off: one may have failed to be typical."""
_MAD_TO_SD = 1.4826
_LEAST_NODES_FOR_MAD = 3
"""Of two nodes each is as far from the middle as the other."""


@dataclass(frozen=True, slots=True)
class NodeOffset:
    """By how much scores on a node differ from those on the others.

    Attributes:
        offset: score units, negative is slower; 0 within noise.
        launches: of the baseline there.
    """

    offset: float
    launches: int

    @property
    def off(self) -> bool:
        """Tell whether the node is said to be slower or faster than the others."""
        return self.offset != 0 and self.launches >= LEAST_LAUNCHES

    @property
    def doubtful(self) -> bool:
        """Tell whether another launch of the baseline there would settle it."""
        return self.offset != 0 and self.launches < LEAST_LAUNCHES


def node_offsets(baseline: Mapping[str, Sequence[float]]) -> dict[str, NodeOffset]:
    """Return the offset of each node from the median node; of two nodes from the faster one.

    The spread of a launch is the largest of what is usual, what repeats on one node show, and what the nodes'
    median absolute deviation shows.

    Args:
        baseline: node to the baseline's scores there, one or more.
    """
    means = {node: mean(scores) for node, scores in baseline.items()}
    if len(means) < 2:
        return {node: NodeOffset(0.0, len(baseline[node])) for node in means}
    middle = median_high(means.values())
    spread = max(LAUNCH_NOISE, Spread.pooled(baseline.values()).sd)
    if len(means) >= _LEAST_NODES_FOR_MAD:
        spread = max(spread, _MAD_TO_SD * median(abs(value - middle) for value in means.values()))
    total, found = sum(map(len, baseline.values())), {}
    for node, scores in baseline.items():
        error = spread * math.sqrt(1 / len(scores) + 1 / (total - len(scores)))
        offset = means[node] - middle
        found[node] = NodeOffset(offset if abs(offset) > CLEAR * error else 0.0, len(scores))
    return found


def contrast(mine: Sequence[NodeScore], theirs: Sequence[NodeScore]) -> tuple[float, float]:
    """Return the difference of two configurations' means by launches on the same nodes, and its information.

    The difference has the variance of one launch over the information, ``1 / (1/n + 1/m)`` summed over the nodes; 0
    where no node ran both, then the difference is that of all launches. On one node these are the plain figures.
    """
    parts = []
    for node in sorted({node for node, _ in mine} & {node for node, _ in theirs}):
        a, b = [s for n, s in mine if n == node], [s for n, s in theirs if n == node]
        parts.append((mean(a) - mean(b), 1 / (1 / len(a) + 1 / len(b))))
    if not parts:
        return mean([s for _, s in mine]) - mean([s for _, s in theirs]), 0.0
    if len(parts) == 1:
        return parts[0]
    information = math.fsum(weight for _, weight in parts)
    return math.fsum(difference * weight for difference, weight in parts) / information, information


def planned(mine: Sequence[str], theirs: Sequence[str], more: int, off: Collection[str] = ()) -> float:
    """Return the information of `contrast` after so many more launches, in pairs on the nodes that have had fewest.

    Args:
        off: nodes where nothing more runs, unless there are no others.
    """
    counts = {node: [mine.count(node), theirs.count(node)] for node in sorted({*mine, *theirs})}
    alive = [count for node, count in counts.items() if node not in off] or list(counts.values())
    for number in range(0, more, 2):
        fewest = min(alive, key=lambda count: count[0])
        fewest[0] += 1
        fewest[1] += number + 1 < more
    return sum(1 / (1 / n + 1 / m) for n, m in counts.values() if n and m)


def additive_spread(launches: Sequence[tuple[Hashable, str, float]]) -> Spread:
    """Return the spread of a launch where configurations and nodes each add a part of their own.

    Args:
        launches: of each its configuration, node and score.
    """
    if not launches:
        return Spread.of(0.0, 0)
    columns = [dict.fromkeys(row[k] for row in launches) for k in (0, 1)]
    codes = [{name: at for at, name in enumerate(column)} for column in columns]
    design = np.zeros((len(launches), sum(map(len, codes))))
    for i, (what, node, _) in enumerate(launches):
        design[i, codes[0][what]] = design[i, len(codes[0]) + codes[1][node]] = 1.0
    scores = np.array([score for _, _, score in launches])
    # Around the middle, so that equal repeats leave exactly nothing.
    scores = scores - scores.mean()
    found, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    return Spread.of(float(((scores - design @ found) ** 2).sum()), len(launches) - int(rank))
