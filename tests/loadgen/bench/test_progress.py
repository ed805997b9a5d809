"""The line that a person watches."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from autotune.loadgen.bench.printing import LiveLine, Throughput, progress_line
from autotune.loadgen.client.messages import Progress

S = 1_000_000_000


def speed(*counts: tuple[float, int]) -> Throughput:
    made = Throughput()
    for at_s, chunks in counts:
        made.add(int(at_s * S), chunks)
    return made


def test_the_line_says_how_far_and_how_fast():
    progress = Progress(sent=1000, finished=412, failed=0, total=1000, chunks=20_000)
    told = progress_line("c8", progress, speed((1, 3_000), (2, 8_000), (3, 20_000)))
    assert told == "c8: 412 of 1000 done, 588 in flight, 12,000 chunks/s (8,500 overall)"
    failed = Progress(sent=9, finished=4, failed=2, total=10, chunks=30)
    assert progress_line("", failed, speed((1, 30))) == "4 of 10 done, 5 in flight, 2 failed, 30 chunks"


def test_the_last_second_is_a_second_however_often_counts_come():
    ten_a_second = [(i / 10, 100 * i) for i in range(31)]
    told = speed(*ten_a_second, (3.1, 3_000 + 1_000))
    assert told.last_second == pytest.approx((4_000 - 2_100) / 1.0)
    assert told.overall == pytest.approx(4_000 / 3.1)


@given(st.lists(st.tuples(st.integers(1, 3 * S), st.integers(0, 10**6)), min_size=2, max_size=30))
def test_rates_lie_between_the_slowest_and_the_fastest_moment(steps: list[tuple[int, int]]):
    made, at_ns, chunks = Throughput(), 0, 0
    for gap_ns, more in steps:
        at_ns, chunks = at_ns + gap_ns, chunks + more
        made.add(at_ns, chunks)
    rates = [more / gap_ns * S for gap_ns, more in steps[1:]]
    for rate in (made.last_second, made.overall):
        assert rate is not None
        assert min(rates) * 0.999 <= rate <= max(rates) * 1.001


def test_a_terminal_shows_a_bar_with_the_load_that_runs():
    screen = io.StringIO()
    with LiveLine(Console(file=screen, force_terminal=True, width=120)) as live:
        live.show("c4", Progress(10, 4, 0, 10, 500))
        live.show("c8", Progress(10, 2, 1, 10, 70))
    assert "c8: 2 of 10 done, 8 in flight, 1 failed, 70 chunks" in screen.getvalue()


def test_a_file_gets_no_line_for_every_second():
    log = io.StringIO()
    with LiveLine(Console(file=log)) as live:
        for second in range(3):
            live.show("c4", Progress(10, second, 0, 10, 100 * second))
    assert log.getvalue() == ""
