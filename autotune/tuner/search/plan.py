"""Decide the next launch: a pure function of the launches.

The order is baseline, a vendor's recipe, search, finals, then the winner without settings that are
in doubt. Baseline and recipe alone have a fixed place. The search launches what the sampler expects
most of, and the baseline now and then while the lead may be noise or drift; it ends when it expects
less than a stated gain, and leaves the finals what they need. Where it can afford every candidate it
launches every one, whatever the model expects, and then the best ones again while noise may have
decided their order: a model of knobs knows no effect that one candidate alone has.

With several nodes the baseline is launched once on each, later ones too, before anything else runs
there as far as can be told. Nothing more runs on a node that is off. Pairs of the finals run side
by side; and while the last launches of the search run, the other nodes make the baseline's first
launches for the finals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from autotune.base import frozen
from autotune.base.arrays import descending, ints
from autotune.engines.failure import without_numbers

from ..study.recommendation import LEAST_EFFECT, Verdict
from ..study.spec import is_alone, may_share_node
from ..trial import Launch, Role
from .acquisition import GAIN, model_of, p_feasible
from .budget import (
    LEAST_FINALS,
    LUCK,
    before_finals,
    capacity,
    repeats_end,
    search_ends,
    usable_nodes,
)
from .decide import drafts, finals, simplify
from .decide.sequential_test import Outcome, outcome
from .decide.verdict import judge
from .entry import Entry
from .explain import LIKELY
from .gp.kernels import Kernels
from .gp.posterior import THOROUGH, Posterior
from .history import BASELINE_ROLES, MAX_UNINFORMATIVE, History
from .reach import OUT_OF_REACH, out_of_reach
from .sampler import CandidateSampler
from .spread import FEW_DEGREES, LAUNCH_NOISE, mean

LEAST_SEARCH = 8
"""Launches before the search may end early."""
ALIKE = 5
"""Failures of one cause, and nothing else, after which a study stops if no engine is untried; twice
as many for out of memory, which many knobs influence."""
SURE = 0.9
"""Odds of starting and meeting the limits of a command that never ran, for finals that cannot
afford a failure."""
MOST_REPEATS = 3
"""Launches in the search of a candidate whose order with the best noise may have decided."""
WITHOUT_BASELINE = 2
"""Launches of a finalist whose baseline cannot run: they only show that it runs again."""


@frozen
class Step:
    """The next launch: its role, its candidate, and the node on which it must run; empty: any."""

    role: Role
    position: int
    node: str = ""


@frozen
class Wait:
    """No decision until a running launch ends."""


@frozen
class Stop:
    """The study has ended."""

    reason: str


Decision = Step | Wait | Stop


@frozen
class Recorded:
    """Plan of a study replayed from a bundle: its launches, in their order."""

    launches: Sequence[Launch]

    def next(self, history: History, nodes: Sequence[str] = ()) -> Decision:
        """Return the next launch as `Plan`."""
        del nodes
        if len(history) >= len(self.launches):
            return _end(history, f"the {len(self.launches)} recorded launches are replayed")
        trial = self.launches[len(history)].trial
        position = history.candidates.position(trial.configuration.fingerprint)
        return Step(trial.role, position, trial.node)


def _end(history: History, reason: str) -> Decision:
    """End the study once nothing runs any more."""
    return Wait() if history.pending else Stop(reason)


class Plan:
    """Plan of one study, over candidates with their priors; the sampler chooses new ones."""

    def __init__(self, kernels: Kernels, sampler: CandidateSampler) -> None:
        self._kernels = kernels
        self._sampler = sampler

    def next(self, history: History, nodes: Sequence[str] = ()) -> Decision:
        """Return the next launch, given the finished and the running ones, and the nodes; none: one
        without a name."""
        places = _places(history, nodes)
        decision = self._decide(history, places, capacity(history), bool(nodes))
        if isinstance(decision, Step) and not decision.node and any(map(is_alone, places)):
            return replace(decision, node=places[0])
        return decision

    def _decide(
        self, history: History, places: Sequence[str], budget: int, named: bool
    ) -> Decision:
        """Decide as `next`, except the place of a launch that may run anywhere."""
        if len(history) >= budget:
            return self._ended(history)
        if named and not places:
            return Wait()
        if (cause := _cause_of_all(history)) is not None:
            return _end(history, f"all {len(history)} launches failed for one cause ({cause})")
        if (again := _retried(history, places)) is not None:
            return again
        if history.of_role(Role.FINAL):
            return self._finals(history, places)
        if out_of_reach(self._kernels, history):
            return _end(history, OUT_OF_REACH)
        step = _baseline(history, places) or _again(history)
        step = step or _unmeasured_prediction(history) or self._recipe(history, budget)
        # Without a challenger there are no finals to reserve launches for.
        contested = bool(history.challengers)
        if step is None and len(history) < (search_ends(history, budget) if contested else budget):
            found = history.screening.next(history.challengers, partial(self._best, history))
            step = None if found is None else Step(*found)
            node = finals.next_node(history, places) if contested and step is None else None
            if node is not None:
                return Step(Role.CONTROL, history.baseline, node)
            step = step or self._searched(history, contested, budget) or _repeat(history, budget)
        return step or self._after_search(history, budget, places)

    def _recipe(self, history: History, budget: int) -> Step | None:
        """Return the vendors' recipe expected to be the fastest, if the search has a launch for
        one.

        Of each engine the first that is not the baseline, as `--baseline recipe` takes the first.
        """
        candidates = history.candidates
        firsts = dict[str, int]()
        for position in candidates.recipes:
            if history.canonical(position) != candidates.baseline:
                firsts.setdefault(history.configuration(position).engine, position)
        recipes = list(firsts.values())
        room = before_finals(budget, LEAST_FINALS) > LEAST_SEARCH
        if not recipes or not room or any(history.at(p) for p in recipes):
            return None
        return Step(Role.START, self._best(history, recipes))

    def _best(self, history: History, positions: Sequence[int]) -> int:
        """Return the candidate of the highest posterior mean, the first of equals."""
        means = model_of(self._kernels, history.adjusted()).mean(ints(positions))
        return positions[int(means.argmax())]

    def _searched(self, history: History, contested: bool, budget: int) -> Step | None:
        """Return the sampler's suggestion; None if it is not worth a launch and the search cannot
        afford all candidates."""
        suggestion = self._sampler.suggest(history)
        candidates = history.candidates
        affords_all = history.searchable.sum() <= search_ends(history, budget) - len(history)
        early = contested and not affords_all and len(history) >= LEAST_SEARCH
        if suggestion is None or (early and suggestion.little):
            return None
        position = suggestion.position
        start = Role.START if position in candidates.starts else Role.SEARCH
        role = Role.DEFAULT if position in candidates.defaults else start
        return Step(history.screening.role(position, role), position)

    def _after_search(self, history: History, budget: int, places: Sequence[str]) -> Decision:
        """Return the launch that follows the search: of the best candidate known by rank alone, a
        retry, or the first of the finals."""
        # The baseline's launches say nothing of which configuration is the finalist.
        waits_for = [e for e in history.pending if not (places and e.role in BASELINE_ROLES)]
        check = None
        if places or not waits_for:
            # Launch a candidate with its own weights if it ranks above all that had theirs.
            check = self._if_better(history, history.screening.unchecked(), budget)
        if check is None and waits_for:
            return _meanwhile(history, places)
        # Launch once more what failed without an explanation.
        failed = [e.position for e in history.retryable if e.role not in BASELINE_ROLES]
        check = check or self._if_better(history, failed, budget)
        return check or self._finals(history, places)

    def _if_better(self, history: History, positions: Sequence[int], budget: int) -> Step | None:
        """Return the launch, before the finals, of the best of some candidates, if it is expected
        to be better than the leader."""
        if not positions or len(history) >= before_finals(budget, LEAST_FINALS):
            return None
        scores = history.adjusted()
        leaders = leaders_of(model_of(self._kernels, scores), scores)
        best = self._best(history, [*leaders[:1], *positions])
        return Step(Role.SEARCH, best) if best in positions else None

    def _finals(self, history: History, places: Sequence[str]) -> Decision:
        searched = history.before_finals()
        if searched.pending:
            return Wait()
        finalist = self._finalist(history, searched)
        if finalist is None:
            return self._ended(history)
        left = capacity(history) - len(history)
        if self._open(history, finalist):
            if not history.scores(history.baseline):
                return Step(Role.FINAL, finalist)
            found = finals.next_of_pair(history, finalist, left, places or [""])
            return Wait() if found is None else Step(Role.FINAL, *found)
        if history.pending and not places:
            return Wait()
        return self._after_win(history, left, places) or self._ended(history)

    def _finalist(self, history: History, searched: History) -> int | None:
        """Return the best of the search, by launches before the finals; an eliminated one is
        replaced by the next."""
        scores = searched.adjusted()
        model = model_of(self._kernels, scores)
        leaders = sorted(leaders_of(model, scores), key=lambda p: finals.suspected(history, p))
        # If the first launch of a command that never ran fails, a pair is left for the next one.
        spare = capacity(history) - len(searched) >= LEAST_FINALS
        for leader in leaders:
            for position in (self._without_unlikely(scores, leader, spare), leader):
                tested = history.canonical(position)
                gone = finals.eliminated(history, tested) or finals.is_far_below(history, tested)
                if tested != history.baseline and not gone:
                    return tested
        return None

    def _without_unlikely(self, scores: History, leader: int, spare: bool) -> int:
        """Return a leader's command without settings that are not expected to help; spare: the
        finals can afford a failed start."""
        least = LIKELY if spare else SURE
        model = model_of(self._kernels, scores, THOROUGH)
        known = estimates(model, scores) if scores.exhausted else {}

        def likely(position: int) -> bool:
            if position in known:
                return known[position] > known[leader] - LEAST_EFFECT
            rows = ints([position])
            return (
                scores.feasible(position)
                or float(p_feasible(self._kernels, scores, rows)[0]) >= least
            )

        return simplify.drop_unlikely(scores, model, leader, likely)

    def _open(self, history: History, finalist: int) -> bool:
        """Return whether the finals are undecided about a finalist."""
        base = history.baseline
        if not history.scores(base):
            return len(finals.finals_of(history, finalist)) < WITHOUT_BASELINE
        return (
            not history.broke(base)
            and outcome(finals.looks(history.adjusted(), finalist))[0] is Outcome.OPEN
        )

    def _after_win(self, history: History, left: int, places: Sequence[str]) -> Decision | None:
        """Launch the winner without a setting that is not shown to help if its gain is shown, then
        with other numbers of drafted tokens; on the node that ran it most."""
        scores = history.adjusted()
        judgement = judge(scores)
        winner = judgement.winner
        if winner is None:
            return None
        position = drafts.next_other(scores, winner, 1)
        if position is None and judgement.verdict in (Verdict.BETTER, Verdict.UNOPPOSED):
            model = model_of(self._kernels, scores, THOROUGH)
            position = simplify.next_without(scores, model, winner)
        if position is None or left < simplify.FRESH - len(finals.finals_of(history, position)):
            position = drafts.next_other(scores, winner, min(left, simplify.FRESH))
        if position is None:
            return None
        ran = [e.node for e in finals.finals_of(history, winner)]
        return (
            Wait()
            if history.pending
            else Step(Role.FINAL, position, max(places, key=ran.count, default=""))
        )

    def _ended(self, history: History) -> Decision:
        """End the study, with the reason, once nothing runs any more."""
        if history.pending:
            return Wait()
        searched = history.before_finals()
        tried = any(p != history.baseline for p in searched.by_position)
        none = tried and not searched.challengers
        alone = "; no configuration other than the baseline met the limits" if none else ""
        if len(history) >= (most := capacity(history)):
            timed = most < history.most_launches
            spec = history.spec
            used = f"{spec.hours:g} hours" if timed else f"{spec.launches} launches"
            return Stop(f"the budget of {used} is used{history.screening.share}{alone}")
        done = "; the finals are done" if history.of_role(Role.FINAL) else alone
        if searched.exhausted:
            return Stop(f"every candidate was tried{done}")
        suggestion = self._sampler.suggest(searched)
        if suggestion is None or suggestion.improvement is None or not suggestion.little:
            return Stop(f"the search has used its share of the budget{done}")
        expected = 100 * max(0.0, suggestion.improvement)
        return Stop(
            f"the search expected {expected:.2f} % more than the best, less than {100 * GAIN:g} %{done}"
        )


def leaders_of(model: Posterior, history: History) -> list[int]:
    """Return the challengers, the best first by `estimates`."""
    found = estimates(model, history)
    positions = list(found)
    return [positions[i] for i in descending(np.array([*found.values()]))]


def estimates(model: Posterior, history: History) -> dict[int, float]:
    """Return the expected score of each challenger: the model's mean, and its own launches if these
    show more.

    The mean shrinks lucky launches. What the model takes for noise beyond the spread of a launch is
    an effect of the candidate's own. Where every candidate was launched, its standard deviation is
    at least that of a launch.
    """
    if not (positions := history.challengers):
        return {}
    means = model.mean(ints(positions))
    spread = history.spread
    variance = (
        spread.sd if spread.degrees >= FEW_DEGREES else max(LAUNCH_NOISE, history.step)
    ) ** 2
    own = max(variance * history.exhausted, model.noise**2 - variance)
    scores = [history.scores(position) for position in positions]
    known = np.array([own / max(own + variance / len(mine), 1e-12) for mine in scores])
    found = means + known * (np.array([mean(mine) for mine in scores]) - means)
    return dict(zip(positions, found.tolist(), strict=True))


def _cause_of_all(history: History) -> str | None:
    """Return the one cause of all failed launches, of every engine; None otherwise."""
    done = [e for e in history if not e.pending]
    engines = {item.configuration.engine for item in history.candidates.items}
    untried = engines - {history.configuration(e.position).engine for e in done}
    causes = {without_numbers(e.cause) for e in done}
    if untried or len(causes) != 1 or "" in causes:
        return None
    enough = 2 * ALIKE if done[0].out_of_memory else ALIKE
    return done[0].cause if len(done) >= enough else None


def _places(history: History, nodes: Sequence[str]) -> Sequence[str]:
    """Return the nodes for launches: not those that are off, unless no other remains and nothing
    runs."""
    control = [e for e in history.of_role(Role.BASELINE) if e.position == history.baseline]
    nodes = _open_places(control, history.one_at_a_time, nodes)
    off = history.off_nodes
    launches = history.spec.launches
    known = [e.node for e in history.at(history.baseline) if e.node and e.node not in off]
    places = usable_nodes([n for n in nodes if n not in off], launches, known)
    # Other nodes must do when the known ones are gone.
    return places if places or history.pending else usable_nodes(nodes, launches)


def _open_places(control: Sequence[Entry], decided: str, places: Sequence[str]) -> Sequence[str]:
    """Return an executor's free places for the next launch, in the order of the control; none:
    wait.

    Where none is alone, they are nodes of their own, and all of them are open. `decided` is from
    `one_at_a_time`.
    """
    if not any(map(is_alone, (*places, *(run.node for run in control)))):
        return places
    if decided or not any(is_alone(run.node) and run.score is not None for run in control):
        return [place for place in places if is_alone(place)]
    shares = [place for place in places if may_share_node(place)]
    new = [place for place in shares if all(run.node != place for run in control)]
    return new or ([] if any(run.pending for run in control) else shares)


def _retried(history: History, places: Sequence[str]) -> Step | None:
    """Return another launch of a candidate whose server may have been ended from outside, before it
    counts as failed.

    Launches of the baseline and of the finals without a result are made again in any case. After
    equal crashes in a row the last is launched again: if it runs, the node failed, not they.
    """
    dead = [
        e
        for e in history.retryable
        if e.role not in BASELINE_ROLES and (e.external or e in history.latest_crashes)
    ]
    return next((Step(e.role, e.position, e.node if e.node in places else "") for e in dead), None)


def _baseline(history: History, places: Sequence[str]) -> Step | None:
    """Return the baseline if it is due first: once on every node, and again after a crash."""
    base = history.baseline
    again = history.crashed_once(base)
    if not places:
        return None if history.spent(base) and not again else Step(Role.BASELINE, base)
    for node in () if history.broke(base) and not again else places:
        there = [e for e in history.at(base) if e.node == node]
        if (
            all(e.uninformative or (again and e.broke) for e in there)
            and len(there) < MAX_UNINFORMATIVE
        ):
            return Step(Role.BASELINE, base, node)
    return None


def _again(history: History) -> Step | None:
    """Return another launch of the baseline where it is the only candidate and runs; else None."""
    base = history.baseline
    ran = history.candidates.alone and history.scores(base) and not history.broke(base)
    return Step(Role.BASELINE, base) if ran and not history.pending else None


def _repeat(history: History, budget: int) -> Step | None:
    """Return another launch of a candidate whose order with the best noise may have decided, once
    every candidate was launched; None if there is none, or the finals need the rest.

    The first is that of the highest upper bound, a standard error above its mean.
    """
    # The finals of a verification need its launches.
    room = not history.spec.verifies and len(history) < repeats_end(history, budget)
    if not (room and history.exhausted):
        return None
    scores = history.adjusted()
    sd = scores.spread.sd
    known = {
        p: (mean(mine), sd**2 / len(mine)) for p in scores.challengers if (mine := scores.scores(p))
    }
    best, variance = max(known.values(), default=(0.0, 0.0))
    close = {
        p: score + math.sqrt(own)
        for p, (score, own) in known.items()
        if best - score <= LUCK * math.sqrt(own + variance)
    }
    few = [p for p in close if len(history.at(p)) < MOST_REPEATS] if len(close) > 1 else []
    return Step(Role.SEARCH, max(few, key=close.__getitem__)) if few else None


def _unmeasured_prediction(history: History) -> Step | None:
    """Return the first command of a verification that was not launched yet."""
    untried = (
        p for p in range(len(history.candidates)) if history.spec.verifies and not history.at(p)
    )
    position = next(untried, None)
    return None if position is None else Step(Role.SEARCH, position)


def _meanwhile(history: History, places: Sequence[str]) -> Decision:
    """Launch the baseline's half of a pair of the finals, on a node, during the last launches of
    the search."""
    base = history.baseline
    node = (
        finals.next_control_node(history, places)
        if history.challengers and history.feasible(base)
        else None
    )
    return Wait() if node is None else Step(Role.CONTROL, base, node)
