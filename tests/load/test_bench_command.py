"""`autotune bench` as a user runs it: exit codes, the result file, the table, bad input."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.load.server import Call, Server, good
from tests.product.cli import PROGRAM, Finished, autotune

WORKLOAD = ["--model", "m", "--workload", "random:12:5:10"]


def bench(tmp_path: Path, url: str, *more: str) -> Finished:
    return autotune("bench", "--url", url, *WORKLOAD, *more, home=tmp_path / "mlruns")


def test_a_result_that_readers_of_vllm_s_know(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--concurrency", "3", "--save-result", "result.json")
        assert server.most_at_once <= 3
    assert done.code == 0, done.err
    assert "Successful requests:                     10\n" in done.out
    assert "Median TTFT (ms):" in done.out
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"], result["total_input_tokens"]) == (10, 0, 120)
    assert (result["max_concurrency"], result["num_prompts"], result["request_rate"]) == (3, 10, "inf")
    assert result["outcomes"] == {"ok": 10}
    assert result["client_bound"] is False
    assert result["points"][0]["requests"]["output_tokens"] == [5] * 10
    assert not (tmp_path / "mlruns").exists()


def test_json_is_one_object_on_stdout(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--request-rate", "200", "--json")
    assert done.code == 0, done.err
    assert (done.json["completed"], done.json["request_rate"], done.json["max_concurrency"]) == (10, 200, None)


def test_failed_requests_are_exit_4_with_the_file_written(tmp_path: Path):
    file = tmp_path / "result.json"
    with Server(good) as server:
        warm = 6 + 1  # the warm-up's requests and the list of models come first

        async def fails_late(call: Call) -> None:
            late = len(server.calls) == warm + 2
            await (call.answer(503, {"error": {"message": "come back later"}}) if late else good(call))

        server.handler = fails_late
        done = bench(tmp_path, server.url, "--concurrency", "3", "--save-result", str(file))
    assert done.code == 4
    assert "autotune: 1 of 10 requests failed: 1 http_503 (come back later)" in done.err
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"], result["outcomes"]) == (9, 1, {"ok": 9, "http_503": 1})
    assert "come back later" in result["failure"]


def test_nothing_listens_is_exit_2(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = bench(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "--save-result", "result.json")
    assert done.code == 2
    assert done.err.startswith("autotune: nothing answers at http://127.0.0.1:")
    assert not (tmp_path / "result.json").exists()


def test_another_model_is_answered_with_the_one_served(tmp_path: Path):
    with Server() as server:
        done = bench(tmp_path, server.url, "--model", "n")
        assert server.posts == []
    assert done.code == 2
    assert "unknown model 'n'" in done.err
    assert "Known: m." in done.err


def test_the_api_key_is_asked_for_sent_and_never_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def guarded(call: Call) -> None:
        if call.headers.get("authorization") == "Bearer my-own-key":
            await good(call)
        else:
            await call.answer(401, {"error": "Unauthorized"})

    monkeypatch.setenv("MY_KEY", "my-own-key")
    with Server(guarded) as server:
        without = bench(tmp_path, server.url)
        done = bench(tmp_path, server.url, "--api-key-env", "MY_KEY", "--save-result", "result.json")
    assert (without.code, done.code) == (2, 0)
    assert "--api-key-env" in without.err
    assert "my-own-key" not in done.out + done.err + (tmp_path / "result.json").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", "localhost:8000"], "write http://HOST:PORT"),
        (["--concurrency", "2", "--request-rate", "3"], "exclude each other"),
        (["--concurrency", "0"], "at least 1"),
        (["--request-rate", "0"], "more than 0"),
        (["--workload", "shortt"], "did you mean 'short'"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "is not set"),
        (["--save-result", "no/such/folder/r.json"], "folder that exists"),
        (["--tokenizer", "no-such-folder"], "tokeniz"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, options: list[str], words: str):
    with Server() as server:
        done = bench(tmp_path, server.url, *options)
        assert server.posts == []
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_more_streams_than_open_files_is_said_before_the_run(tmp_path: Path):
    with Server() as server:
        limited = ["prlimit", "--nofile=150:150", *PROGRAM, "bench", "--url", server.url, *WORKLOAD]
        done = subprocess.run(
            [*limited, "--workload", "random:2:2:500"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert server.posts == []
    assert done.returncode == 2
    assert "500 connections at once in one process need" in done.stderr
    assert "ulimit" in done.stderr
