"""One launch of a study as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.search import objective, timeline
from autotune.space.enumeration import CandidateSet
from autotune.study.spec import StudySpec
from autotune.trial import FailureKind, Launch, Role


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch, finished or still running.

    Attributes:
        position: of the candidate that it measures: the one that the engine says it ran.
        score: logarithm of the objective, more is better; None unless it was measured.
        second: score of the second goal, where there is one and it was measured.
        violations: SLO to value beyond its limit, <= 0 keeps it.
        broke: the configuration failed.
        out_of_memory: it did because memory did not suffice.
        cut_short: an earlier version ended its load as hopeless: no score, but no reason to launch it again.
        pending: not finished.
        seconds: that it took.
        began_s: when, on the study's own clock (`timeline.start_times`).
        node: where it ran, or must run; empty: not known, or the study knows one place only.
    """

    number: int
    role: Role
    position: int
    score: float | None = None
    second: float | None = None
    violations: Mapping[str, float] | None = None
    broke: bool = False
    out_of_memory: bool = False
    cut_short: bool = False
    pending: bool = False
    seconds: float = 0.0
    began_s: float = 0.0
    node: str = ""

    @property
    def measured(self) -> bool:
        return self.score is not None

    @property
    def says_nothing(self) -> bool:
        """It ended without a word about the configuration: the measurement or the machine failed."""
        return not (self.pending or self.broke or self.measured or self.cut_short)


def entry_of(
    spec: StudySpec, candidates: CandidateSet, launch: Launch, joined: Mapping[int, int], began_s: float = 0.0
) -> Entry:
    """What a finished launch says; ``joined`` is position to that of its twin."""
    position, failure = candidates.position(launch.trial.configuration.fingerprint), launch.result.failure
    return Entry(
        number=launch.trial.number,
        role=launch.trial.role,
        position=joined.get(position, position),
        score=objective.score(spec, launch),
        second=objective.second(spec, launch),
        violations=objective.violations(spec, launch),
        broke=objective.broke(launch),
        out_of_memory=objective.broke(launch) and failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY,
        cut_short=bool(launch.result.shortened),
        seconds=timeline.seconds(launch),
        began_s=began_s,
        node=launch.result.node or launch.trial.node,
    )


def mean_violation(entries: Sequence[Entry], slo: str) -> float:
    """By how much launches are beyond a limit in the mean; infinite where its metric is missing."""
    values = [e.violations[slo] for e in entries if e.violations and slo in e.violations]
    # An SLO whose metric is missing is not kept: nothing shows that it is.
    return sum(values) / len(values) if values else float("inf")
