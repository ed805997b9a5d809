"""One of the loads that a server is measured with, and where its results stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.load.capacity.search import LoadSearch
from autotune.load.metrics.table import CURVE, INVALID, Metrics

from .workloads import Workload


@dataclass(frozen=True, slots=True)
class Load:
    """A workload sent to a warm server, once or by the probes of a load search.

    Attributes:
        of: the study's name of the workload, under which its metrics stand.
        workload: what is sent; of a rung it has a name of its own, which gives it prompts of its
            own.
        seed: of lengths, prompts and send times.
        search: the load search that decides the load; None: it is the workload's.
        rung: requests in flight of a row of the curve; 0: the metrics are the workload's.
        about: what the metrics say of the prompts.
    """

    of: str
    workload: Workload
    seed: int
    search: LoadSearch | None = None
    rung: int = 0
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of its result among those of the launch."""
        return self.workload.name if self.rung else self.of

    def add(self, metrics: dict[str, Metrics], measured: Metrics, invalid: str = "") -> None:
        """Add the results to a launch's metrics by workload; a row of the curve states why it is
        invalid."""
        if not self.rung:
            metrics[self.of] = {**measured, **self.about}
            return
        row = {"concurrency": self.rung, **measured, **({INVALID: invalid} if invalid else {})}
        metrics[self.of].setdefault(CURVE, []).append(row)
