"""Test whether the nodes of a study are equally fast, and compare launches on several nodes.

The baseline is launched on each node. If its mean on a node is far from the median of all nodes,
the difference is the node's offset, which the search subtracts from all scores of that node. After
a second launch that confirms the offset, nothing more runs there.

The finals do not use offsets. They compare a configuration with the baseline on the same node only
(`contrast`); the spread of a launch is the residual of a model with additive effects of node and
configuration (`additive_spread`). Both are least squares with a constant for each node, so
successive looks have the joint distribution that `sequential_test` assumes.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from statistics import fmean, median, median_high

import numpy as np

from autotune.base import by_key, frozen

from .spread import LAUNCH_NOISE, Spread, mean

NodeScore = tuple[str, float]
"""A launch's node and its score."""

CLEAR = 4.0
"""Least distance of a node's mean from the median for an offset, standard errors."""
LEAST_LAUNCHES = 2
"""Launches of the baseline before a node is reported as off: a single one may be an outlier."""
_MAD_TO_SD = 1.4826
"""Factor from a median absolute deviation to the standard deviation of a normal distribution."""
_LEAST_NODES_FOR_MAD = 3
"""Least number of nodes for that deviation: two are always equally far from the median."""


@frozen
class NodeOffset:
    """Speed of a node relative to the others.

    Attributes:
        offset: difference of its scores, score units; negative is slower, 0 is within noise.
        launches: number of the baseline's launches there.
    """

    offset: float
    launches: int

    @property
    def off(self) -> bool:
        """Return whether the node is reported as slower or faster than the others."""
        return self.offset != 0 and self.launches >= LEAST_LAUNCHES

    @property
    def doubtful(self) -> bool:
        """Return whether a second launch of the baseline there must confirm the offset."""
        return self.offset != 0 and self.launches < LEAST_LAUNCHES


def node_offsets(baseline: Mapping[str, Sequence[float]]) -> dict[str, NodeOffset]:
    """Return the offset of each node from the median node, by the baseline's scores; of two nodes
    from the faster one.

    The spread is the largest of three: the usual one, that of repeats, and that of the nodes' means
    by their median absolute deviation.
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

    The information is the sum over nodes of ``1 / (1/n + 1/m)``, for n and m launches there; the
    variance of the difference is that of one launch divided by it. If no node ran both, the
    difference is that of all launches, and the information is 0.
    """
    ours, others = by_key(mine), by_key(theirs)
    parts = []
    for node in sorted(ours.keys() & others.keys()):
        a, b = ours[node], others[node]
        parts.append((mean(a) - mean(b), 1 / (1 / len(a) + 1 / len(b))))
    if not parts:
        return mean([s for _, s in mine]) - mean([s for _, s in theirs]), 0.0
    if len(parts) == 1:
        return parts[0]
    differences, weights = zip(*parts, strict=True)
    return fmean(differences, weights), math.fsum(weights)


def planned(mine: Sequence[str], theirs: Sequence[str], more: int, off: Collection[str]) -> float:
    """Return the information of `contrast` after this number of further launches, in pairs on the
    nodes with the fewest launches; on nodes that are off only if there are no others."""
    counts = {node: [mine.count(node), theirs.count(node)] for node in sorted({*mine, *theirs})}
    alive = [count for node, count in counts.items() if node not in off] or list(counts.values())
    for number in range(0, more, 2):
        fewest = min(alive, key=lambda count: count[0])
        fewest[0] += 1
        fewest[1] += number + 1 < more
    return sum(1 / (1 / n + 1 / m) for n, m in counts.values() if n and m)


def additive_spread(launches: Sequence[tuple[Hashable, str, float]]) -> Spread:
    """Return the spread of launches (configuration, node, score) around a model with additive
    effects of configuration and node."""
    if not launches:
        return Spread.from_squares(0.0, 0)
    columns = [dict.fromkeys(row[k] for row in launches) for k in (0, 1)]
    codes = [{name: at for at, name in enumerate(column)} for column in columns]
    design = np.zeros((len(launches), sum(map(len, codes))))
    for i, (configuration, node, _) in enumerate(launches):
        design[i, codes[0][configuration]] = design[i, len(codes[0]) + codes[1][node]] = 1.0
    scores = np.array([score for _, _, score in launches])
    # Subtract the mean, so that equal repeats have exactly no residuals.
    scores = scores - scores.mean()
    found, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    return Spread.from_squares(
        float(((scores - design @ found) ** 2).sum()), len(launches) - int(rank)
    )
