"""Find the settings of a command without a shown gain, and the next launch that tests their
removal.

Settings that are not expected to add `LEAST_EFFECT`, or only with odds below `LEAST_ODDS`, are
removed first, whatever the budget (`drop_unlikely`): the finals are for a command without them, if
that is expected to run. The process models all launches of a study together, so every launch with
and without a setting says something of what it adds.

A gain in the search may have been luck. So after a won final the command is launched without each
setting whose effect is not shown (odds below `SHOWN`), and by these fresh launches the same bounds
decide whether the setting returns to the engine's default (`drop_unproven`). A command that does
not start without a setting keeps it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from autotune.engines import CandidateSet, Configuration, Scalar

from ...study.recommendation import LEAST_EFFECT, LEAST_ODDS
from ...trial import Role
from ..gp.posterior import Posterior
from ..history import History
from ..nodes import NodeScore, contrast
from ..spread import CONFIDENCE, Effect
from .finals import finals_of

SHOWN = 0.9
"""Odds from which on an effect counts as shown."""
FRESH = 2
"""Launches after the finals of a command without a setting before the decision about it."""


def drop_unlikely(
    history: History, model: Posterior, command: int, likely: Callable[[int], bool]
) -> int:
    """Return a command without its settings that are not expected to help, each and together,
    measured or not.

    They are removed one after another, the least likely to help first, as the odds of the others
    change with each. Each must also be unlikely to help together with those removed before. Shorter
    commands that are not `likely` to start and to keep the limits are skipped.
    """
    current = command
    while not history.candidates.as_they_are:
        alone = gains_of_settings(history, model, current)
        together = model.leads(command, list(alone))
        leaving = [
            (max(one.odds(LEAST_EFFECT), all_.odds(LEAST_EFFECT)), p)
            for (p, one), all_ in zip(alone.items(), together, strict=True)
            if not (_helps(one) or _helps(all_)) and likely(p)
        ]
        if not leaving:
            break
        current = min(leaving)[1]
    return current


def _helps(gain: Effect) -> bool:
    return gain.mean >= LEAST_EFFECT and gain.odds(LEAST_EFFECT) >= LEAST_ODDS


def next_without(history: History, model: Posterior, winner: int) -> int | None:
    """Return the winner of the finals without the setting that is least likely to help and lacks
    fresh launches; None: all are shown or launched.

    Fresh launches decide about a setting (`drop_unproven`). Where the study measures what each
    setting adds, shown settings have one launch without them as well, afterwards.
    """
    wanted = {True: FRESH, False: int(history.spec.explain == "measured")}
    odds = [
        (chance, p)
        for p, gain in gains_of_settings(history, model, winner).items()
        if len(finals_of(history, p)) < wanted[(chance := gain.odds(LEAST_EFFECT)) < SHOWN]
    ]
    return min(odds, default=(1.0, None))[1]


def drop_unproven(history: History, winner: int) -> int:
    """Return the winner of the finals without the settings that do not help by new launches of
    both.

    The shorter command must be better than the baseline by its own launches, with a 95 % interval,
    unless the baseline did not run.
    """
    current = winner
    while not history.candidates.as_they_are:
        steps = [
            p for p in ablations(history.candidates, current) if may_stand_for(history, p, current)
        ]
        gains = {
            p: gain for p in steps if (gain := _gain_of_fresh(history, current, p)) is not None
        }
        idle = [p for p, gain in gains.items() if not _helps(gain) and _beats_baseline(history, p)]
        if not idle:
            break
        current = min(idle, key=lambda p: gains[p].mean)
    return current


def _gain_of_fresh(history: History, longer: int, shorter: int) -> Effect | None:
    """Return a longer command's gain over a shorter one by new launches; None for too few."""
    mine, theirs = (history.node_scores(p, Role.FINAL) for p in (longer, shorter))
    return _gain(history, mine, theirs) if min(len(mine), len(theirs)) >= FRESH else None


def _beats_baseline(history: History, position: int) -> bool:
    """Return whether new launches of a command meet the limits and show it to beat the baseline, if
    that ran."""
    if not (baseline := history.deciding_scores(history.baseline)):
        return history.feasible(position, Role.FINAL)
    gain = _gain(history, history.node_scores(position, Role.FINAL), baseline)
    shown = gain is not None and gain.odds(0.0) >= (1 + CONFIDENCE) / 2
    return shown and history.feasible(position, Role.FINAL)


def _gain(
    history: History, mine: Sequence[NodeScore], theirs: Sequence[NodeScore]
) -> Effect | None:
    """Return the gain of one command over another; None if no node ran both."""
    difference, information = contrast(mine, theirs)
    return Effect.of_launches(difference, information, history.spread) if information else None


def gains_of_settings(history: History, model: Posterior, leader: int) -> dict[int, Effect]:
    """Return a command's gain over the command without each of its settings, by the latter's
    position.

    Commands that failed, or that the engine resolves to another one, are left out, and so is the
    baseline, which the finals compare with.
    """
    rows = [p for p in ablations(history.candidates, leader) if may_stand_for(history, p, leader)]
    return dict(zip(rows, model.leads(leader, rows), strict=True))


def may_stand_for(history: History, position: int, leader: int) -> bool:
    """Return whether a shorter command may replace a command: it runs, with no trade-off that this
    one avoids."""
    own = position not in (leader, history.baseline) and position not in history.canonical_of
    return (
        own
        and not history.broke(position)
        and history.forbidden_trade_offs(position) <= history.forbidden_trade_offs(leader)
    )


def default_of(candidates: CandidateSet, engine: str) -> int | None:
    """Return the default of an engine, else the baseline of that engine: the target of removals."""
    named = (*candidates.defaults, candidates.baseline)
    return next((p for p in named if candidates.items[p].configuration.engine == engine), None)


def default_knobs(candidates: CandidateSet, engine: str) -> Mapping[str, Scalar]:
    """Return the knobs of `default_of`; none if that is not a candidate."""
    base = default_of(candidates, engine)
    return {} if base is None else candidates.items[base].configuration.knobs


def subsets_towards_default(candidates: CandidateSet, winner: int) -> dict[int, frozenset[str]]:
    """Map each candidate between winner and `default_of` to its removed settings; the winner is not
    among them."""
    mine = candidates.items[winner].configuration
    base = default_of(candidates, mine.engine)
    if base is None or base == winner:
        return {}
    theirs = candidates.items[base].configuration
    differing = difference(mine, theirs)
    if 2 ** len(differing) <= len(candidates) and mine.knobs.keys() == theirs.knobs.keys():
        # There are fewer subsets than candidates: each is looked up.
        subsets = [
            c for n in range(len(differing)) for c in itertools.combinations(differing, n + 1)
        ]
        names = [
            (mine.with_knobs(**{k: theirs.knobs[k] for k in back}).fingerprint, back)
            for back in subsets
        ]
        return {
            candidates.position(name): frozenset(back) for name, back in names if name in candidates
        }
    between = {}
    for position, candidate in enumerate(candidates.items):
        other = candidate.configuration
        back = difference(other, mine) if other.engine == mine.engine else []
        if back and all(other.knobs.get(name) == theirs.knobs.get(name) for name in back):
            between[position] = frozenset(back)
    return between


def ablations(candidates: CandidateSet, winner: int) -> dict[int, frozenset[str]]:
    """Map for each setting the command without it, at the engine's default, to the removed
    settings.

    Where that is no candidate, the fewest settings go that make one on the way to `default_of`.
    Settings with the same smallest step back share an entry.
    """
    between = subsets_towards_default(candidates, winner)
    knobs = sorted({name for back in between.values() for name in back})
    mine = candidates.items[winner].configuration
    alone = candidates.without(mine) if candidates.without is not None and knobs else None
    steps: dict[int, frozenset[str]] = {}
    for knob in knobs:
        if alone is not None and knob not in alone:
            continue  # The engine has decided so.
        if alone is not None and (found := alone[knob].fingerprint) in candidates:
            position = candidates.position(found)
            back = frozenset({knob})
        else:
            position = min(
                (len(back), position) for position, back in between.items() if knob in back
            )[1]
            back = between[position]
        steps[position] = steps.get(position, frozenset()) | back
    return steps


def difference(one: Configuration, other: Configuration) -> list[str]:
    """Return the knobs that differ between two configurations, in alphabetical order."""
    names = {*one.knobs, *other.knobs}
    return sorted(name for name in names if one.knobs.get(name) != other.knobs.get(name))
