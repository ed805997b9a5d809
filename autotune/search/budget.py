"""How many launches a study may have, and how many of them are kept for the finals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.search.history import History

RESERVE = 12
"""Launches that the search leaves to the finals when the budget has them: at 3 % noise six of a finalist against eight
of the baseline tell 6 % in nine of ten studies."""
LEAST_FINALS = 8
"""Launches that checks of shorter commands leave to the finals."""


BASELINE_SHARE = 4
"""One launch of so many at most is spent to know a node: on more nodes a small budget would find out little else."""


def most_nodes(launches: int) -> int:
    """The nodes that a budget is worth: each is launched on with the baseline first, at most a quarter in all.

    40 launches are enough for ten nodes, 8 for two. One node is always used.
    """
    return max(1, launches // BASELINE_SHARE)


def usable_nodes(nodes: Sequence[str], launches: int, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Those of some nodes on which a study should run, in their order: at most `most_nodes` with those it knows.

    Args:
        nodes: names of the nodes that there are.
        launches: the study's budget.
        known: nodes that have had their baseline, which count first.
    """
    left = max(0, most_nodes(launches) - len(set(known)))
    new = [node for node in dict.fromkeys(nodes) if node not in known][:left]
    return tuple(node for node in dict.fromkeys(nodes) if node in known or node in new)


def capacity(history: History) -> int:
    """Launches that the study may have in total, by number and by time.

    Hours are turned into launches by the mean time of those made, so that one rule serves both ceilings. Nodes work at
    the same time: each has the hours.
    """
    launches, hours = history.spec.launches, history.spec.hours
    times = [e.seconds for e in history if not e.pending]
    if hours is None or not times or sum(times) <= 0:
        return launches
    nodes = {e.node for e in history if e.node and not e.pending}
    left = hours * 3600 * max(1, len(nodes)) - sum(times)
    return min(launches, len(times) + max(0, math.floor(left / (sum(times) / len(times)))))


def search_budget(budget: int) -> int:
    """Launches before the finals; two are too few for any."""
    return budget - min(RESERVE, budget // 2) if budget > 2 else budget


def before_confirmation(budget: int) -> int:
    """Launches before the finals with the checks of shorter commands."""
    return budget - min(LEAST_FINALS, budget // 2) if budget > 2 else budget
