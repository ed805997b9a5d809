"""Signals, keys, conditions of endpoints, and the faults that are asked for by name."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.mlflow_servers import free_port
from tests.node.emulator.servers import COMMANDS, LIMIT_S, V32, launched, serving, words
from tests.processes import until
from tests.product.processes import start

VLLM, SGLANG = COMMANDS["vllm"], COMMANDS["sglang"]
LONG = {"max_tokens": 5000, "extra_body": {"ignore_eos": True}, "stream": True}


def connects(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def port_of(server) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.mark.parametrize(("engine", "code"), [("vllm", 0), ("sglang", 143), ("tensorrt_llm", 143)])
def test_sigterm_ends_it_also_under_load(engine, code):
    with serving(*COMMANDS[engine], options=("--speed", "1")) as server:
        stream = server.openai().completions.create(model=V32, prompt="a", **LONG)
        next(iter(stream))
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == code
        stream.close()


def test_a_client_that_goes_frees_its_place():
    with serving(*VLLM, options=("--speed", "1")) as server:
        streams = [
            server.openai().completions.create(model=V32, prompt=[i] * 200, **LONG)
            for i in range(3)
        ]
        for stream in streams:
            next(iter(stream))
        assert server.metric("vllm:num_requests_running") == 3
        for stream in streams:
            stream.close()
        assert until(lambda: server.metric("vllm:num_requests_running") == 0, LIMIT_S)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.metric("vllm:request_success_total") == 0
        assert server.complete([5, 6])["usage"]["completion_tokens"] == 4


def test_an_api_key_is_wanted():
    import openai

    with serving(*VLLM, "--api-key", "secret") as server:
        assert server.get("/health").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            server.openai().models.list()
        assert server.openai("secret").models.list().data[0].id == V32


def test_what_was_not_asked_for_is_not_there():
    with serving(*VLLM) as server:
        assert server.post("/reset_prefix_cache").status_code == 404
    with serving(*[word for word in SGLANG if word != "--enable-metrics"]) as server:
        assert server.get("/metrics").status_code == 404


def test_served_names_and_no_prefix_cache():
    with serving(
        *VLLM, "--served-model-name", "short", "second", "--no-enable-prefix-caching"
    ) as server:
        assert [model.id for model in server.openai().models.list().data] == ["short", "second"]
        for _ in range(2):
            assert (
                server.complete(list(range(200)), model="second")["usage"]["prompt_tokens"] == 200
            )
        assert server.metric("vllm:prefix_cache_hits_total") == 0


def test_the_port_is_the_command_lines_own():
    port = free_port()
    command = words(*VLLM, "--port", str(port), options=("--startup-s", "0"))
    with start(*command, out=subprocess.DEVNULL, err=subprocess.DEVNULL) as process:
        try:
            assert until(lambda: connects(port), LIMIT_S)
        finally:
            process.kill()


# Faults


def test_it_dies_at_start():
    ended = launched(*VLLM, options=("--fault", "die-at-start"))
    assert ended.code == 1
    assert "illegal memory access" in ended.log
    percents = [int(p) for p in re.findall(r"(\d+)% Completed", ended.log)]
    assert 45 <= percents[-1] <= 55


def test_it_hangs_at_start():
    port = free_port()
    command = words(
        *VLLM, options=("--port", str(port), "--startup-s", "0", "--fault", "hang-at-start:0.1")
    )
    with start(*command, out=subprocess.DEVNULL, err=subprocess.PIPE) as process:
        try:
            said = b""
            while b" 10% Completed" not in said:
                said += os.read(process.stderr.fileno(), 4096)
            assert not connects(port)
            assert process.poll() is None
        finally:
            process.kill()


def test_it_dies_in_the_middle_of_the_load():
    import openai

    with serving(*VLLM, options=("--speed", "2", "--fault", "die-mid-load:30")) as server:
        stream = server.openai().completions.create(model=V32, prompt="a", **LONG)
        with pytest.raises((openai.APIError, httpx.TransportError)):
            list(stream)
        assert server.ended() == 1
        assert until(lambda: any("illegal memory access" in line for line in server.err), LIMIT_S)


def test_it_is_unavailable_now_and_then():
    with serving(*VLLM, env={"AUTOTUNE_EMULATE_FAULT": "unavailable-bursts:0.2"}) as server:
        for wanted in (503, 200, 503, 200):
            assert until(
                lambda wanted=wanted: server.get("/v1/models").status_code == wanted, LIMIT_S
            )


def test_it_closes_streams_in_the_middle():
    import openai

    with serving(*VLLM, options=("--fault", "close-mid-stream:2")) as server:
        ends = []
        for i in range(4):
            stream = server.openai().completions.create(
                model=V32, prompt=[i], **{**LONG, "max_tokens": 50}
            )
            try:
                ends.append(len(list(stream)))
            except (openai.APIError, httpx.TransportError):
                ends.append("closed")
        assert ends == [50, "closed", 50, "closed"]


def test_streams_that_are_reset_spoilt_or_answered_with_an_error(tmp_path):
    """One after the other, each by faults of its own, which one server takes from a file."""
    faults = tmp_path / "faults"
    faults.write_text("reset-mid-stream:2, cut-utf8:3,error-mid-load:5,wrong-lengths:4")
    with serving(*VLLM, env={"AUTOTUNE_EMULATE_FAULT": f"@{faults}"}) as server:
        assert not faults.exists(), "the next server has none of them"
        ends = []
        for i in range(5):
            body = {
                "model": V32,
                "prompt": [i],
                "stream": True,
                "max_tokens": 50,
                "ignore_eos": True,
            }
            try:
                with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as reply:
                    said = b"".join(reply.iter_bytes())
                    whole = said.count(b'"text"')
                    ends.append((reply.status_code, whole, b"\xc3t" in said or b"\xc3a" in said))
            except httpx.TransportError as error:
                ends.append(type(error).__name__)
        assert ends == [
            (200, 46, False),
            "ReadError",
            (200, 46, True),
            "ReadError",
            (500, 0, False),
        ]


def test_a_stream_that_stalls():
    with serving(*VLLM, options=("--fault", "stall-mid-stream:1")) as server:
        body = {"model": V32, "prompt": [1], "stream": True, "max_tokens": 50, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=1.0) as reply:
            parts: list[bytes] = []
            with pytest.raises(httpx.ReadTimeout):
                parts.extend(reply.iter_bytes())
        assert b"".join(parts).count(b'"text"') == 3
        assert server.metric("vllm:num_requests_running") == 0


def test_it_leaves_shared_memory_and_a_file(tmp_path):
    before = set(os.listdir("/dev/shm"))
    with serving(*VLLM, options=("--fault", "leak:2"), env={"TMPDIR": str(tmp_path)}) as server:
        server.process.terminate()
        assert server.ended() == 0
    (left,) = set(os.listdir("/dev/shm")) - before
    path = Path("/dev/shm", left)
    assert path.stat().st_size == 2 * 2**20
    path.unlink()
    assert len(list(tmp_path.iterdir())) == 1


def test_it_ignores_sigterm():
    with serving(*VLLM, options=("--fault", "ignore-sigterm")) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.complete("a")["usage"]["completion_tokens"] == 4
        assert server.process.poll() is None


def test_it_forks_away():
    with serving(*VLLM, options=("--fault", "fork-away:60")) as server:
        assert until(lambda: any("fork-away left process" in line for line in server.err), LIMIT_S)
        grandchild = int(next(line for line in server.err if "fork-away left" in line).split()[-1])
        try:
            assert server.complete("a")["usage"]["completion_tokens"] == 4
            server.process.send_signal(signal.SIGTERM)
            assert server.ended() == 0
            assert os.getsid(grandchild) != os.getsid(0)
            assert connects(port_of(server))
        finally:
            os.kill(grandchild, signal.SIGKILL)
        assert until(lambda: not connects(port_of(server)), LIMIT_S)


def test_it_binds_late():
    port = free_port()
    command = words(
        *VLLM, options=("--port", str(port), "--startup-s", "0", "--fault", "late-bind:0.5")
    )
    with start(*command, out=subprocess.PIPE, err=subprocess.DEVNULL) as process:
        try:
            assert any(
                "Application startup complete" in line for line in iter(process.stdout.readline, "")
            )
            assert not connects(port)
            assert until(lambda: connects(port), LIMIT_S)
        finally:
            process.kill()


def test_it_starts_slowly():
    begin = time.monotonic()
    with serving(*VLLM, options=("--startup-s", "0.2", "--fault", "slow-start:4")):
        assert time.monotonic() - begin > 0.8
