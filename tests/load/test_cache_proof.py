"""The prefix cache's part in a load, shown on servers: nothing is found that the prompts do not
share."""

from dataclasses import replace

import pytest

from autotune.engines.library import Library
from autotune.load import LoadOptions, measure
from autotune.load.client.target import Target
from autotune.load.prefix_cache import (
    CacheUse,
    CounterReader,
    expected_hit_rate,
    reset_cache,
    stale,
)
from autotune.load.server_client import ResetOutcome, ServerClient
from autotune.load.workloads import Arrival, Prefix, Workload, load_workload
from tests.node.emulator.servers import COMMANDS, V32, EmulatedServer, serving

LIBRARY = Library()
EVERY = LIBRARY.engines.values()
BLOCK = 64
LENGTH = BLOCK * 20 + 10
"""A prompt that is found again is found but for its last, unfinished block."""
WORKLOAD = f"random:{LENGTH}:4:12"
OPTIONS = LoadOptions(vocabulary=100_000)


def cache_use(
    server: EmulatedServer, client: ServerClient, workload: Workload, seed: int
) -> CacheUse:
    """Of one load, its warm-up included."""
    probe = CounterReader(client, EVERY)
    before = probe()
    measured = measure(server.url, V32, workload, seed, OPTIONS)
    assert not measured.failure
    use = CacheUse.between(before, probe())
    assert use is not None
    return use


@pytest.fixture(scope="module")
def vllm():
    with serving(*COMMANDS["vllm"], env={"VLLM_SERVER_DEV_MODE": "1"}) as server:
        yield server


@pytest.mark.parametrize(
    ("reset", "new_seed"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_a_second_load_finds_nothing_unless_both_defences_are_off(vllm, reset, new_seed):
    seed = 100 * (1 + 2 * reset + new_seed)
    workload = load_workload(WORKLOAD)
    expected = expected_hit_rate(workload.draw(0, seed))
    with ServerClient(Target.parse(vllm.url)) as client:
        first = cache_use(vllm, client, workload, seed)
        assert first.hit_rate < 0.01
        if reset:
            assert reset_cache(client, LIBRARY.engine("vllm").serving)
        second = cache_use(vllm, client, workload, seed + new_seed)
    if reset or new_seed:
        assert second.hit_rate < 0.01
        assert stale(second, expected) == ""
    else:
        assert second.hit_rate > 0.9
        assert "though every prompt was new" in stale(second, expected)


def test_shared_beginnings_are_found_as_far_as_the_workload_has_them(vllm):
    """One after the other, in whole blocks: all of them; and what another load had is not counted
    in."""
    one_at_a_time = (
        load_workload(WORKLOAD)
        .points[0]
        .model_copy(update={"arrival": Arrival(kind="closed_loop", concurrency=1), "prompts": 24})
    )
    workload = load_workload(WORKLOAD).model_copy(
        update={
            "points": [one_at_a_time],
            "prefix": Prefix(tokens=BLOCK * 10, groups=3),
            "name": "shared",
        }
    )
    expected = expected_hit_rate(workload.draw(0, 5))
    assert expected == pytest.approx(21 * BLOCK * 10 / (24 * LENGTH))
    with ServerClient(Target.parse(vllm.url)) as client:
        probe = CounterReader(client, EVERY)
        before = probe()
        measured = measure(vllm.url, V32, workload, 5, replace(OPTIONS, warm_up=False))
        use = CacheUse.between(before, probe())
    assert not measured.failure
    assert use.hit_rate == pytest.approx(expected, abs=0.001)
    assert stale(use, expected) == ""


def test_without_the_development_mode_the_reset_says_what_is_missing():
    with serving(*COMMANDS["vllm"]) as server, ServerClient(Target.parse(server.url)) as client:
        done = reset_cache(client, LIBRARY.engine("vllm").serving)
        assert done.outcome is ResetOutcome.NOT_OFFERED
        assert done.reason.startswith(
            "POST /reset_prefix_cache: HTTP 404: Not Found; it needs VLLM_SERVER_DEV_MODE=1"
        )


def test_sglang_proves_it_too_once_it_has_counted_a_request():
    workload = load_workload(WORKLOAD)
    with serving(*COMMANDS["sglang"]) as server, ServerClient(Target.parse(server.url)) as client:
        probe = CounterReader(client, EVERY)
        assert probe() is None
        server.complete([1, 2, 3])
        assert cache_use(server, client, workload, 1).hit_rate < 0.01
        assert reset_cache(client, LIBRARY.engine("sglang").serving)
        assert cache_use(server, client, workload, 1).hit_rate < 0.01
        assert cache_use(server, client, workload, 1).hit_rate > 0.9


def test_tensorrt_llm_tells_by_its_answers_only():
    """No endpoint, no counters: new prompts are the defence, and the usage is the proof."""
    workload = load_workload(WORKLOAD)
    with (
        serving(*COMMANDS["tensorrt_llm"]) as server,
        ServerClient(Target.parse(server.url)) as client,
    ):
        rates = [
            measure(server.url, V32, workload, seed, OPTIONS).metrics["cache_hit_rate"]
            for seed in (1, 2, 2)
        ]
        assert CounterReader(client, EVERY)() is None
    assert rates[:2] == [0, 0]
    assert rates[2] > 0.9
