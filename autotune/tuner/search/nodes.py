"""Test whether the nodes of a study are alike, and compare launches on several of them.

The baseline is launched on each node. A node whose mean is far from the median of all is off by
that much: the search takes the scores of its launches less this offset. Once a second launch there
says the same, nothing more runs there.

The finals do not rely on it: there a configuration is compared with the baseline on the same node
only (`contrast`), and the spread of a launch is what a node and a configuration, each with a part
of its own, leave unexplained (`additive_spread`). Both follow from least squares with a constant
for each node, so that successive looks have the joint distribution that the test of
`sequential_test` counts on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from statistics import median, median_high

import numpy as np

from autotune.base import frozen

from .spread import LAUNCH_NOISE, Spread, mean

NodeScore = tuple[str, float]
"""A launch's node and its score."""

CLEAR = 4.0
"""Standard errors between a node's mean and the median beyond which the node is off."""
LEAST_LAUNCHES = 2
"""Launches of the baseline before a node is reported as off: one may be untypical."""
_MAD_TO_SD = 1.4826
_LEAST_NODES_FOR_MAD = 3
"""Least nodes for a median deviation: two are equally far from the middle."""


@frozen
class NodeOffset:
    """Difference of a node's scores from the others'.

    Attributes:
        offset: score units, negative is slower; 0 within noise.
        launches: of the baseline there.
    """

    offset: float
    launches: int

    @property
    def off(self) -> bool:
        """Return whether the node is reported as slower or faster than the others."""
        return self.offset != 0 and self.launches >= LEAST_LAUNCHES

    @property
    def doubtful(self) -> bool:
        """Return whether another launch of the baseline there would decide."""
        return self.offset != 0 and self.launches < LEAST_LAUNCHES


def node_offsets(baseline: Mapping[str, Sequence[float]]) -> dict[str, NodeOffset]:
    """Return the offset of each node from the median node, by the baseline's scores; of two from
    the faster one.

    The spread is the largest of three: the usual one, that of repeats, that of the nodes' medians.
    """
    means = {node: mean(scores) for node, scores in baseline.items()}
    if len(means) < 2:
        return {node: NodeOffset(0.0, len(baseline[node])) for node in means}
    middle = median_high(means.values())
    spread = max(LAUNCH_NOISE, Spread.pooled(baseline.values()).sd)
    if len(means) >= _LEAST_NODES_FOR_MAD:
        spread = max(spread, _MAD_TO_SD * median(abs(value - middle) for value in means.values()))
    total = sum(map(len, baseline.values()))
    found = {}
    for node, scores in baseline.items():
        error = spread * math.sqrt(1 / len(scores) + 1 / (total - len(scores)))
        offset = means[node] - middle
        found[node] = NodeOffset(offset if abs(offset) > CLEAR * error else 0.0, len(scores))
    return found


def contrast(mine: Sequence[NodeScore], theirs: Sequence[NodeScore]) -> tuple[float, float]:
    """Return the difference of two configurations' means by launches on the same nodes, and its
    information.

    The difference has the variance of one launch over the information, ``1 / (1/n + 1/m)`` summed
    over the nodes; 0 where no node ran both, then the difference is that of all launches. On one
    node these are the plain figures.
    """
    parts = []
    for node in sorted({node for node, _ in mine} & {node for node, _ in theirs}):
        a = [s for n, s in mine if n == node]
        b = [s for n, s in theirs if n == node]
        parts.append((mean(a) - mean(b), 1 / (1 / len(a) + 1 / len(b))))
    if not parts:
        return mean([s for _, s in mine]) - mean([s for _, s in theirs]), 0.0
    if len(parts) == 1:
        return parts[0]
    information = math.fsum(weight for _, weight in parts)
    return math.fsum(difference * weight for difference, weight in parts) / information, information


def planned(mine: Sequence[str], theirs: Sequence[str], more: int, off: Collection[str]) -> float:
    """Return the information of `contrast` after this number of further launches, in pairs on the
    least used nodes.

    Nothing more runs on nodes that are off, unless there are no others.
    """
    counts = {node: [mine.count(node), theirs.count(node)] for node in sorted({*mine, *theirs})}
    alive = [count for node, count in counts.items() if node not in off] or list(counts.values())
    for number in range(0, more, 2):
        fewest = min(alive, key=lambda count: count[0])
        fewest[0] += 1
        fewest[1] += number + 1 < more
    return sum(1 / (1 / n + 1 / m) for n, m in counts.values() if n and m)


def additive_spread(launches: Sequence[tuple[Hashable, str, float]]) -> Spread:
    """Return the spread of a launch (configuration, node, score), where the first two have additive
    effects."""
    if not launches:
        return Spread.from_squares(0.0, 0)
    columns = [dict.fromkeys(row[k] for row in launches) for k in (0, 1)]
    codes = [{name: at for at, name in enumerate(column)} for column in columns]
    design = np.zeros((len(launches), sum(map(len, codes))))
    for i, (what, node, _) in enumerate(launches):
        design[i, codes[0][what]] = design[i, len(codes[0]) + codes[1][node]] = 1.0
    scores = np.array([score for _, _, score in launches])
    # Around the middle, so that equal repeats leave exactly nothing.
    scores = scores - scores.mean()
    found, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    return Spread.from_squares(
        float(((scores - design @ found) ** 2).sum()), len(launches) - int(rank)
    )
