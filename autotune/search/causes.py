"""What failures teach: which values of knobs, alone or in pairs, make a configuration fail.

Every failure is laid to one of its causes: a single value, a pair of values, or chance. A cause is the
likelier the more failures share it, and next to ruled out by one launch that ran with it. A candidate's
odds of failing are those that it shares the cause of some failure. So a crash lowers what resembles it,
and the next launch that resembles it half way tells which half was to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.search.encoding import Encoding, Floats, Integers

_SINGLE, _PAIR, _CHANCE = 1.0, 0.3, 0.5
"""Odds of a cause before anything is known. Engines refuse values more often than single pairs."""
_PER_FAILURE = 4.0
"""How much likelier a cause becomes by each further failure that it would explain."""
_PER_SUCCESS = 0.05
"""How much less likely by each launch that ran in spite of it."""
_LEAST = 0.002
"""No candidate is ruled out for good: the lesson may be wrong."""


def starts(encoding: Encoding, ran: Sequence[int], broken: Sequence[int]) -> Floats:
    """The odds that each candidate starts, shape ``(candidates,)``.

    Args:
        ran: positions of the launches that ran.
        broken: positions of the launches that failed.
    """
    fails = np.zeros(len(encoding))
    for position in dict.fromkeys(broken):
        fails = np.maximum(fails, _shares_cause(encoding.codes, position, ran, broken))
    return np.asarray(np.maximum(1 - fails, _LEAST), dtype=np.float64)


def _shares_cause(codes: Integers, position: int, ran: Sequence[int], broken: Sequence[int]) -> Floats:
    """The odds that each candidate has what made one launch fail.

    With ``m`` the 0/1 vector of the columns in which a configuration equals the failed one, the causes that
    both have are the pairs of ones (k, l); k = l is the single value. Sums over them are quadratic forms.
    """
    same = (codes == codes[position]).astype(np.float64)
    weight = _PAIR * np.ones((codes.shape[1], codes.shape[1])) / 2
    np.fill_diagonal(weight, _SINGLE)
    # A column that never differs explains nothing; neither does a cause that every candidate has.
    constant = same.all(axis=0)
    weight[constant] = weight[:, constant] = 0.0
    failures, successes = same[list(dict.fromkeys(broken))], same[list(ran)]
    weight *= _PER_FAILURE ** (failures.T @ failures - 1) * _PER_SUCCESS ** (successes.T @ successes)
    shared = np.einsum("nk,nk->n", same @ weight, same)
    return np.asarray(shared / (weight.sum() + _CHANCE), dtype=np.float64)
