"""What has happened in a study so far, as decisions see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.search import objective, twins
from autotune.search.drift import Drift, find
from autotune.space.candidates import CandidateSet
from autotune.spec import StudySpec
from autotune.trial import Launch, Role, Trial

MAX_UNINFORMATIVE = 2
"""Launches of one candidate that may end without saying anything before it is given up."""

BASELINE_ROLES = (Role.BASELINE, Role.DRIFT, Role.FINAL)
"""What the baseline is launched for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch, finished or still running.

    Attributes:
        position: of the candidate that it measures: the one that the engine says it ran.
        score: logarithm of the objective, more is better; None unless it was measured.
        shortened_sd: what a load that was cut short adds to the standard deviation of `score`; 0 for a whole one.
        second: score of the second goal, where there is one and it was measured.
        violations: SLO to value beyond its limit, <= 0 keeps it.
        broke: the configuration failed.
        out_of_memory: it did because memory did not suffice.
        pending: not finished.
    """

    number: int
    role: Role
    position: int
    score: float | None = None
    shortened_sd: float = 0.0
    second: float | None = None
    violations: Mapping[str, float] | None = None
    broke: bool = False
    out_of_memory: bool = False
    pending: bool = False
    seconds: float = 0.0

    @property
    def measured(self) -> bool:
        return self.score is not None

    @property
    def whole(self) -> bool:
        """Measured by a whole load: only then is it evidence, or a place in the finals."""
        return self.measured and not self.shortened_sd

    @property
    def says_nothing(self) -> bool:
        """It ended without a word about the configuration: the measurement or the machine failed."""
        return not (self.pending or self.broke or self.measured)


@dataclass(frozen=True)
class History:
    """The launches of a study by number, with what decisions need beside them.

    Attributes:
        counts_as: position of a candidate to that of its twin, for which all its launches count.
        drift: of the node, where the scores are corrected for it.
    """

    spec: StudySpec
    candidates: CandidateSet
    entries: tuple[Entry, ...]
    counts_as: Mapping[int, int] = field(default_factory=dict)
    drift: Drift | None = None

    @classmethod
    def of(
        cls, spec: StudySpec, candidates: CandidateSet, launches: Iterable[Launch], pending: Iterable[Trial] = ()
    ) -> History:
        """Read launches and running trials; raises ``KeyError`` for a configuration that is no candidate."""
        rows = list(launches)
        joined = _joined(candidates, rows)
        entries = [_entry(spec, candidates, launch, joined) for launch in rows]
        for trial in pending:
            position = candidates.position(trial.configuration.fingerprint)
            entries.append(Entry(trial.number, trial.role, joined.get(position, position), pending=True))
        return cls(spec, candidates, tuple(sorted(entries, key=lambda e: e.number)), joined)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def of_role(self, *roles: Role) -> list[Entry]:
        return [e for e in self.entries if e.role in roles]

    def before_finals(self) -> History:
        """The history as it was when the finals began; all of it while they have not."""
        first = next((i for i, e in enumerate(self.entries) if e.role is Role.FINAL), len(self.entries))
        return self.upto(first)

    def upto(self, count: int) -> History:
        """The first launches alone."""
        # What later launches taught about twins holds for them too, or finals could be asked for without end.
        return replace(self, entries=self.entries[:count])

    def repeats(self) -> dict[tuple[int, bool], list[float]]:
        """Scores whose spread is that of one launch, of whole loads: of a position, in the finals or before.

        A finalist was chosen for its launches in the search, so these differ from its fresh ones by more than noise.
        The baseline was not, and has one group. On a drifting node only what was launched in turn tells of the spread.
        """
        found: dict[tuple[int, bool], list[float]] = {}
        for entry in self.entries:
            if entry.score is not None and not entry.shortened_sd and (self.drift is None or entry.role is Role.FINAL):
                fresh = entry.role is Role.FINAL and entry.position != self.candidates.baseline
                found.setdefault((entry.position, fresh), []).append(entry.score)
        return found

    def suspected_drift(self) -> Drift | None:
        """The likeliest change of the node by the launches of the baseline so far, however sure."""
        base = self.candidates.baseline
        fresh: dict[int, list[tuple[int, float]]] = {}
        for entry in self.entries:
            if entry.score is not None and (entry.position == base or entry.role is Role.FINAL):
                fresh.setdefault(entry.position, []).append((entry.number, entry.score))
        return find(fresh.pop(base, []), list(fresh.values()))

    def corrected(self) -> History:
        """Where the node is known to drift, the scores before the finals as they would be at the end; else itself.

        Those of the finals stay as they were measured: they were taken in turn, so that a drift favours neither, and a
        correction that is itself a guess would make their interval too narrow.
        """
        drift = self.drift or self.suspected_drift()
        if self.drift is not None or drift is None or not drift.certain:
            return self
        entries = tuple(
            e if e.score is None or e.role is Role.FINAL else replace(e, score=e.score - drift.offset(e.number))
            for e in self.entries
        )
        return replace(self, entries=entries, drift=drift)

    @cached_property
    def by_position(self) -> dict[int, list[Entry]]:
        found: dict[int, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.position, []).append(entry)
        return found

    def canonical(self, position: int) -> int:
        """The candidate for which the launches of a candidate count: itself, or its twin."""
        return self.counts_as.get(position, position)

    def at(self, position: int) -> list[Entry]:
        """The launches that count for a candidate, those of its twins included."""
        return self.by_position.get(self.canonical(position), [])

    @property
    def pending(self) -> list[Entry]:
        return [e for e in self.entries if e.pending]

    def spent(self, position: int) -> bool:
        """Whether the search is done with a candidate: measured, failed, running, given up, or another one's twin."""
        if position in self.counts_as:
            return True
        entries = self.at(position)
        return any(not e.says_nothing for e in entries) or len(entries) >= MAX_UNINFORMATIVE

    @property
    def done_with(self) -> frozenset[int]:
        """The candidates with which the search is done."""
        return frozenset(p for p in {*self.by_position, *self.counts_as} if self.spent(p))

    @property
    def exhausted(self) -> bool:
        """Whether the search is done with every candidate."""
        return len(self.done_with) == len(self.candidates)

    def scores(self, position: int, *roles: Role) -> list[float]:
        """The scores of a candidate's whole loads, of these roles only when any are given."""
        entries = [e for e in self.at(position) if e.whole]
        return [e.score for e in entries if e.score is not None and (not roles or e.role in roles)]

    @property
    def baseline_scores(self) -> list[float]:
        """The baseline's scores that count: of all launches that were made to know it, none of them chosen for it."""
        return self.scores(self.candidates.baseline, *self.baseline_roles)

    @property
    def baseline_roles(self) -> tuple[Role, ...]:
        """The launches of the baseline that count: on a drifting node those that were made beside the finalist's."""
        drifts = self.drift is not None and self.scores(self.candidates.baseline, Role.FINAL)
        return (Role.FINAL,) if drifts else BASELINE_ROLES

    def broke(self, position: int) -> bool:
        return any(e.broke for e in self.at(position))

    def keeps_slos(self, position: int, *roles: Role) -> bool:
        """Whether a candidate keeps every SLO in the mean over its launches (of these roles, where it has any)."""
        entries = [e for e in self.at(position) if e.whole]
        chosen = [e for e in entries if not roles or e.role in roles] or entries
        if not chosen:
            return False
        names = {str(slo) for slo in self.spec.slos}
        return all(_mean_violation(chosen, name) <= 0 for name in names)

    def feasible(self, position: int, *roles: Role) -> bool:
        """Measured, never failed, and within every SLO."""
        return not self.broke(position) and self.keeps_slos(position, *roles)


def _joined(candidates: CandidateSet, launches: Iterable[Launch]) -> dict[int, int]:
    baseline = candidates.items[candidates.baseline].fingerprint
    joined = twins.counts_as(launches, candidates, baseline)
    return {candidates.position(one): candidates.position(other) for one, other in joined.items()}


def _entry(spec: StudySpec, candidates: CandidateSet, launch: Launch, joined: Mapping[int, int]) -> Entry:
    position = candidates.position(launch.trial.configuration.fingerprint)
    return Entry(
        number=launch.trial.number,
        role=launch.trial.role,
        position=joined.get(position, position),
        score=objective.score(spec, launch),
        shortened_sd=objective.shortened_sd(spec, launch),
        second=objective.second(spec, launch),
        violations=objective.violations(spec, launch),
        broke=objective.broke(launch),
        out_of_memory=objective.ran_out_of_memory(launch),
        seconds=sum(launch.result.times_s.values()),
    )


def _mean_violation(entries: list[Entry], slo: str) -> float:
    values = [e.violations[slo] for e in entries if e.violations and slo in e.violations]
    # An SLO whose metric is missing is not kept: nothing shows that it is.
    return sum(values) / len(values) if values else float("inf")
