"""What a load search ends with, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.loadgen.capacity.judge import Broken
from autotune.trial import Metrics

By = Literal["concurrency", "rate"]
LOADS: dict[By, str] = {"concurrency": "concurrency", "rate": "request_rate"}
"""What is searched for to the key of a load in a row of the curve; with ``capacity_`` before it, of the result."""


@dataclass(frozen=True, slots=True)
class FoundLoad:
    """What a load search ends with.

    Attributes:
        capacity: the heaviest load that keeps every SLO; 0 where the lightest breaks one.
        broken_at: the lightest load above it that breaks one; None: the heaviest load that was tried keeps them.
        not_monotone: a load that broke an SLO, and a heavier one that kept them all.
        died_at: the load after which the server answered nothing any more; None: it lives.
        missed: where there is no capacity, what broke at the lightest load, and that load.
        metrics: of the capacity's load, else of the lightest, with ``capacity_…`` and ``curve``.
    """

    by: By
    capacity: float
    broken_at: float | None
    not_monotone: tuple[float, float] | None
    missed: tuple[Broken, float] | None
    died_at: float | None
    metrics: Metrics

    def sentences(self) -> list[str]:
        """What a person should know of the result, one sentence each."""
        if self.missed is not None:
            broken, load = self.missed
            return [f"broken at the lightest load, {described(self.by, load)}: {of(broken)}"]
        parts = [f"{described(self.by, self.capacity)} keep every limit"]
        if self.broken_at is None:
            parts[0] += ", the heaviest load that was tried: the capacity may be higher"
        else:
            parts[0] += f", {described(self.by, self.broken_at)} do not"
        if (speedup := self.metrics.get("capacity_speedup")) is not None:
            parts.append(f"the trace is served {speedup:.3g} times as fast as it was recorded")
        if self.died_at is not None:
            parts.append(f"the server answers nothing any more after {described(self.by, self.died_at)}")
        if self.not_monotone is not None:
            broke, kept = (described(self.by, load) for load in self.not_monotone)
            parts.append(f"not monotone: {broke} break a limit that {kept} keep")
        return parts


def described(by: By, load: float) -> str:
    """A load in words."""
    return f"{load:g} in flight" if by == "concurrency" else f"{load:.3g} requests per second"


def of(broken: Broken) -> str:
    """A broken limit in words: which, by how much."""
    if broken.metric in ("failed", "request_throughput"):
        return broken.slo
    if broken.excess <= 0:
        return f"{broken.slo}, which {broken.value:,.4g} does not show to be kept"
    return f"{broken.slo} by {100 * broken.excess:.0f} % ({broken.value:,.4g})"
