"""What SGLang takes by itself is never tried beside its own choice; what else is valid is.

Facts of SGLang's answers to its own command lines on GPUs that were pretended (0.5.23).
"""

from __future__ import annotations

import pytest

from autotune.engines.command import Configuration, Scalar
from autotune.engines.context import effective
from autotune.engines.registry import engine
from autotune.engines.schema import holding
from tests.engines.settings import R1, V32, context, failing_rules, read

SGLANG = engine("sglang")
GPT, QWEN = "openai/gpt-oss-120b", "Qwen/Qwen3-32B"
MINIMAX, HYBRID = "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3.5-9B"
NEW = "0.5.23"

CHOSEN = [
    # model, node, knob, what the engine takes for it
    (QWEN, "h200", "attention_backend", "fa3"),
    (QWEN, "b200", "attention_backend", "trtllm_mha"),
    (QWEN, "rtx-pro-6000", "attention_backend", "flashinfer"),
    (QWEN, "l40s", "attention_backend", "flashinfer"),
    (GPT, "b200", "attention_backend", "trtllm_mha"),
    (GPT, "l40s", "attention_backend", "triton"),
    (HYBRID, "b200", "attention_backend", "triton"),
    (R1, "b200", "attention_backend", "trtllm_mla"),
    (R1, "b200", "moe_backend", "flashinfer_trtllm"),
    (GPT, "b200", "moe_backend", "flashinfer_mxfp4"),
    (GPT, "h200", "moe_backend", "triton_kernel"),
]
ANOTHER = [
    # options, model, node, knob, a valid value that the engine does not take
    ("", QWEN, "h200", "attention_backend", "flashinfer"),
    ("", QWEN, "b200", "attention_backend", "fa4"),
    ("", QWEN, "rtx-pro-6000", "attention_backend", "trtllm_mha"),
    ("", HYBRID, "b200", "attention_backend", "trtllm_mha"),
    ("", R1, "b200", "attention_backend", "cutedsl_mla"),
    ("", QWEN, "b200", "kv_cache_dtype", "nvfp4"),
    ("--tp 8", MINIMAX, "b200", "moe_backend", "flashinfer_trtllm_routed"),
    ("--tp 8", GPT, "h200", "moe_backend", "flashinfer_mxfp4"),
]
REFUSED = [
    ("--attention-backend trtllm_mha", R1, "b200", "kernels-of-grouped-or-latent-attention"),
    ("--attention-backend fa4 --kv-cache-dtype fp8_e4m3", QWEN, "b200", "fa4-reads-16-bits"),
    ("--attention-backend trtllm_mha", QWEN, "l40s", "grouped-kernels-of-another-gpu"),
    ("--kv-cache-dtype nvfp4", QWEN, "h200", "four-bit-cache-needs-blackwell"),
    ("--tp 8 --dcp-size 2", QWEN, "h200", "grouped-query-decode-context-parallel"),
]


def made(options: str, model: str, node: str) -> Configuration:
    raw = read(f"sglang serve --model-path {model} {options}", NEW, model, node)
    return effective(SGLANG.card, raw, context(NEW, model, node))


def beside(options: str, model: str, node: str, knob: str) -> list[Scalar]:
    scope = context(NEW, model, node).scope(made(options, model, node).knobs)
    return list(
        next((one.values for one in holding(SGLANG.card.knobs[knob].beside, scope, NEW)), ())
    )


@pytest.mark.parametrize(("model", "node", "knob", "taken"), CHOSEN)
def test_what_the_engine_takes_is_not_tried_beside_its_choice(
    model: str, node: str, knob: str, taken: str
) -> None:
    assert taken not in beside("--tp 8", model, node, knob)


@pytest.mark.parametrize(("options", "model", "node", "knob", "value"), ANOTHER)
def test_what_else_is_valid_is_tried(
    options: str, model: str, node: str, knob: str, value: str
) -> None:
    assert value in beside(options, model, node, knob)
    changed = made(options, model, node).with_knobs(**{knob: value})
    assert effective(SGLANG.card, changed, context(NEW, model, node)).knobs[knob] == value


@pytest.mark.parametrize(("options", "model", "node", "rule"), REFUSED)
def test_kernels_of_other_models_and_gpus_are_refused(
    options: str, model: str, node: str, rule: str
) -> None:
    command = f"sglang serve --model-path {model} {options}"
    assert rule in failing_rules(command, NEW, model, node)


def test_sparse_attention_on_hopper_keeps_what_its_search_has() -> None:
    for knob in ("attention_backend", "decode_context_parallel", "kv_cache_dtype"):
        assert beside("--tp 8", V32, "h200", knob) == []
