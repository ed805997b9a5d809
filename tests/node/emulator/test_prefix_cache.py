"""The emulated prefix cache as the engines' versions show it: hits, counters, reset, usage."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from autotune.engines.library import Library
from autotune.load.client.target import Target
from autotune.load.prefix_cache import CounterReader
from autotune.load.server_client import ResetOutcome, ServerClient
from tests.node.emulator.servers import COMMANDS, LIMIT_S, EmulatedServer, serving

PROMPT = list(range(7000, 7000 + 64 * 5 + 10))
FOUND = 64 * 5
RESETS = {"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}
HITS = {"vllm": "vllm:prefix_cache_hits_total", "sglang": "sglang:cached_tokens_total"}


@contextmanager
def release(
    engine: str, version: str, *arguments: str, speed: str = "50"
) -> Iterator[EmulatedServer]:
    """A server of this version, with what it needs to be reset."""
    options = ("--engine-version", version, "--speed", speed)
    with serving(
        *COMMANDS[engine], *arguments, options=options, env={"VLLM_SERVER_DEV_MODE": "1"}
    ) as server:
        yield server


@contextmanager
def busy(server: EmulatedServer) -> Iterator[None]:
    """A request runs meanwhile, and is given up in the end.

    At a fifth of an engine's speed its tokens take 20 minutes, beyond the time limits of all that
    is asked meanwhile.
    """
    body = {"prompt": [1, 2, 3], "max_tokens": 30_000, "stream": True, "ignore_eos": True}
    with httpx.stream(
        "POST", server.url + "/v1/completions", json=body, timeout=LIMIT_S, trust_env=False
    ) as answer:
        chunks = answer.iter_raw()
        next(chunks)
        yield


def cached(server: EmulatedServer) -> int | None:
    """What an answer's usage says of its cached tokens."""
    details = server.complete(PROMPT)["usage"].get("prompt_tokens_details")
    return details and details["cached_tokens"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_hits_are_counted_in_whole_blocks_from_the_beginning(engine):
    patterns = [Library().engine(engine)]
    with (
        release(engine, Library().engine(engine).newest) as server,
        ServerClient(Target.parse(server.url)) as client,
    ):
        probe = CounterReader(client, patterns)
        server.complete(list(range(64 * 7)))
        # SGLang writes the counter of hits from the first hit on, and vLLM from the start.
        assert (HITS[engine] in server.get("/metrics").text) == (engine == "vllm")
        readings = [probe()]
        prompts = (PROMPT, PROMPT, [*PROMPT[:128], *([3] * 100)], [1, *PROMPT[1:]])
        for prompt in prompts:
            assert "prompt_tokens_details" not in server.complete(prompt)["usage"]
            readings.append(probe())
        assert [after.hits - before.hits for before, after in pairwise(readings)] == [
            0,
            FOUND,
            128,
            0,
        ]
        assert [after.queries - before.queries for before, after in pairwise(readings)] == [
            *map(len, prompts)
        ]
        assert client.reset_cache(RESETS[engine])
        server.complete(PROMPT)
        assert probe().hits == readings[-1].hits


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("engine", "version", "option", "usage", "status", "words"),
    [
        ("vllm", "0.32", "--enable-prompt-tokens-details", [0, FOUND], 200, '{"success":false}'),
        ("vllm", "0.13", "--enable-prompt-tokens-details", [None, FOUND], 200, ""),
        ("sglang", "0.5.23", "--enable-cache-report", [0, FOUND], 400, "Flush cache failed.\n"),
        ("sglang", "0.5.6", "--enable-cache-report", [None, FOUND], 400, "Cache flushed."),
    ],
)
def test_a_version_s_usage_and_how_it_refuses_a_reset(
    engine, version, option, usage, status, words
):
    """Whatever a reset is answered while a request runs, the cache stays as it was; afterwards it
    is emptied."""
    with (
        release(engine, version, option, speed="0.2") as server,
        ServerClient(Target.parse(server.url)) as client,
    ):
        assert [cached(server), cached(server)] == usage
        with busy(server):
            answer = server.post(RESETS[engine])
            assert (answer.status_code, answer.text[: len(words) or None]) == (status, words)
            assert cached(server) == FOUND
            known = status != 200 or words
            refused = client.reset_cache(RESETS[engine], patience_s=0).outcome
            assert refused is (ResetOutcome.REFUSED if known else ResetOutcome.DONE)
        assert server.metric(HITS[engine]) == 2 * FOUND
        assert client.reset_cache(RESETS[engine], patience_s=LIMIT_S)


def test_without_prefix_caching_vllm_looks_nothing_up():
    with release("vllm", "0.32", "--no-enable-prefix-caching") as server:
        server.complete(PROMPT)
        assert server.metric("vllm:prompt_tokens_total") == len(PROMPT)
        assert server.metric("vllm:prefix_cache_queries_total") == 0


def test_tensorrt_llm_tells_by_its_usage_and_has_metrics_only_when_told_to(tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text("return_perf_metrics: true\n")
    with release("tensorrt_llm", "1.2", "--config", str(config)) as server:
        assert [cached(server), cached(server)] == [0, FOUND]
        body = {
            "prompt": [PROMPT, [9, *PROMPT], PROMPT[:65]],
            "max_tokens": 2,
            "stream": True,
            "ignore_eos": True,
        }
        lines = server.post(
            "/v1/completions", **body, stream_options={"include_usage": True}
        ).text.split("\n\n")
        usage = json.loads(lines[-3].removeprefix("data: "))["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": FOUND + 0 + 64}
        assert server.metric("trtllm_request_success_total", "/prometheus/metrics") == 5
        # 1.2 counts no tokens there.
        assert "cached" not in server.get("/prometheus/metrics").text
