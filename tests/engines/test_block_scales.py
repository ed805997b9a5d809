"""What TensorRT-LLM has kernels for, by generation of the GPU: FP8 weights with a scale for a block,
and experts by format and backend.

Its own tables: _torch/modules/fused_moe/MOE_DEVELOPER_GUIDE.md and create_moe.py (to 1.3.0rc24).
"""

from __future__ import annotations

import re

import pytest

from autotune.engines.command import Command, Configuration, Scalar
from autotune.engines.context import Context, search_values
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.node.resolve_command import ResolvedCommand, resolve_for

LIBRARY = Library()
KIND = engine("tensorrt_llm")
HOPPER_ONLY = "fp8 blockscale gemm only support Hopper"
NO_KERNEL = "Unsupported SM version for FP8 block scaling GEMM"


def resolved_of(
    model: str, hardware: str, version: str = "1.2.0", backend: str | None = None
) -> ResolvedCommand:
    """A command with all GPUs of a node, whole experts on each, and perhaps a backend of its file,
    as it runs."""
    flag = "--extra_llm_api_options" if version == "1.0.0" else "--config"
    more = (flag, "own.yaml") if backend else ()
    files = {"own.yaml": f"moe_config: {{backend: {backend}}}\n"} if backend else {}
    node = LIBRARY.hardware[hardware]
    sizes = ("--tp_size", str(node.gpus), "--ep_size", str(node.gpus))
    command = Command(("trtllm-serve", model, *sizes, *more), files=files)
    return resolve_for(KIND, command, Context(LIBRARY.model(model), node, node.gpus, version))


def refusal(model: str, hardware: str, version: str = "1.2.0", backend: str | None = None) -> str:
    """The engine's words where a command does not start; empty where it does."""
    failure = resolved_of(model, hardware, version, backend).failure
    return failure.log_excerpt if failure else ""


@pytest.mark.parametrize(
    ("hardware", "version", "words"),
    [("l40s", "1.2.0", ""), ("l40s", "1.0.0", ""), ("h100", "1.2.0", ""), ("b200", "1.2.0", ""),
     ("rtx-pro-6000", "1.2.0", ""), ("rtx-pro-6000", "1.0.0", NO_KERNEL)],
)  # fmt: skip
def test_layers_without_experts_have_kernels_on_ada_too(
    hardware: str, version: str, words: str
) -> None:
    assert words in refusal("Qwen/Qwen3-32B-FP8", hardware, version)
    assert bool(words) is bool(refusal("Qwen/Qwen3-32B-FP8", hardware, version))


@pytest.mark.parametrize(
    ("hardware", "backend", "words"),
    [("l40s", None, HOPPER_ONLY), ("b200", None, HOPPER_ONLY), ("b200", "CUTLASS", HOPPER_ONLY),
     ("b200", "DEEPGEMM", ""), ("b200", "TRTLLM", ""), ("h200", None, ""), ("rtx-pro-6000", None, "")],
)  # fmt: skip
def test_experts_need_hopper_or_another_kernel(
    hardware: str, backend: str | None, words: str
) -> None:
    told = refusal("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", hardware, backend=backend)
    assert words in told
    assert bool(words) is bool(told)


def test_experts_without_block_scales_are_not_concerned() -> None:
    assert not refusal("openai/gpt-oss-120b", "b200")
    assert not refusal("Qwen/Qwen3-235B-A22B-Instruct-2507", "l40s")


@pytest.mark.parametrize("version", ["1.0.0", "1.2.0"])
def test_what_is_tried_on_blackwell_names_a_kernel_that_starts(version: str) -> None:
    context = Context(
        LIBRARY.model("deepseek-ai/DeepSeek-R1"), LIBRARY.hardware["b200"], 8, version
    )
    knobs = KIND.default_knobs(context)
    assert knobs["moe_backend"] == "DEEPGEMM"
    command = KIND.command(Configuration(KIND.name, knobs), context)
    assert "backend: DEEPGEMM" in "".join(command.files.values())
    assert resolve_for(KIND, command, context).failure is None


QWEN_FP8, R1_FP4 = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "nvidia/DeepSeek-R1-0528-FP4"
GPT_OSS, QWEN = "openai/gpt-oss-120b", "Qwen/Qwen3-235B-A22B-Instruct-2507"


@pytest.mark.parametrize(
    ("model", "hardware", "version", "backend", "runs"),
    [
        # What AUTO becomes.
        (GPT_OSS, "h200", "1.2.0", None, "CUTLASS"),
        (GPT_OSS, "h200", "1.3.0rc2", "AUTO", "TRITON"), (GPT_OSS, "b200", "1.3.0rc2", None, "TRTLLM"),
        (GPT_OSS, "rtx-pro-6000", "1.3.0rc2", None, "CUTLASS"),
        (GPT_OSS, "h200", "1.4.0rc1", "CUTLASS", "CUTLASS"),
        (QWEN_FP8, "b200", "1.3.0rc16", "AUTO", "TRTLLM"), (QWEN_FP8, "h200", "1.3.0rc16", None, "CUTLASS"),
        (R1_FP4, "b200", "1.4.0rc1", None, "CUTLASS"),
        # What a backend becomes that cannot serve the experts' format, and from 1.3.0rc25 the GPU.
        (QWEN, "b200", "1.2.0", "TRTLLM", "CUTLASS"), (QWEN, "h200", "1.2.0", "CUTEDSL", "CUTLASS"),
        (QWEN_FP8, "h200", "1.3.0rc25", "TRTLLM", "CUTLASS"), (QWEN_FP8, "h200", "1.3.0rc25", "DEEPGEMM", "CUTLASS"),
        (R1_FP4, "b200", "1.3.0rc25", "DEEPGEMM", "CUTLASS"), (R1_FP4, "b200", "1.3.0rc25", "CUTEDSL", "CUTEDSL"),
        (R1_FP4, "h200", "1.3.0rc25", "MARLIN", "MARLIN"),
        ("deepseek-ai/DeepSeek-V4-Flash", "b200", "1.4.0rc1", "MEGAMOE_DEEPGEMM", "MEGAMOE_DEEPGEMM"),
    ],
)  # fmt: skip
def test_the_backend_that_runs(
    model: str, hardware: str, version: str, backend: str | None, runs: str
) -> None:
    resolved = resolved_of(model, hardware, version, backend)
    assert resolved.failure is None
    assert resolved.effective.knobs["moe_backend"] == runs
    assert bool(resolved.effects) is (backend not in {None, "AUTO", runs})


@pytest.mark.parametrize(
    ("model", "hardware", "version", "backend", "words"),
    [
        (QWEN_FP8, "h200", "1.3.0rc11", "DEEPGEMM", "sfa_dtype == torch::kFloat"),
        (QWEN_FP8, "h200", "1.3.0rc24", "TRTLLM", "No kernel found for the given options"),
        (GPT_OSS, "rtx-pro-6000", "1.2.0", "TRTLLM", "TRTLLMGenFusedMoE does not support SM120"),
        (QWEN_FP8, "b200", "1.3.0rc25", "CUTEDSL", "no MoE implementation can serve this layer"),
        (R1_FP4, "h200", "1.2.0", None, "No kernel found for the given options"),
        (QWEN_FP8, "h200", "1.3.0rc24", "WIDEEP", "can no longer be selected"),
    ],
)
def test_backends_that_do_not_start_say_why_in_words_that_are_known(
    model: str, hardware: str, version: str, backend: str | None, words: str
) -> None:
    told = refusal(model, hardware, version, backend)
    assert words in told
    assert any(re.search(one.pattern, told) for one in KIND.card.failures)


def test_on_blackwell_each_format_has_its_backends() -> None:
    def searched(model: str, version: str, **knobs: int) -> set[Scalar]:
        context = Context(LIBRARY.model(model), LIBRARY.hardware["b200"], 8, version)
        scope = context.scope({**KIND.default_knobs(context), **knobs})
        return set(search_values(KIND.card.knobs["moe_backend"], scope, version))

    attention_dp = {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8}
    assert searched(QWEN_FP8, "1.2.0") == {"DEEPGEMM", "TRTLLM"}
    assert searched(R1_FP4, "1.2.0") == {"CUTLASS", "TRTLLM"}
    assert searched(R1_FP4, "1.2.0", **attention_dp) == {"CUTLASS", "TRTLLM", "CUTEDSL"}
    assert searched(R1_FP4, "1.4.0rc1", **attention_dp) == {"CUTLASS", "TRTLLM", "MEGAMOE_CUTEDSL"}
    assert searched(GPT_OSS, "1.2.0", **attention_dp) == {"TRTLLM"}
    assert searched(QWEN, "1.2.0", **attention_dp) == {"CUTLASS"}


@pytest.mark.parametrize(
    ("model", "version", "told"),
    [
        (QWEN_FP8, "1.3.0rc24", "may fail to start"), (QWEN_FP8, "1.3.0rc25", ""), (QWEN, "1.3.0rc24", ""),
        (GPT_OSS, "1.3.0rc24", "may lose much accuracy"), (GPT_OSS, "1.3.0rc26", "memory that is there"),
    ],
)  # fmt: skip
def test_known_issues_of_a_release_candidate_are_told(model: str, version: str, told: str) -> None:
    reasons = [effect.reason for effect in resolved_of(model, "b200", version).effects]
    assert len(reasons) == bool(told)
    assert told in "".join(reasons)
