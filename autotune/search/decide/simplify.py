"""Which settings of a leader have not earned their place in its command, and which launch is next on the way without.

A setting whose effect is not shown, odds below `SHOWN` that it adds more than `LEAST_EFFECT`, goes back to the engine's
default: one at a time, each shorter command measured before the next setting goes, for what a launch shows may bring a
setting's worth to light. Several go together only while the shorter command is at most `MOST_LOSS` worse with the same
odds. The process models all launches of a study together, so every launch with and without a setting says something of
what it adds. What does not start without a setting keeps it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from autotune.arrays import Floats
from autotune.search.decide.estimate import LAUNCH_NOISE
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.space.enumeration import CandidateSet
from autotune.trial import Configuration

SHOWN = 0.9
"""Odds from which on something counts as shown."""
LEAST_EFFECT = 0.005
"""What a setting must add, score units: 0.5 %."""
MOST_LOSS = 0.01
"""What settings that go together may cost: 1 %."""


def shortened(history: History, model: Posterior, leader: int) -> tuple[int, int | None]:
    """The leader's command as far as it was shortened and measured, and the shorter one to launch next, if any.

    Args:
        model: after all launches of the history.
        leader: position of the best configuration so far.
    """
    if history.candidates.as_they_are:
        return leader, None
    current = leader
    while (shorter := _shorter(history, model, current)) is not None:
        if not history.feasible(shorter):
            return current, shorter
        current = shorter
    return current, None


def as_good(model: Posterior, shorter: int, current: int) -> bool:
    """Whether a shorter command is expected to be at most `MOST_LOSS` worse."""
    return float(_losses(model, current, [shorter])[0][0]) <= MOST_LOSS


def spread_of(history: History) -> float:
    """Standard deviation of one launch: from repeats where there are enough, else the usual one."""
    spread = history.spread
    return spread.sd if spread.degrees >= 3 else LAUNCH_NOISE


def odds_shown(history: History, model: Posterior, leader: int) -> dict[int, tuple[frozenset[str], float]]:
    """Each smallest step back of a command, by position: the settings, and the odds that they add enough to stay.

    Without what failed, what the engine resolves to another one, and the baseline: the finals are about that.
    """
    singles = ablations(history.candidates, leader, own_default(history.candidates, leader))
    rows = [p for p in singles if _may_stand_for(history, p, leader)]
    means, sds = _losses(model, leader, rows)
    odds = ndtr((means - LEAST_EFFECT) / np.maximum(sds, 1e-9))
    return {p: (singles[p], float(chance)) for p, chance in zip(rows, odds, strict=True)}


def _shorter(history: History, model: Posterior, leader: int) -> int | None:
    """A command without the least telling of the settings that are not shown to add anything; None: all are."""
    shown = odds_shown(history, model, leader)
    doubtful = sorted((chance, position) for position, (_, chance) in shown.items() if chance < SHOWN)
    if not doubtful:
        return None
    between = subsets_towards_default(history.candidates, leader, own_default(history.candidates, leader))
    by_settings = {back: position for position, back in between.items()}
    gone, together = frozenset[str](), list[int]()
    for _, position in doubtful:
        gone |= shown[position][0]
        if gone in by_settings and _may_stand_for(history, by_settings[gone], leader):
            together.append(by_settings[gone])
    means, sds = _losses(model, leader, together)
    may = ndtr((MOST_LOSS - means) / np.maximum(sds, 1e-9)) >= SHOWN
    return next((p for p, small in zip(reversed(together), may[::-1], strict=True) if small), doubtful[0][1])


def _may_stand_for(history: History, position: int, leader: int) -> bool:
    own = position not in (leader, history.candidates.baseline) and position not in history.canonical_of
    return own and not history.broke(position)


def _losses(model: Posterior, leader: int, positions: Sequence[int]) -> tuple[Floats, Floats]:
    """What the leader has over each candidate: mean and standard deviation."""
    mean, covariance = model.joint(np.array([leader, *positions], dtype=np.int64))
    variance = covariance[0, 0] + np.diag(covariance)[1:] - 2 * covariance[0, 1:]
    return mean[0] - mean[1:], np.sqrt(np.maximum(variance, 0.0))


def own_default(candidates: CandidateSet, position: int) -> int | None:
    """The default of a candidate's engine, else its `reference`: what settings go back to."""
    engine = candidates.items[position].configuration.engine
    own = (p for p in candidates.defaults if candidates.items[p].configuration.engine == engine)
    return next(own, reference(candidates, position))


def reference(candidates: CandidateSet, winner: int) -> int | None:
    """The baseline where it has the winner's engine, else this engine's default; None without either."""
    engine = candidates.items[winner].configuration.engine
    named = (candidates.baseline, *candidates.defaults)
    return next((p for p in named if candidates.items[p].configuration.engine == engine), None)


def subsets_towards_default(
    candidates: CandidateSet, winner: int, base: int | None = None
) -> dict[int, frozenset[str]]:
    """Position to what is put back, of every candidate between winner and base; the winner itself is not among them.

    Args:
        base: by default the winner's `reference`; of the same engine.
    """
    base = reference(candidates, winner) if base is None else base
    if base is None or base == winner:
        return {}
    mine, theirs = candidates.items[winner].configuration, candidates.items[base].configuration
    differing = difference(mine, theirs)
    if 2 ** len(differing) <= len(candidates) and mine.knobs.keys() == theirs.knobs.keys():
        # There are fewer subsets than candidates: each is looked up.
        subsets = [c for n in range(len(differing)) for c in itertools.combinations(differing, n + 1)]
        names = [(mine.with_knobs(**{k: theirs.knobs[k] for k in back}).fingerprint, back) for back in subsets]
        return {candidates.position(name): frozenset(back) for name, back in names if name in candidates}
    between: dict[int, frozenset[str]] = {}
    for position, candidate in enumerate(candidates.items):
        other = candidate.configuration
        back = difference(other, mine) if other.engine == mine.engine else []
        if back and all(other.knobs.get(name) == theirs.knobs.get(name) for name in back):
            between[position] = frozenset(back)
    return between


def ablations(candidates: CandidateSet, winner: int, base: int | None = None) -> dict[int, frozenset[str]]:
    """Position to what is put back, for each setting: the command without it, where the engine decides by itself.

    Where that is no candidate, the fewest settings go that make one on the way to base. Settings whose smallest step
    back is the same candidate share an entry; the largest step is the base itself.

    Args:
        base: by default the winner's `reference`; of the same engine.
    """
    between = subsets_towards_default(candidates, winner, base)
    knobs = sorted({name for back in between.values() for name in back})
    mine = candidates.items[winner].configuration
    alone = candidates.without(mine) if candidates.without is not None and knobs else None
    steps: dict[int, frozenset[str]] = {}
    for knob in knobs:
        if alone is not None and knob not in alone:
            continue  # The engine has decided so.
        if alone is not None and (found := alone[knob].fingerprint) in candidates:
            position, back = candidates.position(found), frozenset({knob})
        else:
            position = min((len(back), position) for position, back in between.items() if knob in back)[1]
            back = between[position]
        steps[position] = steps.get(position, frozenset()) | back
    return steps


def difference(one: Configuration, other: Configuration) -> list[str]:
    """The knobs in which two configurations differ, in alphabetical order."""
    names = {*one.knobs, *other.knobs}
    return sorted(name for name in names if one.knobs.get(name) != other.knobs.get(name))
