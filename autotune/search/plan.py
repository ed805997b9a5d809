"""What to launch next: a pure function of what has been launched.

The order is baseline, engine defaults, good starts, search, finals: the finalists and the baseline in
turn on fresh launches, then the winner with single knobs put back. The search leaves the finals what they
need, at most half of the budget. Hours are turned into launches by the mean time of those made, so that
one rule serves both ceilings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.recommendation import Verdict
from autotune.search.ablation import steps_back
from autotune.search.acquisition import Suggestion
from autotune.search.decomposition import most_telling
from autotune.search.history import MAX_UNINFORMATIVE, History
from autotune.search.kernels import Floats, Kernels
from autotune.search.parsimony import spread_of
from autotune.search.process import Process
from autotune.search.verdict import judge, settings
from autotune.trial import Role

FINALISTS = 2
ROUNDS = 3
ABLATIONS = 5
RESERVE = ROUNDS * (FINALISTS + 1) + ABLATIONS
"""Launches that the finals need when the budget has them."""
HEAD_START = 3
"""Engine defaults, and good starts, get at most one of so many launches of the search each."""
LEAST_SEARCH = 20
"""Launches before the search may end early."""
LEAST_IMPROVEMENT = 0.0005
"""The search ends when it expects less than 0.05 % more than the best."""

NEARLY = 0.05
"""A logarithmic difference that single launches hardly tell: 5 %, about two spreads of one launch."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next launch: why, and of which candidate."""

    role: Role
    position: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be decided until a running launch ends."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The study has ended."""

    reason: str


Decision = Step | Wait | Stop


class Plan:
    """Decides for one study.

    Args:
        kernels: of the candidates, with the prior.
        suggest: the sampler: what to try after a history; None = nothing is left.
    """

    def __init__(self, kernels: Kernels, suggest: Callable[[History], Suggestion | None]) -> None:
        self._kernels, self._suggest = kernels, suggest

    def next(self, history: History) -> Decision:
        """The next launch, given the finished and the running ones."""
        budget = capacity(history)
        if len(history) >= budget:
            return Wait() if history.pending else Stop(self._ending(history))
        if history.of_role(Role.FINAL):
            return self._finals(history, budget)
        return self._opening(history, budget) or self._search(history, budget) or self._finals(history, budget)

    def _opening(self, history: History, budget: int) -> Step | None:
        """Baseline, engine defaults, good starts."""
        candidates = history.candidates
        if not history.spent(candidates.baseline):
            return Step(Role.BASELINE, candidates.baseline)
        places = max(0, search_budget(budget) - 1)
        of_engines = len({candidates.items[p].configuration.engine for p in candidates.starts})
        if places <= of_engines + len(candidates.defaults):
            # Too few for everything: what somebody found good, one per engine, tells most.
            return self._head_start(history, candidates.starts, Role.START, min(places, of_engines))
        defaults = self._head_start(history, candidates.defaults, Role.DEFAULT, places // HEAD_START)
        if defaults is not None:
            return defaults
        return self._head_start(history, candidates.starts, Role.START, math.ceil(places / HEAD_START))

    def _head_start(self, history: History, positions: Sequence[int], role: Role, places: int) -> Step | None:
        if len(history) >= search_budget(capacity(history)) or len(history.of_role(role)) >= places:
            return None
        free = [p for p in self._by_prior(history, positions) if not history.spent(p)]
        return Step(role, free[0]) if free else None

    def _by_prior(self, history: History, positions: Sequence[int]) -> list[int]:
        """The best of each engine first, then the second best of each …; by the prior, else in the given order."""
        items, prior = history.candidates.items, self._kernels.opinions
        rank: dict[int, int] = {}
        seen: dict[str, int] = {}
        ordered = sorted(positions, key=lambda p: -prior[p])
        for position in ordered:
            engine = items[position].configuration.engine
            rank[position] = seen.get(engine, 0)
            seen[engine] = rank[position] + 1
        return sorted(ordered, key=lambda p: rank[p])

    def _search(self, history: History, budget: int) -> Decision | None:
        # While nothing is there to put to the test there is no final to keep launches for.
        if len(history) >= (search_budget(budget) if _has_challenger(history) else budget):
            return None
        suggestion = self._suggest(history)
        if suggestion is None:
            return None
        little = suggestion.improvement is not None and suggestion.improvement < LEAST_IMPROVEMENT
        if little and len(history) >= LEAST_SEARCH:
            return None
        return Step(Role.SEARCH, suggestion.position)

    def _finals(self, history: History, budget: int) -> Decision:
        searched = history.before_finals()
        if searched.pending:
            return Wait()
        position = self._next_round(history, searched, budget)
        if position is None:
            if history.pending:
                return Wait()
            position = self._next_ablation(history)
        return Stop(self._ending(history)) if position is None else Step(Role.FINAL, position)

    def _next_round(self, history: History, searched: History, budget: int) -> int | None:
        """Every contender once, then again in reverse order, so that a drifting node favours nobody."""
        available = budget - len(searched)
        finalists = self._finalists(history, searched, available)
        if not finalists:
            return None
        contenders = [*finalists, *([history.candidates.baseline] if _ran(searched) else [])]
        per_round = available / len(contenders)
        rounds = min(ROUNDS, math.ceil(per_round) if len(finalists) == 1 else math.floor(per_round))
        for done in range(rounds):
            if done >= 2 and _noiseless(history, contenders):
                break
            for position in contenders if done % 2 == 0 else reversed(contenders):
                if _finals_of(history, position) <= done and not _given_up(history, position):
                    return position
        return None

    def _finalists(self, history: History, searched: History, available: int) -> list[int]:
        """The best of the search by posterior mean; one that fails in the finals gives way to the next."""
        base = history.candidates.baseline
        feasible = [p for p in searched.by_position if searched.feasible(p)]
        if not [p for p in feasible if p != base]:
            return []
        means = dict(zip(feasible, self._means(searched, feasible), strict=True))
        ranked = _simple_second(history, sorted(feasible, key=lambda p: -means[p]), means)
        count = FINALISTS if available >= 2 * (FINALISTS + 1) and ranked[0] != base else 1
        out = {p for p in ranked if _given_up(history, p) or (_finals_of(history, p) and not _stands(history, p))}
        return [p for p in ranked if p != base and p not in out][:count]

    def _means(self, history: History, positions: Sequence[int]) -> Floats:
        return self._process(history).mean(np.array(positions, dtype=np.int64))

    def _process(self, history: History) -> Process:
        measured = [e for e in history if e.score is not None]
        return Process(self._kernels, [e.position for e in measured], [e.score or 0.0 for e in measured])

    def _next_ablation(self, history: History) -> int | None:
        """The winner with some knobs put back, the most telling first; only where the winner's gain is real."""
        judgement = judge(history)
        if judgement.winner is None or judgement.verdict not in (Verdict.BETTER, Verdict.UNOPPOSED):
            return None
        winner, finals = judgement.winner, {e.position for e in history.of_role(Role.FINAL)}
        done = len([p for p in steps_back(history.candidates, winner) if p in finals and _finals_of(history, p) == 1])
        if done >= ABLATIONS:
            return None
        return most_telling(history, self._process(history), winner, spread_of(history))

    def _ending(self, history: History) -> str:
        searched = history.before_finals()
        budget = capacity(history)
        tried = any(p != history.candidates.baseline for p in searched.by_position)
        lonely = tried and not _has_challenger(searched)
        alone = "; no challenger of the baseline ran and kept the limits" if lonely else ""
        if len(history) >= history.spec.launches:
            return f"the budget of {history.spec.launches} launches is used{alone}"
        if len(history) >= budget:
            return f"the budget of {history.spec.hours:g} hours is used{alone}"
        if searched.exhausted:
            return f"every candidate was tried{alone}"
        if len(searched) < search_budget(budget):
            return f"the search expected less than {100 * LEAST_IMPROVEMENT:g} % more than the best"
        return "the finals are done"


def _simple_second(history: History, ranked: list[int], means: Mapping[int, float]) -> list[int]:
    """The best first, then the one with the fewest settings among those nearly as good, then the rest as they are.

    Flags that only rode on noise can leave the command in the finals if a rival without them is there.
    """
    near = [p for p in ranked[1:] if p != history.candidates.baseline and means[ranked[0]] - means[p] <= NEARLY]
    if not near:
        return ranked
    second = min(near, key=lambda p: settings(history, p))
    return [ranked[0], second, *(p for p in ranked[1:] if p != second)]


def capacity(history: History) -> int:
    """Launches that the study may have in total, by number and by time."""
    launches, hours = history.spec.launches, history.spec.hours
    times = [e.seconds for e in history if not e.pending]
    if hours is None or not times or sum(times) <= 0:
        return launches
    left = hours * 3600 - sum(times)
    return min(launches, len(times) + max(0, math.floor(left / (sum(times) / len(times)))))


def search_budget(budget: int) -> int:
    """Launches before the finals; two are too few for any."""
    return budget - min(RESERVE, budget // 2) if budget > 2 else budget


def _has_challenger(history: History) -> bool:
    """Whether a configuration other than the baseline ran and kept the limits."""
    return any(history.feasible(p) for p in history.by_position if p != history.candidates.baseline)


def _ran(history: History) -> bool:
    return bool(history.scores(history.candidates.baseline))


def _finals_of(history: History, position: int) -> int:
    """Launches in the finals that said something, or still may."""
    return len([e for e in history.at(position) if e.role is Role.FINAL and not e.says_nothing])


def _given_up(history: History, position: int) -> bool:
    mute = [e for e in history.at(position) if e.role is Role.FINAL and e.says_nothing]
    return history.broke(position) or len(mute) > MAX_UNINFORMATIVE


def _stands(history: History, position: int) -> bool:
    """Whether a finalist is still feasible by its finals; while the first one runs it is."""
    return not history.scores(position, Role.FINAL) or history.feasible(position, Role.FINAL)


def _noiseless(history: History, positions: Sequence[int]) -> bool:
    """Whether repeats came out exactly equal, as in a replay without noise: more of them show nothing."""
    return all(len(set(history.scores(p, Role.FINAL))) == 1 for p in positions)
