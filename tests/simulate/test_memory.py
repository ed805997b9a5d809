"""What fits and what does not."""

import pytest

from autotune.trial import FailureKind
from tests.simulate.nodes import LIBRARY, R1, V32, run, setup

LAYOUTS = [(8, 1, 1), (8, 1, 8), (4, 2, 8), (2, 4, 8), (1, 8, 8), (1, 8, 1)]
HALF = LIBRARY.node("h200").model_copy(update={"name": "half", "memory_gb": 70.5})


def test_vllm_v32_with_eight_replicas_runs_out_of_memory_at_full_context_only():
    failure = run("vllm", 1, 8, 8).failure
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "To serve at least one request with the model's max seq len (163840)" in failure.log_excerpt
    assert "GB per GPU are missing" in failure.message
    assert run("vllm", 1, 8, 8, context_length=81920).failure is None
    assert run("vllm", 1, 8, 8, memory_fraction=0.92).failure is not None  # the default of later versions


@pytest.mark.parametrize("layout", [(8, 1), (4, 2), (2, 4)])
def test_vllm_v32_fits_at_full_context_with_sharded_attention(layout):
    assert run("vllm", *layout, 8, workload="short").failure is None


@pytest.mark.parametrize("model", [R1, V32])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_the_memory_fits_no_layout(engine, model, layout):
    failure = run(engine, *layout, model=model, hardware=HALF, context_length=8192).failure
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "CUDA out of memory" in failure.log_excerpt


def test_a_memory_fraction_beyond_what_a_step_leaves_fails_in_sglang():
    assert run("sglang", memory_fraction=0.99, workload="short").failure is not None
    assert run("sglang", memory_fraction=0.85, workload="short").failure is None


def test_amd_says_hip():
    failure = run("sglang", 1, 8, hw="mi300x", memory_fraction=0.5, workload="short").failure
    assert failure is not None
    assert "HIP out of memory" in failure.log_excerpt


def test_weights_of_the_whole_node_are_the_models_size():
    memory = run("sglang", workload="short", model=R1).memory
    assert memory is not None
    assert memory.weights * 8 == pytest.approx(671e9, rel=0.03)


def test_an_fp8_cache_holds_twice_as_many_tokens_in_the_same_memory():
    plans = [run("sglang", model=R1, kv_cache_dtype=t, workload="short").memory for t in ("bfloat16", "fp8_e4m3")]
    assert plans[1].capacity_tokens == pytest.approx(2 * plans[0].capacity_tokens, rel=0.001)


def test_latent_kv_is_replicated_over_tensor_parallel_ranks():
    eight, one = (run("sglang", tp, dp, model=R1, workload="short").memory for tp, dp in ((8, 1), (1, 8)))
    assert eight.kv_token == one.kv_token


def test_too_many_gpus_and_too_long_requests_are_failures():
    assert run("vllm", 8, 2, workload="short").failure.kind is FailureKind.BAD_ARGUMENT
    assert run("vllm", context_length=8192, workload="very-long").failure.kind is FailureKind.LOAD_ERRORS


def test_startup_takes_minutes_for_a_model_of_this_size():
    assert 180 < run("vllm", workload="short").startup_s < 1200


def test_setups_compare_and_travel():
    assert setup("vllm") == setup("vllm")
