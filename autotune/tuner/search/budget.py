"""Count the launches of a study's budget, and those reserved for the finals, by the noise of
launches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..study.timeline import covered_s
from .history import History
from .spread import percent

RESERVE = 12
"""Launches that the search reserves for the finals if the budget has them: at 3 % noise six of a
finalist against eight of the baseline detect 6 % in nine of ten studies."""
DETECTED = 2.0
"""Gain that `RESERVE` launches detect in nine of ten studies, standard deviations of a launch: 6 %
at 3 % noise."""
SOUGHT = 0.095
"""Gain that the finals shall detect on any node, score units (10 %): where repeats show that launches vary
by more than 5 %, the finals get more launches, up to `SHARE`."""
LUCK = 2.0
"""Largest chance part of the best search result, standard deviations of a launch."""
LEAST_FINALS = 3
"""Launches of the finals for the clearest gain: two of the finalist and one of the baseline."""
NOISY = 0.1
"""Standard deviation of a launch that is assumed before any repeat: that of a noisy node."""
EXPLAINED = 0.25
"""Share of the budget for the winner without each of its settings, where a study shall measure what
they add, or with other numbers of drafted tokens."""
DRIFT = 0.3
"""Drift of a node during a study, score units: a larger lead, luck excluded, needs no control."""
SHARE = 0.4
"""Share of the budget for controls, repeats, finals and the winner without doubtful settings; more
only for repeats of leaders within noise."""
BASELINE_SHARE = 4
"""Least launches of the budget per node, one of which is the baseline's."""


def most_nodes(launches: int) -> int:
    """Return the number of nodes worth using in a budget: each starts with the baseline, at most a
    quarter in all.

    40 launches are enough for ten nodes, 8 for two. One node is always used.
    """
    return max(1, launches // BASELINE_SHARE)


def usable_nodes(nodes: Sequence[str], launches: int, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the nodes to use for a budget of `launches`, in the given order: at most `most_nodes`
    of them.

    Nodes that have had their baseline (`known`) have priority.
    """
    left = max(0, most_nodes(launches) - len(set(known)))
    new = [node for node in dict.fromkeys(nodes) if node not in known][:left]
    return tuple(node for node in dict.fromkeys(nodes) if node in known or node in new)


def capacity(history: History) -> int:
    """Return the study's launches in total, by number and by time.

    Hours are those of the study, however many launches run side by side. What is left of them is
    turned into launches by the mean time of those made and by how many run at a time, so that one
    rule serves both ceilings. Launches with random weights that turned out useless cost hours, and
    no launch of the budget.
    """
    launches = history.most_launches
    hours = history.spec.hours
    done = history.finished
    used_s = covered_s([(e.began_s, e.began_s + e.seconds) for e in done])
    if hours is None or used_s <= 0:
        return launches
    busy_s = sum(e.seconds for e in done)
    # The finals read their weights: what is left is that many launches that do.
    alike = [e.seconds for e in history.entries if not e.pending] or [e.seconds for e in done]
    mean_s = sum(alike) / len(alike)
    left_s = hours * 3600 - used_s
    if left_s < mean_s:
        return min(launches, len(history))
    # Launches at a time: the past average, at least those running plus this one.
    at_once = max(busy_s / used_s, len(history.pending) + 1)
    return min(launches, len(done) + math.floor(at_once * left_s / mean_s))


def before_finals(budget: int, reserve: int) -> int:
    """Return the launches before the finals, whose share is at most `SHARE` of the budget, or two
    (a pair)."""
    return (
        budget - max(min(2, budget // 2), min(reserve, int(SHARE * budget)))
        if budget > 2
        else budget
    )


def search_ends(history: History, budget: int) -> int:
    """Return the number of launches before the finals; repeats and controls so far count against
    the finals' share."""
    again = sum(len(entries) - 1 for entries in history.by_position.values())
    finals = max(LEAST_FINALS, min(_needed(history), int(SHARE * budget) - again))
    return before_finals(budget, finals + _kept_back(history, budget))


def repeats_end(history: History, budget: int) -> int:
    """Return the number of launches after which the search repeats no candidate: all that the finals
    may need is left."""
    return before_finals(budget, RESERVE + _kept_back(history, budget))


def _kept_back(history: History, budget: int) -> int:
    """Return the launches kept for candidates known by rank, and for the winner without its
    settings or with other numbers of drafted tokens."""
    explained = history.spec.explain == "measured" or history.spec.by_load
    return history.screening.reserve + (int(EXPLAINED * budget) if explained else 0)


def lead(history: History) -> tuple[float, float]:
    """Return the lead of the best launch over the baseline beyond luck, and the standard deviation
    of a launch.

    Score units; the first is minus infinity while one of the two is missing.
    """
    base = history.scores(history.baseline)
    spread = history.spread
    sd = spread.sd if spread.degrees > 1 else NOISY
    others = (p for p in history.by_position if p != history.baseline and history.feasible(p))
    best = max((score for p in others for score in history.scores(p)), default=-math.inf)
    return (best - sum(base) / len(base) if base else -math.inf) - LUCK * sd, sd


def _needed(history: History) -> int:
    """Return the launches needed by the finals: `RESERVE`, fewer for a clear gain, with its inverse
    square, more where repeats vary much."""
    gain, sd = lead(history)
    usual = DETECTED * sd
    return _launches_for(max(gain, min(usual, SOUGHT) if history.spread.degrees > 1 else usual), sd)


def _launches_for(gain: float, sd: float) -> int:
    """Return the launches of the finals that detect a gain in nine of ten studies."""
    return math.ceil(RESERVE * (DETECTED * sd / gain) ** 2) if sd else 0


def noise_warning(history: History) -> str:
    """Return what the finals can detect where the first repeats show too much noise for `SOUGHT`
    and for the lead; else an empty string.

    The figures are those of the launch that first showed it, so they stay as the study goes on.
    """
    searched = history.before_finals().without_ranks()
    done = list(itertools.takewhile(lambda e: not e.pending, searched.entries))
    for count in range(2, len(done) + 1):
        gain, sd = lead(so_far := searched.upto(count))
        budget = capacity(so_far)
        finals = max(1, budget - before_finals(budget, budget))
        detected = DETECTED * sd * math.sqrt(RESERVE / finals)
        if so_far.spread.degrees > 1 and detected > max(SOUGHT, gain):
            enough = math.ceil(_launches_for(SOUGHT, sd) / SHARE)
            return (
                f"launches of one command vary by {percent(sd):.0f} % (standard deviation): {finals} launches of the finals "
                f"detect gains above {percent(detected):.0f} %; {percent(SOUGHT):.0f} % needs --launches {enough}"
            )
    return ""
