"""Every formula against figures worked out by hand, and what must hold for any run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import UnknownName
from autotune.load.metrics.formulas import Slo, summarize
from autotune.load.metrics.records import LATENCIES, STATISTICS, RequestRecords
from autotune.load.metrics.table import METRICS, check_metric


def records(sent, first, finished, read, written, ok=None, **series):
    columns = [np.array(column, dtype=float) for column in (sent, first, finished, read, written)]
    passed = np.array(ok if ok is not None else [True] * len(sent))
    return RequestRecords(
        *columns, passed, **{name: np.array(v, dtype=float) for name, v in series.items()}
    )


def test_figures_of_two_requests_by_hand():
    run = records([0, 0], [1, 2], [3, 4], [10, 30], [5, 3], itl_ms=[500, 500, 500, 500, 1000, 1000])
    m = summarize(run)
    assert m["duration"] == 4
    assert m["completed"] == 2
    assert m["total_input_tokens"] == 40
    assert m["total_output_tokens"] == 8
    assert m["request_throughput"] == 0.5
    assert m["output_throughput"] == 2
    assert m["total_token_throughput"] == 12
    assert m["mean_ttft_ms"] == 1500
    assert m["mean_tpot_ms"] == pytest.approx(
        (2000 / 4 + 2000 / 2) / 2
    )  # the first token is left out
    assert m["median_itl_ms"] == 500
    assert m["mean_e2el_ms"] == 3500
    assert m["std_e2el_ms"] == 500
    assert m["p90_e2el_ms"] == pytest.approx(3900)  # linear interpolation
    assert m["max_concurrent_requests"] == 2


def test_every_contract_key_is_there_and_known():
    m = summarize(records([0], [1], [2], [3], [4]))
    names = {f"{statistic}_{latency}_ms" for latency in LATENCIES for statistic in STATISTICS}
    assert names | {
        "total_token_throughput",
        "request_goodput",
        "steady_total_token_throughput",
    } <= set(m)
    assert set(m) <= set(METRICS)


def test_a_failed_request_counts_as_failed_only():
    m = summarize(records([0, 0], [1, 1], [2, 9], [10, 10], [2, 2], ok=[True, False]))
    assert (m["completed"], m["failed"], m["total_input_tokens"], m["mean_e2el_ms"]) == (
        1,
        1,
        10,
        2000,
    )
    assert m["duration"] == 9


def test_a_run_in_which_everything_failed_is_all_zeros():
    m = summarize(records([0], [0], [5], [10], [2], ok=[False]))
    assert m["total_token_throughput"] == 0
    assert m["failed"] == 1


def test_goodput_holds_each_request_to_every_slo():
    run = records([0, 0, 0], [1, 2, 3], [4, 4, 4], [1, 1, 1], [2, 2, 2])
    slos = [Slo.parse("p99_ttft_ms<=2000"), Slo.parse("mean_tpot_ms<=2500")]
    assert summarize(run, slos)["request_goodput"] == pytest.approx(1 / 4)
    assert summarize(run)["request_goodput"] == pytest.approx(3 / 4)


def test_one_output_token_has_no_tpot():
    m = summarize(records([0, 0], [1, 1], [1, 3], [1, 1], [1, 5]))
    assert m["mean_tpot_ms"] == 500


def test_peak_tokens_are_counted_per_whole_second():
    run = records(
        [0], [0.5], [2.5], [1], [6], token_s=[0.5, 0.9, 1.1, 1.2, 1.3, 2.5], token_n=[1] * 6
    )
    assert summarize(run)["max_output_tokens_per_s"] == 3


def test_the_steady_window_leaves_the_drain_tail_out():
    run = records([0, 0, 0, 0], [1] * 4, [10, 10, 10, 100], [0] * 4, [10, 10, 10, 100])
    assert (
        summarize(run)["steady_total_token_throughput"] > summarize(run)["total_token_throughput"]
    )


def test_runs_one_after_another_add_up():
    one = records([5], [6], [7], [10], [4])
    both = summarize(RequestRecords.one_after_another([one, one]))
    assert both["duration"] == 4
    assert both["total_token_throughput"] == summarize(one)["total_token_throughput"]


def test_an_unknown_metric_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="did you mean 'p99_ttft_ms'"):
        check_metric("p97_ttft_ms")
    assert check_metric("p99_ttft") == "p99_ttft_ms"


@st.composite
def runs(draw):
    n = draw(st.integers(1, 12))
    # Whole microseconds: a clock has no finer ones, and a run of 1e-308 s has no throughput.
    times = st.lists(st.integers(0, 10**8).map(lambda us: us / 1e6), min_size=n, max_size=n)
    sent, wait, span = (np.array(draw(times)) + least for least in (0, 0, 1e-6))
    counts = st.lists(st.integers(1, 500), min_size=n, max_size=n)
    ok = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return records(
        sent, sent + wait, sent + wait + span, draw(counts), draw(counts), ok=ok, itl_ms=draw(times)
    )


@given(runs(), st.floats(0, 1e5))
def test_what_holds_for_any_run(run, limit_ms):
    m = summarize(run, [Slo(metric="p99_ttft_ms", sense="<=", limit=limit_ms)])
    assert m["completed"] + m["failed"] == len(run)
    assert 0 <= m["request_goodput"] <= m["request_throughput"]
    assert m["total_output_tokens"] == run.output_tokens[run.ok].sum()
    assert m["max_concurrent_requests"] <= m["completed"]
    assert m["total_token_throughput"] >= m["output_throughput"]
    for name in LATENCIES:
        assert (
            m[f"median_{name}_ms"]
            <= m[f"p90_{name}_ms"]
            <= m[f"p95_{name}_ms"]
            <= m[f"p99_{name}_ms"]
        )
    assert all(np.isfinite(value) and value >= 0 for value in m.values())


@given(runs(), st.floats(0.1, 10))
def test_a_faster_clock_scales_each_metric_by_its_power(run, factor):
    quick = RequestRecords(
        run.sent_s / factor,
        run.first_token_s / factor,
        run.finished_s / factor,
        run.input_tokens,
        run.output_tokens,
        run.ok,
        run.itl_ms / factor,
    )
    slow, fast = summarize(run), summarize(quick)
    for name in ("duration", "total_token_throughput", "mean_ttft_ms", "p99_itl_ms", "completed"):
        expected = slow[name] * factor ** METRICS[name].time_power
        assert fast[name] == pytest.approx(expected, rel=1e-6, abs=1e-6)
