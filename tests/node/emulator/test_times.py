"""Over sockets and by the wall clock, the emulator is the simulated node; its prefix cache is a
cache."""

import asyncio
import json
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import command_of
from autotune.load import measure
from autotune.load.workloads import Workload, load_workload
from autotune.node.emulator.engine import LiveEngine, block_hashes
from autotune.node.memory import plan_memory
from autotune.node.replica import BlockCache
from autotune.node.resolve_command import ResolvedCommand, resolve_command
from autotune.node.server import SimulatedServer
from tests.node.emulator.servers import COMMANDS, R1, V32, serving
from tests.node.emulator.virtual_time import run

LIBRARY = Library()
# Short prompts: before or after which step a request arrives is a matter of milliseconds, and steps
# with long ones would make it count.
STREAMS, READ, WRITTEN = 12, 100, 60
SGLANG = ("python3", "-m", "sglang.launch_server")
MTP = '{"method":"mtp","num_speculative_tokens":1}'


async def one_stream(url: str, index: int) -> tuple[list[float], int]:
    """Times of the tokens, in s, and the tokens of the usage."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = {
        "prompt": [index * 1000 + i for i in range(READ)],
        "max_tokens": WRITTEN,
        "ignore_eos": True,
    }
    payload = json.dumps(
        {**body, "stream": True, "stream_options": {"include_usage": True}}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    times, tokens = [], 0
    while b"[DONE]" not in (line := await reader.readline()):
        if b'"usage":{' in line:
            tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
        elif line.startswith(b"data: "):
            times.append(perf_counter())
    writer.close()
    return times, tokens


async def all_streams(url: str, first: int) -> list[tuple[list[float], int]]:
    return await asyncio.gather(*(one_stream(url, first + index) for index in range(STREAMS)))


def quickest(url: str) -> tuple[float, float]:
    """Median TPOT and duration in s of the quickest of three loads.

    A busy machine delays tokens and never hastens the end of a load. It can delay a *first* token,
    which makes a TPOT too small: so the two figures come from one load.
    """
    found = []
    for attempt in range(3):
        begin = perf_counter()
        seen = asyncio.run(all_streams(url, attempt * STREAMS))
        assert [(len(times), tokens) for times, tokens in seen] == [(WRITTEN, WRITTEN)] * STREAMS
        tpot_s = median((times[-1] - times[0]) / (WRITTEN - 1) for times, _ in seen)
        found.append((max(times[-1] for times, _ in seen) - begin, tpot_s))
    duration_s, tpot_s = min(found)
    return tpot_s, duration_s


NODES = {
    "vllm": ["vllm", "serve", R1, "-tp", "8"],
    "mtp": ["vllm", "serve", R1, "-tp", "8", "--speculative-config", MTP],
    "sglang-dp": [*SGLANG, "--model-path", V32, "--tp", "8", "--dp", "8", "--enable-dp-attention"],
    "tensorrt_llm": ["trtllm-serve", R1, "--tp_size", "8", "--ep_size", "8"],
}


def resolved(command: list[str], workload: Workload) -> ResolvedCommand:
    model = LIBRARY.model(R1 if R1 in command else V32)
    context = Context(model, LIBRARY.node("h200"), 8, "", workload.longest_request)
    return resolve_command(command_of(command), LIBRARY, context)


@pytest.mark.parametrize(
    ("node", "load"),
    [
        *((node, "random:2000:100:128") for node in NODES),
        ("sglang-dp", "sharegpt-c4"),
        ("vllm", "shared-prefix"),
    ],
)
def test_its_loop_is_the_simulators(node, load):
    """Without sockets and without waiting: the two loops over one scheduler come to the same
    figures."""
    workload = load_workload(load)
    workload = workload if load == "sharegpt-c4" else workload.with_concurrency(64)
    known = resolved(NODES[node], workload)
    predicted, server = known.simulate(workload, 0).metrics, SimulatedServer(known.setup)
    capacity = plan_memory(server).capacity_tokens
    seen = run(lambda clock: LiveEngine(server, capacity, 16, 1.0, clock), workload.draw(0, 0))
    # The emulator caches whole blocks; the simulator a group's beginning, to the token.
    rel = 0.01 if workload.prefix else 0.001
    assert seen == {name: pytest.approx(predicted[name], rel=rel) for name in seen}


@pytest.mark.e2e
@pytest.mark.parametrize("node", ["vllm", "sglang-dp", "tensorrt_llm"])
def test_its_times_are_the_simulators(node):
    """At speed 1 and by a client that does nothing but read."""
    command, workload = NODES[node], load_workload(f"random:{READ}:{WRITTEN}:{STREAMS}")
    predicted = resolved(command, workload).simulate(workload, 0).metrics
    with serving(*command, options=("--speed", "1")) as server:
        tpot_s, duration_s = quickest(server.url)
    assert tpot_s * 1e3 == pytest.approx(predicted["median_tpot_ms"], rel=0.04)
    assert duration_s == pytest.approx(predicted["duration"], rel=0.06)


@pytest.mark.slow
def test_a_bench_measures_what_simulate_predicts():
    """64 streams over HTTP, the figures of `autotune bench`; ``benchmarks/node/emulator_fidelity.py`` is
    the long one.

    Needs a core for the client and one for the server, which the default suite does not promise.
    """
    speed, workload = 1, load_workload("random:1000:60:96").with_concurrency(64)
    predicted = resolved(NODES["vllm"], workload).simulate(workload, 0).metrics
    wanted = (predicted["total_token_throughput"] * speed, predicted["median_tpot_ms"] / speed)
    names = ("total_token_throughput", "median_tpot_ms")
    seen = []
    with serving(*NODES["vllm"], options=("--speed", str(speed))) as server:
        # A machine that is busy elsewhere can spoil a load, so there are three; nothing makes a
        # false one true.
        while len(seen) < 3 and (not seen or seen[-1] != pytest.approx(wanted, rel=0.04)):
            found = measure(server.url, R1, workload, seed=len(seen)).metrics
            seen.append(tuple(found[name] for name in names))
    assert seen[-1] == pytest.approx(wanted, rel=0.04), seen


def test_tokens_of_one_step_leave_together():
    """The tokens of all streams come in bursts a step apart: hardly more bursts than one stream has
    tokens."""
    with serving("vllm", "serve", R1, "-tp", "8", options=("--speed", "0.5")) as server:
        seen = asyncio.run(all_streams(server.url, 0))
    step_s = median((times[-1] - times[0]) / (WRITTEN - 1) for times, _ in seen)
    gaps = np.diff(sorted(at for times, _ in seen for at in times))
    assert len(gaps) == STREAMS * WRITTEN - 1
    # A machine that is busy elsewhere for a moment joins two of them.
    assert WRITTEN // 2 <= (gaps > step_s / 3).sum() <= WRITTEN + STREAMS


def test_speculation_sends_several_tokens_at_once():
    with serving(*NODES["mtp"]) as server:
        stream = server.openai().completions.create(
            model=R1, prompt="a", max_tokens=100, stream=True, extra_body={"ignore_eos": True}
        )
        sizes = [len(chunk.choices[0].text.split()) for chunk in stream]
    assert sum(sizes) == 100
    assert set(sizes) == {1, 2}


def test_tokens_that_come_in_pieces_are_all_counted():
    load, between = load_workload(f"random:{READ}:{WRITTEN}:{STREAMS}"), WRITTEN - 1
    with serving(*NODES["vllm"], "--stream-interval", "7") as server:
        stream = server.openai().completions.create(
            model=R1, prompt="a", max_tokens=WRITTEN, stream=True, extra_body={"ignore_eos": True}
        )
        sizes = [len(chunk.choices[0].text.split()) for chunk in stream]
        seen = measure(server.url, R1, load, seed=0).metrics
    assert sizes == [1, *[7] * (between // 7), between % 7], "the first one at once"
    assert seen["total_output_tokens"] == STREAMS * WRITTEN
    assert seen["output_throughput"] * seen["duration"] == pytest.approx(STREAMS * WRITTEN)
    # A time per token is one; a time between what is seen is that of a piece.
    pieces = len(sizes) - 1
    assert seen["mean_itl_ms"] * pieces == pytest.approx(seen["mean_tpot_ms"] * between, rel=0.01)


def test_more_than_the_pool_holds_is_thrown_out_and_finished():
    """Preemption: all answers are whole although the cache cannot hold them at once."""
    command = [
        "vllm",
        "serve",
        V32,
        "-tp",
        "8",
        "--max-model-len",
        "40000",
        "--gpu-memory-utilization",
        "0.69",
    ]
    with serving(*command, options=("--speed", "100")) as server:
        prompts = [[i] * 12_000 for i in range(12)]
        answer = server.complete(prompts, max_tokens=1500)
        assert answer["usage"]["completion_tokens"] == 12 * 1500
        assert server.metric("vllm:request_success_total") == 12
        assert server.metric("vllm:num_preemptions_total") > 0


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=12)


@given(PROMPTS, st.integers(1, 5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_cache_holds_what_was_kept_until_it_is_evicted(prompts, block, evicting):
    blocks = {i: block_hashes(prompt, block) for i, prompt in enumerate(prompts)}
    cache = BlockCache(block, True, blocks, {})
    kept = 0
    for i, prompt in enumerate(prompts):
        shared = max((_common(prompt, other) // block * block for other in prompts[:i]), default=0)
        matched = cache.match(i)
        assert matched <= shared
        assert evicting or matched == shared
        cache.hold(i)
        assert cache.evict(float("inf") if evicting else 0.0) >= 0
        assert cache.match(i) == matched, "what is held cannot be evicted"
        kept += cache.keep(i)
        assert cache.match(i) == len(prompt) // block * block
        cache.release(i)
    assert (
        evicting
        or cache.idle_tokens == kept == len({b for some in blocks.values() for b in some}) * block
    )
    cache.evict(float("inf"))
    assert cache.idle_tokens == 0


def _common(one, other) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def test_every_engine_can_be_emulated():
    assert set(COMMANDS) == set(LIBRARY.engines)
