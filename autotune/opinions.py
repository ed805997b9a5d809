"""What is believed of a study's candidates before its first launch: the search's priors."""

from __future__ import annotations

from autotune.errors import BadInput
from autotune.load.metrics import METRICS
from autotune.load.workloads import load_workload
from autotune.prepare import Prepared
from autotune.simulate.roofline import roofline
from autotune.space.opinion import Opinion


def opinions_of(prepared: Prepared) -> list[Opinion]:
    """The opinions that hold for a study; none for objectives that are no throughput: the roofline says nothing there.

    Where the evidence is the simulator itself its own prediction would be the answer: there the opinion is the
    unfitted roofline.
    """
    spec = prepared.spec
    if METRICS[spec.objective].time_power != 1 or len(prepared.candidates) == 1:
        return []
    configurations = [candidate.configuration for candidate in prepared.candidates.items]
    try:
        workload = load_workload(spec.workloads[0], prepared.library)
    except BadInput:  # a table answers for a workload of any name
        return []
    mean = roofline(configurations, spec.model, spec.hardware, spec.gpus, workload)
    return [Opinion("the roofline", mean)]
