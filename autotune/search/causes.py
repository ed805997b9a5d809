"""What failures teach: which values of knobs, alone or in pairs, make a configuration fail.

Every failure is laid to one of its causes: a trait, a pair of traits, or chance. A trait is a knob's value,
or, for sizes, being at least or at most so large (who lacks memory at 16384 tokens lacks it at 32768). A
cause is the likelier the more failures share it, and next to ruled out by one launch that ran with it. A
candidate's odds of failing are those that it shares the cause of some failure. So a crash lowers what
resembles it, and the next launch that resembles it half way tells which half was to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.search.encoding import Encoding, Floats, is_size

_SINGLE, _PAIR, _CHANCE = 1.0, 0.3, 0.5
"""Odds of a cause before anything is known. Engines refuse values more often than single pairs."""
_PER_FAILURE = 4.0
"""How much likelier a cause becomes by each further failure that it would explain."""
_PER_SUCCESS = 0.05
"""How much less likely by each launch that ran in spite of it."""
_ENOUGH = 100
"""Failures that count; more would overflow and change nothing."""
_LEAST = 0.002
"""No candidate is ruled out for good: the lesson may be wrong."""


def starts(encoding: Encoding, ran: Sequence[int], broken: Sequence[int]) -> Floats:
    """The odds that each candidate starts, shape ``(candidates,)``.

    Args:
        ran: positions of the launches that ran.
        broken: positions of the launches that failed.
    """
    failed = list(dict.fromkeys(broken))
    fails = np.zeros(len(encoding))
    for position in failed:
        fails = np.maximum(fails, _shares_cause(traits(encoding, position), list(ran), failed))
    return np.asarray(np.maximum(1 - fails, _LEAST), dtype=np.float64)


def traits(encoding: Encoding, position: int) -> NDArray[np.float32]:
    """Which traits of one candidate each candidate has, 0 or 1, shape ``(candidates, traits)``.

    A trait that every candidate has explains nothing and is left out.
    """
    found = []
    for k in encoding.varying:
        codes, own = encoding.codes[:, k], encoding.codes[position, k]
        choices = encoding.choices[encoding.names[k]]
        found.append(codes == own)
        if choices[own] is not None and sum(is_size(v) for v in choices) > 2:
            # The choices stand in ascending order, None before them.
            present = np.array([v is not None for v in choices])[codes]
            found += [present & (codes >= own), present & (codes <= own)]
    table = np.stack(found, axis=1) if found else np.zeros((len(encoding), 0), dtype=np.bool_)
    return np.asarray(table[:, ~table.all(axis=0)], dtype=np.float32)


def _shares_cause(has: NDArray[np.float32], ran: list[int], failed: list[int]) -> Floats:
    """The odds that each candidate has what made one launch fail, given the table of that launch's traits.

    The causes that a candidate shares are the pairs of its traits (k, l); k = l is the single trait. With m
    its row of the table, sums over them are quadratic forms m W m.
    """
    weight = np.full((has.shape[1], has.shape[1]), _PAIR / 2)
    np.fill_diagonal(weight, _SINGLE)
    failures, successes = has[failed].astype(np.float64), has[ran].astype(np.float64)
    shared_failures = np.minimum(failures.T @ failures, _ENOUGH)
    weight *= _PER_FAILURE ** (shared_failures - 1) * _PER_SUCCESS ** (successes.T @ successes)
    weight /= weight.sum() + _CHANCE
    odds = np.einsum("nk,nk->n", has @ weight.astype(np.float32), has)
    return np.asarray(odds, dtype=np.float64)
