"""A workload on the simulated node, in virtual time: as it is, or by the load search's probes as on a real server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.loadgen.capacity.search import FoundLoad, LoadSearch, Probe, beside
from autotune.loadgen.workloads import Workload
from autotune.metrics.formulas import Slo
from autotune.metrics.table import scaled
from autotune.simulator.resolve_command import ResolvedCommand
from autotune.trial import Failure, Metrics


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """A workload on a simulated launch.

    Attributes:
        load_s: virtual seconds of its load, or of all probes of a load search.
        found: by a load search; None without one, and where the server did not start or refuses the requests.
    """

    metrics: Metrics
    failure: Failure | None
    startup_s: float
    load_s: float
    found: FoundLoad | None = None


def simulated_load(
    resolved: ResolvedCommand,
    workload: Workload,
    seed: int,
    limits: Sequence[Slo],
    search: LoadSearch | None = None,
    factor: float = 1.0,
) -> SimulatedLoad:
    """Load a simulated server by a workload as it is, or up to its capacity.

    Args:
        limits: that a request keeps to count as good.
        search: for the capacity; None: the workload as it is.
        factor: by which the node is faster than the one that is simulated.
    """
    if search is not None:
        return find_load(resolved, workload, seed, search, factor)
    # On a node that is faster by a factor a latency keeps a limit where it keeps one larger by that factor here.
    limits = [slo.model_copy(update={"limit": slo.limit * factor}) for slo in limits]
    outcome = resolved.simulate(workload, seed, limits)
    metrics = scaled(outcome.metrics, factor)
    return SimulatedLoad(metrics, outcome.failure, outcome.startup_s, float(metrics.get("duration", 0.0)))


def find_load(
    resolved: ResolvedCommand, workload: Workload, seed: int, search: LoadSearch, factor: float = 1.0
) -> SimulatedLoad:
    """Search for the capacity of an engine's command line.

    Args:
        factor: by which the node is faster than the one that is simulated: its clock runs so many times as fast.
    """
    load_s = startup_s = 0.0
    while (probe := search.ask()) is not None:
        outcome = resolved.simulate(slowed(probe, factor).workload(workload), probe.seed(seed))
        startup_s = outcome.startup_s
        if outcome.failure is not None:
            return SimulatedLoad({}, outcome.failure, startup_s, load_s)
        load_s += float(outcome.metrics["duration"]) / factor
        search.tell(outcome.runs[0].faster(factor), beside(outcome.metrics))
    return SimulatedLoad(search.found.metrics, None, startup_s, load_s, search.found)


def slowed(probe: Probe, factor: float) -> Probe:
    """A probe of a node that is faster by a factor, as the clock of the simulated one sees it."""
    load = probe.load / factor if probe.by == "rate" else probe.load
    return replace(probe, load=load, ramp_s=probe.ramp_s * factor)
