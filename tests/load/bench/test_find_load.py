"""`autotune bench --find-load` as a user runs it, against a queue of one server, first come, first
served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.load.server import Call, Server, good
from tests.product.cli import Finished, autotune
from tests.request_files import read_requests

SERVICE_S = 0.01


class Queue:
    """Serves one request after the other, 10 ms each."""

    def __init__(self) -> None:
        self.free_s = 0.0

    async def __call__(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        self.free_s = max(self.free_s, loop.time()) + SERVICE_S
        await asyncio.sleep(self.free_s - loop.time())
        await good(call)


def find(tmp_path: Path, url: str, *more: str) -> Finished:
    words = ["--model", "m", "--workload", "random:12:5", "--save-result", "r.json"]
    return autotune("bench", "--url", url, *words, *more, home=tmp_path / "mlruns")


@pytest.mark.e2e
def test_the_concurrency_that_keeps_the_limit_is_found(tmp_path: Path) -> None:
    """With n in flight each waits n times as long: 20 keep 205 ms. A busy machine takes some of
    that."""
    with Server(Queue()) as server:
        done = find(tmp_path, server.url, "--find-load", "concurrency", "--slo", "p90_ttft_ms<=205")
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert 15 <= result["capacity_concurrency"] <= 20
    assert result["capacity_broken_at"] <= result["capacity_concurrency"] * 1.1 + 1
    assert (result["find_load"], result["nearest_miss"], result["failure"]) == (
        "concurrency",
        None,
        None,
    )
    assert result["p90_ttft_ms"] <= 205
    assert result["max_concurrency"] == result["capacity_concurrency"]
    assert result["capacity_total_token_throughput"] == pytest.approx(17 / SERVICE_S, rel=0.2)
    loads = [row["concurrency"] for row in result["curve"]]
    assert loads == sorted(set(loads))
    assert {1, 32, result["capacity_concurrency"]} <= set(loads)
    rows = read_requests(tmp_path / "r.requests.parquet").columns
    assert (
        len(rows["ok" if "ok" in rows else "outcome"])
        == result["completed"]
        == result["num_prompts"]
    )
    assert "one at a time: " in done.err
    assert "32 in flight: violates p90_ttft_ms<=205 by " in done.err
    assert "in flight meet every limit" in done.out
    assert "Capacity (requests in flight):" in done.out


@pytest.mark.e2e
def test_a_server_that_is_too_slow_for_any_load_ends_with_3_and_the_nearest_miss(
    tmp_path: Path,
) -> None:
    with Server(Queue()) as server:
        done = find(tmp_path, server.url, "--find-load", "rate", "--slo", "p90_ttft_ms<=5")
    assert done.code == 3
    result = json.loads((tmp_path / "r.json").read_text())
    miss = result["nearest_miss"]
    assert (miss["slo"], miss["limit"]) == ("p90_ttft_ms<=5", 5)
    assert miss["value"] >= 10
    assert miss["load"] == pytest.approx(1 / SERVICE_S, rel=0.5)
    assert result["capacity_request_rate"] == 0
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("autotune: violated at the lightest load, ")
    assert "requests per second: p90_ttft_ms<=5 by " in last


def test_a_server_that_answers_nothing_ends_with_4(tmp_path: Path) -> None:
    async def broken(call: Call) -> None:
        await call.answer(500, {"error": {"message": "no"}})

    with Server(broken) as server:
        done = find(tmp_path, server.url, "--find-load", "concurrency", "--slo", "p90_ttft_ms<=5")
    assert done.code == 4
    assert json.loads((tmp_path / "r.json").read_text())["failure"]
    assert "500" in done.err


@pytest.mark.e2e
def test_a_server_that_dies_of_a_load_leaves_the_heaviest_that_it_kept(tmp_path: Path) -> None:
    """It hangs up on everybody for good as soon as 50 are in flight."""
    queue, dead = Queue(), False

    async def mortal(call: Call) -> None:
        nonlocal dead
        dead = dead or server.most_at_once >= 50
        if dead:
            call.writer.close()
            return
        await queue(call)

    with Server(mortal) as server:
        done = find(
            tmp_path, server.url, "--find-load", "concurrency", "--slo", "p90_ttft_ms<=60000"
        )
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "r.json").read_text())
    assert (
        result["capacity_concurrency"],
        result["capacity_broken_at"],
        result["capacity_died_at"],
    ) == (32, 64, 64)
    assert "64 in flight" in result["load_search"][-1]
    assert result["p90_ttft_ms"] <= 60_000
    assert result["failed"] == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["--slo", "p99_ttft_ms<=5", "--concurrency", "4"],
            "--concurrency: --find-load sets the load itself",
        ),
        (
            ["--slo", "p99_ttft_ms<=5", "--request-rate", "4"],
            "--request-rate: --find-load sets the load itself",
        ),
        (
            ["--slo", "p99_ttft_ms<=5", "--repeats", "2"],
            "--repeats: --find-load sets the load itself",
        ),
        (["--slo", "p99_ttft_ms<=5", "--workload", "sharegpt-c4"], "it fixes a load: 4 at a time"),
        (["--slo", "p99_ttft_ms<=5", "--workload", "sweep"], "it fixes 6 load points"),
        (["--slo", "output_throughput>=5"], "needs a latency limit"),
        ([], "needs a latency limit"),
    ],
    ids=str,
)
def test_bad_input(tmp_path: Path, more: list[str], words: str) -> None:
    done = find(tmp_path, "http://127.0.0.1:9", "--find-load", "concurrency", *more)
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "r.json").exists()
