"""What decides whether a measurement counts."""

from __future__ import annotations

import numpy as np

from autotune.load import LoadResult, Measurement
from autotune.load.client.messages import ClientHealth, RequestLog
from autotune.load.client.stream import OK, OutcomeKind, RequestOutcome
from autotune.load.metrics.records import RequestRecords
from autotune.load.workloads import LoadPoint
from autotune.load.workloads.lengths import FixedLengths


def measured(
    outcomes: list[RequestOutcome], client_bound: str = "", written: float = 4.0
) -> Measurement:
    n = len(outcomes)
    ones = np.ones(n)
    ok = np.array([outcome.ok for outcome in outcomes])
    records = RequestRecords(ones, ones * 2, ones * 3, ones, ones * written, ok)
    counts = np.ones(n, dtype=np.int64)
    log = RequestLog(
        records, tuple(outcomes), counts * 0, ones * 0, ones * np.nan, counts, counts * 4
    )
    point = LoadPoint(prompts=n, lengths=FixedLengths(input_tokens=1, output_tokens=4))
    load = LoadResult(point, log, (ClientHealth(),), client_bound)
    return Measurement(0, (load,))


NO_USAGE = RequestOutcome(OutcomeKind.NO_USAGE, "none")


def test_what_is_not_the_server_s_makes_a_measurement_invalid():
    assert measured([OK] * 10).invalid == ""
    assert "100 %" in measured([OK] * 10, "100 % of a core").invalid
    assert "ignore_eos" in measured([OK] * 10, written=2.0).invalid
    assert "no_usage" in measured([OK] * 9 + [NO_USAGE]).invalid


def test_the_failure_counts_all_requests():
    assert measured([OK, OK]).failure == ""
    assert "1 of 2" in measured([OK, RequestOutcome(OutcomeKind.CLOSED)]).failure


def test_a_short_load_is_judged_where_no_burst_begins_it() -> None:
    """A load search on a fast server sends loads of a second: a client that was kept from running
    for 0.3 s of it."""
    stalled = ClientHealth(span_s=0.9, run_delay_share=0.33, loop_lag_p99_ms=180.0)
    assert not stalled.excess()
    assert "kept from running 33% of the time" in stalled.excess(burst=False)
    assert not stalled._replace(span_s=0.4).excess(burst=False)
    assert not ClientHealth(span_s=0.9).excess(burst=False)
