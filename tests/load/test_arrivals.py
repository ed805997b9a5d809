"""When requests are sent: kinds, rates, spread, and what is fixed by the seed."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.base.errors import BadInput
from autotune.load.workloads.arrivals import Arrival, arrival_of, send_times

RATES = st.floats(0.01, 10_000)
SHAPES = st.floats(0.05, 50)
OPEN = st.one_of(
    st.builds(lambda rate: Arrival(kind="constant", request_rate=rate), RATES),
    st.builds(lambda rate: Arrival(kind="poisson", request_rate=rate), RATES),
    st.builds(
        lambda rate, shape: Arrival(kind="gamma", request_rate=rate, burstiness=shape),
        RATES,
        SHAPES,
    ),
)
SEEDS = st.integers(0, 2**32 - 1)


@given(arrival=OPEN, requests=st.integers(1, 300), seed=SEEDS)
def test_times_ascend_from_zero_and_keep_the_mean_rate(arrival: Arrival, requests: int, seed: int):
    times = send_times(arrival, requests, "w", 0, seed)
    assert times.shape == (requests,)
    assert times[0] == 0
    assert (np.diff(times) >= 0).all()
    if requests > 1 and times[-1] > 0:
        assert times[-1] / (requests - 1) == pytest.approx(1 / arrival.request_rate)


@given(arrival=OPEN, seed=SEEDS)
def test_times_are_fixed_by_seed_workload_and_point(arrival: Arrival, seed: int):
    keys = [("w", 0, seed), ("w", 0, seed + 1), ("w", 1, seed), ("x", 0, seed)]
    drawn = [send_times(arrival, 50, *key) for key in keys]
    assert (drawn[0] == send_times(arrival, 50, *keys[0])).all()
    if arrival.kind != "constant":
        assert all((one != other).any() for one, other in itertools.combinations(drawn, 2))


@given(rate=RATES, requests=st.integers(2, 300))
def test_constant_gaps_are_exact(rate: float, requests: int):
    times = send_times(Arrival(kind="constant", request_rate=rate), requests, "w", 0, 0)
    assert times == pytest.approx([i / rate for i in range(requests)], rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "shape"), [("poisson", 1.0), ("gamma", 0.25), ("gamma", 4.0), ("gamma", 100.0)]
)
def test_gaps_spread_as_the_shape_says(kind: Any, shape: float):
    gaps = np.diff(
        send_times(Arrival(kind=kind, request_rate=20, burstiness=shape), 20_000, "w", 0, 3)
    )
    assert gaps.mean() == pytest.approx(1 / 20)
    # Of a gamma distribution: the coefficient of variation is 1/sqrt(shape).
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(shape), rel=0.05)


@pytest.mark.parametrize(
    ("numbers", "kind", "words"),
    [
        ({}, "all_at_once", "all at once"),
        ({"concurrency": 4}, "closed_loop", "4 at a time"),
        ({"request_rate": 2.5}, "poisson", "2.5 requests per second, Poisson arrivals"),
        (
            {"request_rate": 8, "burstiness": 0.5},
            "gamma",
            "8 requests per second, gamma arrivals with burstiness 0.5",
        ),
        (
            {"request_rate": 8, "burstiness": math.inf},
            "constant",
            "8 requests per second, evenly spaced",
        ),
    ],
)
def test_numbers_of_a_command_line_choose_the_kind(numbers: dict[str, Any], kind: str, words: str):
    arrival = arrival_of(**numbers)
    assert (arrival.kind, arrival.describe()) == (kind, words)
    assert arrival.open_loop == ("request_rate" in numbers)
    assert Arrival.model_validate_json(arrival.model_dump_json()) == arrival


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"concurrency": 4, "request_rate": 1.0}, "mutually exclusive"),
        ({"concurrency": 0}, "concurrency 0: .*greater than 0"),
        ({"request_rate": -1.0}, "request_rate -1.0: .*greater than 0"),
        ({"request_rate": math.inf}, "request_rate inf: .*finite"),
        ({"request_rate": math.nan}, "request_rate nan"),
        ({"burstiness": 2.0}, "belongs to a request rate"),
        ({"request_rate": 1.0, "burstiness": 0.0}, "burstiness 0.0"),
    ],
)
def test_numbers_that_make_no_arrival_are_bad_input(numbers: dict[str, Any], problem: str):
    with pytest.raises(BadInput, match=problem):
        arrival_of(**numbers)


@pytest.mark.parametrize(
    "written",
    [
        {"kind": "rate", "request_rate": 1},
        {"kind": "closed_loop"},
        {"kind": "closed_loop", "concurrency": 4, "request_rate": 1},
        {"kind": "all_at_once", "concurrency": 4},
        {"kind": "poisson", "request_rate": 1, "burstiness": 2},
    ],
)
def test_each_kind_takes_its_own_numbers_only(written: dict[str, Any]):
    with pytest.raises(ValidationError):
        Arrival.model_validate(written)
