"""The scheduler with requests that come and go: whatever happens, nothing is left in the pool."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.node.emulator.engine import LiveSequences, block_hashes
from autotune.node.replica import BlockCache
from autotune.node.scheduling import Scheduler
from autotune.node.server import SimulatedServer
from tests.node.nodes import R1, setup

CAPACITY, BLOCK = 448, 8


class Pool:
    """A server whose requests are driven by hand."""

    def __init__(self, engine: str, replicas: int, caching: bool) -> None:
        knobs = {
            "prefix_caching": caching,
            "max_running_requests": 8 * replicas,
            "max_batched_tokens": 64 * replicas,
        }
        self.server = server = SimulatedServer(
            setup(engine, 8 // replicas, replicas, 8, model=R1, **knobs)
        )
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.state = LiveSequences()
        self.caches = [
            BlockCache(math.lcm(BLOCK, server.block_tokens), caching, self.blocks, {})
            for _ in range(replicas)
        ]
        self.scheduler = Scheduler(server, self.state, self.caches, CAPACITY)
        self.alive: list[int] = []
        self.finished = 0

    def add(self, prompt: list[int], output: int) -> None:
        slot = self.state.place(len(prompt), output)
        self.blocks[slot] = block_hashes(prompt[:-1], math.lcm(BLOCK, self.server.block_tokens))
        self.scheduler.add(slot)
        self.alive.append(slot)

    def forget(self, slot: int) -> None:
        self.alive.remove(slot)
        del self.blocks[slot]
        self.state.free(slot)

    def abort(self, position: int) -> None:
        if self.alive:
            slot = self.alive[position % len(self.alive)]
            self.scheduler.abort(slot)
            self.forget(slot)

    def step(self) -> None:
        chunks = self.scheduler.take_chunks()
        if not any(chunks) and not len(self.scheduler.running):
            assert not self.alive, "somebody waits and nothing runs"
            return
        for replica, pieces in zip(self.scheduler.attention_replicas, chunks, strict=True):
            assert replica.in_flight - len(replica.waiting) <= self.server.running_limit
            whole = self.server.prompt_limit is not None
            assert all(piece.last for piece in pieces) if whole else True
            # A prompt that is longer than a step is computed only alone.
            assert sum(piece.tokens for piece in pieces) <= self.server.token_budget or (
                whole and len(pieces) == 1
            )
        step = self.scheduler.begin(chunks)
        assert step.seconds > 0
        self.scheduler.end(step)
        for replica in self.scheduler.attention_replicas:
            assert replica.used <= CAPACITY
        for slot in self.scheduler.take_ended().tolist():
            assert self.state.written[slot] >= self.state.output[slot]
            self.finished += 1
            self.forget(slot)


PROMPT = st.builds(lambda head, n: [head] * n, st.integers(0, 2), st.integers(1, 150))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PROMPT, st.integers(1, 200)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 20), st.just(0)),
    ),
    max_size=40,
)


@given(
    st.sampled_from(["vllm", "sglang", "tensorrt_llm"]),
    st.sampled_from([1, 4]),
    st.booleans(),
    EVENTS,
)
@settings(max_examples=60, deadline=None)
def test_the_pool_is_empty_when_all_have_gone(engine, replicas, caching, events):
    pool = Pool(engine, replicas, caching)
    added = aborted = 0
    for kind, value, output in events:
        if kind == "add":
            pool.add(value, output)
            added += 1
        elif kind == "abort":
            aborted += bool(pool.alive)
            pool.abort(value)
        else:
            for _ in range(value):
                pool.step()
    for _ in range(20_000):
        if not pool.alive:
            break
        pool.step()
    assert not pool.alive
    assert pool.finished + aborted == added
    assert len(pool.scheduler.running) == 0
    for replica, cache in zip(pool.scheduler.attention_replicas, pool.caches, strict=True):
        assert replica.in_flight == replica.running == 0
        assert np.isclose(replica.used, cache.idle_tokens)
        replica.empty_cache()
        assert np.isclose(replica.used, 0)
