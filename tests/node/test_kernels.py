"""Kernels cost by format, generation and backend: what measured pairs of commands say."""

from __future__ import annotations

from math import prod

import pytest

from autotune.engines.command import Scalar
from autotune.load.workloads import Workload, load_workload
from autotune.load.workloads.arrivals import arrival_of
from autotune.node.calibration import ServerSetup, coefficients_of, groups_of
from autotune.node.simulate import simulate
from tests.node.nodes import LIBRARY, R1, setup

QWEN = "Qwen/Qwen3-8B"
MINIMAX = "MiniMaxAI/MiniMax-M2.5"
LLAMA = "nvidia/Llama-3.3-70B-Instruct-FP"


def throughput(
    model: str, hw: str, tp: int, workload: Workload, version: str = "0.26.0", **knobs: Scalar
) -> float:
    server = ServerSetup(
        "vllm",
        version,
        {"tensor_parallel": tp, **knobs},
        LIBRARY.model(model),
        LIBRARY.node(hw),
        tp,
    )
    outcome = simulate(server, workload, 0)
    assert outcome.failure is None
    return float(outcome.metrics["total_token_throughput"])


def closed(read: int, written: int, clients: int) -> Workload:
    workload = load_workload(f"random:{read}:{written}:{4 * clients}")
    return workload.with_arrival(arrival_of(clients, None))


@pytest.mark.parametrize(("hw", "least", "most"), [("h200", 0.85, 1.08), ("b200", 1.1, 2.0)])
def test_half_the_bytes_of_a_cache_pay_where_kernels_multiply_in_fp8(hw, least, most):
    # Measured on an H200: 0.99 of the throughput with Qwen3-8B (docs/real-gpu.md), and -7 to +15 %
    # with Qwen3-1.7B (docs/simulator.md).
    load = load_workload("random:1024:256:256")
    gain = prod(
        throughput(QWEN, hw, 1, load, kv_cache_dtype=kind) ** sign
        for kind, sign in (("fp8", 1), ("bfloat16", -1))
    )
    assert least < gain < most


def test_triton_s_attention_costs_what_two_pairs_of_launches_measured():
    # 0.73 and 0.84 of the throughput with FlashAttention 3 (docs/simulator.md).
    load = load_workload("random:1024:256:256")
    backends = "TRITON_ATTN", "FLASH_ATTN"
    triton, flash = (throughput(QWEN, "h200", 1, load, attention_backend=one) for one in backends)
    assert 0.65 < triton / flash < 0.95


@pytest.mark.parametrize("clients", [4, 32])
def test_fp8_weights_reach_nine_tenths_of_nvfp4(clients):
    # 60 public pairs of Llama-3.3-70B on B200 with vLLM: 0.90 in the mean.
    load = closed(1024, 1024, clients)
    knobs = {"kv_cache_dtype": "fp8", "async_scheduling": True}
    fp8, fp4 = (throughput(f"{LLAMA}{bits}", "b200", 4, load, "0.11.0", **knobs) for bits in "84")
    assert 0.8 < fp8 / fp4 < 1.05


def test_minimax_reduces_a_third_time_in_each_layer_of_a_sharded_model():
    # models/minimax_m2.py normalises queries and keys over all ranks' heads.
    extra = [
        coefficients_of(setup("vllm", tp, model=MINIMAX, version="0.19.0")).layer_extra_us
        for tp in (1, 4)
    ]
    assert extra[0] == 0 < extra[1]


def test_a_gpu_has_the_factors_of_its_generation():
    generations = {
        hw: groups_of(setup("vllm", hw=hw))["generation"] for hw in ("h100", "h200", "b200", "b300")
    }
    assert generations["h100"] == generations["h200"] != generations["b200"]
    assert generations["b200"] == generations["b300"]


def test_engines_of_winter_2026_share_an_era():
    eras = [
        groups_of(setup(engine, model=R1, version=version)).get("era")
        for engine, version in (
            ("vllm", "0.15.1"),
            ("sglang", "0.5.9"),
            ("tensorrt_llm", "1.1.0"),
            ("vllm", "0.13.0"),
        )
    ]
    assert eras == ["winter-2026", "winter-2026", "winter-2026", None]
