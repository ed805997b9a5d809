"""What decides whether a measurement counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.loadgen import LoadResult, Measurement
from autotune.loadgen.client.health import ClientHealth
from autotune.loadgen.client.outcomes import OK, OutcomeKind, RequestOutcome
from autotune.loadgen.client.request_log import RequestLog
from autotune.loadgen.early_stop import LoadTotals, stop_reason
from autotune.loadgen.results import needed_successes
from autotune.loadgen.workloads import LoadPoint
from autotune.loadgen.workloads.lengths import FixedLengths
from autotune.metrics.records import RequestRecords


def measured(
    outcomes: list[RequestOutcome], client_bound: str = "", written: float = 4.0, rate: float = 1.0
) -> Measurement:
    n = len(outcomes)
    ones = np.ones(n)
    ok = np.array([outcome.ok for outcome in outcomes])
    records = RequestRecords(ones, ones * 2, ones * 3, ones, ones * written, ok)
    counts = np.ones(n, dtype=np.int64)
    log = RequestLog(records, tuple(outcomes), counts * 0, ones * 0, ones * np.nan, counts, counts * 4)
    point = LoadResult.of(
        LoadPoint(prompts=n, lengths=FixedLengths(input_tokens=1, output_tokens=4)),
        log,
        (ClientHealth.nothing(),),
        client_bound,
    )
    return Measurement("w", 0, {}, (point,), min_success_rate=rate)


NO_USAGE = RequestOutcome(OutcomeKind.NO_USAGE, "none")
STOPPED = RequestOutcome(OutcomeKind.STOPPED, "given up")


def test_a_failure_that_is_allowed_switches_no_judgement_off():
    assert measured([OK] * 9 + [NO_USAGE], rate=0.5).invalid == ""
    assert "100 %" in measured([OK] * 9 + [NO_USAGE], "100 % of a core", rate=0.5).invalid
    assert "ignore_eos" in measured([OK] * 9 + [NO_USAGE], written=2.0, rate=0.5).invalid
    assert "no_usage" in measured([OK] * 9 + [NO_USAGE]).invalid


def test_requests_that_were_given_up_are_no_failures():
    assert measured([OK, STOPPED, STOPPED]).failure == ""
    assert "1 of 2" in measured([OK, RequestOutcome(OutcomeKind.CLOSED), STOPPED]).failure


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_a_rate_that_is_a_number_of_requests_needs_that_many(requests, good):
    good = min(good, requests)
    assert needed_successes(good / requests, requests) == good
    assert needed_successes(round(good / 100, 2), 100) == good or good > 100


def test_an_answer_whose_counts_are_late_may_have_ended_with_its_last_token():
    one, nan = np.ones(1), np.full(1, np.nan)
    snapshot = RequestRecords(one * 0, one * 0.1, nan, one * 100, nan, ok=np.array([False]))
    plan = LoadTotals(requests=1, input_tokens=100, output_tokens=100)
    assert stop_reason(snapshot, 10.0, plan, 500, (), heard_s=one * 0.2) is None
    stopped = stop_reason(snapshot, 10.0, plan, 1100, (), heard_s=one * 0.2)
    assert stopped is not None
    assert stopped.bound == pytest.approx(1000)
    assert stop_reason(snapshot, 10.0, plan, 500, ()) is not None  # nothing heard: it ends now at the earliest
