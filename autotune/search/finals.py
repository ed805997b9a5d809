"""The finals: one finalist against the baseline, in turn on fresh launches, until it is decided.

The finalist was chosen for its launches in the search, so these do not count here; the baseline was not chosen, so all
its launches do. After each pair of launches the test of `sequential` is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.search import sequential
from autotune.search.budget import capacity
from autotune.search.estimate import Spread, mean
from autotune.search.history import MAX_UNINFORMATIVE, Entry, History
from autotune.search.sequential import Look
from autotune.trial import Role

LEAST_DEGREES = 5
"""Of freedom of the spread before the test may end early: with fewer it ends where the spread came out too small."""


def finalist(history: History) -> int | None:
    """The configuration that the finals put to the test: the first of them that did not fall; None before any.

    Those after it show what the winner's settings add.
    """
    standing = [e.position for e in history.of_role(Role.FINAL) if not fell(history, e.position)]
    return next((p for p in standing if p != history.candidates.baseline), None)


def fell(history: History, position: int) -> bool:
    """Whether the finals have put a configuration out: it failed, broke a limit or could not be measured."""
    mute = [e for e in history.at(position) if e.role is Role.FINAL and e.says_nothing]
    if history.broke(position) or len(mute) > MAX_UNINFORMATIVE:
        return True
    return bool(history.scores(position, Role.FINAL)) and not history.feasible(position, Role.FINAL)


def looks(history: History, position: int) -> list[Look]:
    """What was known of a finalist against the baseline after each pair of launches, and after the very last launch.

    Not while repeats are few, unless that is all there will be. And only as far as no launch runs: with several nodes
    they end in any order.
    """
    base, start = history.candidates.baseline, len(history.before_finals())
    found: list[Look] = []
    pairs = fresh = 0
    for count, entry in enumerate(history.entries[start:], start=start + 1):
        if entry.pending:
            break
        fresh += entry.measured and entry.position in (base, position)
        so_far = history.upto(count)
        mine, theirs = finals_of(so_far, position), finals_of(so_far, base)
        whole = min(len(mine), len(theirs))
        last = capacity(so_far) <= count and fresh > 0 and bool(mine) and len(so_far.baseline_scores) >= 2
        if last or (whole > pairs and _known(_spread(so_far))):
            pairs, fresh = whole, 0
            found.append(_look(so_far, position, capacity(so_far) - count))
    return found


def looks_at_end(history: History, position: int) -> list[Look]:
    """As `looks`, where nothing more will come: an open test is looked at once more, the rest of the error is spent."""
    found = looks(history, position)
    if found and sequential.outcome(found)[0] is not sequential.Outcome.OPEN:
        return found
    if not history.scores(position, Role.FINAL) or len(history.baseline_scores) < 2:
        return found
    last = _look(history, position, 0)
    return [*(look for look in found if look.information < last.information), last]


def _look(history: History, position: int, left: int) -> Look:
    """One look.

    Args:
        left: launches that may still be made, all of them for this test.
    """
    mine, theirs = history.scores(position, Role.FINAL), history.baseline_scores
    now = _information(len(mine), len(theirs))
    planned = _information(len(mine) + (left + 1) // 2, len(theirs) + left // 2)
    spread = _spread(history)
    return Look(now / planned, now, mean(mine) - mean(theirs), spread.sd, spread.degrees)


def _known(spread: Spread) -> bool:
    return spread.sd == 0 or spread.degrees >= LEAST_DEGREES


def _spread(history: History) -> Spread:
    return Spread.pooled(history.repeats().values())


def _information(mine: int, theirs: int) -> float:
    return 1 / (1 / mine + 1 / theirs)


def finals_of(history: History, position: int) -> Sequence[Entry]:
    """The launches of a configuration in the finals that said something or still may."""
    return [e for e in history.at(position) if e.role is Role.FINAL and not e.says_nothing]


def next_of_pair(history: History, position: int, left: int) -> int | None:
    """The finalist or the baseline, whose turn it is; None while a whole pair runs.

    Finalist, baseline, baseline, finalist …, so that a drifting node favours neither; a last launch without its
    partner is the finalist's, which has fewer.

    Args:
        left: launches that may still be made.
    """
    base = history.candidates.baseline
    mine, theirs = len(finals_of(history, position)), len(finals_of(history, base))
    if mine != theirs:
        return position if mine < theirs else base
    if any(e.pending for e in history.of_role(Role.FINAL)):
        return None
    return position if mine % 2 == 0 or left < 2 else base


def outcome(history: History, position: int) -> sequential.Outcome:
    """How the test of a finalist stands."""
    return sequential.outcome(looks(history, position))[0]
