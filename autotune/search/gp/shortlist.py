"""Which candidates are worth a close look: all of a small space, the promising ones of a large one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from autotune.arrays import Ints
from autotune.search.gp.kernels import Kernels
from autotune.search.gp.posterior import Posterior

EVERY = 6000
"""Spaces up to this size are looked at whole."""
_BY_MEAN, _AT_RANDOM, _STEPS = 1200, 600, 2
_LEADERS = 12


def shortlist(
    kernels: Kernels, posterior: Posterior, done_with: Collection[int], measured: Sequence[int], seed: Sequence[int]
) -> Ints:
    """The candidates, in ascending order, among which the next launch is chosen; none that is done with.

    In a large space those that a rough mean puts highest (priors and each knob's own effect, without what knobs do
    together), some at random, and what is one knob away from the best that were measured or looked at.
    """
    free = np.ones(len(kernels.encoding), dtype=np.bool_)
    free[list(done_with)] = False
    if len(free) <= EVERY:
        return np.flatnonzero(free)
    generator = np.random.default_rng([*seed, len(free)])
    rough = posterior.additive_mean()
    rough[~free] = -np.inf
    chosen = np.argpartition(-rough, _BY_MEAN)[:_BY_MEAN]
    chosen = np.union1d(chosen, generator.choice(len(free), _AT_RANDOM, replace=False))
    if measured:
        known = np.unique(np.array(measured, dtype=np.int64))
        leaders = known[np.argsort(-posterior.mean(known), kind="stable")[:_LEADERS]]
        chosen = np.union1d(chosen, neighbours(kernels, leaders))
    new = chosen[free[chosen]]
    chosen, worth = new, posterior.ucb(new)
    for _ in range(_STEPS):
        leaders = chosen[np.argsort(-worth, kind="stable")[:_LEADERS]]
        new = np.setdiff1d(neighbours(kernels, leaders), chosen)
        new = new[free[new]]
        chosen, worth = np.concatenate([chosen, new]), np.concatenate([worth, posterior.ucb(new)])
    return np.sort(chosen)


def neighbours(kernels: Kernels, rows: Ints) -> Ints:
    """The candidates that differ from some of these in one knob."""
    codes = kernels.columns
    found = [np.flatnonzero((codes != codes[row]).sum(axis=1) == 1) for row in rows]
    return np.unique(np.concatenate(found)) if found else rows
