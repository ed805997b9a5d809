"""A fault of a schedule, and what became of a study that met some."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

Steps = Generator[bool, None, None]
"""A fault at work: says at each step whether it has been injected yet; what it leaves it puts right
when closed."""


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule.

    Attributes:
        after: finished launches before it comes; -1: after the end of the study.
        delay_s: so much later.
        value: from 0 to 1; what it means is the kind's.
    """

    kind: str
    after: int
    delay_s: float
    value: float

    def __str__(self) -> str:
        when = (
            "after the end"
            if self.after < 0
            else f"{self.delay_s:.2f} s after {self.after} launches"
        )
        return f"{self.kind} {when} ({self.value:.3f})"


@dataclass
class Outcome:
    """What became of a study; the lists hold a sentence for each violation.

    Attributes:
        at: how many launches were finished when a fault was injected.
    """

    injected: list[bool]
    at: dict[int, int] = field(default_factory=dict)
    recovered: bool = False
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    condemned: list[str] = field(default_factory=list)
    named: list[bool | None] = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0

    @property
    def problems(self) -> list[str]:
        never = [] if self.recovered else ["it did not end with exit code 0"]
        return [
            *never,
            *self.lost,
            *self.doubled,
            *self.left_behind,
            *self.changed,
            *self.unnamed,
            *self.condemned,
        ]
