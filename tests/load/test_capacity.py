"""The load search against servers whose capacity is known, in virtual time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.load.capacity.judge import (
    UNCONFIRMED,
    error_per_look,
    growth,
    judge,
    least_requests,
    mean_kept,
    share_kept,
)
from autotune.load.capacity.search import (
    CONFIRM_S,
    MARGIN,
    MOST_REQUESTS,
    STEP,
    TOLERANCE,
    Bracket,
    LoadSearch,
    Probe,
    check_search,
)
from autotune.load.metrics.formulas import Slo, summarize_loads
from autotune.load.metrics.records import RequestRecords
from autotune.load.workloads import load_workload
from tests.load.queues import Queue, find, open_queue, records_of

P99 = (Slo.parse("p99_ttft_ms<=1000"),)


def test_what_is_promised() -> None:
    """The figures that the documentation states."""
    assert (CONFIRM_S, UNCONFIRMED, MARGIN, STEP, MOST_REQUESTS) == (600, 0.2, 0.02, 0.02, 100_000)
    assert TOLERANCE == 0.1
    # 5 % in all, of two looks: ln(0.025) / ln(0.99) requests, and with two limits ln(0.0125) /
    # ln(0.99).
    assert error_per_look(P99) == 0.025
    assert least_requests(P99) == 368
    assert least_requests([*P99, Slo.parse("p99_tpot_ms<=50")]) == 437
    assert least_requests([Slo.parse("mean_ttft_ms<=1000")]) == 20


@given(capacity=st.floats(0.2, 900), start=st.integers(1, 1000), whole=st.booleans())
def test_the_bracket_of_any_monotone_server_closes_around_its_capacity(
    capacity: float, start: int, whole: bool
) -> None:
    bracket = Bracket(1 if whole else 0.1, 1000, start, whole)
    tried = 0
    while (load := bracket.next()) is not None:
        assert load not in bracket.verdicts
        assert bracket.lightest <= load <= bracket.heaviest
        bracket.verdicts[load] = load <= capacity
        tried += 1
    assert tried <= 2 + math.log2(1000 / 0.1) + 3
    assert bracket.not_monotone is None
    if whole and capacity < 1:
        assert (bracket.kept, bracket.broken) == (None, 1)
        return
    assert bracket.kept is not None
    assert bracket.kept <= capacity
    assert bracket.broken is not None
    assert bracket.broken > capacity
    assert bracket.broken <= bracket.kept * (1 + TOLERANCE) or (
        whole and bracket.broken == bracket.kept + 1
    )


def test_the_heaviest_load_may_be_kept() -> None:
    found, _ = find("concurrency", [Slo.parse("p99_ttft_ms<=60000")], Queue(100), most=100)
    assert (found.capacity, found.broken_at, found.missed) == (100, None, None)
    kept, shape = found.sentences()
    assert (
        kept
        == "100 in flight meet every limit, the heaviest load tried: the capacity may be higher"
    )
    ramp_s = found.metrics["capacity_ramp_s"]
    assert ramp_s > 0
    assert shape == f"the streams start spread over {ramp_s:.3g} s, not all at once"


@settings(max_examples=25, deadline=None)
@given(capacity=st.integers(1, 500))
def test_the_concurrency_of_a_queue_is_found(capacity: int) -> None:
    """Everybody in flight is served in turn, 10 ms each: n in flight wait n times as long."""
    found, _ = find("concurrency", [Slo.parse(f"p99_ttft_ms<={10 * capacity + 5}")], Queue(100))
    assert found.broken_at is not None
    assert found.capacity <= capacity < found.broken_at
    assert found.broken_at <= max(found.capacity * (1 + TOLERANCE), found.capacity + 1)


@pytest.mark.parametrize(
    ("spread", "capacity"),
    [(0.0, 98.07), (1.0, 100 - math.log(100) / 1.0)],
    ids=["constant", "exponential"],
)
def test_the_rate_of_a_queue_is_found(spread: float, capacity: float) -> None:
    """100 services per second, 99 of 100 within a second. Exponential ones: what is in the queue is
    exponential too, at rate (service - arrival), see any text on M/M/1. Constant ones: by 400,000
    requests in virtual time.
    """
    for seed in range(5):
        found, _ = find("rate", P99, Queue(100, spread, seed), seed)
        assert found.capacity == pytest.approx(capacity, rel=TOLERANCE)
        assert found.metrics["capacity_request_rate"] == found.capacity


@pytest.mark.parametrize(
    ("spread", "capacity"), [(0.0, 98.07), (1.0, 95.39)], ids=["constant", "exponential"]
)
def test_the_rate_that_is_recommended_holds(spread: float, capacity: float) -> None:
    """Ten minutes at each rate found, eight seeds. 95.39: the wait in M/M/1 is exponential at 100 -
    rate."""
    off, held = [], 0
    for seed in range(8):
        found, _ = find("rate", P99, Queue(100, spread, seed), seed, confirm_s=CONFIRM_S)
        off.append(found.capacity / capacity - 1)
        assert found.metrics["completed"] >= 600 * found.capacity
        again = Queue(100, spread, 100 + seed).send(
            Probe("rate", found.capacity, round(600 * found.capacity), 0), seed
        )
        held += summarize_loads([again])["p99_ttft_ms"] <= 1000
    assert max(map(abs, off)) <= 0.1
    assert abs(sum(off) / len(off)) <= 0.045  # of eight, the mean itself is known to 1 %
    assert held >= 7


def test_what_only_a_long_load_breaks_is_not_recommended() -> None:
    """After two minutes at more than 60 requests per second it is half as fast, as a node that
    becomes too warm."""

    class Warm(Queue):
        def send(self, probe: Probe, seed: int) -> RequestRecords:
            self.slower = lambda load: 2.0 if load > 60 and probe.requests > 120 * load else 1.0
            return super().send(probe, seed)

    found, _ = find("rate", P99, Warm(100), confirm_s=CONFIRM_S)
    assert 60 / 1.03**2 <= found.capacity <= 60
    assert find("rate", P99, Warm(100))[0].capacity > 90


def test_a_backlog_that_grows_is_told_from_one_that_wanders() -> None:
    grows = {rate: [] for rate in (95.0, 103.0)}
    for seed in range(40):
        for rate, found in grows.items():
            least, mean, most = growth(
                Queue(100, 1.0, seed).send(Probe("rate", rate, 30_000, 0), seed), 0.05
            )
            assert least <= mean <= most
            found.append(least > 0)
    assert sum(grows[95.0]) <= 4
    assert sum(grows[103.0]) >= 30
    # No limit sees that by itself: a load that grows by 3 % is broken all the same.
    run = Queue(100).send(Probe("rate", 103.0, 30_000, 0), 0)
    judged = judge([Slo.parse("p99_tpot_ms<=50")], [run], summarize_loads([run]), 103.0, last=True)
    assert judged.kept is False
    assert judged.broken is not None
    assert judged.broken.metric == "request_throughput"


def test_a_small_growth_is_looked_at_twice() -> None:
    """Services of a long tail may let a light load look as if it grew; one that grows does so
    again."""
    run = Queue(100).send(Probe("rate", 103.0, 30_000, 0), 0)
    slos, metrics = [Slo.parse("p99_tpot_ms<=50")], summarize_loads([run])
    assert judge(slos, [run], metrics, 103.0, last=False).kept is None
    assert judge(slos, [run, run], metrics, 103.0, last=True).kept is False
    assert judge(slos, [run], metrics, 103.0, last=False, confirm=True).kept is False
    # Twice what can be served is plain at once.
    run = Queue(100).send(Probe("rate", 200.0, 3_000, 0), 0)
    assert judge(slos, [run], summarize_loads([run]), 200.0, last=False).kept is False


def test_a_server_that_dies_of_a_load_leaves_the_heaviest_that_it_kept() -> None:
    search = LoadSearch("concurrency", P99, load_workload("random:1:1:1000"))
    server, dead = Queue(100), False
    while (probe := search.ask()) is not None:
        if dead:
            search.give_up()
            break
        records, dead = server.send(probe, 0), probe.load > 50
        search.tell(
            records_of(
                records.sent_s, records.finished_s, np.arange(len(records)) < (20 if dead else 1e9)
            )
        )
    found = search.found
    assert (found.capacity, found.broken_at, found.died_at) == (32, 64, 64)
    assert found.metrics["capacity_died_at"] == 64
    assert "64 in flight" in found.sentences()[-1]


def test_a_server_that_is_too_slow_by_itself_is_told_after_one_more_load() -> None:
    for by in ("concurrency", "rate"):
        found, lines = find(by, [Slo.parse("p99_ttft_ms<=8")], Queue(100))
        assert len(lines) == 2
        assert found.capacity == 0
        assert found.missed is not None
        broken, load = found.missed
        assert (broken.slo, broken.limit) == ("p99_ttft_ms<=8", 8)
        assert broken.value == pytest.approx(10)
        assert load == (1 if by == "concurrency" else 100)
        assert found.sentences()[0].startswith("violated at the lightest load, 1")
        assert found.sentences()[0].endswith("p99_ttft_ms<=8 by 25 % (10.0)")
        assert found.metrics["capacity_total_token_throughput"] == 0
        assert found.metrics["p99_ttft_ms"] == pytest.approx(10)


def test_a_lower_load_that_breaks_what_a_higher_one_keeps_is_told() -> None:
    """By itself a request takes a hundred times as long, as on a node that sleeps."""
    found, _ = find("concurrency", P99, Queue(100, slower=lambda load: 150.0 if load == 1 else 1.0))
    assert found.capacity == pytest.approx(100, rel=TOLERANCE)
    assert found.not_monotone == (1, found.capacity)
    assert (
        found.sentences()[-1]
        == f"not monotone: 1 in flight violate a limit that {found.capacity:g} in flight meet"
    )


def test_a_rate_that_is_not_served_is_broken_though_its_requests_are_fast_enough() -> None:
    found, lines = find("rate", [Slo.parse("p99_tpot_ms<=50")], Queue(100))
    assert found.capacity == pytest.approx(100, rel=TOLERANCE)
    assert any("are served, so the queue grows" in line for line in lines)


def test_a_load_whose_requests_fail_is_broken() -> None:
    search = LoadSearch("concurrency", P99, load_workload("random:1:1:1000"))
    server = Queue(100)
    while (probe := search.ask()) is not None:
        records = server.send(probe, 0)
        search.tell(
            records_of(
                records.sent_s, records.finished_s, np.arange(len(records)) >= (probe.load > 20)
            )
        )
    assert search.found.capacity in (19, 20)


def test_the_curve_has_every_load_and_the_metrics_are_those_of_the_capacity() -> None:
    found, _ = find("concurrency", P99, Queue(100))
    curve = found.metrics["curve"]
    loads = [row["concurrency"] for row in curve]
    assert loads == sorted(set(loads))
    assert loads[0] == 1
    row = next(row for row in curve if row["concurrency"] == found.capacity)
    assert row["kept"]
    assert row["p99_ttft_ms"] == found.metrics["p99_ttft_ms"] <= 1000
    assert found.metrics["capacity_total_token_throughput"] == row["steady_total_token_throughput"]
    assert found.metrics["capacity_total_token_throughput"] == pytest.approx(12 * 100, rel=0.02)
    assert not any(row["kept"] for row in curve if row["concurrency"] > found.capacity)


@pytest.mark.parametrize("share", [0.004, 0.02])
def test_a_verdict_on_a_quantile_is_wrong_as_seldom_as_stated(share: float) -> None:
    """Requests that fare independently of each other; at a share of 1 % they would be at the
    limit."""
    draw, wrong, rounds = np.random.default_rng(1), 0, 300
    for _ in range(rounds):
        values = np.empty(0)
        for look in range(2):
            more = least_requests(P99) if not look else len(values)
            values = np.concatenate([values, 2000.0 * (draw.random(more) < share)])
            kept = share_kept(values, 1000.0, 0.01, error_per_look(P99))
            if kept is not None:
                break
        wrong += kept is not None and kept is not (share < 0.01)
    assert wrong <= 0.05 * rounds


def test_requests_that_fare_alike_count_for_fewer() -> None:
    """500 requests without one beyond the limit are enough, unless what is slow comes in long
    waves."""
    draw = np.random.default_rng(2)
    alone = draw.random(500)
    waves = np.repeat(draw.random(10), 50)
    assert share_kept(alone, 1.0, 0.01, error_per_look(P99)) is True
    assert share_kept(waves, 1.0, 0.01, error_per_look(P99)) is None


def test_a_mean_is_judged_by_its_spread() -> None:
    draw = np.random.default_rng(3)
    values = draw.standard_normal(400)
    assert mean_kept(values, 0.5, 0.01) is True
    assert mean_kept(values, -0.5, 0.01) is False
    assert mean_kept(values, float(values.mean()), 0.01) is None


def test_an_open_load_is_decided_at_the_last_look() -> None:
    records = records_of(
        np.arange(500.0), np.arange(500.0) + np.where(np.arange(500) % 100 == 0, 2.0, 0.1)
    )
    metrics = summarize_loads([records])
    open_, decided = (judge(P99, [records], metrics, None, last) for last in (False, True))
    assert open_.kept is None
    assert decided.kept is (metrics["p99_ttft_ms"] <= 1000)


@pytest.mark.parametrize(
    ("workload", "slos", "words"),
    [
        ("sharegpt-c4", P99, "sharegpt-c4: it fixes a load: 4 at a time"),
        ("sweep", P99, "sweep: it fixes 6 load points"),
        ("offline", P99, "offline: it fixes 18 load points"),
        ("sharegpt", (), "needs a latency limit"),
        ("sharegpt", (Slo.parse("output_throughput>=100"),), "needs a latency limit"),
        ("sharegpt", (Slo.parse("p99_ttft_ms>=100"),), "needs a latency limit"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    workload: str, slos: tuple[Slo, ...], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        check_search("rate", load_workload(workload), slos)


def test_a_trace_is_searched_by_its_speed_up_whole_at_every_load(tmp_path: Path) -> None:
    """120 requests in pairs, 1 s apart: the second of a pair waits for one service."""
    path = tmp_path / "t.jsonl"
    row = '{{"timestamp": {at}, "input_length": 10, "output_length": 2}}'
    path.write_text("\n".join(row.format(at=1000 * (i // 2)) for i in range(120)))
    workload, sent = load_workload(f"trace:{path}"), []
    limit = (Slo.parse("mean_ttft_ms<=200"),)
    with pytest.raises(BadInput, match="--find-load rate finds the highest feasible speedup"):
        check_search("concurrency", workload, limit)
    search = LoadSearch("rate", limit, workload, confirm_s=CONFIRM_S)
    while (probe := search.ask()) is not None:
        at_s = probe.workload(workload).draw(0, probe.seed(0)).send_s
        at_s = at_s if probe.by == "rate" else np.arange(probe.requests) * 1.0
        search.tell(records_of(at_s, open_queue(at_s, np.full(len(at_s), 0.1))))
        sent.append((probe.by, probe.requests))
    assert set(sent[1:]) == {("rate", 120)}
    # A pair is served in 0.2 s and a mean of 0.15 s is within the limit, until pairs come faster
    # than that.
    assert search.found.metrics["capacity_speedup"] == pytest.approx(5.0, rel=0.1)
    assert "times as fast as it was recorded" in " ".join(search.found.sentences())
