"""A load is cut short where it cannot win and nowhere else: in virtual time, and once over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.loadgen import LoadOptions, measure
from autotune.loadgen.client.requests import Requests
from autotune.loadgen.forecast import Seen, Turnovers, forecast
from autotune.loadgen.pruning import RACED, SDS, Race, Racing
from autotune.loadgen.workloads import load_workload
from tests.loadgen.queue_server import LENGTHS, Load, serve
from tests.loadgen.server import END, STREAM_HEAD, Call, Server, event, usage_event

SLOTS = 8
METRIC = "total_token_throughput"


def drawn(kind, requests=200, seed=0, concurrency=SLOTS):
    return Load(*LENGTHS[kind](requests, np.random.default_rng(seed)), concurrency=concurrency)


def planned(load):
    none = np.zeros(len(load))
    return Requests(load.read, load.written, none, np.full(len(load), -1), 0, load.concurrency or len(load))


def took_s(run):
    return float(run.finished_s.max() - run.sent_s.min())


def against(load, limit_s, metric=METRIC):
    """A race that a load wins that takes less than a limit."""
    amount = {"total_token_throughput": load.read.sum() + load.written.sum(), "request_throughput": len(load)}
    return Racing(Race(metric, float(amount[metric]) / limit_s, least_s=0.0), [planned(load)])


def raced(racing, run, looks=40):
    """When a run is cut short, and what is then thought of it; None when it comes to its end."""
    start_s = float(run.sent_s.min())
    for now_s in start_s + np.linspace(0, took_s(run), looks + 1)[1:-1]:
        if (cut := racing.judge(Seen.until(run, float(now_s)))) is not None:
            return cut
    return None


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("slots", [SLOTS, 10**6])  # the server's own limit, and the client's
def test_a_hopeless_load_is_cut_early_and_its_forecast_holds(kind, slots):
    load = replace(drawn(kind), concurrency=None if slots == SLOTS else SLOTS)
    run = serve(load, slots)
    whole_s = took_s(run)
    cut = raced(against(load, whole_s / 2.5), run)
    assert cut is not None
    assert cut.elapsed_s < 0.6 * whole_s
    forecast_s = cut.elapsed_s + cut.saved_s
    assert abs(np.log(forecast_s / whole_s)) < 2 * cut.sd
    assert cut.metrics["request_throughput"] == pytest.approx(len(load) / forecast_s)
    assert "must reach" in cut.stop.sentence()
    assert "are saved" in cut.sentence()


@pytest.mark.parametrize("kind", LENGTHS)
def test_what_is_as_good_as_asked_runs_to_its_end(kind):
    for seed in range(3):
        load = drawn(kind, seed=seed)
        run = serve(load, SLOTS)
        assert raced(against(load, 1.05 * took_s(run)), run) is None


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("cold", [0.1, 0.2])
def test_a_cold_beginning_does_not_cut_a_winner(kind, cold):
    """Six times as slow for a while, then faster than what it is up against; also where it gets faster bit by bit."""
    load = drawn(kind)
    warm_s = took_s(serve(load, 10**6))
    at_once = serve(load, 10**6, lambda now_s: 6.0 if now_s < cold * warm_s else 1.0)
    by_and_by = serve(load, 10**6, lambda now_s: max(1.0, 6.0 - 5.0 * now_s / (2 * cold * warm_s)))
    for run in (at_once, by_and_by):
        assert raced(against(load, 1.1 * warm_s), run) is None


def test_a_first_window_that_is_slow_is_not_enough_and_a_second_one_is():
    load = drawn("equal")
    run = serve(load, 10**6, lambda now_s: 3.0 if now_s < 6 else 1.0)
    limit_s = 1.2 * took_s(serve(load, 10**6))
    early, late = (Turnovers(Seen.until(run, now_s)).halves() for now_s in (6.0, 12.0))
    assert all(half.surely_above(limit_s, SDS) for half in early)
    assert late[0].surely_above(limit_s, SDS)
    assert not late[1].surely_above(limit_s, SDS)


def test_a_burst_that_is_begun_as_a_whole_is_cut_once_it_is_certain():
    load = drawn("chat", 100, concurrency=None)
    run = serve(load, 10**6)
    limit_s = took_s(run) / 2
    cut = raced(against(load, limit_s), run)
    assert cut is not None
    assert cut.elapsed_s >= limit_s
    assert abs(np.log((cut.elapsed_s + cut.saved_s) / took_s(run))) < 2 * cut.sd


def test_several_load_points_are_one_race():
    """The first takes longer than all were to take: what the second would have taken is as unsure as it is told."""
    loads = [drawn("equal", concurrency=4), drawn("equal", concurrency=8)]
    runs = [serve(load, 10**6) for load in loads]
    whole_s, tokens = sum(map(took_s, runs)), sum(float((load.read + load.written).sum()) for load in loads)
    race = Race(METRIC, tokens / (0.5 * took_s(runs[0])), least_s=0.0)
    cut = raced(Racing(race, [planned(load) for load in loads]), runs[0])
    assert cut is not None
    assert abs(np.log(tokens / cut.metrics[METRIC] / whole_s)) < 2 * cut.sd
    assert cut.sd > 0.1
    # In time with the first, it is judged again in the second.
    racing = Racing(Race(METRIC, tokens / (1.2 * whole_s), least_s=0.0), [planned(load) for load in loads])
    assert raced(racing, runs[0]) is None
    racing.done(took_s(runs[0]))
    slow = serve(loads[1], 10**6, lambda _: 5.0)
    assert raced(racing, slow) is not None


def test_without_known_times_and_tokens_there_is_no_race():
    load = drawn("equal")
    run, requests = serve(load, SLOTS), planned(load)
    race = Race(METRIC, 1e9, least_s=0.0)
    assert raced(Racing(race, [requests]), run) is not None
    assert raced(Racing(race, [replace(requests, send_s=np.arange(len(load)) / 10)]), run) is None
    assert raced(Racing(race, [replace(requests, contents=["text"] * len(load))]), run) is None
    assert raced(Racing(replace(race, least_s=1.0), [requests]), run) is None


@given(
    kind=st.sampled_from(["chat", "equal", "prompts"]),
    slots=st.integers(4, 40),
    part=st.floats(0.02, 0.98),
    later_s=st.floats(0, 1e4),
    slower=st.floats(0.1, 50),
)
@settings(max_examples=15, deadline=None)
def test_what_holds_for_any_forecast(kind, slots, part, later_s, slower):
    run = serve(drawn(kind, 60, seed=slots), slots)
    seen = Seen.until(run, part * took_s(run))
    found = forecast(seen)
    if found is None:
        assert not seen.written.any()
        return
    assert found.duration_s >= seen.elapsed_s * (1 - 1e-9)
    assert 0 < found.sd < 3
    moved = forecast(Seen.until(run.shifted(later_s), later_s + seen.now_s))
    assert moved.duration_s == pytest.approx(found.duration_s, rel=1e-5)
    times = ("sent_s", "first_token_s", "finished_s")
    slow = replace(run, **{name: getattr(run, name) * slower for name in times})
    stretched = forecast(Seen.until(slow, seen.now_s * slower))
    assert stretched.duration_s == pytest.approx(found.duration_s * slower, rel=1e-5)
    assert stretched.sd == pytest.approx(found.sd, rel=1e-4)


async def paced(call: Call) -> None:
    """One token in 25 ms, two in an event."""
    if call.method == "GET":
        await call.answer(200, {"data": [{"id": "m"}]})
        return
    wanted = call.body["max_tokens"]
    await call.write(STREAM_HEAD)
    for _ in range(wanted // 2):
        await asyncio.sleep(0.05)
        await call.stream(event("a b"))
    await call.stream(usage_event(len(call.body["prompt"]), wanted), b"data: [DONE]")
    await call.write(END)


def test_over_http_a_hopeless_load_ends_with_a_forecast_and_a_promising_one_as_ever():
    workload = load_workload("random:8:8:80").with_concurrency(8)
    true_s = 10 * 8 * 0.025
    with Server(paced) as server:
        options = LoadOptions(warm_up=False, workers=1)
        for factor, cut in ((0.5, False), (3.0, True)):
            race = Race("output_throughput", factor * 640 / true_s, least_s=0.0)
            found = measure(server.url, "m", workload, 0, replace(options, race=race))
            assert (found.shortened is not None) is cut
            assert not found.failure
            assert (found.metrics["completed"] == 80) is not cut
            assert found.metrics["output_throughput"] == pytest.approx(640 / true_s, rel=0.25)
    assert found.to_json()["shortened"]["saved_s"] > 0
    assert found.points[0].stopped is not None
    assert set(RACED) <= set(found.metrics)
