"""What must hold of the metrics of any run, whatever the numbers."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.load.client.messages import RequestLog
from autotune.load.client.stream import OK, Exchange, OutcomeKind, RequestOutcome, tally
from autotune.load.metrics.formulas import Slo, summarize, tpot_ms
from autotune.load.metrics.records import LATENCIES, RequestRecords
from autotune.load.metrics.table import METRICS
from autotune.load.prefix_cache import CacheUse
from tests.load.test_metrics import runs

PER_SECOND_OF_THE_CLOCK = {"max_output_tokens_per_s", "max_concurrent_requests"}
"""Counted in whole seconds, so that another clock counts others."""

TIMES = ("sent_s", "first_token_s", "finished_s", "itl_ms", "token_s")
COLUMNS = ("sent_s", "first_token_s", "finished_s", "input_tokens", "output_tokens", "ok")


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    return one == pytest.approx(other, rel=1e-9, abs=1e-9)


def latencies(run: RequestRecords) -> dict[str, np.ndarray]:
    done = run.successful()
    return {
        "ttft": (done.first_token_s - done.sent_s) * 1e3,
        "tpot": tpot_ms(done)[done.output_tokens > 1],
        "itl": done.itl_ms,
        "e2el": (done.finished_s - done.sent_s) * 1e3,
    }


def interpolated(values: np.ndarray, percent: float) -> float:
    """Between the two nearest ranks, by hand."""
    ordered, place = sorted(values.tolist()), (len(values) - 1) * percent / 100
    low = int(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)


@given(runs())
def test_percentiles_are_ordered_and_interpolated_linearly(run: RequestRecords):
    metrics = summarize(run)
    for name in ("ttft", "tpot", "itl", "e2el"):
        values = latencies(run)[name]
        if not len(values):
            assert [metrics[f"{kind}_{name}_ms"] for kind in ("mean", "std", "median", "p99")] == [
                0
            ] * 4
            continue
        mean, *ranks = (
            metrics[f"{kind}_{name}_ms"] for kind in ("mean", "median", "p90", "p95", "p99")
        )
        assert sorted([values.min(), *ranks, values.max()]) == [values.min(), *ranks, values.max()]
        assert values.min() <= mean * (1 + 1e-12)
        assert mean <= values.max() * (1 + 1e-12)
        assert 0 <= metrics[f"std_{name}_ms"] <= values.max() - values.min() + 1e-9
        for percent, value in zip((50, 90, 95, 99), ranks, strict=True):
            assert value == np.percentile(values, percent, method="linear")
            assert value == pytest.approx(interpolated(values, percent), rel=1e-9, abs=1e-9)


SLOS = st.sampled_from(
    [f"{kind}_{name}_ms" for kind in ("mean", "p99") for name in ("ttft", "tpot", "e2el")]
)


@given(runs(), SLOS, st.floats(0, 2e5), st.floats(0, 2e5), st.lists(SLOS, max_size=2))
def test_goodput_grows_with_the_limits_up_to_the_throughput(run, metric, one, other, more):
    def goodput(*slos: Slo) -> float:
        return float(summarize(run, slos)["request_goodput"])

    loose, strict = (
        Slo(metric=metric, sense="<=", limit=limit) for limit in (max(one, other), min(one, other))
    )
    others = [Slo(metric=name, sense="<=", limit=one) for name in more]
    assert (
        0 <= goodput(strict) <= goodput(loose) <= goodput() == summarize(run)["request_throughput"]
    )
    assert goodput(strict, *others) <= goodput(strict)
    assert goodput(Slo(metric=metric, sense="<=", limit=1e12)) == goodput()


@given(runs())
def test_throughputs_are_tokens_over_one_duration(run: RequestRecords):
    metrics = summarize(run)
    done, seconds = run.successful(), metrics["duration"]
    assert seconds == run.finished_s.max() - run.sent_s.min()
    assert metrics["total_token_throughput"] == pytest.approx(
        metrics["output_throughput"] + done.input_tokens.sum() / seconds, rel=1e-9
    )
    assert metrics["request_throughput"] * seconds == pytest.approx(len(done))
    assert 0 <= metrics["max_concurrent_requests"] <= len(done)
    assert metrics["max_output_tokens_per_s"] <= done.output_tokens.sum() + 1e-6


@given(runs(), st.integers(-4, 6))
def test_a_slower_clock_scales_every_metric_by_its_power(run: RequestRecords, power: int):
    """By powers of two, which round nothing, so that no two moments become one."""
    slower = replace(run, **{name: getattr(run, name) * 2.0**power for name in TIMES})
    metrics, scaled = summarize(run), summarize(slower)
    for name in metrics.keys() - PER_SECOND_OF_THE_CLOCK:
        assert scaled[name] == pytest.approx(
            metrics[name] * 2.0 ** (-power * METRICS[name].time_power), rel=1e-12
        )


@given(runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_requests_changes_nothing(run: RequestRecords, random):
    order = list(range(len(run)))
    random.shuffle(order)
    shuffled = replace(run, **{name: getattr(run, name)[order] for name in COLUMNS})
    assert same(summarize(shuffled), summarize(run))


def exchange(times_us: list[int], read: int, extra: int, ok: bool) -> Exchange:
    """A request that was sent at the first of these times, and had its events at the others."""
    sent, *came = (time * 1000 for time in sorted(times_us))
    request = Exchange(len(came))
    request.sent_ns, request.finished_ns = sent, came[-1]
    request.events.times_ns = array("q", came)
    request.usage = (read, len(came) + extra, read // 2) if ok else None
    request.outcome = OK if ok else RequestOutcome(OutcomeKind.CLOSED, "gone")
    return request


EXCHANGES = st.lists(
    st.builds(
        exchange,
        st.lists(st.integers(0, 10**7), min_size=2, max_size=12, unique=True),
        st.integers(1, 500),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(EXCHANGES, st.integers(1, 5), st.data())
def test_a_load_that_several_workers_share_has_the_metrics_of_the_whole(
    requests, workers: int, data: st.DataObject
):
    def log(part: list[Exchange]) -> RequestLog:
        return RequestLog.from_exchanges(part, [0] * len(part), np.zeros(len(part)))

    at = data.draw(
        st.lists(st.integers(0, workers - 1), min_size=len(requests), max_size=len(requests))
    )
    parts = [
        [r for r, worker in zip(requests, at, strict=True) if worker == number]
        for number in range(workers)
    ]
    whole, merged = (
        log(requests),
        RequestLog.merged([log(part) for part in parts], [np.arange(len(part)) for part in parts]),
    )
    assert same(summarize(merged.records), summarize(whole.records))
    assert (tally(merged.outcomes), len(merged)) == (tally(whole.outcomes), len(whole))
    assert merged.length_error == pytest.approx(whole.length_error)
    assert CacheUse.of_answers(merged) == CacheUse.of_answers(whole)
    assert sorted(merged.expected_tokens) == sorted(whole.expected_tokens)
    for name in ("retries", "send_delay_s", "cached_tokens", "chunks"):
        assert len(getattr(merged, name)) == len(whole)


@given(runs(), st.floats(0, 300))
def test_the_steady_window_lies_within_the_run(run: RequestRecords, after_s: float):
    """Shown from outside: let one token come at any moment, and see whether, and over what span, it
    is counted."""
    done = run.successful()
    assume(len(done))
    begin_s, end_s = done.sent_s.min(), done.finished_s.max()
    token_s = np.array([begin_s + after_s])
    probe = replace(run, input_tokens=np.zeros(len(run)), token_s=token_s, token_n=np.ones(1))
    rate = summarize(probe)["steady_total_token_throughput"]
    if rate:
        assert token_s <= end_s
        assert 1 / rate <= (end_s - begin_s) * (1 + 1e-12)


def test_every_latency_is_looked_at_here():
    assert set(latencies(RequestRecords.empty())) == set(LATENCIES)
