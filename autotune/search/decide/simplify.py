"""Which settings of the leader may leave its command, and which launch would show it.

The process models all launches of a study together, so every launch with and without a setting says something of
what it adds. A setting, or several together, may leave when the shorter configuration was launched and kept the
limits, the 95 % interval of what it gives up reaches down to zero, and the expected loss, ``E[max(0, difference)]``,
is below `LEAST_GAIN`. The second condition keeps a setting that is probably worth something but was measured badly:
not to know is no reason to drop it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.special import ndtr

from autotune.arrays import Floats, descending
from autotune.search.acquisition import expected_improvement
from autotune.search.decide.estimate import LAUNCH_NOISE, Z
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.space.enumeration import CandidateSet
from autotune.trial import Configuration

LEAST_GAIN = 0.01
"""The expected loss at which a setting stays: 1 %, a third of the usual spread of one launch and less than the finals
can tell from nothing; a shorter command may cost that much of the gain, not more."""
LEAST_ODDS = 0.1
"""Settings that the first check must be expected to let leave: less than one in ten launches is not worth it. With 3 %
of noise a launch seldom tells a setting worth 3 % from nothing, so that the odds are never high."""
DEARER = 2.0
"""By what that grows with every repeat of the leader or of a shorter candidate before the finals: so there are few."""
MOST_STEPS = 32
"""Shorter candidates that are looked at."""


def next_check(history: History, model: Posterior, leader: int, allowed: int) -> int | None:
    """The candidate whose fresh launch is likeliest to let settings leave, the number of settings counted in.

    It is a shorter candidate, launched before or not, or the leader itself: whichever tells most. All doubtful settings
    put back together come first as long as it is likely that they can leave; after a launch that says otherwise, fewer.
    None when no launch is likely to let any more leave, or when none is allowed.

    Args:
        model: after all launches of the history.
        leader: position of the best configuration so far.
        allowed: launches that may still be used for checks.
    """
    steps = _steps(history, model, leader)
    if allowed < 1 or not steps:
        return None
    gone = len(steps.get(_left(history, model, leader, steps), ()))
    longer = {position: len(back) - gone for position, back in steps.items() if len(back) > gone}
    places = [p for p in (leader, *longer) if not any(entry.pending for entry in history.at(p))]
    if not longer or not places:
        return None
    odds = _odds(model, leader, list(longer), places, spread_of(history))
    # What was never launched may leave only after a launch of its own.
    alone = [[shorter == p or history.feasible(shorter) for shorter in longer] for p in places]
    worth = np.where(alone, odds * list(longer.values()), 0.0).max(axis=1)
    best = int(descending(worth)[0])
    # Launches that were not their candidate's first, the baseline aside.
    repeats = sum(max(0, len(history.scores(p)) - 1) for p in (leader, *steps) if p != history.candidates.baseline)
    least = LEAST_ODDS * DEARER**repeats
    return places[best] if worth[best] >= least else None


def shortened(history: History, model: Posterior, leader: int) -> int:
    """The leader without the settings that may leave (see above), the most at once; the leader when none may."""
    return _left(history, model, leader, _steps(history, model, leader))


def spread_of(history: History) -> float:
    """Standard deviation of one launch: from repeats where there are enough, else the usual one."""
    spread = history.spread
    return spread.sd if spread.degrees >= 3 else LAUNCH_NOISE


def expected_loss(mean: float, sd: float) -> float:
    """``E[max(0, x)]`` of a normal x, the leader's lead over a candidate: what is lost in the mean by dropping it."""
    return float(expected_improvement([(1.0, np.array([mean]), np.array([sd]))], 0.0)[0])


def _left(history: History, model: Posterior, leader: int, steps: Mapping[int, Collection[str]]) -> int:
    """The shorter candidate that may take the leader's place, the shortest, of equals the best; else the leader."""
    ran = [p for p in steps if history.feasible(p)]
    if not ran:
        return leader
    means, sds = _losses(model, leader, ran)
    may = [
        (len(steps[p]), -mean, p)
        for p, mean, sd in zip(ran, means.tolist(), sds.tolist(), strict=True)
        if mean - Z * sd <= 0 and expected_loss(mean, sd) <= LEAST_GAIN
    ]
    return max(may, key=lambda row: row[:2])[2] if may else leader


def _losses(model: Posterior, leader: int, positions: Sequence[int]) -> tuple[Floats, Floats]:
    """What the leader has over each candidate: mean and standard deviation."""
    mean, covariance = model.joint(np.array([leader, *positions], dtype=np.int64))
    variance = covariance[0, 0] + np.diag(covariance)[1:] - 2 * covariance[0, 1:]
    return mean[0] - mean[1:], np.sqrt(np.maximum(variance, 0.0))


def _odds(model: Posterior, leader: int, positions: Sequence[int], places: Sequence[int], spread: float) -> Floats:
    """The odds that each candidate may take the leader's place after a launch, shape ``(places, positions)``."""
    rows = sorted({leader, *positions, *places})
    mean, covariance = model.joint(np.array(rows, dtype=np.int64))
    first, theirs = rows.index(leader), [rows.index(p) for p in positions]
    differences = covariance[first] - covariance[theirs]
    variance = differences[:, first] - differences[np.arange(len(theirs)), theirs]
    means, odds = mean[first] - mean[theirs], np.zeros((len(places), len(positions)))
    for i, place in enumerate(rows.index(p) for p in places):
        learnt = np.minimum(differences[:, place] ** 2 / (covariance[place, place] + spread**2 + 1e-12), variance)
        after = np.sqrt(np.maximum(variance - learnt, 0.0))
        limits = np.array([min(_highest(sd), Z * sd) for sd in after.tolist()])
        odds[i] = ndtr((limits - means) / np.sqrt(np.maximum(learnt, 1e-12)))
    return odds


def _highest(sd: float) -> float:
    """The highest mean at which the expected loss is within the limit."""
    low, high = -20 * max(sd, LEAST_GAIN), LEAST_GAIN
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_loss(middle, sd) <= LEAST_GAIN else (low, middle)
    return low


def _steps(history: History, model: Posterior, leader: int) -> dict[int, frozenset[str]]:
    """The shorter candidates worth looking at: all of them, or those that put back what may be doubted."""
    candidates = history.candidates
    found = {
        position: back
        for position, back in subsets_towards_default(candidates, leader).items()
        if position not in history.canonical_of and position != leader and not history.broke(position)
    }
    if len(found) <= MOST_STEPS:
        return found
    singles = {p: back for p, back in ablations(candidates, leader).items() if p in found}
    rows = zip(singles.values(), *_losses(model, leader, list(singles)), strict=True)
    doubtful = {knob for back, mean, sd in rows if mean - Z * sd <= 0 for knob in back}
    order = sorted(found, key=lambda p: (not history.scores(p), not found[p] <= doubtful, -len(found[p]), p))
    return {p: found[p] for p in order[:MOST_STEPS]}


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


def ablations(candidates: CandidateSet, winner: int) -> dict[int, frozenset[str]]:
    """Position to what is put back, for each knob in which winner and reference differ the fewest knobs with it.

    Knobs whose smallest step back is the same candidate share an entry; the largest step is the reference itself.
    """
    between = subsets_towards_default(candidates, winner)
    knobs = sorted({name for back in between.values() for name in back})
    nearest = [min((len(back), position) for position, back in between.items() if knob in back)[1] for knob in knobs]
    return {position: between[position] for position in nearest}


def difference(one: Configuration, other: Configuration) -> list[str]:
    """The knobs in which two configurations differ, in alphabetical order."""
    names = {*one.knobs, *other.knobs}
    return sorted(name for name in names if one.knobs.get(name) != other.knobs.get(name))
