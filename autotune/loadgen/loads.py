"""The loads of a launch: what is measured in turn on one warm server.

The workloads of the study as they are, the first of them raised as far as the limits are kept where that was asked for
(``--find-load``), then the first one with a few other numbers of requests in flight (``--ladder``). Real servers and
the simulated node measure the same `Load`s in the same order, and both fill a launch's metrics by `Load.add`.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.loadgen.capacity.judge import LOOKS
from autotune.loadgen.capacity.search import CONFIRM_S, LoadSearch
from autotune.loadgen.workloads import Workload, load_workload
from autotune.loadgen.workloads.lengths import SessionLengths
from autotune.metrics.table import CURVE, INVALID
from autotune.space.library import Library
from autotune.study.spec import StudySpec
from autotune.trial import Metrics, Role, Trial

LEAST_PROMPTS = 32
"""Prompts of the lightest loads: a mean latency of fewer has too wide an interval."""
PER_PLACE = 8
"""Prompts of a load per unit of its concurrency; a steady state is found from three on (`autotune.metrics.steady`)."""
_COMPARED = (Role.BASELINE, Role.CONTROL, Role.FINAL)


@dataclass(frozen=True, slots=True)
class Load:
    """A workload that is sent to a warm server, once or by the probes of a load search.

    Attributes:
        of: the study's name of the workload, under which its metrics stand.
        workload: what is sent; of a rung it has a name of its own, which gives it prompts of its own.
        seed: of lengths, prompts and send times.
        search: the load search that decides the load; None: it is the workload's.
        rung: requests in flight of a row of the curve; 0: the metrics are the workload's.
    """

    of: str
    workload: Workload
    seed: int
    search: LoadSearch | None = None
    rung: int = 0

    @property
    def name(self) -> str:
        """Name of its result among those of the launch."""
        return self.workload.name if self.rung else self.of

    def add(self, metrics: dict[str, Metrics], measured: Metrics, invalid: str = "") -> None:
        """Add what was measured to a launch's metrics by workload; a row of the curve says why it is invalid."""
        if not self.rung:
            metrics[self.of] = measured
            return
        row = {"concurrency": self.rung, **measured, **({INVALID: invalid} if invalid else {})}
        metrics[self.of].setdefault(CURVE, []).append(row)


def loads_of(spec: StudySpec, trial: Trial, library: Library, looks: int = LOOKS, confirms: bool = True) -> list[Load]:
    """Return the loads of a launch, in turn.

    The rungs have the same prompts in every launch: the few requests of a light load differ more from seed to seed than
    launches do.

    Args:
        looks: that each load of a load search may have.
        confirms: whether the rate that a search finds is confirmed by a long load where launches are compared by it.
    """
    loads = []
    for name in trial.workloads:
        workload, search = load_workload(name, library), None
        if spec.find_load is not None and name == spec.workloads[0]:
            confirm_s = CONFIRM_S if confirms and trial.role in _COMPARED else 0.0
            search = LoadSearch.of(spec.find_load, spec.slos, workload, looks, spec.request_limits, confirm_s)
        loads.append(Load(name, workload, spec.seed + trial.launch_index, search))
    first = load_workload(trial.workloads[0], library)
    return [*loads, *(Load(loads[0].of, rung_of(first, rung), spec.seed, rung=rung) for rung in trial.rungs)]


def rung_of(workload: Workload, concurrency: int) -> Workload:
    """Return a workload of one load with so many requests in flight.

    Lengths come from the same distribution. A light load has fewer prompts, `PER_PLACE` per request in flight and
    `LEAST_PROMPTS` at least: a thousand prompts one at a time would take most of an hour. Sessions are sent whole.
    """
    load = workload.with_concurrencies([concurrency])
    point = load.points[0]
    whole = isinstance(point.lengths, SessionLengths)
    few = point.prompts if whole else min(point.prompts, max(LEAST_PROMPTS, PER_PLACE * concurrency))
    # A name of its own gives it prompts of its own.
    return load.model_copy(
        update={"name": f"{workload.name}-ladder-{point.label}", "points": [point.model_copy(update={"prompts": few})]}
    )
