"""What a trial's first load is up against, and the same race on the simulated node, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.loadgen.client.requests import Requests
from autotune.loadgen.forecast import Seen
from autotune.loadgen.pruning import RACED, Race, Racing, Shortened
from autotune.metrics.formulas import summarize_loads
from autotune.metrics.records import RequestRecords
from autotune.trial import Metrics, Trial

_LOOK_S = 0.5
_LOOKS = 25
"""In virtual time a load is looked at as often as over HTTP, every `_LOOK_S`, but not much more often than `_LOOKS`
times: a look takes a millisecond, and the simulation of a whole load a tenth of a second."""


def race_of(trial: Trial, workload: str, objective: str) -> Race | None:
    """The race of one of a trial's workloads: only the first, and only for a throughput."""
    if trial.hopeless_below is None or workload != trial.workloads[0] or objective not in RACED:
        return None
    return Race(objective, trial.hopeless_below)


def raced(race: Race, loads: Sequence[Requests], runs: Sequence[RequestRecords]) -> tuple[Metrics, Shortened] | None:
    """Metrics of a simulated workload that would have been cut short, as it was until then; None where it would not.

    Args:
        loads: the requests of its load points.
        runs: what became of them, when they were run to their ends.
    """
    racing = Racing(race, loads)
    for position, run in enumerate(runs):
        start_s, end_s = float(run.sent_s.min()), float(run.finished_s.max())
        for now_s in np.arange(start_s, end_s, max(_LOOK_S, racing.limit_s / _LOOKS))[1:]:
            if (shortened := racing.judge(Seen.until(run, float(now_s)))) is not None:
                seen = summarize_loads([*runs[:position], _ended_by(run, float(now_s))])
                return shortened.over(_without_gaps(seen)), shortened
        racing.done(end_s - start_s)
    return None


def _ended_by(run: RequestRecords, now_s: float) -> RequestRecords:
    """The requests that had ended."""
    ended = run.only(run.finished_s <= now_s)
    return RequestRecords(
        ended.sent_s, ended.first_token_s, ended.finished_s, ended.input_tokens, ended.output_tokens, ended.ok
    )


def _without_gaps(metrics: Metrics) -> Metrics:
    """The simulated node does not keep which request a gap between tokens belongs to."""
    return {name: value for name, value in metrics.items() if not name.endswith("_itl_ms")}
