"""Figures as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.load.metrics import readable
from autotune.load.metrics.table import METRICS

POSITIVE = st.floats(min_value=1e-6, max_value=1e12)


def value_of(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" %"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (11028.5, "11,000"),
        (0.0691, "0.0691"),
        (0.06912, "0.0691"),
        (1510.19, "1,510"),
        (9.996, "10.0"),
        (0.09996, "0.100"),
        (41.4, "41.4"),
        (123456.7, "123,000"),
        (0.0, "0"),
        (2.5e-5, "0.0000250"),
        (-1510.19, "-1,510"),
        (163840, "163,840"),
        (math.inf, "inf"),
        (None, "–"),
        (True, "–"),
        ("fast", "–"),
    ],
)
def test_a_figure_has_three_digits_and_a_count_is_exact(value: object, shown: str) -> None:
    assert readable.number(value) == shown


@given(POSITIVE)
def test_three_digits_are_right_within_half_a_percent(value: float) -> None:
    shown = readable.number(value)
    assert value_of(shown) == pytest.approx(value, rel=0.005 + 1e-9)
    assert len(shown.replace(",", "").replace(".", "").strip("0")) <= 3


@given(POSITIVE, st.floats(min_value=1.00002, max_value=2))
def test_different_figures_side_by_side_look_different(value: float, factor: float) -> None:
    low, high = readable.numbers([value, value * factor])
    assert value_of(low) < value_of(high)
    assert readable.interval((value, value * factor)) == f"{low} to {high}"


def test_an_interval_has_as_many_digits_as_tell_its_ends_apart() -> None:
    assert readable.interval((0.06912, 0.06921)) == "0.0691 to 0.0692"
    assert readable.interval((0.06912, 0.06914)) == "0.06912 to 0.06914"
    assert readable.interval((5.0, 5.0)) == "5.00"
    assert readable.percents((17.91, 17.91)) == "+17.9 %"
    assert readable.percents((17.91, 18.0)) == "+17.9 % to +18.0 %"


def test_how_far_a_limit_is_exceeded_has_three_digits() -> None:
    shown = ["6 %", "88 %", "9,900 %", "116,000 %"]
    assert [readable.beyond(excess) for excess in (0.0625, 0.875, 99.0, 1157.08)] == shown
    assert readable.interval(None) == "–"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (41.44, "+41.4 %"),
        (-5.66, "-5.7 %"),
        (0.0, "+0.0 %"),
        (-0.03, "-0.03 %"),
        (0.04, "+0.04 %"),
        (-1e-9, "+0.0 %"),
        (-0.05, "-0.1 %"),
        (99.96, "+100 %"),
        (141.7, "+142 %"),
        (1242.0, "+1,240 %"),
        (-100.0, "-100 %"),
        (None, "–"),
    ],
)
def test_a_percentage_has_a_sign_and_at_most_one_decimal(value: float | None, shown: str) -> None:
    assert readable.percent(value) == shown


@pytest.mark.parametrize(
    ("metric", "gain", "shown", "in_words"),
    [
        ("total_token_throughput", 41.4, "+41.4 %", "+41.4 %"),
        ("total_token_throughput", -5.7, "-5.7 %", "-5.7 %"),
        ("cost_per_million_tokens", 141.7, "-58.6 %", "costs 58.6 % less"),
        ("cost_per_million_tokens", -50.0, "+100 %", "costs 100 % more"),
        ("p99_ttft_ms", 30.0, "-23.1 %", "takes 23.1 % less time"),
        ("energy_joules_per_output_token", 25.0, "-20.0 %", "uses 20.0 % less energy"),
        ("a_metric_of_a_table", 5.0, "+5.0 %", "+5.0 %"),
        ("p99_ttft_ms", None, "–", "–"),
    ],
)
def test_a_gain_reads_as_what_the_metric_did(
    metric: str, gain: float | None, shown: str, in_words: str
) -> None:
    assert readable.gain(metric, gain) == shown
    assert readable.gain_in_words(metric, gain) == in_words


def test_a_gain_over_another_command_is_a_sentence_s_part() -> None:
    over = readable.gain_in_words
    assert over("total_token_throughput", 44.2, "sglang's recipe") == "+44.2 % over sglang's recipe"
    assert (
        over("cost_per_million_tokens", 25.0, "the recipe") == "costs 20.0 % less than the recipe"
    )
    assert over("mean_tpot_ms", -20.0, "the recipe") == "takes 25.0 % more time than the recipe"


@given(st.sampled_from(sorted(METRICS)), POSITIVE, st.floats(min_value=0.01, max_value=100))
def test_the_change_of_a_gain_is_that_of_the_values(metric: str, old: float, factor: float) -> None:
    """The gain of a study is a ratio of scores; the change that is shown is that of the metric."""
    gain = 100 * (factor - 1)
    new = old * factor if METRICS[metric].maximise else old / factor
    assert readable.changed(metric, gain) == pytest.approx(100 * (new / old - 1), abs=1e-6)


@given(st.sampled_from(sorted(METRICS)), st.floats(-90, 900), st.floats(-90, 900))
def test_the_ends_of_a_gain_s_interval_are_in_order(metric: str, one: float, other: float) -> None:
    assume(other - one > 1e-6)
    low, high = readable.changes(metric, (one, other)) or (0.0, 0.0)
    assert low < high
    assert "–" not in readable.gains(metric, (one, other))


def test_a_gain_has_its_interval_in_brackets() -> None:
    gained = readable.gain_within
    assert gained("mean_tpot_ms", 25.0, (-10.0, 60.0)) == (
        "takes 20.0 % less time (95 % interval -37.5 % to +11.1 %)"
    )
    assert gained("output_throughput", 5.0, None, "it") == "+5.0 % over it (no interval)"


def test_every_objective_of_which_less_is_better_says_so_in_words() -> None:
    less = [name for name, row in METRICS.items() if not row.maximise and row.time_power]
    assert less
    for name in less:
        assert " less" in readable.gain_in_words(name, 10.0), name
