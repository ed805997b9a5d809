"""A run is stopped only when nothing that can still happen would save it: proved by letting anything happen."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.loadgen.early_stop import EarlyStop, LoadTotals, stop_reason
from autotune.metrics.formulas import METRICS, Slo, summarize
from autotune.metrics.records import LATENCIES, QUANTILES, RequestRecords
from tests.loadgen.queue_server import Load, serve

LATENCY_METRICS = [f"{statistic}_{latency}_ms" for statistic in ("mean", *QUANTILES) for latency in LATENCIES]
RATES = ["total_token_throughput", "output_throughput", "request_throughput", "request_goodput"]
OTHERS = [*RATES, "completed", "duration", "failed"]


@dataclass(frozen=True)
class Moment:
    """A load that is under way: what was seen of it until now."""

    seen: RequestRecords
    now_s: float
    plan: LoadTotals
    read: np.ndarray
    written: np.ndarray

    def judged(self, must_beat=None, slos=()):
        return stop_reason(self.seen, self.now_s, self.plan, must_beat, slos)


def planned(read, written, last_send_s=-np.inf):
    return LoadTotals(len(read), float(read.sum()), float(written.sum()), last_send_s)


def seen_at(run, now_s, last_send_s=-np.inf):
    """What was known of a finished run at an earlier moment; the requests are in the order of sending."""
    sent = run.sent_s <= now_s
    ended = run.finished_s <= now_s
    unknown = np.where(ended, 0.0, np.nan)
    columns = (
        run.sent_s,
        np.where(run.first_token_s <= now_s, run.first_token_s, np.nan),
        run.finished_s + unknown,
        run.input_tokens + unknown,
        run.output_tokens + unknown,
        run.ok & ended,
    )
    seen = RequestRecords(*(column[sent] for column in columns), itl_ms=gaps_ms(run, sent & ended & run.ok))
    plan = planned(run.input_tokens, run.output_tokens, last_send_s)
    return Moment(seen, now_s, plan, run.input_tokens, run.output_tokens)


def gaps_ms(run, chosen):
    """Gaps of answers whose tokens came evenly."""
    written = run.output_tokens[chosen].astype(int)
    gap_ms = (run.finished_s - run.first_token_s)[chosen] / np.maximum(written - 1, 1) * 1e3
    return np.repeat(gap_ms, np.maximum(written - 1, 0))


# Any run, any moment of it, and anything that may come after that moment; times in whole ms. The arrays come from
# numpy's generator, as drawing them one by one takes most of a test's time.

generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def some_s(generator, size):
    """Times in s: many 0, the others up to a limit that is small or large."""
    return generator.integers(0, generator.choice([1, 20, 200]) + 1, size) * generator.integers(0, 2, size) / 1000


@st.composite
def finished_runs(draw):
    n, generator = draw(st.integers(1, 25)), draw(generators)
    sent = np.sort(some_s(generator, n))
    first = sent + some_s(generator, n)
    finished = first + some_s(generator, n) + 0.001
    read, written = generator.integers(1, 50, (2, n)).astype(float)
    ok = generator.random(n) < generator.choice([0, 0.7, 1])
    run = RequestRecords(sent, first, finished, read, written, ok)
    return replace(run, itl_ms=gaps_ms(run, ok))


@st.composite
def moments(draw, run):
    """Any moment of a run, late ones among them, with its schedule known or not."""
    last_s = float(run.finished_s.max() - run.sent_s.min())
    now_s = float(run.sent_s.min()) + draw(st.sampled_from([0, 0.1, 0.3, 0.6, 0.8, 0.95, 1, 1.5])) * last_s
    last_send_s = float(run.sent_s.max()) if draw(st.booleans()) else -np.inf
    return seen_at(run, now_s, last_send_s)


@st.composite
def endings(draw, moment):
    """The whole run, the part after the moment made anew; half of them as kind as can be but for the failures."""
    generator, kind = draw(generators), draw(st.booleans())
    seen, n = moment.seen, moment.plan.requests
    later = n - len(seen)

    def wait_s(size):
        return np.zeros(size) if kind else some_s(generator, size)

    earliest_s = np.full(later, moment.now_s)
    earliest_s[-1:] = np.maximum(earliest_s[-1:], moment.plan.last_send_s)
    sent = np.concatenate([seen.sent_s, earliest_s + wait_s(later)])
    known = np.concatenate([seen.first_token_s, np.full(later, np.nan)])
    first = np.where(np.isnan(known), np.maximum(sent, moment.now_s) + wait_s(n), known)
    over = np.concatenate([seen.finished_s, np.full(later, np.nan)])
    finished = np.where(np.isnan(over), np.maximum(first, moment.now_s) + wait_s(n), over)
    succeeds = generator.random(n) < draw(st.sampled_from([0, 0.5, 1]))
    if draw(st.booleans()):  # those that have waited fail, those that have not been sent do not
        succeeds = np.arange(n) >= len(seen)
    ok = np.where(np.isnan(over), succeeds, np.concatenate([seen.ok, np.ones(later, bool)]))
    run = RequestRecords(sent, first, finished, moment.read, moment.written, ok)
    return replace(run, itl_ms=gaps_ms(run, ok))


def limits_around(run):
    """SLOs on every metric that is judged, which the run breaks, just keeps, or keeps."""
    final = summarize(run)
    for metric in [*LATENCY_METRICS, *OTHERS]:
        for factor in (0.1, 0.5, 0.9, 1):
            more = METRICS[metric].maximise
            limit = final[metric] / factor if more else final[metric] * factor
            yield Slo(metric=metric, sense=">=" if more else "<=", limit=limit)


def failures(run, more):
    """An SLO that allows so many more failures than the run has; None = no such SLO."""
    if more is None:
        return []
    return [Slo(metric="failed", sense="<=", limit=int((~run.ok).sum()) + more)]


@settings(max_examples=100)
@given(st.data(), finished_runs(), st.sampled_from([None, 0, 1, 5]))
def test_a_lost_slo_is_broken_however_the_run_ends(data, run, more_failures):
    moment = data.draw(moments(run))
    finals = [summarize(data.draw(endings(moment))) for _ in range(4)]
    allowed = failures(run, more_failures)
    for slo in limits_around(run):
        stop = moment.judged(slos=[slo, *allowed])
        for final in finals if stop else ():
            lost = {each.metric for each in [slo, *allowed] if each.violation(final[each.metric]) > 0}
            assert lost & {stop.metric, "failed"}
            if stop.reason == "must be at most" and "failed" not in lost:
                assert final[stop.metric] >= stop.bound * (1 - 1e-9)
            if stop.reason == "must be at least":
                assert final[stop.metric] <= stop.bound * (1 + 1e-9)


@settings(max_examples=100)
@given(st.data(), finished_runs())
def test_the_bound_is_never_below_what_the_run_comes_to(data, run):
    moment = data.draw(moments(run))
    final = summarize(data.draw(endings(moment)))["total_token_throughput"]
    stop = moment.judged(must_beat=1e12)  # more than any run has: the bound is in the verdict
    if stop is not None:
        assert stop.bound >= final * (1 - 1e-9)
    assert moment.judged(must_beat=final * 0.999) is None
    assert moment.judged(must_beat=final) is None


@settings(max_examples=30)
@given(st.data(), finished_runs())
def test_what_is_lost_stays_lost(data, run):
    last_send_s = data.draw(st.sampled_from([-np.inf, float(run.sent_s.max())]))
    moments_s = np.linspace(run.sent_s.min(), run.finished_s.max() + 0.1, 6)
    story = [seen_at(run, now_s, last_send_s) for now_s in moments_s]
    allowed = failures(run, data.draw(st.sampled_from([None, 0, 1])))
    for slo in limits_around(run):
        lost = [moment.judged(slos=[slo, *allowed]) is not None for moment in story]
        assert lost == sorted(lost)
    for must_beat in (1.0, 1e3, 1e5):
        lost = [moment.judged(must_beat) is not None for moment in story]
        assert lost == sorted(lost)


# Figures by hand


def under_way(ttft_s, n, now_s, unsent=0, ok=True):
    """`n` requests sent at 0; the first ones have ended after a TTFT of so many seconds, the others wait."""
    first = np.array([*ttft_s, *[np.nan] * (n - len(ttft_s))])
    read = written = np.full(n + unsent, 10.0)
    seen = RequestRecords(np.zeros(n), first, first + 0.5, read[:n], written[:n], np.full(n, ok))
    return Moment(seen, now_s, planned(read, written), read, written)


def test_a_throughput_is_lost_when_the_time_for_it_is_over():
    assert under_way([1], 10, 1.99).judged(must_beat=100) is None
    stop = under_way([1], 10, 2.5).judged(must_beat=100)
    assert stop == EarlyStop(0.1, 80.0, 100, "total_token_throughput", "must beat")
    assert stop.sentence() == "stopped early at 10 % with bound 80 tok/s: total_token_throughput must beat 100"


def test_numbers_in_the_sentence_are_readable():
    stop = EarlyStop(0.374, 4210.04, 8000, "total_token_throughput", "must beat")
    assert stop.sentence() == "stopped early at 37 % with bound 4,210 tok/s: total_token_throughput must beat 8,000"
    stop = EarlyStop(1.0, 2310.26, 2000, "p99_ttft_ms", "must be at most")
    assert stop.sentence() == "stopped early at 100 % with bound 2,310.3 ms: p99_ttft_ms must be at most 2,000"


def test_a_schedule_that_is_not_over_bounds_the_throughput_from_the_start():
    moment = under_way([], 1, 0.0, unsent=9)
    assert moment.judged(must_beat=100) is None
    assert replace(moment, plan=replace(moment.plan, last_send_s=4.0)).judged(must_beat=100).bound == 50


@pytest.mark.parametrize(("beyond", "lost"), [(10, False), (11, True)])
def test_a_percentile_is_lost_when_its_rank_is(beyond, lost):
    """Of 1000 requests, p99 lies between ranks 989 and 990 from 0: 11 beyond the limit are enough, 10 need not be."""
    moment = under_way([2.5] * beyond, 20, 3.0, unsent=980)
    stop = moment.judged(slos=[Slo.parse("p99_ttft_ms<=2000")])
    assert (stop is not None) == lost
    if stop is not None:
        assert (stop.bound, stop.metric, stop.reason) == (2500, "p99_ttft_ms", "must be at most")


def test_who_waits_too_long_may_still_fail_unless_failing_is_no_way_out():
    moment = under_way([], 1000, 3.0)
    slow = Slo.parse("p99_ttft_ms<=2000")
    assert moment.judged(slos=[slow]) is None  # with every request failed there is no latency
    assert moment.judged(slos=[slow, Slo.parse("failed<=0")]).bound == 3000
    assert moment.judged(slos=[slow, Slo.parse("failed<=999")]).bound == 3000  # one at least must succeed
    assert moment.judged(slos=[slow, Slo.parse("failed<=1000")]) is None


@pytest.mark.parametrize(("ttft_s", "lost"), [(4.9, False), (5.1, True)])
def test_a_mean_is_lost_when_its_sum_is(ttft_s, lost):
    moment = under_way([ttft_s] * 4, 4, 6.0, unsent=6)
    assert (moment.judged(slos=[Slo.parse("mean_ttft_ms<=2000")]) is not None) == lost


def test_failed_requests_burden_no_latency_but_their_own_limit():
    moment = under_way([9.0] * 5, 5, 10.0, ok=False)
    assert moment.judged(slos=[Slo.parse("p99_ttft_ms<=2000"), Slo.parse("mean_e2el_ms<=2000")]) is None
    assert moment.judged(slos=[Slo.parse("failed<=4")]).bound == 5
    assert moment.judged(slos=[Slo.parse("completed>=1")]).bound == 0


def test_metrics_without_a_certain_bound_are_not_judged():
    moment = under_way([9.0] * 5, 5, 100.0)
    for text in ("std_ttft_ms<=0", "steady_total_token_throughput>=1e9", "p99_ttft_ms>=1e9", "cache_hit_rate>=2"):
        assert moment.judged(slos=[Slo.parse(text)]) is None


def test_before_anything_was_sent_nothing_is_lost():
    moment = Moment(RequestRecords.empty(), 5.0, LoadTotals(10, 100, 100), np.full(10, 10.0), np.full(10, 10.0))
    slos = [Slo.parse("p99_ttft_ms<=1"), Slo.parse("request_throughput>=100"), Slo.parse("failed<=0")]
    assert moment.judged(must_beat=1e9, slos=slos) is None


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_server_too_slow_saves_the_time_that_it_is_too_slow_by(share):
    """At half of what must be beaten, half of the run is spared."""
    run = serve(Load(np.full(100, 320), np.full(100, 80)), 16)
    must_beat = summarize(run)["total_token_throughput"] / share
    duration_s = float(run.finished_s.max())
    moments_s = np.linspace(0, duration_s, 200)
    stopped_s = next(now_s for now_s in moments_s if seen_at(run, now_s).judged(must_beat) is not None)
    assert stopped_s / duration_s == pytest.approx(share, abs=0.01)
