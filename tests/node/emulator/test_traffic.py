"""Real traffic on the emulated and the simulated node: prefixes of a trace, histories of sessions,
drafts of text."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from autotune.engines.library import Library
from autotune.load import LoadOptions, Measurement, load_workload, measure
from autotune.load.client.target import Target
from autotune.load.prefix_cache import CacheUse, DraftReader, PrefixCache, expected_hit_rate
from autotune.load.server_client import ServerClient
from autotune.node import predict
from tests.node.emulator.servers import COMMANDS, V32, EmulatedServer, serving

VLLM = [*COMMANDS["vllm"], "--enable-prompt-tokens-details"]
SGLANG = [*COMMANDS["sglang"], "--enable-cache-report"]
DEV = {"VLLM_SERVER_DEV_MODE": "1"}
SPECULATIVE = {
    "vllm": ["--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1})],
    "sglang": [
        *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "1"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2"),
    ],
}


@pytest.fixture(scope="module")
def vllm() -> Iterator[EmulatedServer]:
    """One that tells of its cached tokens, and whose cache is reset before each load."""
    with serving(*VLLM, options=("--speed", "10"), env=DEV) as server:
        yield server


@pytest.fixture(scope="module")
def sglang() -> Iterator[EmulatedServer]:
    with serving(*SGLANG, options=("--speed", "10"), env=DEV) as server:
        yield server


def trace(folder: Path) -> str:
    """80 requests in 16 s that share six beginnings of 2 to 4 blocks."""
    generator = np.random.default_rng(5)
    rows, own = [], 1000
    for number in range(80):
        group = int(generator.integers(6))
        shared = [10 * group + block for block in range(2 + group % 3)]
        mine = [own + block for block in range(int(generator.integers(1, 4)))]
        own += len(mine)
        ids = [*shared, *mine]
        read = 512 * (len(ids) - 1) + int(generator.integers(1, 513))
        rows.append(
            {"timestamp": 200 * number, "input_length": read, "output_length": 20, "hash_ids": ids}
        )
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return f"trace:{path}"


def sessions(folder: Path) -> str:
    """Twelve conversations of four turns, with a system prompt that all of them have."""
    header = {"system": "Answer politely, and with all the facts that a customer may need. " * 60}
    turn = {"input_tokens": 600, "output_tokens": 200, "think_s": 0.02}
    path = folder / "sessions.jsonl"
    path.write_text("\n".join(map(json.dumps, [header, *[{"turns": [turn] * 4}] * 12])))
    return f"sessions:{path}"


def measured(url: str, name: str, concurrency: int | None = None, **options: str) -> Measurement:
    workload = load_workload(name)
    workload = workload if concurrency is None else workload.with_concurrency(concurrency)
    with ServerClient(Target.parse(url)) as client:
        cards = Library().engines.values()
        how = LoadOptions(
            cache=PrefixCache.for_engines(client, cards),
            drafts=DraftReader(client, cards),
            **options,
        )
        result = measure(url, V32, workload, 1, how)
    assert not result.failure
    return result


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_hits_that_an_engine_reports_are_those_of_the_trace(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
):
    name = trace(tmp_path)
    load = measured(request.getfixturevalue(engine).url, f"{name}:x10").points[0]
    use, answers = load.cache.use, CacheUse.of_answers(load.log)
    assert use is not None
    assert "usage" not in use.source
    expected = expected_hit_rate(load_workload(name).draw(0, 1))
    assert 0.4 < expected < 0.8
    assert use.hit_rate == pytest.approx(expected, abs=0.03)
    assert answers is None or answers.hit_rate == pytest.approx(use.hit_rate, abs=1e-6)
    assert (
        load.log.records.input_tokens.tolist()
        == load_workload(name).draw(0, 1).input_tokens.tolist()
    )
    simulated = predict(" ".join(COMMANDS[engine]), name, hardware="h200")
    assert simulated["cache_hit_rate"] == pytest.approx(use.hit_rate, abs=0.01)


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_sessions_find_what_was_said_before_in_the_cache(
    tmp_path: Path, endpoint: str, vllm: EmulatedServer
):
    name = sessions(tmp_path)
    load = measured(vllm.url, name, 4, endpoint=endpoint).points[0]
    assert load.cache.use is not None
    expected = expected_hit_rate(load_workload(name).draw(0, 1))
    assert 0.6 < expected < 0.9
    assert load.cache.use.hit_rate == pytest.approx(expected, abs=0.03)
    assert not load.cache.stale
    # The fourth turn finds all but what its user says now.
    later = load.log.cached_tokens[3::4]
    history = load.log.records.input_tokens[2::4] + 200
    assert (later >= history - 2 * 64).all()
    assert (later <= history + 64).all()


def test_sessions_in_virtual_time_find_the_same(tmp_path: Path):
    name = sessions(tmp_path)
    simulated = predict(" ".join(COMMANDS["vllm"]), name, hardware="h200")
    assert simulated["completed"] == 48
    assert simulated["cache_hit_rate"] == pytest.approx(
        expected_hit_rate(load_workload(name).draw(0, 1)), abs=0.03
    )
    without = predict(
        " ".join([*COMMANDS["vllm"], "--no-enable-prefix-caching"]), name, hardware="h200"
    )
    assert without["cache_hit_rate"] == 0
    assert without["mean_ttft_ms"] > simulated["mean_ttft_ms"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_more_is_accepted_of_text_than_of_random_tokens(engine: str):
    with serving(*COMMANDS[engine], *SPECULATIVE[engine]) as server:
        text, random = (
            measured(server.url, name, 16).metrics for name in ("prose", "random:512:64:100")
        )
    for metrics in (text, random):
        rate, length = (
            metrics["spec_decode_acceptance_rate"],
            metrics["spec_decode_acceptance_length"],
        )
        assert length == pytest.approx(1 + rate / 100, abs=0.01)
    assert text["spec_decode_acceptance_rate"] == pytest.approx(80, abs=1.5)
    assert random["spec_decode_acceptance_rate"] == pytest.approx(15, abs=1)


def test_a_server_that_drafts_nothing_has_no_acceptance():
    with serving(*COMMANDS["vllm"]) as server:
        metrics = measured(server.url, "random:50:5:10").metrics
        assert "spec_decode" not in server.get("/metrics").text
    assert "spec_decode_acceptance_rate" not in metrics
