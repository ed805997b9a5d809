"""Keep what the engines promise to the people who use the server, unless giving it up is shown to pay.

A candidate that gives something up (`CandidateSet.given_up`) may be recommended only where that is worth `WORTH` or
more, with a 95 % interval above zero, against the same command that keeps it, on fresh launches of both. So the finals
are for a command that keeps every promise; once that is decided, a rival that gives something up is launched against
it, if the process of all launches expects it to be worth that. What the user allowed has no such condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import ne

import numpy as np

from autotune.arrays import Floats
from autotune.search.decide.accuracy import suspected
from autotune.search.gp.posterior import Posterior
from autotune.search.history import History
from autotune.search.nodes import contrast
from autotune.search.repeats import LEADERS
from autotune.space.promises import UNASKED
from autotune.trial import Role

WORTH = math.log(1.03)
"""What giving something up must add, score units: 3 %."""
LAUNCHES = 3
"""Of either command before it is decided: the interval is looked at once, so that it needs no widening."""


def broken(history: History, position: int) -> frozenset[str]:
    """The kinds of promises that a candidate breaks without being allowed to; none of the baseline's own."""
    if position == history.candidates.baseline:
        return frozenset()
    return frozenset(one.kind for one in history.given_up(position)) - frozenset(history.spec.allow)


def prices(history: History) -> Floats:
    """What each candidate must add to be recommended, score units, shape ``(candidates,)``: `WORTH`, or 0."""
    found = np.zeros(len(history.candidates))
    found[history.candidates.giving_up(frozenset(history.spec.allow))] = WORTH
    for position in history.told_given_up:
        found[position] = WORTH if broken(history, position) else 0.0
    found[history.candidates.baseline] = 0.0
    return found


def barred(history: History, position: int) -> bool:
    """Whether a candidate gives up what no gain can pay for."""
    return bool(broken(history, position) & UNASKED)


def keeper(history: History, position: int) -> int | None:
    """The same command that keeps what a candidate breaks: of its engine's, the one that differs least."""
    items = history.candidates.items
    mine = items[position].configuration
    names, nearest = list(mine.knobs), (len(mine.knobs) + 1, -1)
    values = list(mine.knobs.values())
    for other, candidate in enumerate(items):
        theirs = candidate.configuration
        if theirs.engine == mine.engine and not broken(history, other):
            nearest = min(nearest, (sum(map(ne, values, map(theirs.knobs.get, names))), other))
    return nearest[1] if nearest[1] >= 0 else None


def unproven_keeper(history: History, model: Posterior, leaders: Iterable[int]) -> int | None:
    """The keeper of a leader that breaks a promise, where it was never launched and may be the best that keeps them.

    Args:
        leaders: that ran, the best first.
    """
    ahead = list[int]()
    for leader in leaders:
        if not broken(history, leader):
            ahead.append(leader)
            break
        other = keeper(history, leader) if len(ahead) < LEADERS else None
        if other is not None and not history.at(other):
            ahead.append(other)
    if not ahead:
        return None
    best = ahead[int(model.mean(np.array(ahead, dtype=np.int64)).argmax())]
    return None if history.at(best) else best


def next_of_contest(history: History, model: Posterior, kept: int, left: int) -> int | None:
    """What to launch to learn whether giving something up pays; None where nothing promises to, or it is decided.

    Args:
        kept: the winner of the finals, which keeps every promise.
        left: launches that may still be made.
    """
    rival = _rival(history, model, kept)
    if rival is None:
        return None
    launched = {p: len(history.scores(p, Role.FINAL)) for p in (rival, kept)}
    owed = sum(max(0, LAUNCHES - count) for count in launched.values())
    return min(launched, key=lambda p: launched[p]) if 0 < owed <= left else None


def paying(history: History, kept: int) -> int | None:
    """The candidate of the finals that gives something up and is shown to be worth it; None where none is."""
    launched = dict.fromkeys(e.position for e in history.of_role(Role.FINAL))
    found = [p for p in launched if broken(history, p) and not barred(history, p) and history.feasible(p, Role.FINAL)]
    return next((p for p in found if _pays(history, p, kept)), None)


def _pays(history: History, rival: int, kept: int) -> bool:
    both = [history.node_scores(p, Role.FINAL) for p in (rival, kept)]
    if min(map(len, both)) < LAUNCHES:
        return False
    gain, information = contrast(*both)
    # One of so many launches has the error of the difference: those on nodes where the other never ran do not count.
    half = history.spread.half_width([information])
    return half is not None and gain >= WORTH and gain > half


def _rival(history: History, model: Posterior, kept: int) -> int | None:
    """What gives something up and is expected to be worth it, the best; what was begun goes on.

    Of another engine than the winner's, where no command of that one keeps every promise.
    """
    candidates, begun = history.candidates, {e.position for e in history.of_role(Role.FINAL)}
    mine, options = candidates.items[kept].configuration, dict[int, None]()
    keepers = set(range(len(candidates))) - {*candidates.giving_up(frozenset(history.spec.allow))}
    engines = {mine.engine, *(candidates.items[p].configuration.engine for p in keepers if not history.broke(p))}
    for position in {**candidates.given_up, **history.told_given_up}:
        theirs = candidates.items[position].configuration
        if theirs.engine in engines - {mine.engine} or barred(history, position) or not broken(history, position):
            continue
        if history.broke(position) or suspected(history, position):
            continue
        knobs = {one.knob for one in history.given_up(position)}
        same = theirs.engine == mine.engine and all(
            value == mine.knobs.get(name) for name, value in theirs.knobs.items() if name not in knobs
        )
        if same or history.feasible(position):
            options[position] = None
    rows = np.array(list(options), dtype=np.int64)
    if not len(rows):
        return None
    # Each thing that is given up must be worth it: none rides along with one that is.
    asked = WORTH * np.array([len(broken(history, row)) for row in options])
    left = model.mean(rows) - model.mean(np.array([kept]))[0] - asked
    started = [row for row in rows.tolist() if row in begun]
    best = started[0] if started else int(rows[left.argmax()])
    return best if left[rows.tolist().index(best)] >= 0 else None
