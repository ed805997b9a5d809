"""How many launches a study may have, and how many of them are kept for the finals."""

from __future__ import annotations

import math

from autotune.search.history import History

RESERVE = 12
"""Launches that the search leaves to the finals when the budget has them: at 3 % noise six of a finalist against eight
of the baseline tell 6 % in nine of ten studies."""
LEAST_FINALS = 8
"""Launches that checks of shorter commands leave to the finals."""


def capacity(history: History) -> int:
    """Launches that the study may have in total, by number and by time.

    Hours are turned into launches by the mean time of those made, so that one rule serves both ceilings.
    """
    launches, hours = history.spec.launches, history.spec.hours
    times = [e.seconds for e in history if not e.pending]
    if hours is None or not times or sum(times) <= 0:
        return launches
    left = hours * 3600 - sum(times)
    return min(launches, len(times) + max(0, math.floor(left / (sum(times) / len(times)))))


def search_budget(budget: int) -> int:
    """Launches before the finals; two are too few for any."""
    return budget - min(RESERVE, budget // 2) if budget > 2 else budget


def before_confirmation(budget: int) -> int:
    """Launches before the finals with the checks of shorter commands."""
    return budget - min(LEAST_FINALS, budget // 2) if budget > 2 else budget


def most_nodes(launches: int) -> int:
    """The nodes that a budget is worth: each is launched on with the baseline first, at most a quarter in all."""
    return max(1, launches // 4)
