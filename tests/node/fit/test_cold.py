"""The silence of a cold server: found by the rule, taken off the run, and told from a long
queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.workloads import load_workload
from autotune.node.fit.reading import LEAST_S, MeasuredRow, read_file
from tests.node.fit.files import lines_file, run_row

AT_ONCE = load_workload("short")


def metrics(first_s, last_s, duration_s=60.0):
    """Of 1000 requests sent at once whose first tokens come evenly between two times."""
    ttft = np.linspace(first_s, last_s, 1000) * 1e3
    return {
        "duration": duration_s,
        "total_token_throughput": 132_000 / duration_s,
        "mean_ttft_ms": float(ttft.mean()),
        "p99_ttft_ms": float(np.percentile(ttft, 99)),
        "mean_tpot_ms": 100.0,
        "std_ttft_ms": float(ttft.std()),
    }


def row(figures, workload=AT_ONCE, resolved=None):
    return MeasuredRow("1", "lab.jsonl", resolved, workload, figures, None)


@given(st.floats(LEAST_S + 1, 30), st.floats(1, 20))
def test_the_first_token_is_found_within_the_hundredth_that_the_percentile_leaves(
    first_s, spread_s
):
    found = row(metrics(first_s, first_s + spread_s)).cold_start_s
    assert found == pytest.approx(first_s, abs=0.02 * spread_s)


def test_a_server_that_answers_soon_or_one_at_a_time_is_not_cold():
    assert row(metrics(3, 20)).cold_start_s == 0
    # 48 at a time: uneven enough that the formula gives 15 s, which is little beside the queue.
    assert row(metrics(15, 180, 200)).cold_start_s == 0


def test_only_loads_that_are_sent_at_once_show_it():
    assert row(metrics(12, 20), load_workload("sharegpt-c4")).cold_start_s == 0
    assert row({"total_token_throughput": 5000.0, "mean_ttft_ms": 20000.0}).cold_start_s == 0


def test_the_silent_seconds_are_taken_off_the_whole_run_and_off_what_is_counted_from_sending():
    measured = metrics(12, 20)
    cold = row(measured)
    less, silent = cold.warm, cold.cold_start_s
    assert less["duration"] == 60 - silent
    assert less["total_token_throughput"] * (60 - silent) == pytest.approx(
        measured["total_token_throughput"] * 60
    )
    assert less["mean_ttft_ms"] == pytest.approx(16000 - silent * 1e3)
    assert less["p99_ttft_ms"] == pytest.approx(measured["p99_ttft_ms"] - silent * 1e3)
    assert (less["mean_tpot_ms"], less["std_ttft_ms"]) == (100, measured["std_ttft_ms"])
    assert row(metrics(3, 20)).warm == metrics(3, 20)


def test_the_less_is_left_of_a_run_the_less_it_counts(tmp_path):
    (known,) = read_file(lines_file(tmp_path, run_row())).rows
    long, short, warm = (
        row(metrics(*times), resolved=known.resolved).weight
        for times in ((12, 20, 90), (17, 21, 22), (1, 9))
    )
    assert warm == 1
    assert 0.9 < long < 1
    assert short < 0.1
