"""What a fit says of measured points, and the names under which tables compare them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

HEADLINE = "total_token_throughput"


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the simulated node says of one point, under the workload that was measured.

    Attributes:
        metrics: under the names of `autotune.metrics.formulas`, with figures fitted to all points; empty where it is
            predicted not to run.
        low, high: ends of the 90 % interval of the total token throughput, tokens per second.
        failure: why it is predicted not to run; None where it does.
        left_out: kind of group to the total token throughput with figures fitted to all points but those of this
            point's group; 0 where it is predicted not to run.
    """

    metrics: Mapping[str, float]
    low: float = 0.0
    high: float = math.inf
    failure: str | None = None
    left_out: Mapping[str, float] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Total token throughput, tokens per second; 0 where it is predicted not to run."""
        return self.metrics.get(HEADLINE, 0.0)
