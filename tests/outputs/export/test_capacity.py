"""`export --to capacity`: what one deployment carries within the limits, and how many carry a given
rate."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.table import Metrics
from autotune.outputs.export import Winner, all_of, export, winner_of
from autotune.tuner.trial import Launch, Role
from tests import small_study
from tests.small_study import WINNER

SLOTS, SERVICE_S, LIMIT_MS = 64, 0.5, 550.0
"""Of a replica: requests that it serves at a time, their mean service, the limit on the 99th
percentile of the wait."""


def winner(by: str | None, *found: Metrics) -> Winner:
    """The small study's winner, with a load search that found these; the first one not in the
    finals."""
    roles = [Role.SEARCH, *[Role.FINAL] * len(found)]
    launches: list[Launch] = [
        small_study.launch(
            number, role, WINNER, {"sharegpt": {**small_study.metrics(9000.0), **metrics}}
        )
        for number, (role, metrics) in enumerate(zip(roles, (found[0], *found), strict=True))
    ]
    spec = small_study.spec(find_load=by, slos=(Slo.parse("p99_ttft_ms<=550"),))
    return winner_of(small_study.recommendation(), spec, launches)


def told(one: Winner) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export(one, "capacity"))
    return found


def divisor(found: dict[str, Any]) -> float:
    """The figure that the arithmetic divides a rate by, of at most three digits."""
    figure = found["arithmetic"].partition("N = ceil(R / ")[2].partition(")")[0].replace(",", "")
    assert len(figure.replace(".", "").strip("0")) <= 3
    return float(figure)


def by_rate(*rates: float) -> Winner:
    return winner("rate", *({"capacity_request_rate": rate, "curve": []} for rate in rates))


def test_a_rate_has_its_interval_from_launch_to_launch_and_its_arithmetic() -> None:
    found = told(by_rate(10.0, 10.4, 9.6))
    low, high = found["interval95"]
    assert found["unit"] == "requests/s"
    assert low < found["per_replica"] < high
    assert found["per_replica"] == pytest.approx((10.0 * 10.4 * 9.6) ** (1 / 3))
    assert found["requests_per_s"] == low
    assert divisor(found) == pytest.approx(low, rel=0.01)
    assert found["interval90_on_a_node"] is None
    assert "from the lower end of the 95 % interval" in found["arithmetic"]
    assert found["load"].startswith("this number of requests per second")
    assert (found["launches"], found["start_s"], found["slo"]) == (3, 400.0, ["p99_ttft_ms<=550"])
    assert (found["evidence"], found["evidence_of"], found["workload"]) == (
        "simulated",
        None,
        "sharegpt",
    )


def test_requests_in_flight_become_a_rate_by_littles_law() -> None:
    curve = [
        {"concurrency": 32, "mean_e2el_ms": 1000.0, "kept": True},
        {"concurrency": 64, "mean_e2el_ms": 2000.0, "kept": True},
        {"concurrency": 72, "mean_e2el_ms": 9000.0, "kept": False},
    ]
    rows = [{"capacity_concurrency": 64, "curve": curve}] * 2
    found = told(winner("concurrency", *rows))
    assert (found["unit"], found["per_replica"]) == ("requests in flight", pytest.approx(64))
    assert found["requests_per_s"] == pytest.approx(found["interval95"][0] / 2.0)
    assert divisor(found) == pytest.approx(found["requests_per_s"], rel=0.01)
    assert "requests in flight, since each takes 2.00 s at this load" in found["arithmetic"]
    assert "the streams start spread over the time of a request, not all at once" in found["load"]


@given(st.floats(0.5, 0.99), st.floats(1.01, 2.0), st.floats(0.02, 5000))
def test_a_predicted_capacity_is_divided_by_its_lower_end_on_a_node(
    low: float, high: float, rate: float
) -> None:
    """Three digits, rounded down: a divisor that is rounded up would buy too few replicas."""
    one = by_rate(rate, rate * 1.02)
    goal = one.choice.objective
    ends = {"interval90_on_a_node": (goal.value * low, goal.value * high)}
    choice = one.choice.model_copy(update={"objective": goal.model_copy(update=ends)})
    found = told(replace(one, choice=choice))
    (least, most), (narrow_low, narrow_high) = found["interval90_on_a_node"], found["interval95"]
    assert least <= min(narrow_low, low * found["per_replica"] * (1 + 1e-9))
    assert most >= max(narrow_high, high * found["per_replica"] * (1 - 1e-9))
    assert found["requests_per_s"] == least
    assert least * 0.99 <= divisor(found) <= least * (1 + 1e-9)
    assert "from the lower end of the 90 % interval on a node" in found["arithmetic"]
    assert found["evidence"] == "simulated"


def test_it_is_written_after_a_load_search_alone() -> None:
    texts, denied = all_of(by_rate(10.0, 10.0))
    assert "capacity.json" in texts
    without = winner(None, {})
    texts, denied = all_of(without)
    assert "capacity.json" not in {*texts, *(name for names in denied.values() for name in names)}
    with pytest.raises(BadInput, match="was not searched for: tune with --find-load"):
        export(without, "capacity")


def p99_wait_ms(rate: float, replicas: int, seed: int, requests: int = 20_000) -> float:
    """The wait in a queue of replicas with exponential services, each request sent to the one with
    fewest in flight."""
    generator = np.random.default_rng(seed)
    sent = np.cumsum(generator.standard_exponential(requests)) / rate
    services = SERVICE_S * generator.standard_exponential(requests)
    free = [[0.0] * SLOTS for _ in range(replicas)]
    in_flight, ends, waits = [0] * replicas, list[tuple[float, int]](), np.empty(requests)
    for i, (now, service) in enumerate(zip(sent.tolist(), services.tolist(), strict=True)):
        while ends and ends[0][0] <= now:
            in_flight[heappop(ends)[1]] -= 1
        chosen = min(range(replicas), key=in_flight.__getitem__)
        begin = max(now, heappop(free[chosen]))
        heappush(free[chosen], begin + service)
        heappush(ends, (begin + service, chosen))
        in_flight[chosen] += 1
        waits[i] = begin - now
    return float(1e3 * np.quantile(waits[requests // 10 :], 0.99))


def test_so_many_replicas_keep_the_limit_in_a_queue_and_one_fewer_does_not() -> None:
    """The queue knows nothing of the arithmetic; what one replica carries is found as a load search
    does, to 5 %."""
    rates = []
    for seed in range(4):
        low, high = 0.6 * SLOTS / SERVICE_S, SLOTS / SERVICE_S
        while high / low > 1.05:
            middle = (low + high) / 2
            low, high = (
                (middle, high) if p99_wait_ms(middle, 1, seed) <= LIMIT_MS else (low, middle)
            )
        rates.append(low)
    per_replica = told(by_rate(*rates))["requests_per_s"]
    for wanted in (1.7, 2.9, 4.7):
        rate = wanted * per_replica
        count = math.ceil(rate / per_replica)
        assert p99_wait_ms(rate, count, 7) <= LIMIT_MS
        assert p99_wait_ms(rate, count - 1, 7) > LIMIT_MS
