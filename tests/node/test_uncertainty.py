"""Intervals: wider for what was not measured, narrower within an engine, and as wide as they
say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.workloads import load_workload
from autotune.load.workloads.arrivals import arrival_of
from autotune.node.calibration import (
    HEADLINE,
    ErrorSpread,
    PredictionErrors,
    Subject,
    interval90,
    sigma,
    sigma_of_ratio,
)
from autotune.node.fit.calibrate import PointErrors, stated_errors
from autotune.node.prediction_intervals import subject_of
from autotune.node.simulate import simulate
from tests.node.nodes import R1, setup

SEEN = Subject(
    engine="vllm",
    version="0.13",
    gpu="h200",
    model="deepseek_v3",
    read=220,
    written=200,
    in_flight=1000,
)
COVERED = [SEEN, SEEN.model_copy(update={"engine": "sglang"})]
SPREAD = {HEADLINE: ErrorSpread(group=0.12, row=0.05)}
ERRORS = PredictionErrors(
    engines={"vllm": SPREAD, "sglang": SPREAD, "any": SPREAD},
    unseen={"engine": 0.4, "version": 0.3, "gpu": 0.3, "model": 0.2, "workload": 0.1},
    covered=COVERED,
)


def other(**changes):
    return SEEN.model_copy(update=changes)


@pytest.mark.parametrize(
    ("subject", "unseen"),
    [
        (SEEN, ()),
        (other(gpu="b200"), ("gpu",)),
        (other(version="0.32"), ("version",)),
        (other(model="llama"), ("model",)),
        (other(read=4000), ("workload",)),
        (other(in_flight=900, read=300), ()),
        (other(engine="tensorrt_llm"), ("engine",)),
    ],
)
def test_what_was_not_measured_is_named_and_widens(subject, unseen):
    assert subject.unseen(ERRORS) == unseen
    assert (sigma(ERRORS, subject) > sigma(ERRORS, SEEN)) == bool(unseen)


def test_a_model_measured_on_another_gpu_only_is_new_on_this_one():
    amd = other(gpu="mi300x", model="llama")
    errors = ERRORS.model_copy(update={"covered": [*COVERED, amd]})
    assert other(gpu="mi300x").unseen(errors) == ("model",)
    assert other(gpu="b200").unseen(errors) == ("gpu",)


def test_of_requests_that_arrive_over_time_only_those_served_at_once_are_in_flight():
    server = setup("vllm", model=R1)
    trickle = load_workload("random:200:50:400").with_arrival(arrival_of(request_rate=1.0))
    metrics = simulate(server, trickle, 0).metrics
    assert subject_of(server, trickle, metrics).in_flight < 10
    assert subject_of(server, load_workload("random:200:50:400"), metrics).in_flight == 400


def test_a_comparison_within_an_engine_is_surer_than_one_across():
    within = sigma_of_ratio(ERRORS, SEEN, SEEN)
    across = sigma_of_ratio(ERRORS, SEEN, other(engine="sglang"))
    assert within < sigma(ERRORS, SEEN) < across


def test_without_any_calibration_a_prediction_is_sure_within_a_factor_of_a_few():
    low, high = interval90(1000.0, sigma(PredictionErrors(), SEEN))
    assert low < 500
    assert high > 2000


def test_stated_intervals_hold_nine_of_ten_of_errors_like_those_they_come_from():
    rng = np.random.default_rng(0)

    def points(n):
        shared = {w: rng.normal(0, 0.1) for w in range(400)}
        return [
            PointErrors(
                "vllm", {HEADLINE: shared[w] + rng.normal(0, 0.05)}, {}, {"workload": str(w)}
            )
            for w in rng.integers(0, 400, n).tolist()
        ]

    stated = stated_errors(points(1500), COVERED).engines["vllm"][HEADLINE]
    assert stated.row == pytest.approx(0.05, rel=0.15)
    total = np.hypot(stated.group, stated.row)
    inside = np.mean([abs(p.errors[HEADLINE]) <= 1.645 * total for p in points(4000)])
    assert 0.85 <= inside <= 0.95


def test_few_left_out_points_make_the_unseen_wide():
    few = [PointErrors("sglang", {HEADLINE: 0.01}, {"gpu": error}) for error in (0.01, -0.02, 0.3)]
    assert stated_errors(few, []).unseen["gpu"] == pytest.approx(0.3 / 1.645, rel=0.05)


def test_two_points_that_a_fit_has_met_exactly_make_nothing_sure():
    exact = [PointErrors("vllm", {HEADLINE: 0.0}, {})] * 2
    alone = stated_errors(exact, COVERED)
    assert sigma(alone, SEEN) > 0.8 * sigma(PredictionErrors(), SEEN)
    assert sigma(alone, other(engine="sglang", gpu="b200", model="llama", read=4000)) > 1.2 * sigma(
        alone, SEEN
    )
    # What the calibration that the fit began with says of its own rows is not made narrower by
    # others.
    after = stated_errors(exact, [], ERRORS)
    assert sigma(after, SEEN) >= sigma(ERRORS, SEEN)
    assert sigma(after, other(gpu="b200")) >= sigma(ERRORS, other(gpu="b200"))


def test_what_left_out_groups_got_more_wrong_is_added_for_the_unseen():
    rng = np.random.default_rng(1)
    points = []
    for _ in range(60):
        own, out = rng.normal(0, 0.05), rng.normal(0, 0.3)
        points.append(PointErrors("vllm", {HEADLINE: own}, {"gpu": out, "workload": own}))
    unseen = stated_errors(points, []).unseen
    assert unseen["workload"] < 0.05
    assert 0.2 < unseen["gpu"] < 0.4


def test_a_group_counts_alike_however_many_points_it_has():
    """Nine models that are 0.6 off outweigh one of a thousand rows that is right."""
    points = [
        PointErrors(
            "vllm",
            {HEADLINE: 0.01},
            {"model": 0.6 if i % 100 < 2 else 0.01},
            {"model": f"m{i % 9}" if i % 100 < 2 else "many"},
        )
        for i in range(1000)
    ]
    assert stated_errors(points, []).unseen["model"] == pytest.approx(0.6 / 1.645, rel=0.02)


REACH = st.floats(0, 1.5)


@given(st.floats(0, 0.6), REACH, REACH)
def test_an_interval_on_a_node_holds_the_launches_own(deviation, below, above):
    low, high = interval90(100.0, deviation, (below, above))
    assert low <= 100 * math.exp(-below) * (1 + 1e-12)
    assert high >= 100 * math.exp(above) * (1 - 1e-12)
    alone = interval90(100.0, deviation)
    assert low <= alone[0] * (1 + 1e-12)
    assert high >= alone[1] * (1 - 1e-12)
    assert interval90(100.0, 0.0, (below, above)) == pytest.approx(
        (100 * math.exp(-below), 100 * math.exp(above))
    )


def test_nine_of_ten_nodes_have_their_gain_in_the_interval_of_simulated_launches():
    """The simulator errs on each node by what it states, and its own launches differ among
    themselves."""
    rng, of_launches, inside = np.random.default_rng(0), 0.06, []
    for error in rng.normal(0, 0.08, 4000):
        gain = 0.5 + rng.normal(0, of_launches)  # what the launches show of a simulated gain of 0.5
        low, high = interval90(math.exp(gain), 0.08, (1.96 * of_launches,) * 2)
        inside.append(low <= math.exp(0.5 + error) <= high)
    assert 0.9 <= np.mean(inside) <= 0.95
    narrow = [interval90(math.exp(0.5 + rng.normal(0, of_launches)), 0.08) for _ in inside]
    without = np.mean([low <= math.exp(0.5 + rng.normal(0, 0.08)) <= high for low, high in narrow])
    assert without < 0.85, "the simulator's error alone"
