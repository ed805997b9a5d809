"""Learn from failures which values of knobs, alone or in pairs, make a configuration fail.

Every failure is laid to one of its causes: a trait, a pair of traits, or chance. A trait is a
knob's value, or, for sizes, being at least or at most so large (who lacks memory at 16384 tokens
lacks it at 32768). A cause is the likelier the more failures share it, and next to ruled out by one
launch that ran with it. A candidate's odds of failing are those that it shares the cause of some
failure. So a crash lowers what resembles it, and the next launch that resembles it half way tells
which half was to blame. What needs at least as much memory as a configuration that ran out of it
needs no such learning.

What the priors say of a start is kept apart (`believed`): how often they were right, saying yes and
saying no, is counted from the launches, for each engine and each reason that they give.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from autotune.base.arrays import Bools, Floats, Ints, floats, ints

from .gp.kernels import Encoding, is_size

_SINGLE, _PAIR, _CHANCE = 1.0, 0.3, 0.5
"""Prior odds of a cause. Engines refuse values more often than single pairs."""
_PER_FAILURE = 4.0
"""Factor on a cause's odds for each further failure that it explains."""
_PER_SUCCESS = 0.05
"""Factor on a cause's odds for each launch that ran in spite of it."""
_ENOUGH = 100
"""Most failures counted; more would overflow without an effect."""
_LEAST = 0.002
"""Least odds: no candidate is excluded for good, as the inference may be wrong."""
_STILL_TOO_MUCH = 0.97
"""Odds that a configuration with at least the memory need of one that ran out of it runs out as
well; and that one with at most the need of a running one runs too."""
_SAID_YES, _SAID_NO = (0.98, 8.0), (0.12, 3.0)
"""Share of starting candidates that the priors predict to start, or not to; and the number of
launches for which that expectation counts."""


def p_starts(
    encoding: Encoding,
    ran: Sequence[int],
    broken: Sequence[int],
    rows: Ints | None = None,
    out_of_memory: Collection[int] = (),
    foreseen: Floats | None = None,
) -> Floats:
    """Return the probability that candidates start, shape ``(rows,)``.

    Args:
        ran: positions of the launches that ran.
        broken: positions of the launches that failed.
        rows: positions of the candidates; None = all.
        out_of_memory: positions among `broken` that ran out of memory.
        foreseen: shape ``(candidates,)``: the odds of starting by the priors, which explain a
            failure as well.
    """
    chosen = np.arange(len(encoding)) if rows is None else rows
    failed = list(dict.fromkeys(broken))
    fails = np.zeros(len(chosen))
    for position in failed:
        # The launches stand behind the candidates, so that one table of traits serves both.
        has = _traits(
            encoding, position, np.concatenate([chosen, [*failed, *ran]]).astype(np.int64)
        )
        odds = 1.0 if foreseen is None else max(float(foreseen[position]), _LEAST)
        fails = np.maximum(
            fails, _shares_cause(has, len(chosen), len(failed), _CHANCE + (1 - odds) / odds)
        )
        if position in out_of_memory:
            fails = np.maximum(fails, _STILL_TOO_MUCH * _needs_as_much(encoding, position, chosen))
    return floats(np.maximum(1 - fails, _LEAST))


def believed(
    encoding: Encoding,
    odds: Floats,
    doubts: Ints,
    ran: Sequence[int],
    broken: Sequence[int],
    rows: Ints,
) -> Floats:
    """Return the odds of starting by the priors, weighted by the launches' support, shape
    ``(rows,)``.

    Args:
        odds: shape ``(candidates,)``: as the priors tell them.
        doubts: shape ``(candidates,)``: codes of engine and reason, by which it is counted how
            often they are right.
    """
    launched = ints([*dict.fromkeys(ran), *dict.fromkeys(broken)])
    started = np.isin(launched, ints(ran)).astype(np.float64)
    total = np.zeros(len(rows))
    groups = int(doubts.max()) + 1
    for predicted, (usual, weight) in ((odds, _SAID_YES), (1 - odds, _SAID_NO)):
        # A candidate of which nothing is sure counts a little for both.
        count = predicted[launched]
        over_all = (usual * weight + count @ started) / (weight + count.sum())
        right = np.bincount(doubts[launched], count * started, groups)
        each = (over_all * weight + right) / (weight + np.bincount(doubts[launched], count, groups))
        total += predicted[rows] * each[doubts[rows]]
    for position in dict.fromkeys(ran):
        if odds[position] < 0.5:
            total = np.maximum(
                total, _STILL_TOO_MUCH * _needs_as_much(encoding, position, rows, more=False)
            )
    return total


def _needs_as_much(encoding: Encoding, position: int, rows: Ints, more: bool = True) -> Bools:
    """Return which candidates differ from one only in equal or more of its memory settings; or
    equal or less."""
    alike = np.ones(len(rows), dtype=np.bool_)
    for k in encoding.varying:
        name = encoding.names[k]
        codes = encoding.codes[rows, k]
        own = encoding.codes[position, k]
        # Choices stand in ascending order, "not applicable" before them.
        monotone = name in encoding.monotone_memory and encoding.choices[name][own] is not None
        alike &= codes == own if not monotone else (codes >= own) if more else codes <= own
    return alike


def _traits(encoding: Encoding, position: int, rows: Ints) -> Floats:
    """Return which traits of one candidate each candidate has, 0 or 1, shape ``(rows, traits)``.

    A trait that every candidate has explains nothing and is left out.
    """
    found = []
    for k in encoding.varying:
        codes = encoding.codes[rows, k]
        own = encoding.codes[position, k]
        choices = encoding.choices[encoding.names[k]]
        found.append(codes == own)
        if choices[own] is not None and sum(is_size(v) for v in choices) > 2:
            # The choices stand in ascending order, None before them.
            present = np.array([v is not None for v in choices])[codes]
            found += [present & (codes >= own), present & (codes <= own)]
    table = np.stack(found, axis=1) if found else np.zeros((len(rows), 0), dtype=np.bool_)
    return floats(table[:, ~table.all(axis=0)])


def _shares_cause(has: Floats, candidates: int, failures: int, otherwise: float) -> Floats:
    """Return the odds that each candidate has the cause of one failure, given the table of that
    launch's traits.

    The table's rows are the candidates, then so many launches that failed, then those that ran. The
    causes that a candidate shares are the pairs of its traits (k, l); k = l is the single trait.
    With m its row of the table, sums over them are quadratic forms m W m. Against them stand the
    odds that it was something else.
    """
    failed = has[candidates : candidates + failures]
    ran = has[candidates + failures :]
    weight = np.full((has.shape[1], has.shape[1]), _PAIR / 2)
    np.fill_diagonal(weight, _SINGLE)
    shared_failures = np.minimum(failed.T @ failed, _ENOUGH)
    weight *= _PER_FAILURE ** (shared_failures - 1) * _PER_SUCCESS ** (ran.T @ ran)
    weight /= weight.sum() + otherwise
    m = has[:candidates]
    return floats(np.einsum("nk,nk->n", m @ weight, m))
