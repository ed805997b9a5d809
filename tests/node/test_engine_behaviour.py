"""What engines and versions do differently in the loop, by exact arithmetic: no throughput is
pinned here."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.cards import Acceptance
from autotune.engines.failure import FailureKind
from autotune.load.requests import Requests
from autotune.load.workloads import load_workload
from autotune.node.replica import Sequences, load_caches
from autotune.node.scheduling import Graphs, Scheduler
from autotune.node.server import SimulatedServer
from autotune.node.simulate import simulate
from autotune.node.steptime import RankBatch, StepTime
from tests.node.nodes import R1, V32, setup


def server(engine, *layout, model=R1, **knobs) -> SimulatedServer:
    return SimulatedServer(setup(engine, *layout, model=model, **knobs))


class Pool:
    """Requests on a server, stepped by hand; all of them reach the queue at once."""

    def __init__(
        self, on: SimulatedServer, reads, writes, capacity=100_000, groups=None, prefix=0
    ) -> None:
        n = len(reads)
        group = np.full(n, -1) if groups is None else np.array(groups)
        requests = Requests(np.array(reads), np.array(writes), np.zeros(n), group, prefix, n)
        self.state = Sequences(requests.input_tokens, requests.output_tokens)
        self.scheduler = Scheduler(on, self.state, load_caches(on, requests), capacity)
        for request in range(n):
            self.scheduler.add(request)

    def step(self):
        """Chunks and step; what ended is taken out."""
        chunks = self.scheduler.take_chunks()
        step = self.scheduler.begin(chunks)
        self.scheduler.end(step)
        self.scheduler.take_ended()
        return chunks, step


# CUDA graphs


@pytest.mark.parametrize(
    ("engine", "knobs", "padded"),
    [
        ("vllm", {}, {3: 4, 9: 16, 250: 256, 300: 304, 513: 0}),
        ("vllm", {"version": "0.7.3"}, {3: 4, 250: 256, 257: 0}),
        ("vllm", {"speculative_tokens": 1}, {3: 8, 300: 0}),  # sizes count tokens, two per sequence
        ("vllm", {"enforce_eager": True}, {1: 0}),
        ("sglang", {}, {3: 4, 9: 12, 300: 304, 500: 512, 513: 0}),
        ("sglang", {"version": "0.4.3.post2"}, {9: 16, 161: 0}),
        ("sglang", {"speculative_tokens": 1}, {3: 6, 9: 20, 300: 608}),  # sizes count sequences
        ("tensorrt_llm", {}, {31: 31, 33: 0, 64: 64, 65: 0, 128: 128, 129: 0}),
        ("tensorrt_llm", {"cuda_graph_padding": True}, {33: 40, 129: 0}),
        ("tensorrt_llm", {"cuda_graph_max_batch": 512}, {33: 40, 129: 192, 513: 0}),
    ],
)
def test_a_batch_is_padded_to_the_next_captured_size(engine, knobs, padded):
    graphs = Graphs(server(engine, **knobs))
    assert {n: graphs.tokens([n], [0]) for n in padded} == padded


def test_ranks_run_the_graph_of_the_fullest_and_prompts_only_vllms():
    for engine in ("vllm", "sglang"):
        assert Graphs(server(engine, 1, 8)).tokens([1] * 7 + [9], [0] * 8) == (
            16 if engine == "vllm" else 12
        )
    # TensorRT-LLM wants equal ranks; one with nothing to do gets a dummy sequence.
    replicas = Graphs(server("tensorrt_llm", 1, 8))
    assert (
        replicas.tokens([1] * 5 + [0] * 3, [0] * 8),
        replicas.tokens([2] * 7 + [0], [0] * 8),
    ) == (1, 0)
    assert Graphs(server("vllm")).tokens([10], [100]) == 112
    assert (
        Graphs(server("sglang")).tokens([10], [100])
        == Graphs(server("tensorrt_llm")).tokens([10], [10])
        == 0
    )


@pytest.mark.parametrize(
    ("engine", "before", "since"), [("vllm", "0.10.1", "0.11.0"), ("sglang", "0.4.7", "0.5.6")]
)
def test_ranks_ran_no_graph_while_one_of_them_idled(engine, before, since):
    layout, idle = (1, 8, 8), [1] * 7 + [0]
    old, new = (
        Graphs(server(engine, *layout, model=R1, version=version)) for version in (before, since)
    )
    assert (old.tokens(idle, [0] * 8), old.tokens([1] * 8, [0] * 8), new.tokens(idle, [0] * 8)) == (
        0,
        1,
        1,
    )
    # Replicas of a dense model wait for nobody.
    assert (
        Graphs(server(engine, *layout, model="Qwen/Qwen3-8B", version=before)).tokens(idle, [0] * 8)
        == 1
    )


def test_without_a_graph_a_step_takes_the_launches_of_all_its_kernels():
    batch = [RankBatch(1, 100.0, 100.0)]
    per_layer = {}
    for model in ("Qwen/Qwen3-8B", "openai/gpt-oss-120b", R1):
        on = server("sglang", 1, model=model, disable_cuda_graph=True)
        launching = (
            StepTime(on).seconds(batch, False)
            / on.architecture.layers
            / on.coefficients.eager_layer_us
            * 1e6
        )
        per_layer[model] = round(launching)
    # Ten kernels of a plain layer, ten more of experts, ten more of latent attention.
    assert list(per_layer.values()) == [1, 2, 3]


# Experts


def expert_s(tokens, ep, **change):
    on = server("vllm", 8, 1, ep, model=R1)
    changed = on.coefficients.model_copy(update=change)
    return StepTime(SimulatedServer(on.setup, changed))._experts_seconds(tokens, tokens)


@given(st.floats(1, 4000), st.floats(1, 4000), st.sampled_from([1, 8]))
def test_more_tokens_never_make_experts_faster(one, other, ep):
    low, high = sorted((one, other))
    assert expert_s(low, ep) <= expert_s(high, ep) * (1 + 1e-9)


def test_spread_experts_are_uneven_where_few_are_touched():
    even = {"expert_imbalance": 0.0, "moe_narrow_width": 0.0}
    few, many = (
        expert_s(tokens, 8, **even) / expert_s(tokens, 1, **even) for tokens in (16, 20000)
    )
    assert few > 1.2
    assert many <= 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["vllm", "sglang", "tensorrt_llm"]),
    st.sampled_from([R1, V32]),
    st.sampled_from([(8, 1, 1), (8, 1, 8), (1, 8, 8)]),
    st.integers(0, 600),
    st.integers(0, 2),
)
def test_padding_never_makes_a_step_faster(engine, model, layout, sequences, drafts):
    on = server(engine, *layout, model=model, speculative_tokens=drafts)
    bare = [RankBatch(sequences, sequences * 900.0, sequences * 900.0)] * on.data_parallel
    graph = Graphs(on).tokens([sequences] * on.data_parallel, [0] * on.data_parallel)
    padding = max(0, graph - sequences * (1 + drafts))
    padded = [batch._replace(padding=padding) for batch in bare]
    assert StepTime(on).seconds(padded, True) >= StepTime(on).seconds(bare, True)


# Prompts


def test_without_chunks_a_prompt_waits_until_a_step_has_room_for_all_of_it():
    pool = Pool(server("tensorrt_llm", max_batched_tokens=1000), [600, 500, 300, 400], [50] * 4)
    taken = [[(c.request, c.tokens) for c in pool.step()[0][0]] for _ in range(3)]
    # 600 + 500 do not fit; after the first two there is room for 1000 - 2 running.
    assert taken == [[(0, 600)], [(1, 500), (2, 300)], [(3, 400)]]
    chunked = Pool(
        server("tensorrt_llm", max_batched_tokens=1000, enable_chunked_prefill=True),
        [600, 500],
        [50] * 2,
    )
    assert [[c.tokens for c in chunked.step()[0][0]] for _ in range(2)] == [
        [600, 384],
        [116],
    ]  # cut at 12 blocks of 32


def test_trt_refuses_a_prompt_that_no_step_can_compute():
    long, without = load_workload("random:9000:10:20"), {"max_batched_tokens": 8192}
    failure = simulate(setup("tensorrt_llm", **without), long, 0).failure
    assert failure is not None
    assert failure.kind is FailureKind.LOAD_ERRORS
    assert (
        simulate(setup("tensorrt_llm", **without, enable_chunked_prefill=True), long, 0).failure
        is None
    )
    assert (
        simulate(setup("vllm", version="0.7.3", model=R1), long, 0).failure is None
    )  # its budget is the context


def test_old_vllm_computes_prompts_first_and_alone():
    old, new = (
        Pool(server("vllm", version=v), [3000, 9000, 100], [50] * 3) for v in ("0.7.3", "0.13.0")
    )
    for pool in (old, new):
        pool.step()
    assert len(old.scheduler.running) == 3  # one step with all three prompts whole
    assert len(new.scheduler.running) == 1  # 8192 tokens: the first and a piece of the second
    assert len(new.step()[1].ids) == 1  # and decoding goes on beside the rest
    assert not server("vllm", version="0.7.3").coefficients.chunked_prefill


def test_sglang_stops_admitting_at_max_prefill_tokens():
    pool = Pool(server("sglang", max_batched_tokens=32768), [9000, 9000, 1000], [50] * 3)
    assert [c.tokens for c in pool.step()[0][0]] == [9000]  # another 9000 would pass 16384
    assert [c.tokens for c in pool.step()[0][0]] == [9000, 1000]


def test_pages_count_in_sglangs_budget():
    dense, sparse = (
        Pool(server("sglang", model=m, max_batched_tokens=256), [65] * 5, [9] * 5)
        for m in (R1, V32)
    )
    assert sum(c.tokens for c in dense.step()[0][0]) == 256
    assert [c.tokens for c in sparse.step()[0][0]] == [65, 65]  # 128 each


@pytest.mark.parametrize(
    ("version", "tp", "dp", "budget"),
    [
        ("0.4.3.post2", 8, 1, 8192),
        ("0.4.3.post2", 1, 8, 4096),
        ("0.4.4", 1, 8, 1024),
        ("0.5.6", 2, 4, 2048),
    ],
)
def test_sglangs_chunk_under_dp_attention(version, tp, dp, budget):
    assert server("sglang", tp, dp, version=version).token_budget == budget


@pytest.mark.parametrize(("drafts", "decoding"), [(0, 7), (1, 0)])
def test_with_speculation_sglang_ranks_idle_while_another_fills_a_prompt(drafts, decoding):
    pool = Pool(server("sglang", 1, 8, speculative_tokens=drafts), [100] * 9, [50] * 9)
    for replica in pool.scheduler.attention_replicas[:1]:
        late = replica.waiting.pop()
    pool.step()
    pool.scheduler.attention_replicas[0].waiting.append(late)
    assert len(pool.step()[1].ids) == decoding


def test_speculations_cap_of_48_is_one_of_the_server():
    assert server("sglang", max_running_requests=48).running_limit == 48
    assert server("sglang", 1, 8, max_running_requests=48).running_limit == 6
    assert server("vllm", 1, 8, max_running_requests=48).running_limit == 48


# The pool


def test_what_admission_reserves_in_sglang_falls_and_rises():
    plain, cautious, ranks = (
        server("sglang", tp, dp, schedule_conservativeness=c).reserve_share
        for tp, dp, c in ((8, 1, None), (8, 1, 2.0), (1, 8, 1.0))
    )
    assert (plain, cautious) == (0.7, 1.0)
    assert ranks == pytest.approx(0.21)
    pool = Pool(server("sglang"), [100] * 3, [2000] * 3)
    for _ in range(301):
        pool.step()
    replica = pool.scheduler.attention_replicas[0]
    assert replica.share == pytest.approx(0.7 - 300 / 600 * 0.7 * 0.86)
    replica.preempted(600.0, 4000.0)
    assert replica.share == pytest.approx((600 + 20 * 3) / 4001)


@pytest.mark.parametrize(
    ("engine", "knobs", "victim", "waits"),
    [
        ("vllm", {}, 2, "first"),
        ("sglang", {}, 1, "last"),  # all have the same tokens: the longest prompt goes
        ("sglang", {"speculative_tokens": 1}, 2, "last"),
    ],
)
def test_whom_a_full_pool_throws_out(engine, knobs, victim, waits):
    on = server(engine, **knobs)
    on = SimulatedServer(
        on.setup, on.coefficients.model_copy(update={"reserve_share": 0.0, "reserve_new": 0.0})
    )
    pool = Pool(
        on, [120, 130, 110, 5000], [300] * 4, capacity=384 + 64 if engine == "vllm" else 380
    )
    while not pool.scheduler.preemptions:
        pool.step()
    queue = list(pool.scheduler.attention_replicas[0].waiting)
    assert queue == ([victim, 3] if waits == "first" else [3, victim])


def test_trt_admits_what_can_run_to_its_end():
    # Two requests of 100 + 200 tokens take 2 x 320 in blocks of 32.
    for capacity, fits in ((640, 2), (639, 1)):
        pool = Pool(server("tensorrt_llm"), [100, 100], [199, 199], capacity=capacity)
        pool.step()
        assert len(pool.scheduler.running) == fits


@pytest.mark.parametrize(
    ("version", "model", "admitted"),
    [("1.3.0rc24", R1, 1), ("1.3.0rc25", R1, 3), ("1.4.0rc1", "Qwen/Qwen3-32B", 3),
     ("1.3.0rc25", "Qwen/Qwen3-32B", 1)],
)  # fmt: skip
def test_trt_s_newer_manager_reserves_no_place_for_answers(version, model, admitted):
    on = server("tensorrt_llm", model=model, version=version)
    pool = Pool(on, [100] * 3, [400] * 3, capacity=640)
    pool.step()
    assert len(pool.scheduler.running) == admitted


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 500),
    st.integers(1, 300),
    st.integers(0, 2),
    st.sampled_from(["vllm", "sglang", "tensorrt_llm"]),
)
def test_a_sequence_occupies_whole_blocks(read, steps, drafts, engine):
    on = server(engine, model=V32, speculative_tokens=drafts)
    assert on.block_tokens in (32, 64)
    pool = Pool(on, [read], [4000])
    for _ in range(steps):
        pool.step()
    held = read + (steps - 1) * on.tokens_per_step
    assert (
        pool.scheduler.attention_replicas[0].used
        == math.ceil(held / on.block_tokens - 1e-9) * on.block_tokens
    )


# Queues


def test_the_longest_cached_prefix_goes_first_in_old_sglang():
    groups = [0, 1, 0, 1]
    for version, order in (("0.4.3.post2", [2, 1, 3]), ("0.5.6", [1, 2, 3])):
        on = server("sglang", version=version, max_batched_tokens=500, prefix_caching=True)
        pool = Pool(on, [500] * 4, [50] * 4, groups=groups, prefix=400)
        started = [pool.step()[1].started[0] for _ in range(1)]
        while len(started) < 4:
            started += pool.step()[1].started
        assert started[1:] == order


def test_dispatch_by_engine_and_version():
    reads = [1000, 10, 10, 10]
    for engine, version, expected in (
        ("sglang", "0.5.6", [0, 1, 0, 1]),
        ("tensorrt_llm", "1.2.0", [0, 1, 1, 0]),  # fewest requests, then fewest prompt tokens
        ("vllm", "0.13.0", [0, 1, 0, 1]),
    ):
        pool = Pool(server(engine, 4, 2, version=version), reads, [50] * 4)
        assert pool.state.replica.tolist() == expected


def test_a_waiting_request_weighs_as_much_as_four_that_run():
    pool = Pool(server("vllm", 4, 2, version="0.13.0"), [10] * 9, [50] * 9)
    pool.step()  # five run on the first rank, four on the second
    pool.scheduler.attention_replicas[1].waiting.append(0)
    pool.scheduler.attention_replicas[1].in_flight += 1
    pool.scheduler.add(8)
    assert pool.state.replica[8] == 0


def test_drafts_are_kept_as_the_models_card_says():
    on = server("vllm", speculative_tokens=5)
    curve = Acceptance(rates=[0.8, 0.5], source="none")
    setup = replace(on.setup, model=on.setup.model.model_copy(update={"acceptance": curve}))
    kept = [0.8 * 0.5**position for position in range(5)]
    assert SimulatedServer(setup).tokens_per_step == pytest.approx(1 + sum(kept))
    assert SimulatedServer(setup).text_tokens_per_step == pytest.approx(1 + sum(kept))
    # A draft model of its own knows less.
    eagle = replace(
        setup, knobs={**setup.knobs, "draft_model": "some/eagle3", "speculative_tokens": 1}
    )
    assert SimulatedServer(eagle).tokens_per_step == pytest.approx(1 + 0.9 * 0.8)


def test_of_random_tokens_a_running_server_accepts_what_it_is_forced_to():
    on = server("vllm", speculative_tokens=2)
    forced = SimulatedServer(replace(on.setup, on_random=2.2))
    assert (forced.tokens_per_step, forced.text_tokens_per_step) == (2.2, on.text_tokens_per_step)
    assert SimulatedServer(replace(on.setup, on_random=9)).tokens_per_step == 3
    without = replace(on.setup, knobs={**on.setup.knobs, "speculative_tokens": 0}, on_random=2.2)
    assert SimulatedServer(without).tokens_per_step == 1
