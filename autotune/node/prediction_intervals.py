"""Uncertainty of the simulated node: intervals, and comparisons of two configurations."""

from collections.abc import Mapping

from packaging.version import Version

from autotune.base import Interval, Json, JsonObject
from autotune.load.metrics.table import HEADLINE
from autotune.load.workloads import Workload

from .calibration import (
    MEASURED_MIXERS,
    PredictionErrors,
    ServerSetup,
    Subject,
    interval90,
    packaged_calibration,
    sigma,
    sigma_of_ratio,
)

_LATENCIES = ("median_ttft_ms", "median_tpot_ms")
Predicted = tuple[ServerSetup, JsonObject]
"""A setup, and its metrics or its result of `prediction`."""


def errors_for(setup: ServerSetup) -> PredictionErrors:
    return (setup.calibration or packaged_calibration()).errors


def subject_of(setup: ServerSetup, workload: Workload, metrics: Mapping[str, object]) -> Subject:
    """Return the subject of a prediction at its heaviest load; without metrics, as if all requests
    were in flight."""
    requests = workload.draw(len(workload.points) - 1, 0)
    in_flight = float(min(len(requests.input_tokens), requests.concurrency))
    groups = setup.model.architecture.groups
    latency = metrics.get("mean_e2el_ms")
    over_s = float(requests.send_s.max())
    if isinstance(latency, int | float) and over_s > 0:
        # Little's law: so many arrive while one is served.
        in_flight = min(in_flight, max(1.0, len(requests.send_s) / over_s * latency / 1e3))
    return Subject(
        engine=setup.engine,
        version=".".join(str(number) for number in Version(setup.version).release[:2]),
        gpu=setup.hardware.name,
        model=setup.model.family,
        read=float(requests.input_tokens.mean()),
        written=float(requests.output_tokens.mean()),
        in_flight=in_flight,
        mixers=tuple(sorted({one.mixer for one in groups} - MEASURED_MIXERS)),
    )


def intervals(setup: ServerSetup, workload: Workload, metrics: JsonObject) -> Json:
    """Return the 90 % intervals of a prediction, None if nothing ran, and its parts without a
    measurement."""
    subject = subject_of(setup, workload, metrics)
    errors = errors_for(setup)

    def ends(metric: str) -> list[float] | None:
        if not metrics:
            return None
        return list(interval90(float(metrics[metric]), sigma(errors, subject, metric)))

    latencies = {
        f"{metric}_interval90": ends(metric)
        for metric in _LATENCIES
        if metric in metrics or not metrics
    }
    return {"interval90": ends(HEADLINE), **latencies, "unseen": list(subject.unseen(errors))}


def compare_predictions(
    mine: Predicted,
    theirs: Predicted,
    workload: Workload,
) -> Json:
    """Compare two predictions under one load: setups, and their results of `prediction`.

    ``gain_percent`` of total token throughput and ``gain_interval90``; both None when one of them
    does not run. Common errors of the simulator cancel within an engine, not between engines: the
    interval is wider there.
    """
    own = mine[1].get(HEADLINE)
    other = theirs[1].get(HEADLINE)
    gain = None
    ends = None
    if own is not None and other is not None:
        ratio = float(own) / float(other)
        gain = (ratio - 1.0) * 100.0
        ends = list(gain_interval90(ratio, mine, theirs, workload))
    return {
        "versus_total_token_throughput": other,
        "versus_failure": theirs[1]["failure"],
        "gain_percent": gain,
        "gain_interval90": ends,
    }


def gain_interval90(
    ratio: float,
    mine: Predicted,
    theirs: Predicted,
    workload: Workload,
    metric: str = HEADLINE,
    launches: Interval = (0.0, 0.0),
) -> Interval:
    """Return the 90 % interval of a gain in percent; `ratio` of the two predictions above 1 is
    better.

    The last argument is that of `interval90`.
    """
    first, second = (subject_of(setup, workload, predicted) for setup, predicted in (mine, theirs))
    deviation = sigma_of_ratio(errors_for(mine[0]), first, second, metric)
    low, high = interval90(ratio, deviation, launches)
    return (low - 1.0) * 100.0, (high - 1.0) * 100.0
