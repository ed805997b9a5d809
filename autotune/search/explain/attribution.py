"""A winner's gain over the baseline, split among the engine and the knobs so that the parts add up.

Scores are logarithms, so parts add up where gains multiply. The engine's part is its reference configuration against
the baseline. Among the knobs in which winner and reference differ the rest is split by Shapley's value: what a
knob adds, averaged over the orders in which the knobs can be set. Only candidates count, so the value is taken
in its least-squares form over the sets of settings that are candidates: parts that add up to the whole and come
nearest to every set's score, sets weighted by ``(n - 1) / (C(n, s) s (n - s))`` (Charnes, Golany, Keane and Rousseau,
Extremal principle solutions of games in characteristic function form, 1988; where every set is a candidate this is
the Shapley value exactly). Knobs that only change together share one part.

Every part is a linear function of the candidates' true scores, so the process that models the launches gives
their means and covariance together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Bools, Floats, Ints, descending
from autotune.search.decide.estimate import LAUNCH_NOISE, Z
from autotune.search.decide.simplify import ablations, difference, reference, subsets_towards_default
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.trial import Configuration, Scalar

ENGINE = "engine"
MOST_SETS = 64
"""Sets of settings that are looked at: six knobs' all; of more knobs the launched and the most telling ones."""
LEAST_NARROWING = 0.005
"""The least by which a launch must narrow a standard deviation to be worth making: half a percent."""


@dataclass(frozen=True, slots=True)
class Part:
    """One share of the gain; several knobs where they only change together, `ENGINE` among them where it has to."""

    knobs: tuple[str, ...]
    before: tuple[Scalar, ...]
    after: tuple[Scalar, ...]


@dataclass(frozen=True)
class Decomposition:
    """The parts as a linear function of true scores.

    Attributes:
        positions: the candidates whose scores matter; no position twice.
        matrix: shape ``(parts, positions)``; its columns' sum over the parts is +1 for the winner, -1 for where the
            path begins, 0 for every other.
    """

    parts: tuple[Part, ...]
    positions: Ints
    matrix: Floats

    def believed(self, model: Posterior) -> tuple[Floats, Floats]:
        """Means and covariance of the parts, shapes ``(parts,)`` and ``(parts, parts)``."""
        mean, covariance = model.joint(self.positions)
        return self.matrix @ mean, self.matrix @ covariance @ self.matrix.T


def decompose(history: History, winner: int) -> Decomposition | None:
    """The parts between the baseline and a winner; from the engine's reference where the baseline did not run.

    A reference that failed to start, or that is no candidate, is no stage of the way: then the launched candidate
    with most of the winner's settings put back is, and those that it keeps share the engine's part. None where there
    is no way: the winner is where it would begin.
    """
    candidates, base = history.candidates, history.candidates.baseline
    same = candidates.items[winner].configuration.engine == candidates.items[base].configuration.engine
    ran = bool(history.scores(base))
    stage = base if same and ran else _stage(history, winner)
    sets = _sets(history, winner, stage)
    parts, shares = _of_knobs(history, winner, stage, sets)
    places = [*sets, *([] if same or not ran else [base])]
    if not same and ran:
        parts = [_engine_part(history, stage, base), *parts]
        lead = np.zeros((1, len(places)))
        lead[0, 0], lead[0, -1] = 1.0, -1.0
        shares = np.vstack([lead, np.hstack([shares, np.zeros((len(shares), 1))])])
    if not parts:
        return None
    return _joined(history, parts, places, shares)


def most_telling(history: History, model: Posterior, winner: int, spread: float) -> int | None:
    """The candidate between reference and winner whose fresh launch narrows the knobs' intervals most, or None.

    Only the knobs that may matter count: those whose interval reaches beyond `LAUNCH_NOISE`. None when no launch would
    narrow them by anything to speak of.

    Args:
        spread: standard deviation of one launch.
    """
    found = decompose(history, winner)
    if found is None:
        return None
    mean, covariance = model.joint(found.positions)
    means, shared = found.matrix @ mean, found.matrix @ covariance
    widths = np.sqrt(np.maximum(np.einsum("ij,ij->i", shared, found.matrix), 0.0))
    matters = np.abs(means) + Z * widths > LAUNCH_NOISE
    told = shared**2 / (np.diag(covariance) + spread**2)
    worth = told[matters].sum(axis=0)
    worth[[history.spent(int(p)) for p in found.positions]] = 0.0
    best = int(descending(worth)[0])
    return int(found.positions[best]) if math.sqrt(worth[best]) > LEAST_NARROWING else None


def anchored(means: Floats, covariance: Floats, total: float, total_sd: float | None) -> tuple[Floats, Floats]:
    """Parts that add up to a measured total, and their standard deviations.

    The difference is given to the parts by how unsure each is, as conditioning a normal distribution on its sum
    does; the total's own error comes back in the same shares, so that the parts' sum is as sure as the total.

    Args:
        total_sd: of the total; None: not known, then the parts' own stands for it.
    """
    toward = covariance.sum(axis=1)
    own = float(toward.sum())
    share = toward / own if own > 1e-12 else np.full(len(means), 1 / len(means))
    parts = means + share * (total - float(means.sum()))
    variance = np.diag(covariance) - share * toward
    variance = variance + share**2 * (own if total_sd is None else total_sd**2)
    return np.asarray(parts, dtype=np.float64), np.sqrt(np.maximum(variance, 0.0))


def shapley(members: Bools) -> Floats:
    """Parts from scores, shape ``(players, sets)``: the matrix to multiply the sets' scores with.

    Args:
        members: shape ``(sets, players)``; the empty set first, the full one last.
    """
    sets, players = members.shape
    inner = members[1:-1].astype(np.float64)
    sizes = inner.sum(axis=1)
    weights = np.array([(players - 1) / (math.comb(players, int(s)) * s * (players - s)) for s in sizes])
    # Minimise the weighted squares under one constraint: the stationary point of its Lagrangian.
    system = np.zeros((players + 1, players + 1))
    system[:players, :players] = inner.T @ (weights[:, None] * inner)
    system[players, :players] = system[:players, players] = 1.0
    known = np.zeros((players + 1, sets))
    known[:players, 1:-1] = (weights[:, None] * inner).T
    known[players, -1] = 1.0
    found = np.linalg.lstsq(system, known, rcond=None)[0][:players]
    found[:, 0] = -found[:, 1:].sum(axis=1)  # Scores count from that of the empty set.
    return np.asarray(found, dtype=np.float64)


def _stage(history: History, winner: int) -> int:
    """Where the winner's engine's own knobs begin."""
    base = reference(history.candidates, winner)
    if base is not None and not history.broke(base):
        return base
    steps = [] if base is None else subsets_towards_default(history.candidates, winner, base).items()
    ran = [(len(back), -position) for position, back in steps if history.scores(position)]
    return -max(ran)[1] if ran else winner


def _sets(history: History, winner: int, stage: int) -> dict[int, frozenset[str]]:
    """Position to the winner's settings that it has: the stage (none) first, the winner (all of them) last."""
    items = history.candidates.items
    everything = frozenset(difference(items[winner].configuration, items[stage].configuration))
    back = {p: b for p, b in subsets_towards_default(history.candidates, winner, stage).items() if not history.broke(p)}
    inner = [p for p, b in back.items() if b != everything]
    singles = ablations(history.candidates, winner)
    middle = len(everything) / 2
    inner.sort(key=lambda p: (not history.scores(p), p not in singles, -abs(len(back[p]) - middle), p))
    kept = sorted(inner[: MOST_SETS - 2])
    if stage == winner:
        return {winner: frozenset()}
    return {stage: frozenset(), **{p: everything - back[p] for p in kept}, winner: everything}


def _of_knobs(
    history: History, winner: int, stage: int, sets: Mapping[int, frozenset[str]]
) -> tuple[list[Part], Floats]:
    """The knobs' parts, and the matrix that gives them from the sets' scores."""
    if stage == winner:
        return [], np.zeros((0, 1))
    together: dict[tuple[bool, ...], list[str]] = {}
    for knob in sorted(sets[winner]):
        together.setdefault(tuple(knob in has for has in sets.values()), []).append(knob)
    items = history.candidates.items
    mine, theirs = items[winner].configuration, items[stage].configuration
    parts = [_part(tuple(knobs), theirs, mine) for knobs in together.values()]
    return parts, shapley(np.array(list(together), dtype=np.bool_).T)


def _part(knobs: tuple[str, ...], before: Configuration, after: Configuration) -> Part:
    return Part(knobs, tuple(before.knobs.get(k) for k in knobs), tuple(after.knobs.get(k) for k in knobs))


def _engine_part(history: History, stage: int, base: int) -> Part:
    """The engine, with the settings that the stage has beyond its engine's reference."""
    items = history.candidates.items
    before, after = items[base].configuration, items[stage].configuration
    usual = reference(history.candidates, stage)
    kept = [] if usual is None else difference(after, items[usual].configuration)
    named = tuple(after.knobs.get(k) for k in kept)
    started = tuple(items[usual].configuration.knobs.get(k) for k in kept) if usual is not None else ()
    return Part((ENGINE, *kept), (before.engine, *started), (after.engine, *named))


def _joined(history: History, parts: Sequence[Part], places: Sequence[int], shares: Floats) -> Decomposition:
    """With one column per configuration that the engine tells apart; parts that are nothing for certain leave."""
    canonical = [history.canonical(p) for p in places]
    positions = sorted(set(canonical))
    matrix = np.zeros((len(parts), len(positions)))
    for column, position in enumerate(canonical):
        matrix[:, positions.index(position)] += shares[:, column]
    kept = np.abs(matrix).max(axis=1) > 1e-9
    names = tuple(part for part, keep in zip(parts, kept, strict=True) if keep)
    return Decomposition(names, np.array(positions, dtype=np.int64), matrix[kept])
