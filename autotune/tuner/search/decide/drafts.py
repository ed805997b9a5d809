"""Choose launches that show which number of drafted tokens is the best at which load.

What pays with few requests in flight costs with many. Where the finals have several loads, the
winner is therefore launched with the other numbers as well, as far as the budget goes: for each the
candidate with the fewest other settings.
"""

from __future__ import annotations

from operator import itemgetter

from ...trial import DRAFTED
from ..history import History
from .finals import finals_of
from .simplify import difference, may_stand_for

_MOST = 3
"""Settings in which a candidate with another number may differ: some knobs have other values where
a server drafts."""


def others(history: History, position: int) -> dict[int, int]:
    """Map each other number of drafted tokens to the candidate next to a configuration; none where
    the finals have one load."""
    mine = history.configuration(position)
    found: dict[int, int] = {}
    # One that has been launched so stays, where settings of the winner turn out idle.
    for _, _, number, p in sorted(
        (p == history.baseline or not finals_of(history, p), far, int(number), p)
        for p, item in enumerate(history.candidates.items if history.spec.by_load else ())
        if (number := item.configuration.knobs.get(DRAFTED)) is not None
        and item.configuration.engine == mine.engine
        and number != mine.knobs.get(DRAFTED)
        and (far := len(difference(mine, item.configuration))) <= _MOST
    ):
        found.setdefault(number, p)
    return dict(sorted(found.items()))


def next_other(history: History, winner: int, wanted: int) -> int | None:
    """Return the winner with another number of drafted tokens that lacks launches; None for none."""
    owed = [
        (launches, p)
        for p in others(history, winner).values()
        if (launches := len(finals_of(history, p))) < wanted and may_stand_for(history, p, winner)
    ]
    return min(owed, key=itemgetter(0), default=(0, None))[1]
