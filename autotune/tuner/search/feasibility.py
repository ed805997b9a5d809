"""Learn from failures which values of knobs, alone or in pairs, make a configuration fail.

Every failure is attributed to one cause: a trait, a pair of traits, or chance. A trait is a knob's
value, or, for sizes, being at least or at most that large (a server that runs out of memory at
16384 tokens does so at 32768). The odds of a cause rise with each failure that shares it, and fall
close to zero with one launch that ran in spite of it. A candidate's odds of failing are those of
sharing the cause of some failure. So a crash lowers the odds of similar candidates, and the next
launch that has half of its traits shows which half is to blame. Memory needs no such learning:
candidates that need at least as much as one that ran out of memory are expected to fail.

The priors' predictions of a start are calibrated separately (`believed`): launches count how often
they were right, for starts and for failures, by engine and by reason.
"""

from collections.abc import Collection, Sequence

import numpy as np

from autotune.base.arrays import Bools, Floats, Ints, floats, ints

from .gp.kernels import Encoding, is_size

_SINGLE, _PAIR, _CHANCE = 1.0, 0.3, 0.5
"""Prior odds of a cause: a trait, a pair, chance. Engines refuse single values more often than
pairs."""
_PER_FAILURE = 4.0
"""Factor on a cause's odds for each further failure that it explains."""
_PER_SUCCESS = 0.05
"""Factor on a cause's odds for each launch that ran in spite of it."""
_ENOUGH = 100
"""Most failures that are counted; more would overflow without an effect."""
_LEAST = 0.002
"""Least odds of starting: no candidate is excluded for good, as the inference may be wrong."""
_STILL_TOO_MUCH = 0.97
"""Odds that a configuration runs out of memory if one with at most its need did; and that it runs
if one with at least its need did."""
_PREDICTED_TO_START, _PREDICTED_TO_FAIL = (0.98, 8.0), (0.12, 3.0)
"""Prior of the share that starts among candidates with that prediction, and its weight in
launches."""


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
        foreseen: shape ``(candidates,)``: the priors' odds of starting, another explanation of a
            failure.
    """
    chosen = np.arange(len(encoding)) if rows is None else rows
    failed = list(dict.fromkeys(broken))
    fails = np.zeros(len(chosen))
    # Append the launches to the candidates, so that one table of traits has both.
    both = np.concatenate([chosen, ints([*failed, *ran])])
    for position in failed:
        has = _traits(encoding, position, both)
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
    """Return the priors' odds of starting, calibrated by the launches, shape ``(rows,)``.

    Args:
        odds: shape ``(candidates,)``: the priors' odds.
        doubts: shape ``(candidates,)``: codes of engine and reason, each of which has its own
            calibration.
    """
    launched = ints([*dict.fromkeys(ran), *dict.fromkeys(broken)])
    started = np.isin(launched, ints(ran)).astype(np.float64)
    total = np.zeros(len(rows))
    groups = int(doubts.max()) + 1
    for predicted, (usual, weight) in ((odds, _PREDICTED_TO_START), (1 - odds, _PREDICTED_TO_FAIL)):
        # Count an uncertain prediction in part for both.
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
    """Return which candidates differ from one only in memory settings and need at least as much; if
    not `more`, at most as much."""
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
    """Return which traits of one candidate each row shares, 0 or 1, shape ``(rows, traits)``,
    without traits that every row has: they explain nothing."""
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
    """Return the odds that each candidate shares the cause of one failed launch, given the table of
    that launch's traits.

    The table's rows are the candidates, then the failed launches, then those that ran. The causes
    that a candidate shares are the pairs (k, l) of its traits; k = l is a single trait. With m its
    row of the table and W the weights of the causes, their sum is the quadratic form m W m. The
    weights are normalised together with the odds of another cause, `otherwise`.
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
