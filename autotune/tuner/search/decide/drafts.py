"""Choose launches that show which number of drafted tokens is the best at which load.

Drafting is faster with few requests in flight and slower with many. Where the finals have several
loads, the winner is therefore launched with the other numbers as well while the budget lasts: for
each number the candidate with the fewest other changes.
"""

from __future__ import annotations

from ...trial import DRAFTED
from ..history import History
from .finals import finals_of
from .simplify import difference, may_stand_for

_MOST = 3
"""Settings in which a candidate with another number may differ: some knobs have other values where
a server drafts."""


def drafted(history: History, position: int) -> int:
    """Return the number of drafted tokens of a candidate."""
    return int(history.configuration(position).knobs.get(DRAFTED) or 0)


def others(history: History, position: int) -> list[int]:
    """List for each other number of drafted tokens the candidate nearest to a configuration; none
    where the finals have one load."""
    mine = history.configuration(position)
    # Keep a launched candidate when settings leave the winner.
    rows = sorted(
        (p == history.baseline or not finals_of(history, p), len(back), p)
        for p, item in enumerate(history.candidates.items if history.spec.by_load else ())
        if item.configuration.engine == mine.engine
        and DRAFTED in (back := difference(mine, item.configuration))
        and len(back) <= _MOST
    )
    nearest = {drafted(history, p): p for *_, p in reversed(rows)}
    return [p for _, p in sorted(nearest.items())]


def next_other(history: History, winner: int, wanted: int) -> int | None:
    """Return the winner with another number of drafted tokens that lacks launches; None for none."""
    owed = [
        (len(finals_of(history, p)), p)
        for p in others(history, winner)
        if may_stand_for(history, p, winner)
    ]
    launches, position = min(owed, default=(wanted, None))
    return position if launches < wanted else None
