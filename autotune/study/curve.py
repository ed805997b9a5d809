"""What a ladder and a price say at the end of a study: parts of the content of ``recommendation.json``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Side = Literal["baseline", "recommended"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class LadderPoint(_Value):
    """Baseline and recommended configuration with so many requests in flight.

    Attributes:
        baseline, recommended: geometric means over the launches; None where it was not measured.
        gain_percent: of the recommended one over the baseline, with its 95 % interval by the noise of launches.
        faster: which one is, beyond that noise; None: they cannot be told apart.
    """

    concurrency: int
    baseline: float | None
    recommended: float | None
    gain_percent: float | None = None
    ci95: tuple[float, float] | None = None
    faster: Side | None = None


class Crossing(_Value):
    """Where one configuration becomes faster than the other.

    Attributes:
        concurrency: interpolated on its logarithm.
        between: the concurrencies between which neither is faster beyond the noise of launches.
    """

    concurrency: float
    between: tuple[float, float]
    below: Side
    above: Side


class LadderComparison(_Value):
    """The curves of baseline and recommended configuration over a ladder of concurrencies.

    Attributes:
        noise_percent: the standard deviation from launch to launch that decides who is faster.
        launches: behind each curve: of the baseline, of the recommended one.
    """

    metric: str
    workload: str
    noise_percent: float
    launches: tuple[int, int]
    points: list[LadderPoint]
    crossings: list[Crossing]


class StudyCost(_Value):
    """What the study itself cost: hours of whole nodes and of their GPUs, money where there is a price.

    Attributes:
        paid_back_after_hours: hours of serving at full load after which the gain has saved as many node-hours; None
            without a gain.
    """

    node_hours: float
    gpu_hours: float
    gpu_hour_price: float | None
    cost: float | None
    paid_back_after_hours: float | None
