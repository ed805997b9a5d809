"""`LoadGoal`: the load under which servers are compared, that of the workload itself or the highest
one within the limits (``--find-load``).

Whoever has one asks it; nobody else asks which of the two it is.
"""

import math
from collections.abc import Sequence

from autotune.base import frozen

from ..metrics.formulas import Slo
from ..metrics.table import HEADLINE, Metrics
from ..workloads import Workload
from .judge import LOOKS
from .search import LOADS, SHAPES, By, LoadSearch, check_search, load_in_words


@frozen
class LoadGoal:
    """The highest load, in flight or per second (`by`), within the limits; None: the workload's own
    load."""

    by: By | None

    @property
    def fixed(self) -> bool:
        """True if the load is the workload's, known before a launch."""
        return self.by is None

    @property
    def objective(self) -> str:
        """The metric to optimise, unless another one is asked for."""
        return HEADLINE if self.by is None else "capacity_total_token_throughput"

    @property
    def key(self) -> str:
        """Key of a load in a row of the curve; empty for a fixed load."""
        return "" if self.by is None else LOADS[self.by]

    @property
    def unit(self) -> str:
        """The load's unit, for people."""
        return "in flight" if self.by == "concurrency" else "requests per second"

    @property
    def shape(self) -> str:
        """The shape of a load that is searched for."""
        return SHAPES[self.key]

    def check(self, workload: Workload, slos: Sequence[Slo]) -> None:
        """Raise `BadInput` where it cannot be searched for, see `check_search`."""
        if self.by is not None:
            check_search(self.by, workload, slos)

    def search(
        self,
        workload: Workload,
        slos: Sequence[Slo],
        looks: int = LOOKS,
        limits: Sequence[Slo] = (),
        confirm_s: float = 0.0,
    ) -> LoadSearch | None:
        """Return a search for it on one server, see `LoadSearch`; None for a fixed load."""
        if self.by is None:
            return None
        return LoadSearch(self.by, slos, workload, looks, limits, confirm_s)

    def too_slow(self, metrics: Metrics) -> bool:
        """Return whether the lightest load violated a limit: the capacity is 0."""
        return not self.fixed and 0 in (metrics.get(f"capacity_{key}") for key in LOADS.values())

    def found(self, metrics: Metrics) -> float | None:
        """Return the capacity among a launch's metrics; None for none."""
        return metrics.get(f"capacity_{self.key}") or None

    def step(self, metrics: Metrics) -> float:
        """Return the logarithm of the ratio of the lightest load that violated a limit and the
        capacity; 0 without both."""
        kept = self.found(metrics)
        broken = metrics.get("capacity_broken_at")
        return math.log(broken / kept) if kept and broken else 0.0

    def lightest(self, curve: Sequence[Metrics]) -> float | None:
        """Return the lightest load of a curve; None without a load search."""
        return float(curve[0][self.key]) if curve and not self.fixed else None


def carried(metrics: Metrics) -> str:
    """Name the load of a capacity, e.g. ``at 304 in flight``; empty for other metrics."""
    for by, key in LOADS.items():
        if load := metrics.get(f"capacity_{key}"):
            speedup = metrics.get("capacity_speedup")
            faster = f", {speedup:.3g} times as fast as recorded," if speedup else ""
            return f"at {load_in_words(by, load)}{faster}"
    return ""


def shape_carried(metrics: Metrics) -> str:
    """Describe the shape of the load of a capacity; empty for other metrics."""
    shapes = [shape for key, shape in SHAPES.items() if metrics.get(f"capacity_{key}")]
    return f"The load is {shapes[0]}." if shapes else ""
