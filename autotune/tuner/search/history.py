"""The launches of a study by number, as the search and the finals read them.

Launches that share a node may slow each other. The baseline's first launches test that once: first
one alone on a share of the GPUs, then one on each share at the same time. The two means are
compared at the usual launch noise (`LAUNCH_NOISE`, 3 %). If the concurrent launches are slower by
more than `LIMIT` standard errors of the difference, their results are dropped and all later
launches run one at a time. The false alarm rate of this test is 5 %; a false alarm costs time only.
A slowdown below the limit (6 % on two shares) may go unnoticed; it affects all launches equally.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np
from scipy.special import ndtri

from autotune.base import Evidence, by_key
from autotune.base.arrays import Bools
from autotune.engines import (
    Candidate,
    CandidateSet,
    Configuration,
    Failure,
    FailureKind,
    GivenUp,
    without_numbers,
)
from autotune.engines.promises import BY_LENGTH, UNASKED

from ..study import timeline
from ..study.loads import PROMPTS
from ..study.spec import StudySpec, is_alone, may_share_node
from ..trial import AFTER_RUNNING, IN_A_ROW, SURE_TO_START, Launch, Role, Trial
from . import equivalents, objective
from .entry import Entries, Entry, by_position
from .nodes import NodeOffset, NodeScore, additive_spread, contrast, node_offsets
from .screen import Observations, Screening
from .spread import LAUNCH_NOISE, Spread, mean, percent

MOST_RETRIES = 3
"""Most retries of unexplained failures in a study, counted again after its budget is raised."""

MAX_UNINFORMATIVE = 2
"""Launches of one candidate without information after which it is abandoned."""

NONE_KEEPS = 5
"""Failed candidates without a trade-off, none having run, after which candidates with a trade-off
are searched."""

BASELINE_ROLES = (Role.BASELINE, Role.CONTROL, Role.FINAL)
"""Roles of baseline launches."""
_MAY_PASS = (FailureKind.CRASHED, FailureKind.TIMEOUT, FailureKind.LOAD_ERRORS)
"""Failures that may be chance, so that another launch may run."""

ERROR_RATE = 0.05
"""False alarm rate of the test for interference, at the usual launch noise."""
LIMIT = float(-ndtri(ERROR_RATE))
"""Critical value of the test for interference, in standard errors."""
_OVERLAP = 0.5
"""Least share of a launch's duration that another one must overlap to measure interference."""


@dataclass(frozen=True)
class History:
    """Launches of a study by number, with the other inputs of decisions.

    Attributes:
        canonical_of: position of a candidate to the position of its equivalent, to which all its
            launches are attributed.
        adjusted_by: node to the offset that was subtracted from its scores; None: the scores are as
            measured.
        one_at_a_time: why launches may not share the node; empty if they may.
        screened: launches with random weights, which only rank candidates for the search.
    """

    spec: StudySpec
    candidates: CandidateSet
    entries: tuple[Entry, ...]
    canonical_of: Mapping[int, int] = field(default_factory=dict)
    adjusted_by: Mapping[str, NodeOffset] | None = None
    one_at_a_time: str = ""
    screened: tuple[Entry, ...] = ()

    @classmethod
    def from_launched_only(cls, spec: StudySpec, launches: Sequence[Launch]) -> History:
        """Read launches for a report or a tracker, which do not know the other candidates."""
        by_fingerprint = {
            launch.fingerprint: Candidate(launch.trial.configuration, launch.trial.engine_version)
            for launch in launches
        }
        baselines = (
            list(by_fingerprint).index(launch.fingerprint)
            for launch in launches
            if launch.role is Role.BASELINE
        )
        items = list(by_fingerprint.values())
        return cls.from_launches(spec, CandidateSet(items, next(baselines, 0)), launches)

    @classmethod
    def from_launches(
        cls,
        spec: StudySpec,
        candidates: CandidateSet,
        launches: Iterable[Launch],
        pending: Iterable[Trial] = (),
    ) -> History:
        """Read launches and running trials; raises ``KeyError`` for a configuration that is not a
        candidate."""
        rows, running = list(launches), list(pending)
        trials = [*(row.trial for row in rows), *running]
        candidates = candidates.including(trial.configuration for trial in trials)
        canonical = equivalents.canonical_of(
            rows, candidates, candidates.baseline_candidate.fingerprint
        )
        joined = {
            candidates.position(one): candidates.position(other) for one, other in canonical.items()
        }
        # Ignore the host names in rows unless trials were bound to nodes.
        bound = any(trial.node for trial in trials)
        begins = timeline.start_times(rows, bound)
        entries = [_entry_of(spec, candidates, row, joined, begins[row.number]) for row in rows]
        for trial in running:
            position = candidates.position(trial.configuration.fingerprint)
            counted = joined.get(position, position)
            again = trial.retry is not None
            entries.append(
                Entry(trial.number, trial.role, counted, retry=again, pending=True, node=trial.node)
            )
        if not bound:
            entries = [replace(e, node="") for e in entries]
        entries.sort(key=lambda e: e.number)
        alone = one_at_a_time([e for e in entries if e.role is Role.BASELINE])
        if alone:
            entries = [
                e.without_result() if may_share_node(e.node) and not e.pending else e
                for e in entries
            ]
        screened = tuple(e for e in entries if e.role is Role.RANDOM_WEIGHTS)
        entries = [e for e in entries if e.role is not Role.RANDOM_WEIGHTS]
        entries = _without_crashes(_without_crashes_of_nodes(entries), candidates.baseline)
        return cls(spec, candidates, tuple(entries), joined, one_at_a_time=alone, screened=screened)

    @property
    def baseline(self) -> int:
        return self.candidates.baseline

    def configuration(self, position: int) -> Configuration:
        return self.candidates.items[position].configuration

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries) + len(self.screened)

    @property
    def most_launches(self) -> int:
        """Return the budget, plus the launches with random weights that turned out useless."""
        return self.spec.launches + self.screening.useless

    def of_role(self, *roles: Role) -> list[Entry]:
        return [e for e in self.entries if e.role in roles]

    def before_finals(self) -> History:
        """Return the history before the finals; all launches if there are none yet.

        On several nodes the finals include the controls that ran while the search ended.
        """
        first = next(
            (i for i, e in enumerate(self.entries) if e.role is Role.FINAL), len(self.entries)
        )
        while (
            self.several
            and first
            and Role.CONTROL in self.spec.deciding_roles
            and self.entries[first - 1].role is Role.CONTROL
        ):
            first -= 1
        return self.upto(first)

    def upto(self, count: int) -> History:
        """Return only the first launches."""
        # Keep the equivalents learned later, or finals could be asked for without end.
        return replace(self, entries=self.entries[:count])

    def without_ranks(self) -> History:
        """Return only the launches with real weights."""
        return replace(self, screened=())

    @property
    def spread(self) -> Spread:
        """Return the standard deviation of one launch, from repeats of configurations.

        A finalist was selected for its launches in the search, which are therefore biased: they and
        its finals are two groups. The baseline was not selected and is one group. Load searches
        that end on the same step may still differ by up to the step: a uniform error of standard
        deviation step / √12.
        """
        base = self.baseline
        rows = [
            (
                (
                    e.position,
                    e.sent_finals_prompts or (e.role is Role.FINAL and e.position != base),
                ),
                e.node if self.several else "",
                e.score,
            )
            for e in self.entries
            if e.score is not None
        ]
        spread = additive_spread(rows)
        return replace(spread, sd=math.hypot(spread.sd, self.step / math.sqrt(12)))

    @cached_property
    def step(self) -> float:
        """Return the root mean square step of the launches' load searches, score units.

        Without repeats it stands for the launch noise: a few requests decide which load is the last
        within the limits (launches of one command differ by 4 to 10 %, ``docs/load-search.md``).
        """
        found = [e.step**2 for e in self.entries if e.measured]
        return math.sqrt(mean(found)) if found else 0.0

    @cached_property
    def several(self) -> bool:
        """Return whether launches on more than one node were measured."""
        return len({e.node for e in self.entries if e.measured and e.node}) > 1

    @cached_property
    def node_offsets(self) -> Mapping[str, NodeOffset]:
        """Return the score offset of each node, by the baseline's launches there."""
        if self.adjusted_by is not None:
            return self.adjusted_by
        return node_offsets(by_key(row for row in self.node_scores(self.baseline) if row[0]))

    @property
    def off_nodes(self) -> frozenset[str]:
        """Return the nodes that are slower or faster than the others beyond noise."""
        return frozenset(node for node, found in self.node_offsets.items() if found.off)

    def adjusted(self) -> History:
        """Return the history with each score less its node's offset; unchanged for one node."""
        if self.adjusted_by is not None or not self.several:
            return self
        offsets = {node: found.offset for node, found in self.node_offsets.items()}
        entries = [
            e if e.score is None else replace(e, score=e.score - offsets.get(e.node, 0.0))
            for e in self.entries
        ]
        return replace(self, entries=tuple(entries), adjusted_by=self.node_offsets)

    @cached_property
    def by_position(self) -> dict[int, list[Entry]]:
        return by_position(self.entries)

    def canonical(self, position: int) -> int:
        """Return the candidate to which a candidate's launches are attributed: itself, or its
        equivalent."""
        return self.canonical_of.get(position, position)

    def at(self, position: int) -> list[Entry]:
        """Return the launches of a candidate, equivalents included."""
        return self.by_position.get(self.canonical(position), [])

    @property
    def pending(self) -> list[Entry]:
        return [e for e in (*self.entries, *self.screened) if e.pending]

    @property
    def finished(self) -> list[Entry]:
        return [e for e in (*self.entries, *self.screened) if not e.pending]

    @cached_property
    def screening(self) -> Screening:
        return Screening(self.spec.screened, self.candidates, self.entries, self.screened)

    @property
    def changes(self) -> list[str]:
        """Return why nodes are no longer shared, and why random weights are no longer used."""
        return list(filter(None, [self.one_at_a_time, self.screening.ended]))

    @property
    def observed(self) -> Observations:
        """Return the scores from which the model learns."""
        return Observations(self.measured_scores, self.screening.ranked)

    @cached_property
    def incumbents(self) -> list[int]:
        """Return the launched candidates that may be recommended; with random weights only, they
        count as feasible."""
        seen = dict.fromkeys((*self.by_position, *self.observed.positions))
        return [
            p
            for p in seen
            if p not in self.ineligible and (p not in self.by_position or self.feasible(p))
        ]

    def best(self, most: int) -> list[int]:
        """Return the best incumbents by the mean of their scores, the best first."""
        means = {p: mean(scores) for p in self.incumbents if (scores := self.scores(p))}
        return sorted(means, key=lambda p: -means[p])[:most]

    @property
    def challengers(self) -> list[int]:
        """Return the configurations other than the baseline that ran within the limits and may be
        recommended."""
        others = (p for p in self.by_position if p != self.baseline)
        return [p for p in others if self.feasible(p) and p not in self.ineligible]

    def spent(self, position: int) -> bool:
        """Return whether a candidate is finished for the search: measured, failed, running,
        abandoned, equivalent, or only `retryable`."""
        if position in self.canonical_of:
            return True
        entries = self.at(position)
        external = position != self.baseline and any(e.external for e in entries)
        # Do not count crashes that were attributed to a node.
        counted = [e for e in entries if e.external or not e.unexplained]
        informed = any(not e.uninformative for e in entries)
        return external or informed or len(counted) >= MAX_UNINFORMATIVE

    @cached_property
    def measured_scores(self) -> tuple[tuple[int, float], ...]:
        """Return position and score of every measured launch, adjusted to the search's prompts."""
        scores = self._search_scores
        return tuple((e.position, scores[e.number]) for e in self.entries if e.measured)

    @cached_property
    def _search_scores(self) -> Mapping[int, float]:
        """Return the score of each measured launch by number. Only here the effect of the finals'
        prompts is subtracted."""
        effect, _ = self._finals_prompt_effect
        return {
            e.number: e.score - effect * e.sent_finals_prompts
            for e in self.entries
            if e.score is not None
        }

    @cached_property
    def _finals_prompt_effect(self) -> tuple[float, tuple[int, ...]]:
        """Return the effect of the finals' own prompts on a score, and the numbers of the baseline's
        launches that show it, on either prompts."""
        scores = by_key(
            (e.sent_finals_prompts, e.score) for e in self.at(self.baseline) if e.score is not None
        )
        if len(scores) < 2:
            return 0.0, ()
        search, finals = scores[False], scores[True]
        return mean(finals) - mean(search), (len(finals), len(search))

    def contrast(self, position: int, other: int) -> tuple[float, list[int]]:
        """Return the difference of two candidates' scores, adjusted to the search's prompts, and the
        numbers of launches behind it.

        If only one of the two ran in the finals, the launches that show the effect of their prompts
        are included.
        """
        sides = [self.deciding(p) for p in (position, other)]
        both = [[(e.node, self._search_scores[e.number]) for e in side] for side in sides]
        mixed = len({e.sent_finals_prompts for side in sides for e in side}) > 1
        counts = [*map(len, both), *(self._finals_prompt_effect[1] if mixed else ())]
        return contrast(*both)[0], counts

    def _deciding_roles(self, position: int) -> tuple[Role, ...]:
        """Return the roles of the launches that decide about a candidate."""
        return (
            self.spec.deciding_roles if self.canonical(position) == self.baseline else (Role.FINAL,)
        )

    @property
    def running(self) -> list[int]:
        """Return the running candidates, one for each launch."""
        return [e.position for e in self.pending]

    @cached_property
    def not_searchable(self) -> frozenset[int]:
        """Return the candidates that the search is finished with, or may not launch."""
        spent = {p for p in {*self.by_position, *self.canonical_of} if self.spent(p)}
        return self.ineligible | spent | self.screening.used

    @property
    def searchable(self) -> Bools:
        """Return which candidates the search may launch, shape ``(candidates,)``."""
        free = np.ones(len(self.candidates), dtype=np.bool_)
        free[list(self.not_searchable)] = False
        return free

    @property
    def exhausted(self) -> bool:
        """Return whether the search is finished with every candidate."""
        return len(self.not_searchable) == len(self.candidates)

    def scores(self, position: int, *roles: Role) -> list[float]:
        """Return the scores of a candidate's launches, of these roles only when any are given."""
        return [score for _, score in self.node_scores(position, *roles)]

    def node_scores(self, position: int, *roles: Role) -> list[NodeScore]:
        """Return the scores as `scores`, with the nodes."""
        return [
            (e.node, e.score)
            for e in self.at(position)
            if e.score is not None and (not roles or e.role in roles)
        ]

    def evidence(self, position: int, *roles: Role) -> list[Entry]:
        """Return a candidate's measured launches of these roles, else of any; on off nodes only if
        there are no others."""
        measured = [e for e in self.at(position) if e.measured]
        chosen = [e for e in measured if e.role in roles] or measured
        return [e for e in chosen if e.node not in self.off_nodes] or chosen

    def deciding(self, position: int) -> list[Entry]:
        """Return the `evidence` that decides about a candidate."""
        return self.evidence(position, *self._deciding_roles(position))

    def deciding_scores(self, position: int) -> list[NodeScore]:
        """Return the `node_scores` that decide about a candidate."""
        return self.node_scores(position, *self._deciding_roles(position))

    @cached_property
    def unexplained(self) -> Mapping[int, Entries]:
        """Return the candidates without any result and with an unexplained failure, with their
        launches."""
        return {
            position: rows
            for position, rows in self.by_position.items()
            if any(e.unexplained for e in rows)
            and all(e.unexplained or e.uninformative for e in rows)
        }

    @property
    def unexplained_launches(self) -> list[int]:
        """Return the numbers of the unexplained failures of `unexplained` candidates."""
        return sorted(e.number for rows in self.unexplained.values() for e in rows if e.unexplained)

    @property
    def latest_crashes(self) -> Entries:
        """Return the latest launch of the study, and of each node, if it ends a run of equal
        crashes (`_equal_crashes`)."""
        done = [e for e in self.entries if not e.pending]
        latest = {e.node: e for e in done}.values()
        return [run[-1] for run in _equal_crashes(done) if run[-1] in latest]

    @property
    def retryable(self) -> Entries:
        """Return the latest launches of `unexplained` candidates that may be retried.

        A second retry needs a raised budget: the cause may have been repaired since.
        """
        since = self.spec.finals_from
        retries = sum(e.retry and e.number >= since for e in (*self.entries, *self.screened))
        if retries >= MOST_RETRIES:
            return ()
        latest = [
            (max(rows, key=lambda e: e.number), sum(e.unexplained for e in rows))
            for rows in self.unexplained.values()
        ]
        return [e for e, count in latest if not e.pending and (count < 2 or e.number < since)]

    def broke(self, position: int) -> bool:
        return any(e.broke for e in self.at(position))

    def crashed_once(self, position: int) -> bool:
        """Return whether the only informative launch of a candidate had a failure that may be
        chance."""
        entries = self.at(position)
        known = [e for e in entries if not e.uninformative]
        return len(known) == 1 and known[0].may_pass and len(entries) <= MAX_UNINFORMATIVE

    def keeps_slos(self, position: int, *roles: Role) -> bool:
        """Return whether a candidate meets every SLO on average over its `evidence`."""
        chosen = self.evidence(position, *roles)
        return bool(chosen) and self.within_limits(chosen)

    def within_limits(self, entries: Entries) -> bool:
        """Return whether launches meet every SLO on average; without its metric none is met."""
        for slo in map(str, self.spec.slos):
            excess = [e.violations[slo] for e in entries if slo in e.violations]
            if not excess or mean(excess) > 0:
                return False
        return True

    def feasible(self, position: int, *roles: Role) -> bool:
        """Return whether it was measured, never failed, may be recommended, and is within every
        SLO."""
        unfit = any(e.unfit for e in self.at(position))
        return not self.broke(position) and not unfit and self.keeps_slos(position, *roles)

    @cached_property
    def reported_trade_offs(self) -> Mapping[int, tuple[GivenUp, ...]]:
        """Return the trade-offs of launched candidates whose servers take other request lengths
        than predicted."""
        longest = {e.position: e.longest for e in self.entries if e.longest is not None}
        candidates = self.candidates
        found = {}
        baseline = longest.pop(self.baseline, 0)
        for position, tokens in longest.items() if baseline else ():
            predicted = candidates.given_up.get(position, ())
            broken = candidates.promised.broken_by(self.configuration(position), tokens, baseline)
            rows = (*(row for row in predicted if row.knob not in BY_LENGTH), *broken)
            if rows != predicted:
                found[position] = rows
        return found

    def forbidden_trade_offs(self, position: int) -> frozenset[str]:
        """Return the kinds of trade-offs of a candidate that are not allowed; none of the
        baseline's own."""
        if position == self.baseline:
            return frozenset()
        return frozenset(one.kind for one in self.trade_offs(position)) - frozenset(
            self.spec.allowed
        )

    @cached_property
    def ineligible(self) -> frozenset[int]:
        """Return the candidates that are neither searched nor recommended.

        They have settings that the evidence cannot see, or trade-offs that are not allowed. If
        `NONE_KEEPS` candidates without a trade-off failed and none ran, only those with a trade-off
        that no workload measures (`UNASKED`) stay excluded.
        """
        unseen = self.candidates.unseen - {self.baseline}
        marked = self.candidates.giving_up(frozenset(self.spec.allowed))
        forbidden = {
            p for p in {*marked, *self.reported_trade_offs} if self.forbidden_trade_offs(p)
        }
        others = [e for e in self.entries if e.position not in forbidden]
        failed = {e.position for e in others if e.broke}
        enough = min(NONE_KEEPS, len(self.candidates) - len(forbidden))
        if any(e.measured for e in others) or len(failed) < enough:
            return unseen | forbidden
        return unseen.union(p for p in forbidden if self.forbidden_trade_offs(p) & UNASKED)

    def trade_offs(self, position: int) -> tuple[GivenUp, ...]:
        """Return a candidate's trade-offs for speed: as its server reported, else as predicted."""
        return self.reported_trade_offs.get(position, self.candidates.given_up.get(position, ()))


def one_at_a_time(control: Entries) -> str:
    """Return why launches may not run side by side, by the baseline's first launch on each place;
    empty if they may."""
    together = [run for run in control if may_share_node(run.node)]
    before = next(
        (run.score for run in control if is_alone(run.node) and run.score is not None), None
    )
    if before is None or len(together) < 2 or any(run.pending for run in control):
        return ""
    if any(run.broke for run in together):
        return "the baseline runs alone on its share of the GPUs and fails beside others: one at a time from here on"
    shared_scores = [
        run.score for run in together if run.score is not None and _ran_beside(run, together)
    ]
    if len(shared_scores) < 2:
        return (
            "the effect of launches side by side could not be measured: one at a time from here on"
        )
    slower = before - mean(shared_scores)
    error = LAUNCH_NOISE * math.sqrt(1 + 1 / len(shared_scores))
    if slower <= LIMIT * error:
        return ""
    return f"launches side by side slow each other by {-percent(-slower):.0f} %: one at a time from here on"


def _ran_beside(run: Entry, others: Iterable[Entry]) -> bool:
    """Return whether another one of these launches overlapped a launch for `_OVERLAP` of it."""
    ends = run.began_s + run.seconds
    both_s = [
        min(ends, one.began_s + one.seconds) - max(run.began_s, one.began_s)
        for one in others
        if one is not run
    ]
    return max(both_s, default=0.0) >= _OVERLAP * run.seconds


def _entry_of(
    spec: StudySpec,
    candidates: CandidateSet,
    launch: Launch,
    joined: Mapping[int, int],
    began_s: float,
) -> Entry:
    """Return the information of a finished launch; ``joined`` maps a position to that of its
    equivalent."""
    trial = launch.trial
    result = launch.result
    scores = objective.scores_of(
        spec.with_goodput_floor, replace(result, metrics=result.measurements)
    )
    position = candidates.position(trial.configuration.fingerprint)
    longest = result.longest_request_tokens
    odds = result.odds_of_starting
    failure = result.failure if result.broke else None
    # Simulated failures repeat.
    by_chance = _MAY_PASS if result.evidence is not Evidence.SIMULATED else ()
    problem = result.failure
    short = longest is not None and longest < (spec.min_context or 0)
    return Entry(
        number=trial.number,
        role=trial.role,
        position=joined.get(position, position),
        score=scores.score,
        second=scores.second,
        violations=scores.violations,
        broke=result.broke,
        out_of_memory=failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY,
        may_pass=failure is not None and failure.kind in by_chance,
        unexplained=problem is not None and problem.unexplained,
        external=problem is not None and problem.may_be_external,
        retry=trial.retry is not None,
        cause=_cause(failure) if failure else "",
        too_slow=scores.too_slow,
        seconds=result.seconds,
        start_s=result.times_s.get("launch", 0.0) + result.times_s.get("ready", 0.0),
        began_s=began_s,
        node=result.node or trial.node,
        longest=longest,
        unfit=short or (odds is not None and odds < SURE_TO_START),
        answered=result.answers_checked,
        right=result.answers_right,
        step=scores.step,
        sent_finals_prompts=spec.finals_send_others
        and PROMPTS in result.metrics.get(spec.workloads[0], {}),
    )


def _equal_crashes(entries: Entries) -> list[Entries]:
    """Return the runs of consecutive launches, of the study or of a node, with one unexplained
    cause of failure: `IN_A_ROW`, or `AFTER_RUNNING` of configurations that ran before."""
    rows = [entries, *by_key((e.node, e) for e in entries).values()]
    runs = (
        list(run)
        for row in rows
        for cause, run in groupby(
            row, lambda e: without_numbers(e.cause) if e.broke and e.unexplained else ""
        )
        if cause
    )
    ran = {e.position: e.number for e in reversed(entries) if e.measured}
    return [
        run
        for run in runs
        if len(run) >= IN_A_ROW
        or (
            len(run) >= AFTER_RUNNING and all(ran.get(e.position, e.number) < e.number for e in run)
        )
    ]


def _without_crashes_of_nodes(entries: Entries) -> list[Entry]:
    """Drop the results of a run of equal crashes if one of their configurations ran in another
    launch: the node failed, not they."""
    ran = {e.position for e in entries if e.measured}
    runs = [run for run in _equal_crashes(entries) if any(e.position in ran for e in run)]
    dropped = {e.number for run in runs for e in run}
    return [e.without_result() if e.number in dropped else e for e in entries]


def _without_crashes(entries: Entries, baseline: int) -> list[Entry]:
    """Drop one crash of a configuration that ran in another launch: servers also crash by chance.

    Drop up to two crashes of the baseline, which every comparison needs, and up to two whose cause
    may be external. A single crash of the latter kind is dropped even if no other launch ran: the
    configuration is launched again before the crash counts.
    """
    chance = set()
    for position in {e.position for e in entries if e.may_pass}:
        mine = [e for e in entries if e.position == position]
        broke = [e for e in mine if e.broke]
        external = all(e.external for e in broke)
        most = MAX_UNINFORMATIVE if external or position == baseline else 1
        ran = any(e.measured for e in mine) or (external and len(broke) == 1)
        if ran and len(broke) <= most and all(e.may_pass for e in broke):
            chance |= {e.number for e in broke}
    return [e.without_result() if e.number in chance else e for e in entries]


def _cause(failure: Failure) -> str:
    if failure.kind is FailureKind.OUT_OF_MEMORY:
        return failure.kind.value
    return f"{failure.kind.value}: {failure.log_excerpt or failure.message}"
