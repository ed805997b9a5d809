"""One launch, as decisions see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from autotune.base import frozen

from ..trial import Role


@frozen
class Entry:
    """One launch, finished or still running.

    Attributes:
        position: of the candidate that it measures: the one that the engine says it ran.
        score: logarithm of the objective, more is better; None unless it was measured.
        second: score of the second goal, where there is one and it was measured.
        violations: SLO to value beyond its limit, <= 0 keeps it.
        broke: the configuration failed.
        out_of_memory: it did because memory did not suffice.
        may_pass: it did in a way that need not come again: the server died, hung or gave errors by
            itself.
        unexplained: it failed, and nothing says why; see `Failure.unexplained`.
        external: its server had been ready, so that it may have been ended from outside.
        retry: it is another launch for such a failure.
        cause: of its failure: the kind and the telling line; of a lack of memory, which engines
            word in many ways, the kind alone. Empty where it did not fail.
        too_slow: it breaks an SLO at the lightest load: no score, but no reason to launch it again.
        pending: not finished.
        seconds: that it took.
        start_s: of them, until its server was ready.
        began_s: when, on the study's own clock (`timeline.start_times`).
        node: where it ran, or must run; empty: not known, or the study knows one place only.
        longest: tokens of the longest request that its server was found to serve; None where that
            is not known.
        unfit: it serves less than ``--min-context``, or starts with odds below `SURE_TO_START`.
        answered: its answers were kept, to compare others with or with others.
        right: whether they were as good as the baseline's; None: not compared.
        sent_finals_prompts: it sent what the finals send, where that is more than another draw of
            the search's prompts.
        step: of its load search, score units; 0 without one.
    """

    number: int
    role: Role
    position: int
    score: float | None = None
    second: float | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    broke: bool = False
    out_of_memory: bool = False
    may_pass: bool = False
    unexplained: bool = False
    external: bool = False
    retry: bool = False
    cause: str = ""
    too_slow: bool = False
    pending: bool = False
    seconds: float = 0.0
    start_s: float = 0.0
    began_s: float = 0.0
    node: str = ""
    longest: int | None = None
    unfit: bool = False
    answered: bool = False
    right: bool | None = None
    sent_finals_prompts: bool = False
    step: float = 0.0

    @property
    def measured(self) -> bool:
        return self.score is not None

    @property
    def uninformative(self) -> bool:
        """Return whether it has no information about the configuration: the measurement or the
        machine failed."""
        return not (self.pending or self.broke or self.measured or self.too_slow)

    def without_result(self) -> Entry:
        """Return the launch as one without information, because launches beside it affected its
        result."""
        return Entry(
            self.number,
            self.role,
            self.position,
            unexplained=self.unexplained,
            external=self.external,
            retry=self.retry,
            seconds=self.seconds,
            began_s=self.began_s,
            node=self.node,
        )


def by_position(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.position, []).append(entry)
    return found
