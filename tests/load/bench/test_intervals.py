"""Intervals against another implementation, and against truths that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autotune.load.bench.compare import ratio_interval
from autotune.load.bench.results import mean_interval

RUNS_A, RUNS_B = [8000.0, 8150.0, 7900.0, 8040.0], [8500.0, 8420.0, 8610.0]


def test_the_mean_s_interval_is_student_s():
    whole = stats.ttest_1samp(RUNS_A, 0).confidence_interval(0.95)
    assert mean_interval(RUNS_A) == pytest.approx((whole.low, whole.high))


def test_the_ratio_s_interval_is_welch_s_on_logarithms():
    whole = stats.ttest_ind(np.log(RUNS_B), np.log(RUNS_A), equal_var=False).confidence_interval(
        0.95
    )
    expected = (100 * math.expm1(whole.low), 100 * math.expm1(whole.high))
    assert ratio_interval(RUNS_A, RUNS_B) == pytest.approx(expected)


def test_a_ratio_of_too_few_runs_or_of_none_has_no_interval():
    assert ratio_interval([8000.0], RUNS_B) is None
    assert ratio_interval([8000.0, 0.0], RUNS_B) is None
    assert ratio_interval([8000.0, 8000.0], [4000.0, 4000.0]) == pytest.approx((-50, -50))
