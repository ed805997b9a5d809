"""One of the loads that a server is measured with, and where its results stand."""

from dataclasses import field

from autotune.base import StringMap, frozen

from .capacity.search import LoadSearch
from .metrics.table import CURVE, INVALID, Metrics
from .workloads import Workload


@frozen
class Load:
    """A workload sent to a warm server, once or by the probes of a load search.

    Attributes:
        study_name: the study's name of the workload, under which its metrics stand.
        workload: the prompts and arrivals; a rung's has a name of its own, and so its own prompts.
        seed: of lengths, prompts and send times.
        search: the load search that decides the load; None: it is the workload's.
        rung: requests in flight of a row of the curve; 0: the metrics are the workload's.
        about: facts on the prompts among the metrics.
    """

    study_name: str
    workload: Workload
    seed: int
    search: LoadSearch | None = None
    rung: int = 0
    about: StringMap = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of its result in the launch."""
        return self.workload.name if self.rung else self.study_name

    def add(self, metrics: dict[str, Metrics], measured: Metrics, invalid: str = "") -> None:
        """Add the results to a launch's metrics by workload; a row of the curve states why it is
        invalid."""
        if not self.rung:
            metrics[self.study_name] = {**measured, **self.about}
            return
        row = {"concurrency": self.rung, **measured}
        if invalid:
            row[INVALID] = invalid
        metrics[self.study_name].setdefault(CURVE, []).append(row)
