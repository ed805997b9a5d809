"""The load search on the simulated node, in virtual time: the same probes as on a real server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.loadgen.capacity.search import FoundLoad, LoadSearch, Probe, beside
from autotune.loadgen.workloads import Workload
from autotune.simulator.resolve_command import ResolvedCommand
from autotune.trial import Failure


@dataclass(frozen=True, slots=True)
class SimulatedSearch:
    """What came of a load search in virtual time.

    Attributes:
        found: None where the server did not start, or refuses the requests.
        load_s: virtual seconds of all probes.
    """

    found: FoundLoad | None
    failure: Failure | None
    startup_s: float
    load_s: float


def find_load(
    resolved: ResolvedCommand,
    workload: Workload,
    seed: int,
    search: LoadSearch,
    factor: float = 1.0,
) -> SimulatedSearch:
    """Search for the capacity of an engine's command line.

    Args:
        factor: by which the node is faster than the one that is simulated: its clock runs so many times as fast.
    """
    load_s = startup_s = 0.0
    while (probe := search.ask()) is not None:
        outcome = resolved.simulate(slowed(probe, factor).workload(workload), probe.seed(seed))
        startup_s = outcome.startup_s
        if outcome.failure is not None:
            return SimulatedSearch(None, outcome.failure, startup_s, load_s)
        load_s += float(outcome.metrics["duration"]) / factor
        search.tell(outcome.runs[0].faster(factor), beside(outcome.metrics))
    return SimulatedSearch(search.found, None, startup_s, load_s)


def slowed(probe: Probe, factor: float) -> Probe:
    """A probe of a node that is faster by a factor, as the clock of the simulated one sees it."""
    load = probe.load / factor if probe.by == "rate" else probe.load
    return replace(probe, load=load, ramp_s=probe.ramp_s * factor)
