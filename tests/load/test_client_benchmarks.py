"""The instruments that measure the load client: the paced server knows the truth, the self-test
finds the bias."""

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "load"
sys.path.append(str(BENCHMARKS))  # as for a script of that folder

from client_bias import Bias, PacedServer, Seen  # noqa: E402
from paced_server import read_truth  # noqa: E402


def ask(server: PacedServer, tokens: int, connection: http.client.HTTPConnection) -> list[str]:
    """The events of one answer."""
    connection.request(
        "POST", "/v1/completions", json.dumps({"prompt": [1, 2], "max_tokens": tokens})
    )
    return connection.getresponse().read().decode().split("\n\n")


def test_a_short_self_test_sees_the_truth_through_the_workers():
    command = [
        sys.executable,
        str(BENCHMARKS / "client_self_test.py"),
        "--rates",
        "200",
        "--streams",
        "20",
    ]
    command += ["--seconds", "0.5", "--workers", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 4), done.stderr  # 4 on a machine that is too busy for it
    rows = json.loads(done.stdout)
    assert [(row["emission"], row["asked"], row["workers"]) for row in rows] == [
        ("even", 200.0, 2),
        ("lockstep", 200.0, 2),
    ]
    for row in rows:
        assert row["failed"] == 0
        assert row["bias"]["requests"] == 20
        assert 0.0 <= row["bias"]["ttft_p50_ms"] < 50.0
        assert row["bias"]["rate"] == pytest.approx(200.0, rel=0.5)
        assert row["bias"]["true_itl_p99_ms"] >= 90.0
        assert row["health"].keys() == {
            "cpu_share",
            "run_delay_share",
            "loop_lag_p99_ms",
            "send_delay_p99_ms",
        }
    assert len(done.stderr.splitlines()) == 3


def test_the_server_keeps_its_pace_and_numbers_its_requests_on_one_connection():
    with PacedServer(50.0, 1, "even") as server:
        connection = http.client.HTTPConnection(server.target.host, server.target.port)
        answers = [ask(server, tokens, connection) for tokens in (3, 21)]
        truth = server.truth()
        assert [len(times) for times in truth] == [3, 21]
        assert server.truth() == []
        connection.close()
    for number, events in enumerate(answers):
        told = json.loads(events[-3].removeprefix("data: "))["usage"]
        assert (told["prompt_tokens"], told["completion_tokens"]) == (2, len(events) - 3)
        assert told["prompt_tokens_details"]["cached_tokens"] == number
        assert events[-2] == "data: [DONE]"
    assert np.diff(truth[1]).mean() / 1e6 == pytest.approx(20.0, rel=0.5)


def test_in_lockstep_all_streams_write_together():
    tokens = 4
    with PacedServer(20.0, 5, "lockstep") as server:
        body = json.dumps({"prompt": "a b", "max_tokens": tokens}).encode()
        request = server.target.request("/v1/completions", body)
        streams = [
            socket.create_connection((server.target.host, server.target.port)) for _ in range(5)
        ]
        for stream in streams:
            stream.sendall(request)
        for stream in streams:
            with stream.makefile("rb") as lines:
                assert any(b"[DONE]" in line for line in lines)
            stream.close()
        truth = np.array(server.truth())
    spread_ms = (truth.max(axis=0) - truth.min(axis=0)) / 1e6
    assert truth.shape == (5, tokens)
    assert np.median(spread_ms) < 100.0 < np.diff(truth).mean() / 1e6


def test_the_server_refuses_what_it_does_not_understand_and_goes_on():
    with PacedServer(100.0, 1, "even") as server:
        connection = http.client.HTTPConnection(server.target.host, server.target.port)
        connection.request("POST", "/v1/completions", "nonsense")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (400, b"")
        assert len(ask(server, 2, connection)) == 5
        connection.close()


def test_the_server_dies_with_its_parent():
    command = [
        sys.executable,
        str(BENCHMARKS / "paced_server.py"),
        "--rate",
        "10",
        "--streams",
        "1",
    ]
    parent = "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); print(child.pid)"
    done = subprocess.run(
        [sys.executable, "-c", parent, *command], capture_output=True, text=True, timeout=60
    )
    # The parent has gone without a word; its child holds the pipe until it has gone too.
    assert done.returncode == 0
    assert len(done.stdout.split()) >= 1


def test_the_truth_of_nothing_is_nothing():
    assert read_truth(np.array([0], dtype=np.int64).tobytes()) == []
    assert Bias.between(Seen([], []), []) is None


def test_biases_are_what_was_added():
    rng = np.random.default_rng(0)
    truth = [np.cumsum(rng.integers(1_000_000, 9_000_000, 50)) for _ in range(20)]
    seen = Seen(list(range(20))[::-1], [times + 3_000_000 for times in truth[::-1]])
    bias = Bias.between(seen, truth)
    assert bias is not None
    assert (bias.requests, bias.ttft_p50_ms, bias.ttft_p99_ms) == (20, 3.0, 3.0)
    assert (bias.itl_p99_ms, bias.tpot, bias.itl) == (bias.true_itl_p99_ms, 0.0, 0.0)
    longer = Bias.between(Seen(seen.numbers, [times * 1.1 for times in seen.times]), truth)
    assert longer is not None
    assert longer.tpot == pytest.approx(0.1)
    assert longer.itl == pytest.approx(0.1)
