"""Every way in which some of several nodes may be off, weighed by launches of one and the same configuration.

A node that is off is so for the whole study, from one of these launches on, or until one: a column of ones and zeros
over the launches each (`Column`), with an effect of its own. All nodes may change at once, which is no node's effect
and must not be taken for one. The effects of the columns of a division are normal before any launch, so that they, and
the probability of what was measured, follow in closed form from least squares with ridges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from autotune.arrays import Bools, Floats, Ints
from autotune.search.decide.estimate import LAUNCH_NOISE

Fresh = tuple[Hashable, str, int, float]
"""A launch that was not chosen for its outcome: its configuration, node, number and score."""

OFF = 0.1
"""How often a node is off, before anything ran there."""
FASTER = 0.1
"""How often one that is off is faster than the rest: something is broken more often than improved."""
CHANGED = 0.3
"""How many of those that are off were not from the beginning, or are not any more; nothing is known of either."""
ALL_CHANGED = 0.1
"""How often all nodes change at once."""
TYPICAL = 0.2
"""Standard deviation of what nodes that are off are off by, score units."""
_SPREADS = np.geomspace(0.003, 0.3, 14)
"""What the standard deviation of a launch may be; `LAUNCH_NOISE` is expected as from two launches."""
_ALL_DIVISIONS = 8
"""Nodes up to which half of them may be off; of more at most two. Where one of them changes two are all."""


@dataclass(frozen=True, slots=True)
class Column:
    """A way in which one node may be off, or all change.

    Attributes:
        node: index of the node; -1: all of them.
        before: number of the last launch on this node before it changed; -1: it did not.
        after: of the first one after that.
        on: the launches that it touches, shape ``(launches,)``.
        odds: of it, before anything ran.
    """

    node: int
    before: int
    after: int
    on: Bools
    odds: float


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of the columns after all launches, each of shape ``(columns,)``.

    Attributes:
        odds: that a node is off in this way.
        means, squares: of what it is off by, times these odds; score units, and squared.
    """

    columns: Sequence[Column]
    odds: Floats
    means: Floats
    squares: Floats


def weigh(launches: Sequence[Fresh], names: Sequence[str]) -> Found:
    """How likely each way is, and by how much nodes are off then.

    Args:
        launches: by number; configurations differ in means of their own.
        names: of all nodes on which any of them ran, two or more.
    """
    columns = [*_constants(launches, names), *_changes(launches, names), *_common(launches)]
    shared, pulls, squares, degrees = _moments(launches, columns)
    rest = _log_spreads(degrees) - 0.5 * squares / _SPREADS**2
    sizes = list(_divisions(columns, len(names)))
    priors = [_prior(columns, rows, len(names)) for rows in sizes]
    parts = [_part(rows, shared, pulls, columns) for rows in sizes]
    logs = [rest + prior[:, None] + part[0] for prior, part in zip(priors, parts, strict=True)]
    total = logsumexp([logsumexp(log) for log in logs])
    odds, means, second = np.zeros((3, len(columns)))
    for rows, log, (_, found, variances) in zip(sizes, logs, parts, strict=True):
        weights = np.exp(log - total)[:, :, None]
        np.add.at(odds, rows, np.broadcast_to(weights, found.shape).sum(axis=1))
        np.add.at(means, rows, (weights * found).sum(axis=1))
        np.add.at(second, rows, (weights * (variances + found**2)).sum(axis=1))
    return Found(columns, odds, means, second)


def _constants(launches: Sequence[Fresh], names: Sequence[str]) -> Iterator[Column]:
    """A node that is off all the time."""
    for k, name in enumerate(names):
        on = np.array([node == name for _, node, _, _ in launches])
        yield Column(k, -1, -1, on, OFF * (1 - CHANGED if on.sum() > 1 else 1.0))


def _changes(launches: Sequence[Fresh], names: Sequence[str]) -> Iterator[Column]:
    """A node that is off from one of its launches on, or until then; it may have been any launch of the study."""
    numbers = np.array([number for _, _, number, _ in launches])
    for k, name in enumerate(names):
        there = np.array([node == name for _, node, _, _ in launches])
        own = numbers[there]
        for before, after in itertools.pairwise(own.tolist()):
            odds = OFF * CHANGED / 2 * (after - before) / (own[-1] - own[0])
            yield Column(k, before, after, there & (numbers >= after), odds)
            yield Column(k, before, after, there & (numbers <= before), odds)


def _common(launches: Sequence[Fresh]) -> Iterator[Column]:
    """All nodes that change at once, where one of them shows it; else it is not told from nodes that differ."""
    numbers = np.array([number for _, _, number, _ in launches])
    for before, after in itertools.pairwise(numbers.tolist()):
        sides = [{node for _, node, number, _ in launches if (number >= after) == late} for late in (False, True)]
        if sides[0] & sides[1]:
            yield Column(
                -1, before, after, numbers >= after, ALL_CHANGED * (after - before) / (numbers[-1] - numbers[0])
            )


def _moments(launches: Sequence[Fresh], columns: Sequence[Column]) -> tuple[Floats, Floats, float, int]:
    """``Z'Z``, ``Z'y`` and ``y'y`` about the configurations' means, and the degrees of freedom."""
    kinds = list(dict.fromkeys(what for what, _, _, _ in launches))
    at = np.array([kinds.index(what) for what, _, _, _ in launches])
    on = np.stack([column.on for column in columns], axis=1).astype(np.float64)
    scores = np.array([score for _, _, _, score in launches])
    for kind in range(len(kinds)):
        on[at == kind] -= on[at == kind].mean(axis=0)
        scores[at == kind] -= scores[at == kind].mean()
    return on.T @ on, on.T @ scores, float(scores @ scores), len(launches) - len(kinds)


def _divisions(columns: Sequence[Column], nodes: int) -> Iterator[Ints]:
    """Which columns may be together, those of one size in an array of shape ``(divisions, columns)``."""
    constants = [c for c, column in enumerate(columns) if column.node >= 0 and column.before < 0]
    changes = [c for c, column in enumerate(columns) if column.node >= 0 and column.before >= 0]
    common = [c for c, column in enumerate(columns) if column.node < 0]
    most = nodes // 2 if nodes <= _ALL_DIVISIONS else 2
    for count in range(max(most, 2) + 1):
        found = list(itertools.combinations(constants, count)) if count <= most else []
        if count == 1:
            found += [(c,) for c in [*changes, *common]]
        if count == 2:
            found += itertools.product([*constants, *changes], common)
            pairs = [*itertools.product(constants, changes), *itertools.combinations(changes, 2)] if most > 1 else []
            found += [pair for pair in pairs if columns[pair[0]].node != columns[pair[1]].node]
        if found:
            yield np.array(found, dtype=np.int64).reshape(len(found), count)


def _prior(columns: Sequence[Column], rows: Ints, nodes: int) -> Floats:
    """The logarithm of the odds of divisions before anything ran, shape ``(divisions,)``."""
    odds = np.log([column.odds for column in columns])
    single = np.array([column.node >= 0 for column in columns])
    off = single[rows].sum(axis=1)
    none_common = math.log1p(-ALL_CHANGED) * (off == rows.shape[1])
    return np.asarray(odds[rows].sum(axis=1) + (nodes - off) * math.log1p(-OFF) + none_common)


def _log_spreads(degrees: int) -> Floats:
    """Of each of `_SPREADS`: its odds before anything ran, and of so many launches the part without their squares."""
    return np.asarray(-(2 + degrees) * np.log(_SPREADS) - LAUNCH_NOISE**2 / _SPREADS**2)


def _part(rows: Ints, shared: Floats, pulls: Floats, columns: Sequence[Column]) -> tuple[Floats, Floats, Floats]:
    """Of divisions of one size: the likelihood as far as it depends on them, and the effects' means and variances.

    Shapes ``(divisions, spreads)`` and twice ``(divisions, spreads, columns)``.
    """
    ratios, variances = ((_SPREADS / TYPICAL) ** 2)[:, None], (_SPREADS**2)[:, None]
    roots, axes = np.linalg.eigh(shared[rows[:, :, None], rows[:, None, :]])
    turned, back = pulls[rows][:, None, :] @ axes, axes.transpose(0, 2, 1)
    shrunk = 1 / (np.maximum(roots, 0.0)[:, None, :] + ratios)
    found = (shrunk * turned) @ back
    single = np.array([column.node >= 0 for column in columns])[rows][:, None, :]
    logs = 0.5 * np.log(shrunk * ratios).sum(axis=2) + math.log(FASTER) * ((found > 0) & single).sum(axis=2)
    logs += 0.5 * (shrunk @ (turned**2).transpose(0, 2, 1))[:, :, 0] / variances[:, 0]
    return logs, found, variances * (shrunk @ back**2)
