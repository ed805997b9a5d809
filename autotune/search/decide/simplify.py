"""Which settings of the leader may leave its command, and which launch would show it.

The process models all launches of a study together, so every launch with and without a setting says something of
what it adds. A setting, or several together, may leave when the shorter configuration was launched and kept the
limits, the 95 % interval of what it gives up reaches down to zero, and the expected loss, ``E[max(0, difference)]``,
is below `LEAST_GAIN`. The second condition keeps a setting that is probably worth something but was measured badly:
not to know is no reason to drop it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.arrays import Floats
from autotune.search.decide.ablation import ablations, subsets_towards_default
from autotune.search.explain.attribution import Z
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History

LEAST_GAIN = 0.01
"""The expected loss at which a setting stays: 1 %, a third of the usual spread of one launch and less than the finals
can tell from nothing; a shorter command may cost that much of the gain, not more."""
LEAST_ODDS = 0.1
"""Settings that the first check must be expected to let leave: less than one in ten launches is not worth it. With 3 %
of noise a launch seldom tells a setting worth 3 % from nothing, so that the odds are never high."""
DEARER = 2.0
"""By what that grows with every repeat of the leader or of a shorter candidate before the finals: so there are few."""
USUAL_SPREAD = 0.03
"""Standard deviation of one launch where too few were repeated to tell."""
MOST_STEPS = 32
"""Shorter candidates that are looked at."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A shorter candidate, and how many of the leader's settings it does without."""

    position: int
    back: frozenset[str]


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
    gone = len(_left(history, model, leader, steps).back)
    longer = [s for s in steps if len(s.back) > gone]
    places = [p for p in (leader, *(s.position for s in longer)) if not _runs(history, p)]
    if not longer or not places:
        return None
    odds = _odds(model, leader, [s.position for s in longer], places, spread_of(history))
    # What was never launched may leave only after a launch of its own.
    alone = [[s.position == p or history.feasible(s.position) for s in longer] for p in places]
    worth = np.where(alone, odds * [len(s.back) - gone for s in longer], 0.0).max(axis=1)
    best = int(np.argmax(worth))
    least = LEAST_ODDS * DEARER ** _repeats(history, [leader, *(s.position for s in steps)])
    return places[best] if worth[best] >= least else None


def shortened(history: History, model: Posterior, leader: int) -> int:
    """The leader without the settings that may leave (see above), the most at once; the leader when none may."""
    return _left(history, model, leader, _steps(history, model, leader)).position


def spread_of(history: History) -> float:
    """Standard deviation of one launch: from repeats where there are enough, else the usual one."""
    spread = history.spread
    return spread.sd if spread.degrees >= 3 else USUAL_SPREAD


def expected_loss(mean: float, sd: float) -> float:
    """``E[max(0, x)]`` of a normal x: what is lost in the mean by passing over it, where not losing gains nothing."""
    if sd <= 0:
        return max(0.0, mean)
    z = mean / sd
    return float(sd * (z * ndtr(z) + math.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)))


def _left(history: History, model: Posterior, leader: int, steps: Sequence[_Step]) -> _Step:
    """The step that may be taken, the longest, of equals the best."""
    stay = _Step(leader, frozenset())
    ran = [s for s in steps if history.feasible(s.position)]
    if not ran:
        return stay
    means, sds = _losses(model, leader, [s.position for s in ran])
    may = [
        (len(s.back), -mean, s)
        for s, mean, sd in zip(ran, means.tolist(), sds.tolist(), strict=True)
        if mean - Z * sd <= 0 and expected_loss(mean, sd) <= LEAST_GAIN
    ]
    return max(may, key=lambda row: row[:2])[2] if may else stay


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


def _repeats(history: History, places: Sequence[int]) -> int:
    """How many launches of these candidates were not their first, the baseline aside."""
    return sum(max(0, len(history.scores(p)) - 1) for p in places if p != history.candidates.baseline)


def _runs(history: History, position: int) -> bool:
    return any(entry.pending for entry in history.at(position))


def _steps(history: History, model: Posterior, leader: int) -> list[_Step]:
    """The shorter candidates worth looking at: all of them, or those that put back what may be doubted."""
    found: Mapping[int, frozenset[str]] = {
        position: back
        for position, back in subsets_towards_default(history.candidates, leader).items()
        if position not in history.canonical_of and position != leader and not history.broke(position)
    }
    if len(found) > MOST_STEPS:
        singles = [a for a in ablations(history.candidates, leader) if a.position in found]
        means, sds = _losses(model, leader, [a.position for a in singles])
        doubtful = {k for a, mean, sd in zip(singles, means, sds, strict=True) if mean - Z * sd <= 0 for k in a.knobs}
        order = sorted(found, key=lambda p: (not history.scores(p), not found[p] <= doubtful, -len(found[p]), p))
        found = {p: found[p] for p in order[:MOST_STEPS]}
    return [_Step(position, back) for position, back in found.items()]
