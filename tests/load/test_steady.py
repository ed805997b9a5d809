"""The steady window against servers whose steady throughput is known, and what must hold for any
run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.metrics.formulas import (
    DRAIN_CUT,
    WHOLE_TURNOVERS,
    steady,
    steady_total_token_throughput,
    summarize,
)
from autotune.load.metrics.records import RequestRecords
from tests.load.queue_server import LENGTHS, Load, serve
from tests.load.test_metrics import records, runs

SLOTS = 16
CLOSED = 10**6  # slots of a server that the client's concurrency never fills


def sustained(load):
    """Tokens per s that a server holds for ever: those of 20 full batches of requests in the middle
    of a long run."""
    run = serve(load.repeated(40 * SLOTS // len(load) + 1, np.random.default_rng(9)), SLOTS)
    begin_s, end_s = np.sort(run.finished_s)[[10 * SLOTS - 1, 30 * SLOTS - 1]]
    inside = (run.finished_s > begin_s) & (run.finished_s <= end_s)
    return (run.input_tokens + run.output_tokens)[inside].sum() / (end_s - begin_s)


def at_random(load, rate, generator):
    send_s = np.cumsum(generator.exponential(1 / rate, len(load)))
    return replace(load, send_s=send_s - send_s[0])


def drawn(kind, requests, seed=0):
    return Load(*LENGTHS[kind](requests, np.random.default_rng(seed)))


# The rules that were compared: each gives begin and end.


def first_to_last(begun_s, ended_s, share):
    moments_s = np.concatenate([begun_s, ended_s])
    order = np.argsort(moments_s, kind="stable")
    under_way = np.cumsum(np.repeat([1, -1], len(begun_s))[order])
    busy = np.flatnonzero(under_way >= share * under_way.max())
    return moments_s[order][busy[0]], moments_s[order][busy[-1] + 1]


def half_in_flight(run):
    return first_to_last(run.sent_s, run.finished_s, 0.5)


def half_answered(run):
    return first_to_last(run.first_token_s, run.finished_s, 0.5)


def first_wave(run):
    reached_s = first_to_last(run.sent_s, run.finished_s, 1.0)[0]
    begin_s = run.first_token_s[run.sent_s <= reached_s].max()
    return begin_s, first_to_last(run.sent_s, run.finished_s, 0.9)[1]


def whole_turnovers(run):
    window = steady(run)
    return window.begin_s, window.end_s


OTHERS = (half_in_flight, half_answered, first_wave)


def throughput(run, window):
    begin_s, end_s = window
    if end_s <= begin_s:
        return np.inf  # a burst has no window under some rules
    read = run.input_tokens[(run.first_token_s > begin_s) & (run.first_token_s <= end_s)].sum()
    return (read + run.token_n[(run.token_s > begin_s) & (run.token_s <= end_s)].sum()) / (
        end_s - begin_s
    )


@pytest.fixture(scope="module")
def errors():
    """Kind of load to rule to its relative errors over lengths and numbers of requests."""
    table = {
        kind: {rule: [] for rule in (whole_turnovers, *OTHERS)}
        for kind in ("burst", "closed", "open")
    }
    for number, (kind, per_slot) in enumerate((k, p) for k in LENGTHS for p in (3, 3.6, 5)):
        load, generator = drawn(kind, int(per_slot * SLOTS), number), np.random.default_rng(number)
        truth, tokens = sustained(load), float((load.read + load.written).mean())
        sent = at_random(load, 0.7 * truth / tokens, generator)
        cases = {
            "burst": (serve(load, SLOTS), truth),
            "closed": (serve(replace(load, concurrency=SLOTS), CLOSED), truth),
            "open": (serve(sent, SLOTS), (len(load) - 1) / sent.send_s[-1] * tokens),
        }
        for name, (run, true) in cases.items():
            for rule, found in table[name].items():
                found.append(abs(throughput(run, rule(run)) / true - 1))
    return table


@pytest.mark.parametrize(("load", "limit"), [("burst", 0.03), ("closed", 0.03), ("open", 0.08)])
def test_whole_turnovers_are_near_the_truth_whatever_the_load(errors, load, limit):
    assert np.mean(errors[load][whole_turnovers]) < limit


def test_over_all_loads_no_other_rule_is_as_near(errors):
    mean = {
        rule: np.mean([error for load in errors.values() for error in load[rule]])
        for rule in (*OTHERS,)
    }
    ours = np.mean([error for load in errors.values() for error in load[whole_turnovers]])
    assert ours < min(mean.values()), (ours, mean)


@pytest.mark.parametrize("per_slot", [3, 3.6, 4.5, 7])
def test_waves_of_one_length_do_not_bias_it(per_slot):
    """The requests begin and end together; windows of other rules weigh prompts or answers too
    much."""
    load = drawn("equal", int(per_slot * SLOTS))
    for run in (serve(load, SLOTS), serve(replace(load, concurrency=SLOTS), CLOSED)):
        assert steady(run).metrics["total_token_throughput"] == pytest.approx(
            sustained(load), rel=0.02
        )


def test_the_summary_has_the_same_number():
    run = serve(drawn("chat", 100), SLOTS)
    window = steady(run)
    assert (
        summarize(run)["steady_total_token_throughput"] == window.metrics["total_token_throughput"]
    )


def test_figures_of_a_window_by_hand():
    """One at a time, 10 tokens read and 2 written per request; the first one, before the window,
    waited longer."""
    first = np.arange(4) + 0.5
    run = records(
        [-3, 1, 2, 3], first, first + 0.5, [10] * 4, [2] * 4,
        token_s=np.concatenate([first, first + 0.5]), token_n=[1] * 8,
    )  # fmt: skip
    window = steady(run)
    assert (window.begin_s, window.end_s, window.rule, window.reason) == (
        0.5,
        3.5,
        WHOLE_TURNOVERS,
        "",
    )
    m = window.metrics
    assert (m["duration"], m["completed"], m["request_throughput"]) == (3, 3, 1)
    assert (m["output_throughput"], m["total_token_throughput"]) == (2, 12)
    assert m["share"] == 36 / 48
    assert (m["mean_ttft_ms"], m["mean_tpot_ms"], m["p99_e2el_ms"]) == (500, 500, 1000)


@pytest.mark.parametrize("requests", [1, SLOTS, 3 * SLOTS - 1])
def test_too_few_requests_are_no_steady_state_and_it_is_said(requests):
    run = serve(drawn("equal", requests), min(SLOTS, requests))
    if requests == 1:
        run = replace(run, finished_s=run.finished_s + 1)
    window = steady(run)
    assert not window.metrics
    assert window.rule == DRAIN_CUT
    assert f"needs {3 * min(SLOTS, requests)} or more" in window.reason
    assert steady(run).drift is None
    assert (
        steady_total_token_throughput(run) > 0
    )  # the summary's number leaves the drain out all the same


def test_nothing_that_succeeded_is_no_steady_state():
    for run in (RequestRecords.empty(), records([0], [1], [2], [3], [4], ok=[False])):
        assert steady(run).reason == "no request succeeded"
        assert steady_total_token_throughput(run) == 0
        assert steady(run).drift is None


def test_answers_that_are_not_streamed_are_counted_when_they_are_sent():
    load = replace(drawn("equal", 8 * SLOTS), concurrency=SLOTS)
    run = serve(load, CLOSED)
    whole = replace(run, first_token_s=run.finished_s, token_s=np.empty(0), token_n=np.empty(0))
    assert steady(whole).metrics["total_token_throughput"] == pytest.approx(
        sustained(load), rel=0.02
    )


def test_a_server_that_stays_the_same_does_not_drift_and_one_that_warms_up_does():
    load = replace(drawn("equal", 8 * SLOTS), concurrency=SLOTS)
    same = serve(load, CLOSED)
    third_s = float(same.finished_s.max()) / 3
    slow_at_first = serve(load, CLOSED, lambda now_s: 2.0 if now_s < third_s else 1.0)
    slow_at_last = serve(load, CLOSED, lambda now_s: 2.0 if now_s > 2 * third_s else 1.0)
    assert abs(steady(same).drift) < 0.01
    assert steady(slow_at_first).drift > 0.1
    assert steady(slow_at_last).drift < -0.1


@given(runs())
def test_what_holds_for_any_run(run):
    window = steady(run)
    assert np.isfinite(steady_total_token_throughput(run))
    assert bool(window.metrics) != bool(window.reason)
    if not run.ok.any():
        return
    done = run.successful()
    assert done.sent_s.min() <= window.begin_s <= window.end_s <= done.finished_s.max()
    assert all(np.isfinite(value) and value >= 0 for value in window.metrics.values())
    if window.metrics:
        assert window.begin_s < window.end_s
        assert window.metrics["share"] <= 1
        assert window.metrics["completed"] <= len(done)


@given(runs(), st.integers(1, 10**6))
def test_when_a_run_began_and_what_failed_in_it_do_not_matter(run, later_s):
    done = run.successful()
    times = ("sent_s", "first_token_s", "finished_s", "token_s")
    moved = replace(
        done, **{name: getattr(done, name) + later_s / 64 for name in times}
    )  # exact in binary
    if len(moved):
        expected, found = steady_total_token_throughput(run), steady_total_token_throughput(moved)
        assert found == pytest.approx(expected, rel=1e-3)
        assert steady(moved).rule == steady(run).rule
