"""Whether the nodes that run a study are alike, and how launches on several of them are compared.

A throttled GPU or a slow link makes one of several nodes slower. Most nodes are alike, a few are off by any amount:
every way to divide the nodes so is given its probability by the launches of one and the same configuration (the
baseline's, and fresh ones of finalists; a mixture with a point mass, Mitchell and Beauchamp, J. Am. Stat. Assoc. 83,
1988), averaged over what the spread of a launch may be. A node's offset is the mean over all that: next to nothing
where noise explains the launches, nearly the whole difference where it cannot.

The search takes scores less their node's offset. The finals do not rely on it: there a configuration is compared with
the baseline on the same node only (`contrast`), and the spread of a launch is what a node and a configuration, each
with a part of its own, leave unexplained (`additive_spread`). Both follow from least squares with a constant for each
node, so that successive looks have the joint distribution that the test of `sequential` counts on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from autotune.search.estimate import USUAL_SD, Spread, mean

Floats = NDArray[np.float64]
Placed = tuple[str, float]
"""A launch's node and score."""

OFF = 0.1
"""How often a node is off, before anything ran there."""
FASTER = 0.1
"""How often one that is off is faster than the rest: something is broken more often than improved."""
TYPICAL = 0.2
"""Standard deviation of what nodes that are off are off by, score units."""
CERTAIN = 0.99
"""Odds from which on a node is said to be off, and its launches are no evidence."""
SUSPICIOUS = 0.2
"""Odds from which on, up to `CERTAIN`, the baseline is launched there once more."""
WORTH = 0.03
"""An offset below which that is not worth a launch; 3 %."""
_SPREADS = np.geomspace(0.003, 0.3, 14)
"""What the standard deviation of a launch may be; `USUAL_SD` is expected as from two launches."""
_ALL_DIVISIONS = 8
"""Nodes up to which half of them may be off; of more at most two."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a node does to scores.

    Attributes:
        offset: what a launch there has more than on a node as the others are, score units.
        sd: how unsure that is.
        odds: that it is off at all.
    """

    offset: float
    sd: float
    odds: float

    @property
    def certain(self) -> bool:
        """Whether the node is said to be off."""
        return self.odds >= CERTAIN

    @property
    def suspicious(self) -> bool:
        """Whether another launch of the baseline there is worth making."""
        return SUSPICIOUS <= self.odds < CERTAIN and abs(self.offset) >= WORTH


@lru_cache(maxsize=32)
def effects(launches: tuple[tuple[Hashable, str, float], ...]) -> dict[str, Effect]:
    """Node to what it does to scores, for the nodes on which any of these ran.

    Args:
        launches: of each its configuration, node and score; configurations differ in means of their own.
    """
    names = sorted({node for _, node, _ in launches})
    if len(names) < 2:
        return {name: Effect(0.0, 0.0, 0.0) for name in names}
    data = _Data.of(launches, names)
    parts = [_part(rows, len(names), data) for rows in _divisions(len(names))]
    logs = np.stack([part.log_weights for part in parts])
    weights = np.exp(logs - logsumexp(logs))
    off = sum(weight.sum() * part.off for weight, part in zip(weights, parts, strict=True))
    offset = sum(weight @ part.means for weight, part in zip(weights, parts, strict=True))
    square = sum(weight @ (part.variances + part.means**2) for weight, part in zip(weights, parts, strict=True))
    sds = np.sqrt(np.maximum(square - offset**2, 0.0))
    return {name: Effect(float(offset[k]), float(sds[k]), float(off[k])) for k, name in enumerate(names)}


def contrast(mine: Sequence[Placed], theirs: Sequence[Placed]) -> tuple[float, float]:
    """The difference of two configurations' means by launches on the same nodes, and its information.

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


def planned(mine: Sequence[str], theirs: Sequence[str], more: int) -> float:
    """The information of `contrast` after so many more launches, in pairs on the nodes that have had fewest."""
    counts = {node: [mine.count(node), theirs.count(node)] for node in sorted({*mine, *theirs})}
    for number in range(0, more, 2):
        fewest = min(counts.values(), key=lambda count: count[0])
        fewest[0] += 1
        fewest[1] += number + 1 < more
    return sum(1 / (1 / n + 1 / m) for n, m in counts.values() if n and m)


def additive_spread(launches: Sequence[tuple[Hashable, str, float]]) -> Spread:
    """The spread of a launch where configurations and nodes each add a part of their own; arguments as of `effects`."""
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


@dataclass(frozen=True, slots=True)
class _Data:
    """The launches about their configurations' means: ``Z'MZ``, ``Z'My``, ``y'My``, and the degrees of freedom."""

    shared: Floats
    pulls: Floats
    squares: float
    degrees: int

    @classmethod
    def of(cls, launches: Sequence[tuple[Hashable, str, float]], names: Sequence[str]) -> _Data:
        kinds = list(dict.fromkeys(what for what, _, _ in launches))
        at = np.array([kinds.index(what) for what, _, _ in launches])
        on = np.zeros((len(launches), len(names)))
        on[np.arange(len(launches)), [names.index(node) for _, node, _ in launches]] = 1.0
        scores = np.array([score for _, _, score in launches])
        for kind in range(len(kinds)):
            on[at == kind] -= on[at == kind].mean(axis=0)
            scores[at == kind] -= scores[at == kind].mean()
        return cls(on.T @ on, on.T @ scores, float(scores @ scores), len(launches) - len(kinds))


@dataclass(frozen=True, slots=True)
class _Part:
    """One division of the nodes under each of `_SPREADS`: weights, which are off, and by how much.

    Shapes ``(spreads,)``, ``(nodes,)``, and twice ``(spreads, nodes)``.
    """

    log_weights: Floats
    off: Floats
    means: Floats
    variances: Floats


def _divisions(nodes: int) -> Iterator[NDArray[np.int64]]:
    """Which nodes may be off together."""
    for count in range((nodes // 2 if nodes <= _ALL_DIVISIONS else 2) + 1):
        for chosen in itertools.combinations(range(nodes), count):
            yield np.array(chosen, dtype=np.int64)


def _part(rows: NDArray[np.int64], nodes: int, data: _Data) -> _Part:
    """The posterior of the offsets of nodes that are off, and the likelihood with the prior of it all."""
    ratios, variances = (_SPREADS / TYPICAL) ** 2, _SPREADS**2
    roots, axes = np.linalg.eigh(data.shared[np.ix_(rows, rows)])
    pulls = axes.T @ data.pulls[rows]
    shrunk = 1 / (np.maximum(roots, 0.0) + ratios[:, None])
    found = (shrunk * pulls) @ axes.T
    log_weights = len(rows) * math.log(OFF) + (nodes - len(rows)) * math.log1p(-OFF)
    log_weights = log_weights - 2 * np.log(_SPREADS) - USUAL_SD**2 / variances - data.degrees * np.log(_SPREADS)
    log_weights += 0.5 * np.log(shrunk * ratios[:, None]).sum(axis=1) + math.log(FASTER) * (found > 0).sum(axis=1)
    log_weights -= 0.5 * (data.squares - shrunk @ pulls**2) / variances
    off, (means, own) = np.zeros(nodes), np.zeros((2, len(_SPREADS), nodes))
    off[rows], means[:, rows], own[:, rows] = 1.0, found, variances[:, None] * (shrunk @ (axes**2).T)
    return _Part(log_weights, off, means, own)
