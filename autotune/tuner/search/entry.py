"""One launch, as the search and the finals read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.base import FloatMap, by_key, frozen

from ..trial import Role


@frozen
class Entry:
    """One launch, finished or still running.

    Attributes:
        position: of its candidate, by the configuration that the engine reports.
        score: logarithm of the objective, more is better; None unless it was measured.
        second: score of the second goal; None without one, or unless it was measured.
        violations: SLO to the excess over its limit, <= 0 meets it.
        broke: the configuration failed.
        out_of_memory: the configuration failed for lack of memory.
        may_pass: the configuration failed in a way that may be chance: the server crashed, hung or
            answered with errors.
        unexplained: the launch failed and no cause is known, see `Failure.unexplained`.
        external: its server had been ready, so it may have been ended from outside.
        retry: it is another launch after an unexplained failure.
        cause: kind and log line of its failure; for lack of memory, which engines word in many
            ways, the kind alone. Empty if it did not fail.
        too_slow: the lightest load violates an SLO: there is no score, and no reason to launch it
            again.
        pending: it has not finished.
        seconds: its duration.
        start_s: the part of `seconds` until its server was ready.
        began_s: its start, on the study's clock (`timeline.start_times`).
        node: where it ran, or must run; empty if unknown, or if the study has one place only.
        longest: tokens of the longest request that its server can take; None if unknown.
        unfit: it serves less than ``--min-context``, or starts with odds below `SURE_TO_START`.
        answered: the check of its answers has a result.
        right: its answers are as good as the baseline's; None if they were not compared.
        sent_finals_prompts: its prompts were those of finals, if finals send others than the search.
        step: step of its load search, score units; 0 without one.
    """

    number: int
    role: Role
    position: int
    score: float | None = None
    second: float | None = None
    violations: FloatMap = {}
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
        """Return whether it has no information about the configuration, because the measurement or
        the machine failed."""
        return not (self.pending or self.broke or self.measured or self.too_slow)

    def without_result(self) -> Entry:
        """Return a copy without information about the configuration, for a result that other
        launches or its node have spoilt."""
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


Entries = Sequence[Entry]


def by_position(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    return by_key((entry.position, entry) for entry in entries)
