"""What fits, what does not, and what is too close to call."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.context import Context
from autotune.engines.failure import Failure, FailureKind
from autotune.engines.registry import split_command
from autotune.load.workloads import load_workload
from autotune.node.memory import (
    MEMORY_KEYS,
    MemoryPlan,
    MemoryVerdict,
    plan_memory,
    start_failure,
    start_warning,
)
from autotune.node.resolve_command import resolve_command
from autotune.node.server import SimulatedServer
from tests.node.nodes import LIBRARY, R1, V32, run, setup

LAYOUTS = [(8, 1, 1), (8, 1, 8), (4, 2, 8), (2, 4, 8), (1, 8, 8), (1, 8, 1)]
HALF = LIBRARY.node("h200").model_copy(
    update={"name": "half", "memory_gb": 70.5, "driver_memory_gb": 75}
)
EIGHT_REPLICAS = f"vllm serve {V32} -tp 1 -dp 8 --enable-expert-parallel"


def plan(engine, *layout, **knobs):
    return plan_memory(SimulatedServer(setup(engine, *layout, **knobs)))


def started(command, version):
    context = Context(LIBRARY.model(V32), LIBRARY.node("h200"), 8, "")
    return resolve_command(split_command(command), LIBRARY, context, version).simulate(
        load_workload("random:128:4:16"), 0
    )


def test_vllm_v32_with_eight_replicas_may_run_out_of_memory_at_full_context():
    version = "0.13.0"
    whole = started(EIGHT_REPLICAS, version)
    # It did fail, but what a step of 8 x 8192 tokens takes was never published.
    assert whole.failure is None
    assert whole.memory.verdict is MemoryVerdict.TOO_CLOSE
    assert "one 163,840-token request needs" in whole.warning
    assert "GB per GPU are missing" in whole.warning
    half = started(f"{EIGHT_REPLICAS} --max-model-len 81920", version)
    assert half.failure is None
    assert half.memory.fit_probability > 0.6 > 0.5 > whole.memory.fit_probability


def test_the_scores_of_an_indexer_are_profiled_from_0_19_on_in_one_piece():
    before, since = (
        plan("vllm", 8, 1, 8, version=v, cuda_graph_max_batch=1).activations
        for v in ("0.18.1", "0.19.1")
    )
    assert since - before == pytest.approx(0.54e9, rel=0.05)


GLM_5 = "vllm serve zai-org/GLM-5-FP8 --tensor-parallel-size 8 --tool-call-parser glm47 --reasoning-parser glm45"
GLM_5_2 = "vllm serve zai-org/GLM-5.2-FP8 --tensor-parallel-size=8"
MTP = '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''


@pytest.mark.parametrize(
    ("command", "version", "node", "gpus", "workload"),
    [
        (f"{GLM_5} {MTP}", "0.16.0", "h200", 8, "random:1024:1024:64"),
        (f"{GLM_5} {MTP} --gpu-memory-utilization 0.85", "0.16.0", "h200", 8, "random:64:8:8"),
        (f"{GLM_5} {MTP}", "0.16.0", "b200", 8, "random:1024:1024:64"),
        (GLM_5_2, "0.24.0", "h200", 8, "random:32000:100:20"),
        (
            "python3 -m sglang.launch_server --model-path zai-org/GLM-5.2-FP8 --tp-size=8 --dp-size=8 --enable-dp-attention",
            "0.5.14",
            "h200",
            8,
            "random:8192:1024:32",
        ),
        ("vllm serve Qwen/Qwen3-32B", "0.11.0", "h100", 1, "random:32000:100:20"),
        ("vllm serve Qwen/Qwen3-32B", "0.11.0", "a100", 1, "short"),
    ],
)
def test_a_published_command_is_never_said_to_fail(command, version, node, gpus, workload):
    """Where it is too close to call, a warning says why, and the load has a pool that holds it."""
    model = next(word for word in command.split() if "/" in word)
    context = Context(LIBRARY.model(model), LIBRARY.node(node), gpus, "")
    resolved = resolve_command(split_command(command), LIBRARY, context, version)
    done = resolved.simulate(load_workload(workload), 0)
    assert done.failure is None
    assert done.metrics["total_token_throughput"] > 0
    assert done.metrics["failed"] == 0
    close = done.memory.verdict is MemoryVerdict.TOO_CLOSE
    assert close == ("GLM-5-FP8" not in command)
    assert (done.warning is not None) == close
    if close:
        odds = f"with odds of starting of {done.memory.fit_probability:.0%}"
        assert done.warning.startswith(f"too close to call, {odds}: ")


def test_a_whole_context_that_is_typed_is_refused_as_vllm_refuses_it():
    """Only a context that no option names may have been shortened, and only with a large pool."""
    context = Context(LIBRARY.model("zai-org/GLM-5.2-FP8"), LIBRARY.node("h200"), 8, "")
    typed, untold = (
        resolve_command(split_command(f"{GLM_5_2} {more}"), LIBRARY, context, "0.24.0").simulate(
            load_workload("random:128:4:16"), 0
        )
        for more in ("--max-model-len 1000000", "")
    )
    assert typed.memory.fit_probability < 0.001
    assert typed.warning is None
    assert "one 1,000,000-token request needs" in typed.failure.message
    assert untold.memory.fit_probability == pytest.approx(0.5, abs=0.01)
    assert "if what launches it shortens its context" in untold.warning
    assert 250_000 < untold.memory.capacity_tokens < 400_000


@pytest.mark.parametrize("layout", [(8, 1), (4, 2), (2, 4)])
def test_vllm_v32_fits_at_full_context_with_sharded_attention(layout):
    assert plan("vllm", *layout, 8, kv_cache_dtype="bfloat16").verdict is MemoryVerdict.FITS


@pytest.mark.parametrize("model", [R1, V32])
def test_sglangs_own_fraction_leaves_room_for_its_graphs_whatever_the_chunk(model):
    small, usual = (
        plan("sglang", model=model, **knobs) for knobs in ({"max_batched_tokens": 512}, {})
    )
    assert small.verdict is usual.verdict is MemoryVerdict.FITS
    assert plan("sglang", model=model, speculative_tokens=1).kv_cache < usual.kv_cache - 2e9


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_replica_of_a_dense_model_is_a_server_of_its_own(engine):
    dense = {"model": "meta-llama/Llama-3.3-70B-Instruct", "max_running_requests": 64}
    alone, one_of_two = (
        SimulatedServer(setup(engine, 4, replicas, **dense)) for replicas in (1, 2)
    )
    assert plan_memory(one_of_two) == plan_memory(alone)
    for name in ("token_budget", "running_limit", "reserve_share"):
        assert getattr(one_of_two, name) == getattr(alone, name)


@given(st.sampled_from(["vllm", "sglang", "tensorrt_llm"]), st.floats(0.05, 1.0))
def test_what_is_too_close_to_call_starts_with_a_warning(engine, fraction):
    """Near the edge it is too close to call, whichever side it is on."""
    p = plan(engine, memory_fraction=fraction)
    assert p.margin_bytes <= p.cache_margin_bytes
    assert (p.fit_probability >= 0.1) == p.starts
    assert p.fit_probability > 0.5 or p.margin_bytes <= 0
    assert p.capacity_tokens >= p.needed_tokens or not p.starts
    server = SimulatedServer(setup(engine, memory_fraction=fraction))
    assert (start_failure(server, p) is None) == p.starts
    assert (start_warning(server, p) is not None) == (p.verdict is MemoryVerdict.TOO_CLOSE)
    sure = {
        MemoryVerdict.FITS: p.fit_probability >= 0.9,
        MemoryVerdict.DOES_NOT_FIT: p.fit_probability <= 0.1,
    }
    assert sure.get(p.verdict, 0.1 < p.fit_probability < 0.9)
    assert tuple(p.to_json()) == MEMORY_KEYS


def test_the_margin_is_the_tighter_of_the_engines_share_and_what_is_beside_it():
    low, high = (plan("sglang", memory_fraction=f) for f in (0.6, 0.97))
    assert low.margin_bytes == low.cache_margin_bytes < low.spare
    assert high.margin_bytes == high.spare < 0 < high.cache_margin_bytes


def test_cuda_graphs_grow_with_the_batches_that_are_captured():
    none, few, many = (plan("sglang", cuda_graph_max_batch=b).graphs for b in (0, 32, 512))
    assert none == 0
    assert few < many / 5
    assert plan("vllm", enforce_eager=True).graphs == 0


def test_later_vllm_takes_the_graphs_out_of_its_share():
    before, after = (plan("vllm", version=v, memory_fraction=0.9) for v in ("0.19.1", "0.32.0"))
    assert before.kv_cache - after.kv_cache == pytest.approx(after.graphs)
    assert before.spare - after.spare == pytest.approx(-after.graphs)


def test_an_all_to_all_between_expert_ranks_needs_buffers():
    plain, deepep = (
        plan("vllm", 1, 8, 8, moe_all_to_all=k) for k in (None, "deepep_high_throughput")
    )
    assert deepep.runtime > plain.runtime


@pytest.mark.parametrize(
    ("engine", "knobs", "said"),
    [
        ("vllm", {"memory_fraction": 0.6}, "No available memory for the cache blocks"),
        (
            "vllm",
            {"memory_fraction": 1.0},
            "is less than desired GPU memory utilization (1, 139.79 GiB)",
        ),
        ("sglang", {"memory_fraction": 0.5}, "Please try to increase --mem-fraction-static"),
        ("sglang", {"memory_fraction": 0.99}, "CUDA out of memory"),
    ],
)
def test_each_engine_says_it_in_its_own_words(engine, knobs, said):
    assert said in run(engine, workload="short", **knobs).failure.log_excerpt


@pytest.mark.parametrize("model", [R1, V32])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_the_memory_fits_no_layout(engine, model, layout):
    failure = run(engine, *layout, model=model, hardware=HALF, context_length=8192).failure
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "CUDA out of memory" in failure.log_excerpt


def test_amd_says_hip():
    failure = run("sglang", 1, 8, hw="mi300x", memory_fraction=0.99, workload="short").failure
    assert failure is not None
    assert "HIP out of memory" in failure.log_excerpt


def test_weights_of_the_whole_node_are_the_models_size():
    memory = run("sglang", workload="short", model=R1).memory
    assert memory is not None
    assert memory.weights * 8 == pytest.approx(671e9, rel=0.03)


def test_an_fp8_cache_holds_twice_as_many_tokens_in_the_same_memory():
    plans = [
        run("sglang", model=R1, kv_cache_dtype=t, workload="short").memory
        for t in ("bfloat16", "fp8_e4m3")
    ]
    assert plans[1].capacity_tokens == pytest.approx(2 * plans[0].capacity_tokens, rel=0.001)


def test_latent_kv_is_replicated_over_tensor_parallel_ranks():
    eight, one = (
        run("sglang", tp, dp, model=R1, workload="short").memory for tp, dp in ((8, 1), (1, 8))
    )
    assert eight.kv_token == one.kv_token


def test_too_many_gpus_and_too_long_requests_are_failures():
    assert run("vllm", 8, 2, workload="short").failure.kind is FailureKind.BAD_ARGUMENT
    assert (
        run("vllm", context_length=8192, workload="very-long").failure.kind
        is FailureKind.LOAD_ERRORS
    )


def test_startup_takes_minutes_for_a_model_of_this_size():
    assert 180 < run("vllm", workload="short").startup_s < 1200


def test_setups_compare_and_travel():
    assert setup("vllm") == setup("vllm")


KIMI = "vllm serve moonshotai/Kimi-K2-Instruct -tp 8 --enable-expert-parallel --max-num-seqs 512 --trust-remote-code"


def predicted_start(
    command: str, model: str = "moonshotai/Kimi-K2-Instruct"
) -> tuple[MemoryPlan, Failure | None]:
    context = Context(LIBRARY.model(model), LIBRARY.node("h200"), 8, "")
    server = SimulatedServer(resolve_command(split_command(command), LIBRARY, context, None).setup)
    return plan_memory(server), start_failure(server, plan_memory(server))


def test_what_vllm_refuses_has_no_odds_and_is_told_in_its_own_terms():
    memory, failure = predicted_start(KIMI)
    assert failure is not None
    assert memory.margin_bytes < -4 * memory.sigma_bytes
    assert memory.fit_probability < 0.001
    assert memory.verdict is MemoryVerdict.DOES_NOT_FIT
    need, free = memory.needed_tokens * memory.kv_token / 1e9, memory.kv_cache / 1e9
    assert (
        f"one 131,072-token request needs {need:.1f} GB of KV cache, {free:.1f} GB are free"
        in failure.message
    )
    assert f"{need - free:.1f} GB per GPU are missing" in failure.message
    told = re.search(r"add (--max-model-len \d+),", failure.message)
    assert told is not None
    shorter, starts = predicted_start(f"{KIMI} {told[1]}")
    assert starts is None
    assert shorter.fit_probability >= 0.9


def test_the_longest_request_is_the_smaller_of_context_and_pool_in_whole_blocks():
    eight = f"python3 -m sglang.launch_server --model-path {V32} --tp-size 8 --dp-size 8 --enable-dp-attention"
    memory, _ = predicted_start(
        f"{eight} --mem-fraction-static 0.76 --speculative-algorithm EAGLE", V32
    )
    assert memory.capacity_tokens % 64 == 0
    assert memory.longest_request_tokens == memory.capacity_tokens < 163840
    memory, _ = predicted_start(f"{eight} --mem-fraction-static 0.76 --context-length 4096", V32)
    assert memory.longest_request_tokens == 4096 < memory.capacity_tokens


def test_context_parallel_ranks_share_one_request():
    one, four = (plan("vllm", 8, 1, decode_context_parallel=ranks, model=R1) for ranks in (1, 4))
    assert four.capacity_tokens == pytest.approx(4 * one.capacity_tokens, rel=0.001)
    tight = one.capacity_tokens * 2
    assert one.holds(tight) < 0.01 < 0.99 < four.holds(tight)


def test_a_cached_value_of_nvfp4_has_half_a_byte_and_a_sixteenth_of_its_block_s_scale():
    sizes = [
        plan("tensorrt_llm", 8, 1, 1, model=R1, hw="b200", kv_cache_dtype=kind).capacity_tokens
        for kind in ("auto", "fp8", "nvfp4")
    ]
    assert sizes[2] / sizes[0] == pytest.approx(2 / 0.5625, rel=0.02)
    assert sizes[1] / sizes[0] == pytest.approx(2, rel=0.02)
