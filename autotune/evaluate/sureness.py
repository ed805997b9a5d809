"""How sure the simulated node is of what it says: intervals, and comparisons of two configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.load.workloads import Workload
from autotune.simulate import ServerSetup
from autotune.simulate.calibration import packaged_calibration
from autotune.simulate.uncertainty import HEADLINE, Errors, Subject, interval90, sigma, sigma_of_ratio

_LATENCIES = ("median_ttft_ms", "median_tpot_ms")


def errors_for(setup: ServerSetup) -> Errors:
    """The errors of the calibration that a setup is simulated with."""
    return (setup.calibration or packaged_calibration()).errors


def subject_of(setup: ServerSetup, workload: Workload) -> Subject:
    """What a prediction is of; of several load points, the last and heaviest."""
    requests = workload.draw(len(workload.points) - 1, 0)
    return Subject(
        engine=setup.engine,
        gpu=setup.hardware.name,
        model=setup.model.family,
        read=float(requests.input_tokens.mean()),
        written=float(requests.output_tokens.mean()),
        in_flight=float(min(len(requests.input_tokens), requests.concurrency)),
    )


def intervals(setup: ServerSetup, workload: Workload, metrics: Mapping[str, object]) -> dict[str, Any]:
    """The 90 % intervals of a prediction, and what of it was never measured.

    ``interval90`` is that of total token throughput; it is None when nothing ran.
    """
    if not metrics:
        return {"interval90": None}
    subject, errors = subject_of(setup, workload), errors_for(setup)

    def ends(metric: str) -> list[float]:
        value = metrics[metric]
        assert isinstance(value, int | float)
        return list(interval90(float(value), sigma(errors, subject, metric)))

    latencies = {f"{metric}_interval90": ends(metric) for metric in _LATENCIES if metric in metrics}
    return {"interval90": ends(HEADLINE), **latencies, "unseen": list(subject.unseen(errors))}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted throughput of one configuration over another's under one load.

    Attributes:
        gain_percent: of the first over the second.
        interval90: of the gain, percent.
    """

    gain_percent: float
    interval90: tuple[float, float]


def compared(first: tuple[ServerSetup, float], second: tuple[ServerSetup, float], workload: Workload) -> Comparison:
    """Compare two predictions (setup, total tokens per second) under one load.

    Within an engine what the simulator gets wrong of both alike cancels; between engines it does not.
    """
    subjects: Sequence[Subject] = [subject_of(setup, workload) for setup, _ in (first, second)]
    ratio = first[1] / second[1]
    low, high = interval90(ratio, sigma_of_ratio(errors_for(first[0]), subjects[0], subjects[1]))
    return Comparison(_percent(ratio), (_percent(low), _percent(high)))


def _percent(ratio: float) -> float:
    return (ratio - 1.0) * 100.0
