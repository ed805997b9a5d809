"""FP8 weights with a scale for a block: what TensorRT-LLM has kernels for, by generation of the
GPU."""

from __future__ import annotations

import pytest

from autotune.engines.command import Command, Configuration
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.node.resolve_command import resolve_for

LIBRARY = Library()
KIND = engine("tensorrt_llm")
HOPPER_ONLY = "fp8 blockscale gemm only support Hopper"
NO_KERNEL = "Unsupported SM version for FP8 block scaling GEMM"


def refusal(model: str, hardware: str, version: str = "1.2.0", backend: str | None = None) -> str:
    """The engine's words where a command does not start; empty where it does."""
    flag = "--config" if version == "1.2.0" else "--extra_llm_api_options"
    more = (flag, "own.yaml") if backend else ()
    files = {"own.yaml": f"moe_config: {{backend: {backend}}}\n"} if backend else {}
    node = LIBRARY.hardware[hardware]
    command = Command(("trtllm-serve", model, "--tp_size", str(node.gpus), *more), files=files)
    resolved = resolve_for(KIND, command, Context(LIBRARY.model(model), node, node.gpus, version))
    return resolved.failure.log_excerpt if resolved.failure else ""


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
