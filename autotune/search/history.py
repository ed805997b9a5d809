"""What has happened in a study so far, as decisions see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.search import equivalents, objective
from autotune.search.decide.estimate import Spread
from autotune.search.entry import Entry as Entry
from autotune.search.entry import entry_of, mean_violation
from autotune.search.nodes import Effect, Placed, additive_spread, effects
from autotune.search.timeline import start_times
from autotune.space.candidates import CandidateSet
from autotune.study.spec import StudySpec
from autotune.trial import Launch, Role, Trial

MAX_UNINFORMATIVE = 2
"""Launches of one candidate that may end without saying anything before it is given up."""

BASELINE_ROLES = (Role.BASELINE, Role.CONTROL, Role.FINAL)
"""What the baseline is launched for."""


@dataclass(frozen=True)
class History:
    """The launches of a study by number, with what decisions need beside them.

    Attributes:
        canonical_of: position of a candidate to that of its twin, for which all its launches count.
        offsets: node to what it does to scores, where they are corrected for it.
    """

    spec: StudySpec
    candidates: CandidateSet
    entries: tuple[Entry, ...]
    canonical_of: Mapping[int, int] = field(default_factory=dict)
    offsets: Mapping[str, Effect] | None = None

    @classmethod
    def of(
        cls, spec: StudySpec, candidates: CandidateSet, launches: Iterable[Launch], pending: Iterable[Trial] = ()
    ) -> History:
        """Read launches and running trials; raises ``KeyError`` for a configuration that is no candidate."""
        rows = list(launches)
        joined = _joined(candidates, rows)
        running = list(pending)
        # Where no trial was bound to a node, rows may still name one: a host's, which says nothing here.
        bound = any(trial.node for trial in (*(row.trial for row in rows), *running))
        begins = start_times(rows, bound)
        entries = [entry_of(spec, candidates, row, joined, begins[row.trial.number]) for row in rows]
        for trial in running:
            position = candidates.position(trial.configuration.fingerprint)
            counted = joined.get(position, position)
            entries.append(Entry(trial.number, trial.role, counted, pending=True, node=trial.node))
        if not bound:
            entries = [replace(e, node="") for e in entries]
        return cls(spec, candidates, tuple(sorted(entries, key=lambda e: e.number)), joined)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def of_role(self, *roles: Role) -> list[Entry]:
        return [e for e in self.entries if e.role in roles]

    def before_finals(self) -> History:
        """The history as it was when the finals began; all of it while they have not.

        The baseline's launches that several nodes make while they wait for the end of the search belong to the finals.
        """
        first = next((i for i, e in enumerate(self.entries) if e.role is Role.FINAL), len(self.entries))
        while self.several and first and self.entries[first - 1].role is Role.CONTROL:
            first -= 1
        return self.upto(first)

    def upto(self, count: int) -> History:
        """The first launches alone."""
        # What later launches taught about twins holds for them too, or finals could be asked for without end.
        return replace(self, entries=self.entries[:count])

    @property
    def spread(self) -> Spread:
        """The standard deviation of one launch, from configurations that were repeated, in the finals or before.

        A finalist was chosen for its launches in the search, so these differ from its fresh ones by more than noise.
        The baseline was not, and has one group.
        """
        rows = [
            ((e.position, e.role is Role.FINAL and e.position != self.candidates.baseline), self.place(e), e.score)
            for e in self.entries
            if e.score is not None
        ]
        if self.several:
            return additive_spread(rows)
        groups: dict[tuple[int, bool], list[float]] = {}
        for group, _, score in rows:
            groups.setdefault(group, []).append(score)
        return Spread.pooled(groups.values())

    @cached_property
    def several(self) -> bool:
        """Whether launches on more than one node were measured."""
        return len({e.node for e in self.entries if e.measured and e.node}) > 1

    def node_effects(self) -> Mapping[str, Effect]:
        """Node to what it does to scores, by the baseline's launches and the fresh ones of finalists."""
        if self.offsets is not None:
            return self.offsets
        fresh = [e for e in self.entries if self._fresh(e)]
        return effects(tuple((e.position, e.node, e.number, e.score) for e in fresh if e.score is not None))

    def _fresh(self, entry: Entry) -> bool:
        """Whether a launch on a node was not chosen for its outcome."""
        chosen = entry.position != self.candidates.baseline and entry.role is not Role.FINAL
        return entry.measured and bool(entry.node) and not chosen

    @property
    def off(self) -> frozenset[str]:
        """The nodes that now are slower or faster than the rest beyond noise."""
        return frozenset(name for name, effect in self.node_effects().items() if effect.now.certain)

    @cached_property
    def _places(self) -> Mapping[int, str]:
        found = self.node_effects()
        return {e.number: found[e.node].place(e.node, e.number) if e.node in found else e.node for e in self.entries}

    def place(self, entry: Entry) -> str:
        """Launches of the same place are compared with each other: its node's, before that changed or after it."""
        return self._places[entry.number]

    @property
    def closed(self) -> frozenset[str]:
        """The places where nothing runs any more: nodes as they were before they changed."""
        return frozenset(self._places.values()) - {e.node for e in self.entries}

    def adjusted(self) -> History:
        """The scores as they would be on a node like the others; itself where there is one node."""
        if self.offsets is not None or not self.several:
            return self
        found, entries = self.node_effects(), []
        for entry in self.entries:
            if entry.score is not None and entry.node in found:
                effect = found[entry.node]
                stage = effect.level(entry.number) if self._fresh(entry) else effect.at(entry.number)
                entry = replace(entry, score=entry.score - stage.offset, node_sd=stage.sd)
            entries.append(entry)
        return replace(self, entries=tuple(entries), offsets=found)

    def excused(self) -> History:
        """What the search made on a node that is slow for certain kept the limits, if it would on one like the others.

        For the search alone: it must not lose a candidate to its node. What the finals measure stands as it is.
        """
        slow = {name: effect for name, effect in self.node_effects().items() if any(s.slow for s in effect.stages)}
        if not slow or not self.spec.slos:
            return self
        entries = [
            replace(e, violations=objective.on_usual_node(self.spec, e.violations, stage.offset))
            if e.violations and e.node in slow and not self._fresh(e) and (stage := slow[e.node].at(e.number)).slow
            else e
            for e in self.entries
        ]
        return replace(self, entries=tuple(entries))

    @cached_property
    def by_position(self) -> dict[int, list[Entry]]:
        found: dict[int, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.position, []).append(entry)
        return found

    def canonical(self, position: int) -> int:
        """The candidate for which the launches of a candidate count: itself, or its twin."""
        return self.canonical_of.get(position, position)

    def at(self, position: int) -> list[Entry]:
        """The launches that count for a candidate, those of its twins included."""
        return self.by_position.get(self.canonical(position), [])

    @property
    def pending(self) -> list[Entry]:
        return [e for e in self.entries if e.pending]

    def spent(self, position: int) -> bool:
        """Whether the search is done with a candidate: measured, failed, running, given up, or another one's twin."""
        if position in self.canonical_of:
            return True
        entries = self.at(position)
        return any(not e.says_nothing for e in entries) or len(entries) >= MAX_UNINFORMATIVE

    @property
    def done_with(self) -> frozenset[int]:
        """The candidates with which the search is done."""
        return frozenset(p for p in {*self.by_position, *self.canonical_of} if self.spent(p))

    @property
    def exhausted(self) -> bool:
        """Whether the search is done with every candidate."""
        return len(self.done_with) == len(self.candidates)

    def scores(self, position: int, *roles: Role) -> list[float]:
        """The scores of a candidate's launches, of these roles only when any are given."""
        entries = [e for e in self.at(position) if e.measured]
        return [e.score for e in entries if e.score is not None and (not roles or e.role in roles)]

    def placed(self, position: int, *roles: Role) -> list[Placed]:
        """As `scores`, with the places (`place`)."""
        entries = [e for e in self.at(position) if e.measured]
        return [(self.place(e), e.score) for e in entries if e.score is not None and (not roles or e.role in roles)]

    def evidence(self, position: int, *roles: Role) -> list[Entry]:
        """The measured launches of a candidate of these roles, else of any; not those of nodes that were off.

        Those count where there are no others.
        """
        whole = [e for e in self.at(position) if e.measured]
        chosen = [e for e in whole if e.role in roles] or whole
        return self.alike(chosen) or chosen

    def alike(self, entries: Iterable[Entry]) -> list[Entry]:
        """The launches that were made while their node was like the others, as far as is known."""
        found = self.node_effects()
        return [e for e in entries if e.node not in found or found[e.node].says(e.number)]

    def broke(self, position: int) -> bool:
        return any(e.broke for e in self.at(position))

    def keeps_slos(self, position: int, *roles: Role) -> bool:
        """Whether a candidate keeps every SLO in the mean over its launches (of these roles, where it has any).

        Those on nodes that were off do not count where there are others.
        """
        entries = [e for e in self.at(position) if e.measured]
        chosen = [e for e in entries if not roles or e.role in roles] or entries
        if not chosen:
            return False
        names = {str(slo) for slo in self.spec.slos}
        chosen = (self.alike(chosen) if names else chosen) or chosen
        return all(mean_violation(chosen, name) <= 0 for name in names)

    def feasible(self, position: int, *roles: Role) -> bool:
        """Measured, never failed, and within every SLO."""
        return not self.broke(position) and self.keeps_slos(position, *roles)


def _joined(candidates: CandidateSet, launches: Iterable[Launch]) -> dict[int, int]:
    baseline = candidates.items[candidates.baseline].fingerprint
    joined = equivalents.canonical_of(launches, candidates, baseline)
    return {candidates.position(one): candidates.position(other) for one, other in joined.items()}
