"""The line that a person watches."""

from __future__ import annotations

import io

from rich.console import Console

from autotune.load.bench.results import LiveLine, progress_line
from autotune.load.client.messages import Progress


def test_the_line_says_how_far():
    progress = Progress(sent=1000, finished=412, failed=0, total=1000, chunks=20_000)
    assert progress_line("c8", progress) == "c8: 412 of 1000 done, 588 in flight, 20,000 chunks"
    failed = Progress(sent=9, finished=4, failed=2, total=10, chunks=30)
    assert progress_line("", failed) == "4 of 10 done, 5 in flight, 2 failed, 30 chunks"


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
