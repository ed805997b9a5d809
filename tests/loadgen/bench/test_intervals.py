"""Intervals against another implementation, and against truths that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autotune.loadgen.bench.compare import MIN_REQUESTS, latency_intervals, ratio_interval
from autotune.loadgen.bench.results import mean_interval
from autotune.loadgen.request_file import RequestTable

RUNS_A, RUNS_B = [8000.0, 8150.0, 7900.0, 8040.0], [8500.0, 8420.0, 8610.0]


def table(ttft_s: np.ndarray, loads: int = 1) -> RequestTable:
    n = len(ttft_s)
    columns = {
        "outcome": np.array(["ok"] * (n - 1) + ["closed"], dtype=object),
        "point": np.array([f"c{i % loads}" for i in range(n)], dtype=object),
        "seed": np.zeros(n, dtype=np.int64),
        "ttft_s": ttft_s,
        "e2el_s": ttft_s + 10,
        "output_tokens": np.full(n, 101.0),
    }
    return RequestTable(columns, {})


def test_the_mean_s_interval_is_student_s():
    whole = stats.ttest_1samp(RUNS_A, 0).confidence_interval(0.95)
    assert mean_interval(RUNS_A) == pytest.approx((whole.low, whole.high))


def test_the_ratio_s_interval_is_welch_s_on_logarithms():
    whole = stats.ttest_ind(np.log(RUNS_B), np.log(RUNS_A), equal_var=False).confidence_interval(0.95)
    expected = (100 * math.expm1(whole.low), 100 * math.expm1(whole.high))
    assert ratio_interval(RUNS_A, RUNS_B) == pytest.approx(expected)


def test_a_ratio_of_too_few_runs_or_of_none_has_no_interval():
    assert ratio_interval([8000.0], RUNS_B) is None
    assert ratio_interval([8000.0, 0.0], RUNS_B) is None
    assert ratio_interval([8000.0, 8000.0], [4000.0, 4000.0]) == pytest.approx((-50, -50))


def test_resampled_intervals_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(40):
        a, b = (table(scale + rng.exponential(scale, 100)) for scale in (0.5, 0.6))
        low, high = latency_intervals(a, b)["mean_ttft_ms"]
        held += low <= 20 <= high
    assert 34 <= held <= 40


def test_the_intervals_of_one_seed_are_the_same_and_those_of_equal_runs_hold_zero():
    rng = np.random.default_rng(1)
    a, b = table(1 + rng.random(150), loads=2), table(1 + rng.random(150), loads=2)
    found = latency_intervals(a, b)
    assert found == latency_intervals(a, b)
    assert set(found) == {f"{s}_{n}_ms" for s in ("mean", "median") for n in ("ttft", "tpot", "e2el")}
    assert found["mean_ttft_ms"][0] < 0 < found["mean_ttft_ms"][1]
    # What the loads differ by is no noise: within each load here all requests are alike.
    apart = table(np.array([1.0, 9.0] * 50), loads=2)
    low, high = latency_intervals(apart, table(np.array([2.0, 18.0] * 50), loads=2))["mean_ttft_ms"]
    assert (low, high) == pytest.approx((100, 100))


def test_a_handful_of_requests_has_no_interval():
    assert latency_intervals(table(np.ones(MIN_REQUESTS)), table(np.ones(500))) == {}
