"""A bench of a server that cannot do what was asked ends early and says so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.loadgen.server import Call, Server, good

from .test_bench_command import bench


class Slow:
    """Answers the first requests and lets the others wait for ever."""

    def __init__(self, answered: int) -> None:
        self.left = answered

    async def __call__(self, call: Call) -> None:
        if call.method == "POST":
            self.left -= 1
            if self.left < 0:
                await asyncio.Event().wait()
        await good(call)


LOAD = ("--workload", "random:50:4:12", "--concurrency", "4", "--workers", "1")


def test_a_load_that_cannot_beat_what_it_must_is_stopped(tmp_path: Path):
    file = tmp_path / "r.json"
    with Server(Slow(answered=8 + 5)) as server:  # 8 of the warm-up
        done = bench(tmp_path, server.url, *LOAD, "--must-beat", "500", "--save-result", str(file))
        assert len(server.posts) < 8 + 12, "requests were sent after the end"
    assert done.code == 0, done.err
    result = json.loads(file.read_text())
    stopped = result["stopped"]
    assert (stopped["metric"], stopped["limit"]) == ("total_token_throughput", 500)
    # 12 × (50 + 4) tokens are all that there is: 648, over the time that has passed.
    assert 0 < stopped["bound"] < 500
    assert stopped["verdict"].startswith("stopped early at ")
    assert stopped["verdict"] in done.out
    assert (result["completed"], result["failed"]) == (5, 0)
    assert result["outcomes"] == {"ok": 5, "stopped": 4}


def test_a_lost_limit_stops_a_load_and_one_that_holds_does_not(tmp_path: Path):
    with Server(Slow(answered=8 + 5)) as server:
        lost = bench(tmp_path, server.url, *LOAD, "--slo", "p99_ttft_ms<=200", "--stop-early", "--json")
    assert json.loads(lost.out)["stopped"]["metric"] in ("p99_ttft_ms", "failed")
    with Server(good) as server:
        kept = bench(
            tmp_path, server.url, *LOAD, "--slo", "p99_ttft_ms<=60000", "--stop-early", "--must-beat", "1", "--json"
        )
    result = json.loads(kept.out)
    assert result["stopped"] is None
    assert result["request_goodput"] == result["request_throughput"] > 0


def test_what_cannot_be_stopped_is_refused(tmp_path: Path):
    with Server() as server:
        for options, words in (
            (("--must-beat", "0"), "more than 0"),
            (("--stop-early",), "--slo"),
            (("--must-beat", "5", "--concurrency", "8"), "several load points"),
        ):
            done = bench(tmp_path, server.url, *LOAD, *options)
            assert (done.code, server.posts) == (2, [])
            assert words in done.err


def test_repeats_hide_neither_a_stop_nor_a_limit_that_was_missed(tmp_path: Path):
    load = ("--workload", "random:50:4:12", "--concurrency", "4", "--workers", "1", "--repeats", "2", "--json")
    with Server(Slow(answered=8 + 12 + 5)) as server:
        done = bench(tmp_path, server.url, *load, "--must-beat", "500")
    result = json.loads(done.out)
    assert result["stopped"]["metric"] == "total_token_throughput"
    assert result["outcomes"] == {"ok": 17, "stopped": 4}
    with Server(good) as server:
        missed = json.loads(bench(tmp_path, server.url, *load, "--slo", "p99_ttft_ms<=0.0001").out)
    assert missed["request_goodput"] == 0
    # All 12 of a load may fall into one second, but not the 24 of both.
    assert missed["max_concurrent_requests"] <= 12
