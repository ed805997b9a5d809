"""AMD's attention backends in vLLM against the published pairs, and where they are searched."""

from __future__ import annotations

import pytest

from autotune.engines.command import Configuration
from autotune.engines.context import Context, effective
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.registry import engine
from autotune.load.workloads import load_workload
from autotune.node.steady import SteadyNode
from tests.node.nodes import LIBRARY, R1

QWEN3 = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
VLLM = engine("vllm")


def context(model: str, node: str, version: str, load: str = "random:10000:1000:64") -> Context:
    workload = load_workload(load)
    in_flight = (workload.concurrency, workload.tokens_in_flight)
    where = (LIBRARY.model(model), LIBRARY.node(node), 8, version)
    return Context(*where, workload.longest_request, (), *in_flight)


def throughput(node: str, load: str, backend: str) -> float:
    where = context(QWEN3, node, "0.24.0", load)
    wanted = {"tensor_parallel": 8, "expert_parallel": 8, "attention_backend": backend}
    knobs = VLLM.default_knobs(where, {**wanted, "max_batched_tokens": 16384})
    made = effective(VLLM.card, Configuration("vllm", knobs), where)
    simulated = SteadyNode(where.model, where.hardware, 8, load_workload(load))
    return simulated.predict("vllm", where.version, made.knobs).metrics["output_throughput"]


@pytest.mark.parametrize(
    ("node", "requests", "unified", "triton", "rocm"),
    # How many times as slow as ROCM_AITER_FA: vLLM's blog of 27 February 2026, Qwen3-235B-FP8 with
    # tensor and expert parallelism of 8, prompts of 10,000 tokens and answers of 1000.
    [
        ("mi300x", 64, 1.05, 1.30, 3.82),
        ("mi300x", 128, 1.05, 1.36, 2.65),
        ("mi325x", 128, 1.00, 1.28, 3.12),
        ("mi355x", 64, 0.95, 1.08, 3.61),
        ("mi355x", 128, 1.01, 1.23, 2.88),
    ],
)
def test_attention_on_amd_is_as_slow_as_published(
    node: str, requests: int, unified: float, triton: float, rocm: float
) -> None:
    load = f"random:10000:1000:{requests}"
    best = throughput(node, load, "ROCM_AITER_FA")
    found = [
        best / throughput(node, load, f"{name}_ATTN") for name in ("ROCM_AITER_UNIFIED", "TRITON")
    ]
    assert found == pytest.approx([unified, triton], rel=0.16)
    assert best / throughput(node, load, "ROCM_ATTN") == pytest.approx(rocm, rel=0.4)


@pytest.mark.parametrize(
    ("model", "version", "node", "backends"),
    [
        (QWEN3, "0.19.1", "mi300x", {"ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"}),
        (QWEN3, "0.13.0", "mi300x", {"ROCM_AITER_FA"}),
        (QWEN3, "0.33.0", "h200", {None}),
        ("openai/gpt-oss-120b", "0.33.0", "mi355x", {"ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN"}),
        (R1, "0.33.0", "mi355x", {"ROCM_AITER_MLA", "TRITON_MLA"}),
    ],
)
def test_attention_that_is_searched(
    model: str, version: str, node: str, backends: set[str | None]
) -> None:
    where = context(model, node, version)
    pins = {"max_running_requests": 1024, "max_batched_tokens": 16384, "context_length": None}
    candidates = enumerate_engine(VLLM.card, where, {**pins, "replicas": 1}).configurations
    assert {one.knobs["attention_backend"] for one in candidates} == backends
    # Of the shuffled layout AITER has a kernel for one token of a sequence in blocks of 16.
    shuffled = [one.knobs for one in candidates if one.knobs["shuffled_kv_cache"]]
    assert bool(shuffled) == (model == QWEN3 and version == "0.19.1")
    assert {(one["attention_backend"], one["block_size"]) for one in shuffled} <= {
        ("ROCM_AITER_FA", 16)
    }
