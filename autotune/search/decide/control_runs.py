"""When the search launches the baseline again, and on which node: to see whether nodes are alike, and stay as they are.

It is due every so many launches of the whole study, on the node that has not had it for longest: on several nodes each
is looked at as often, for the hours it works, as the node of a study that has one. In between it is launched where what
is known so far makes a node suspicious.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.search import drift
from autotune.search.history import Entry, History
from autotune.trial import Role


def due(history: History, places: Sequence[str]) -> str | None:
    """The node on which the baseline is to be launched once more; None: on none.

    Args:
        places: the nodes that may run it; empty: one place without a name, which is ``""``.
    """
    base = history.candidates.baseline
    if not places:
        return "" if _due(history) else None
    on = {node: [e for e in history.at(base) if e.node == node] for node in places}
    doubted = _doubted(history, on)
    return _unseen(on) if doubted is None and _due(history) else doubted


def _doubted(history: History, on: Mapping[str, Sequence[Entry]]) -> str | None:
    """Where the baseline is to be launched because a node may be off; None: nowhere.

    On that node, two or three times since it is so. Where it was not so before, all nodes may have changed: then once
    on another one too.

    Args:
        on: node to the launches of the baseline there.
    """
    for node, effect in history.node_effects().items():
        there = on.get(node, ())
        if not effect.suspicious or not there or any(e.pending for e in there):
            continue
        others = {name: entries for name, entries in on.items() if name != node}
        alone = not any(e.number > effect.recent[0] for entries in others.values() for e in entries)
        if others and alone and len(effect.recent) > 1 and effect.recent != effect.numbers:
            return _unseen(others)
        if len(effect.recent) < drift.MOST_IN_A_ROW:
            return node
    return None


def _unseen(on: Mapping[str, Sequence[Entry]]) -> str:
    """The node that has not had the baseline for longest."""
    return min(on, key=lambda node: max((e.number for e in on[node]), default=-1))


def _due(history: History) -> bool:
    """Whether the baseline is to be launched again to see if the node drifts."""
    last = max((e.number for e in history.at(history.candidates.baseline)), default=None)
    if last is None or not history.scores(history.candidates.baseline):
        return False
    if history.entries[-1].number + 1 - last >= drift.EVERY:
        return True
    row = 0
    for entry in reversed(history.entries):
        if entry.role is not Role.DRIFT:
            break
        row += 1
    suspected = history.levelled().suspected_drift() if 0 < row < drift.MOST_IN_A_ROW and not history.pending else None
    return suspected is not None and not suspected.certain and suspected.suspicious
