"""The load search on a warm server: `find_load(url, model, workload, seed, search, options) -> FoundCapacity`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.loadgen.capacity.search import FoundLoad, LoadSearch, Probe, beside
from autotune.loadgen.measuring import measure
from autotune.loadgen.request_file import LoadLog
from autotune.loadgen.results import LoadOptions, Measurement
from autotune.loadgen.workloads import Workload
from autotune.notify import Notify, silent
from autotune.trial import Metrics


@dataclass(frozen=True, slots=True)
class FoundCapacity:
    """Result of a load search on a server.

    Attributes:
        probes: every load that was sent, in order.
        failure: one sentence where the server answered nothing any more, before any load kept the limits.
        invalid: why the numbers say nothing of the server, as of the probe at which the search ended for that.
    """

    seed: int
    found: FoundLoad
    probes: tuple[tuple[Probe, Measurement], ...]
    failure: str = ""
    invalid: str = ""

    @property
    def metrics(self) -> Metrics:
        """Metrics of the load that is the capacity, with the capacity and the curve."""
        return self.found.metrics

    @property
    def shown(self) -> list[Measurement]:
        """The probes behind the metrics: of the capacity, else of the lightest load."""
        load = self.found.capacity or (self.found.missed[1] if self.found.missed else None)
        chosen = [measurement for probe, measurement in self.probes[1:] if probe.load == load]
        return chosen or [measurement for _, measurement in self.probes[:1]]

    @property
    def warm_up_s(self) -> float:
        return sum(measurement.warm_up_s for _, measurement in self.probes)

    @property
    def logs(self) -> list[LoadLog]:
        """Request logs of all probes, in the order in which they were sent."""
        return [log for _, measurement in self.probes for log in measurement.logs]


def find_load(
    url: str,
    model: str,
    workload: Workload,
    seed: int,
    search: LoadSearch,
    options: LoadOptions,
    on_probe: Notify = silent,
) -> FoundCapacity:
    """Send loads until the search is over. Each finds an empty prefix cache, no queue, and prompts of its own.

    Args:
        on_probe: called with a line for each.

    Ends early where the server answers nothing, or a load was measured wrong. Of a server that dies of a load the
    heaviest load that it kept before stands. Raises `BadInput` and `ClientFailed` as `measure` does.
    """
    probes: list[tuple[Probe, Measurement]] = []
    heaviest, failure, invalid = 0.0, "", ""
    while (probe := search.ask()) is not None:
        streams = probe.load if probe.by == "concurrency" else float(probe.requests)
        how = replace(options, warm_up=options.warm_up and streams > heaviest)
        heaviest = max(heaviest, streams)
        measurement = measure(url, model, probe.workload(workload), probe.seed(seed), how)
        probes.append((probe, measurement))
        metrics, invalid = measurement.metrics, measurement.invalid
        if not metrics["completed"] and search.found.capacity and not invalid:
            on_probe(search.give_up())
            break
        if not metrics["completed"]:
            failure = measurement.failure
        if failure or invalid:
            break
        on_probe(search.tell(measurement.points[0].log.records, beside(metrics)))
    return FoundCapacity(seed, search.found, tuple(probes), failure, invalid)
