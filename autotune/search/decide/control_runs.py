"""Control runs: the baseline launched again during the search, and what they say of the nodes.

One is due every `EVERY` launches of the whole study, on the node that has not had the baseline for longest, and on a
node that may be slow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from autotune.search.decide.estimate import Spread, mean
from autotune.search.history import History

EVERY = 10
"""Launches after which the baseline is due again."""
CHANGE_ERROR_RATE = 0.01
"""How often a steady node is said to have changed, two-sided."""


def next_node(history: History, places: Sequence[str]) -> str | None:
    """The node of the next control run; None while none is due.

    Args:
        places: the nodes that may run it; empty: one place without a name, which is ``""``.
    """
    base = history.candidates.baseline
    if not places:
        return "" if _due(history) else None
    on = {node: [e for e in history.at(base) if e.node == node] for node in places}
    for node, offset in history.node_offsets.items():
        runs = on.get(node, ())
        if runs and offset.doubtful and not any(e.pending for e in runs):
            return node
    if not _due(history):
        return None
    return min(on, key=lambda node: max((e.number for e in on[node]), default=-1))


def change(history: History) -> float | None:
    """Change of the baseline's score over its launches, by a straight line; None within noise.

    Student's t of the line's slope. It is a warning: nothing is corrected for it.
    """
    base = history.candidates.baseline
    runs = [(e.number, e.score) for e in history.adjusted() if e.position == base and e.score is not None]
    if len(runs) < 2:
        return None
    x0, y0 = (mean(column) for column in zip(*runs, strict=True))
    sxx = math.fsum((x - x0) ** 2 for x, _ in runs)
    slope = math.fsum((x - x0) * (y - y0) for x, y in runs) / sxx
    rest = Spread.of(math.fsum((y - y0 - slope * (x - x0)) ** 2 for x, y in runs), len(runs) - 2)
    limit = float(stdtrit(rest.degrees, 1 - CHANGE_ERROR_RATE / 2)) * rest.sd / math.sqrt(sxx)
    return slope * (runs[-1][0] - runs[0][0]) if abs(slope) > limit else None


def _due(history: History) -> bool:
    base = history.candidates.baseline
    last = max((e.number for e in history.at(base)), default=None)
    if last is None or not history.scores(base):
        return False
    return history.entries[-1].number + 1 - last >= EVERY
