"""The kernel that an engine takes by itself is known: naming it is no other configuration.

Kernels are facts of vLLM's own lists (platforms/cuda.py, layers/fused_moe/oracle/) and of its
answers to its own command lines on GPUs that were pretended (0.33).
"""

from __future__ import annotations

import pytest

from autotune.engines.command import Configuration
from autotune.engines.context import default_of, effective, search_values
from autotune.engines.registry import engine
from autotune.engines.schema import holding
from tests.engines.settings import R1, V32, context, failing_rules, read

VLLM = engine("vllm")
GPT, QWEN, MOE = "openai/gpt-oss-120b", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"
MINIMAX, HYBRID = "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3.5-9B"
NEW = "0.33.0"
EXPERTS = "-tp 8 --enable-expert-parallel"

CHOSEN = [
    # options, version, model, node, what the engine takes for them
    ("", NEW, QWEN, "h200", "--attention-backend FLASH_ATTN"),
    ("", "0.13.0", QWEN, "h200", "--attention-backend FLASH_ATTN"),
    ("--kv-cache-dtype fp8", NEW, QWEN, "h200", "--attention-backend FLASH_ATTN"),
    ("", NEW, QWEN, "b200", "--attention-backend FLASHINFER"),
    ("", "0.13.0", QWEN, "b200", "--attention-backend FLASHINFER"),
    ("", NEW, QWEN, "b300", "--attention-backend FLASHINFER"),
    ("", NEW, QWEN, "rtx-pro-6000", "--attention-backend FLASH_ATTN"),
    ("", NEW, QWEN, "l40s", "--attention-backend FLASH_ATTN"),
    ("--kv-cache-dtype fp8", NEW, QWEN, "l40s", "--attention-backend FLASHINFER"),
    ("", NEW, GPT, "b200", "--attention-backend FLASHINFER"),
    ("", NEW, GPT, "h200", "--attention-backend FLASH_ATTN"),
    ("", NEW, GPT, "l40s", "--attention-backend TRITON_ATTN"),
    ("", NEW, MINIMAX, "b200", "--attention-backend FLASHINFER"),
    ("", NEW, HYBRID, "h200", "--attention-backend FLASH_ATTN"),
    ("", NEW, R1, "h200", "--attention-backend FLASH_ATTN_MLA"),
    ("", NEW, R1, "b200", "--attention-backend FLASHINFER_MLA"),
    ("--kv-cache-dtype fp8", NEW, R1, "b200", "--attention-backend FLASHINFER_MLA"),
    ("", NEW, V32, "h200", "--attention-backend FLASH_ATTN_MLA_SPARSE"),
    ("", NEW, V32, "b200", "--attention-backend FLASHMLA_SPARSE"),
    ("-tp 8", NEW, V32, "b200", "--attention-backend FLASH_ATTN_MLA_SPARSE_FA4"),
    ("--kv-cache-dtype fp8", NEW, V32, "b200", "--attention-backend FLASHINFER_MLA_SPARSE"),
    ("-tp 8", NEW, R1, "h200", "--moe-backend triton"),
    (EXPERTS, NEW, R1, "h200", "--moe-backend flashinfer_cutlass"),
    ("-tp 8", NEW, R1, "b200", "--moe-backend flashinfer_trtllm"),
    ("", NEW, MOE, "h200", "--moe-backend triton"),
    ("", NEW, GPT, "b200", "--moe-backend flashinfer_trtllm"),
]
ANOTHER = [
    # options, model, node, a valid value that the engine does not take, tried beside the best
    ("", QWEN, "h200", "attention_backend", "FLASHINFER"),
    ("--kv-cache-dtype fp8", QWEN, "h200", "attention_backend", "FLASHINFER"),
    ("", QWEN, "b200", "attention_backend", "FLASH_ATTN"),
    ("", QWEN, "l40s", "attention_backend", "FLASHINFER"),
    ("--kv-cache-dtype fp8", QWEN, "l40s", "attention_backend", "TRITON_ATTN"),
    ("", GPT, "b200", "attention_backend", "FLASH_ATTN"),
    ("", R1, "b200", "attention_backend", "CUTLASS_MLA"),
    ("-tp 2", V32, "b200", "attention_backend", "FLASH_ATTN_MLA_SPARSE_FA4"),
    ("-tp 8", R1, "h200", "moe_backend", "deep_gemm"),
    (EXPERTS, R1, "h200", "moe_backend", "triton"),
    ("", MOE, "h200", "moe_backend", "flashinfer_cutlass"),
    ("-dp 8 --enable-expert-parallel", R1, "b200", "moe_all_to_all", "flashinfer_nvlink_one_sided"),
    ("", QWEN, "b200", "kv_cache_dtype", "nvfp4"),
]
REFUSED = [
    ("--attention-backend FLASH_ATTN --kv-cache-dtype fp8", HYBRID, "b200", "fp8-cache-of"),
    ("--attention-backend FLASH_ATTN --kv-cache-dtype fp8", QWEN, "l40s", "fp8-cache-of"),
    ("--attention-backend FLASH_ATTN", R1, "h200", "grouped-queries-and-latent-attention"),
    ("--attention-backend FLASHMLA", QWEN, "h200", "grouped-queries-and-latent-attention"),
    ("--attention-backend B12X", QWEN, "h200", "backend-of-rtx-blackwell"),
    ("--kv-cache-dtype nvfp4", R1, "b200", "nvfp4-cache"),
    ("--kv-cache-dtype nvfp4 --attention-backend FLASH_ATTN", QWEN, "b200", "nvfp4-cache"),
]


def made(options: str, model: str, node: str, version: str = NEW) -> Configuration:
    raw = read(f"vllm serve {model} {options}", version, model, node)
    return effective(VLLM.card, raw, context(version, model, node))


@pytest.mark.parametrize(("options", "version", "model", "node", "taken"), CHOSEN)
def test_the_kernel_that_the_engine_takes_is_its_default(
    options: str, version: str, model: str, node: str, taken: str
) -> None:
    assert made(f"{options} {taken}", model, node, version) == made(options, model, node, version)


@pytest.mark.parametrize(("options", "model", "node", "knob", "value"), ANOTHER)
def test_what_the_engine_would_not_take_is_tried_beside_the_best(
    options: str, model: str, node: str, knob: str, value: str
) -> None:
    judged, leader = context(NEW, model, node), made(options, model, node)
    scope, entry = judged.scope(leader.knobs), VLLM.card.knobs[knob]
    beside = next(one.values for one in holding(entry.beside, scope, NEW))
    assert value in beside
    assert value not in search_values(entry, scope, NEW)
    assert default_of(entry, scope, NEW) not in beside
    changed = effective(VLLM.card, leader.with_knobs(**{knob: value}), judged)
    assert changed.knobs[knob] == value


@pytest.mark.parametrize(("options", "model", "node", "rule"), REFUSED)
def test_a_kernel_of_other_models_and_gpus_is_refused(
    options: str, model: str, node: str, rule: str
) -> None:
    found = failing_rules(f"vllm serve {model} {options}", NEW, model, node)
    assert any(name.startswith(rule) for name in found)
