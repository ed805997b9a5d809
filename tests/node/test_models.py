"""Models and GPUs beside the calibrated ones: what is searched, and that better hardware is
predicted to be faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engines.context import Context
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.expression import evaluate
from autotune.engines.registry import engine
from autotune.node.calibration import ServerSetup
from autotune.node.server import SimulatedServer
from autotune.node.steptime import RankBatch, StepTime
from tests.node.nodes import LIBRARY, MEASURED, V32, tokens_per_s

LLAMA, QWEN_FP8 = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
GPT_OSS, GLM_5_2 = "openai/gpt-oss-120b", "zai-org/GLM-5.2-FP8"


def searched(name: str, model: str, hw: str = "h100") -> set[str]:
    """The knobs of which more than one value is tried."""
    card = engine(name).card
    space = enumerate_engine(
        card, Context(LIBRARY.model(model), LIBRARY.node(hw), 8, card.newest, 4096)
    )
    return {knob for knob in card.knobs if len({c.knobs[knob] for c in space.configurations}) > 1}


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt_llm"])
def test_a_dense_model_is_not_tried_with_what_only_experts_latent_attention_or_fp8_have(
    name: str,
) -> None:
    knobs = searched(name, LLAMA)
    assert "kv_cache_dtype" in knobs
    assert not knobs & {
        "expert_parallel", "moe_all_to_all", "moe_backend", "deep_gemm", "speculative_tokens", "attention_backend",
        "prefill_attention_backend", "decode_attention_backend", "block_size",
    }  # fmt: skip


def test_a_dense_model_s_replicas_in_sglang_are_whole_ones() -> None:
    kind = engine("sglang")
    context = Context(LIBRARY.model(LLAMA), LIBRARY.node("h200"), 8, kind.card.newest)
    space = enumerate_engine(kind.card, context, {"tensor_parallel": 2, "data_parallel": 4})
    command = kind.command(space.configurations[0], context)
    words = " ".join(command.argv)
    assert "--tp-size 2 --dp-size 4" in words
    assert "--enable-dp-attention" not in words
    read = kind.knobs(kind.parse(command, context.version), context).knobs
    assert (read["tensor_parallel"], read["data_parallel"]) == (2, 4)


@pytest.mark.parametrize(
    ("model", "hw", "allowed"), [(V32, "a100", False), (V32, "b200", True), (LLAMA, "a100", True)]
)
def test_sparse_attention_needs_hopper_or_blackwell(model: str, hw: str, allowed: bool) -> None:
    scope = Context(LIBRARY.model(model), LIBRARY.node(hw), 8, "").scope({})
    for name in ("vllm", "sglang", "tensorrt_llm"):
        assert all(evaluate(need.expect, scope) for need in engine(name).card.requires) == allowed


def test_flash_attention_3_is_not_tried_on_blackwell() -> None:
    card = engine("sglang").card
    context = Context(LIBRARY.model(V32), LIBRARY.node("b200"), 8, card.newest)
    space = enumerate_engine(card, context, {"tensor_parallel": 8})
    kernels = {
        c.knobs[knob]
        for c in space.configurations
        for knob in card.knobs
        if knob.endswith("attention_backend")
    }
    assert space.configurations
    assert "fa3" not in kernels


@pytest.mark.parametrize(
    ("name", "version", "sizes"),
    [("vllm", "0.28.0", {8}), ("vllm", "0.33.0", {1, 8}), ("sglang", "0.5.23", {8})],
)
def test_experts_in_fp8_blocks_are_not_cut_inside_a_block(
    name: str, version: str, sizes: set[int]
) -> None:
    """Tensor shards of 192 take a block of 128 and a half; vLLM refines the scales from 0.29 on."""
    card = engine(name).card
    context = Context(LIBRARY.model(QWEN_FP8), LIBRARY.node("h200"), 8, version)
    # 1536 wide: 192 for each of 8 ranks, 384 for each of 4.
    whole = enumerate_engine(card, context, {"replicas": 1}).configurations
    assert {c.knobs["expert_parallel"] for c in whole} == sizes
    four = replace(context, gpus=4)
    assert 1 in {c.knobs["expert_parallel"] for c in enumerate_engine(card, four).configurations}


@pytest.mark.parametrize("model", [LLAMA, QWEN_FP8, GPT_OSS])
@pytest.mark.parametrize(
    "better", [("b200", "h200"), ("h200", "h100"), ("h100", "a100"), ("mi355x", "mi325x")]
)
def test_better_gpus_are_faster(model: str, better: tuple[str, str]) -> None:
    fast, slow = (
        tokens_per_s("vllm", 8, 1, 8, model=model, hw=hw, workload="short", context_length=16384)
        for hw in better
    )
    # Small models are bound by the host, which is the same; the steps of a schedule may fall
    # otherwise.
    assert fast >= slow * 0.99


def step(model: str, hw: str = "h200") -> tuple[SimulatedServer, StepTime]:
    knobs = {"tensor_parallel": 8, "expert_parallel": 8}
    server = SimulatedServer(
        ServerSetup("vllm", MEASURED["vllm"], knobs, LIBRARY.model(model), LIBRARY.node(hw), 8)
    )
    return server, StepTime(server)


def test_a_sliding_window_spares_the_far_context_in_its_layers_only() -> None:
    _, time = step(GPT_OSS)
    near, far = 100 * 128.0, 100 * 12800.0
    at = {
        (context, attended): time.seconds([RankBatch(100, context, attended)], graph=True)
        for context, attended in ((near, near), (far, near), (far, far))
    }
    # Half of the layers have a window: it saves half of what the longer context costs.
    assert at[far, near] - at[near, near] == pytest.approx(
        (at[far, far] - at[near, near]) / 2, rel=0.05
    )


def test_shared_indexers_score_in_their_own_layers_only() -> None:
    card = LIBRARY.model(GLM_5_2)
    indexer = card.architecture.indexer
    assert indexer is not None
    own = card.architecture.model_copy(
        update={"indexer": indexer.model_copy(update={"layers": None})}
    )
    every = card.model_copy(update={"architecture": own})
    batch = [RankBatch(64, 64 * 100_000.0, 64 * 2048.0)]
    knobs = {"tensor_parallel": 8}
    shared_s, every_s = (
        StepTime(
            SimulatedServer(ServerSetup("vllm", "0.32.0", knobs, model, LIBRARY.node("h200"), 8))
        ).seconds(batch, True)
        for model in (card, every)
    )
    assert shared_s < every_s


def test_weights_of_four_bits_are_multiplied_as_the_gpu_can() -> None:
    def flops(hw: str, kind: str) -> float:
        server, _ = step(GPT_OSS, hw)
        server.architecture = server.architecture.model_copy(update={"matrices_in": kind})
        return server.matrix_flops_of(0.53) / 1e12

    def unpacked(hw: str) -> float:
        return step(GPT_OSS, hw)[0].coefficients.unpack_share

    share = step(GPT_OSS, "b200")[0].coefficients.fp4_share
    assert flops("b200", "fp4") == pytest.approx(9000 * 0.5 * share)
    # Where a GPU cannot multiply in a type, its weights are unpacked to bf16 first.
    assert (
        flops("h200", "fp4")
        == flops("h200", "bf16")
        == pytest.approx(989 * 0.65 * unpacked("h200"))
    )
    assert flops("a100", "fp8") == pytest.approx(312 * 0.8 * unpacked("a100"))


def test_a_request_alone_gains_no_step_time_from_stages_that_idle_meanwhile() -> None:
    alone, many = [RankBatch(1, 9000.0, 9000.0)], [RankBatch(64, 576_000.0, 576_000.0)]
    one, two = (
        StepTime(
            SimulatedServer(
                ServerSetup("vllm", "0.13.0", knobs, LIBRARY.model(LLAMA), LIBRARY.node("h200"), 8)
            )
        )
        for knobs in ({"tensor_parallel": 4}, {"tensor_parallel": 4, "pipeline_parallel": 2})
    )
    assert two.seconds(alone, True) == one.seconds(alone, True)
    assert two.seconds(many, True) < one.seconds(many, True)
