"""The big effects that were measured have the right order with the shipped coefficients."""

import pytest

from tests.node.nodes import R1, V32, run, run_points, tokens_per_s

SHORTER = {"context_length": 81920}


def test_r1_engines_at_their_defaults():
    sglang, vllm = tokens_per_s("sglang", model=R1), tokens_per_s("vllm", model=R1)
    # Measured 6885 and, less the seconds in which the cold server answered nobody, 6413: single runs,
    # 7 % apart, and predicted 5 % apart the other way round.
    assert vllm / 1.2 < sglang < 1.2 * vllm
    assert min(sglang, vllm) > 1.2 * tokens_per_s("tensorrt_llm", 8, 1, 8, model=R1)


def test_v32_engines_at_their_defaults():
    assert tokens_per_s("vllm") > tokens_per_s("sglang") > tokens_per_s("tensorrt_llm")


def test_sglang_v32_dp_attention_beats_anything_of_vllm():
    sglang = tokens_per_s("sglang", 1, 8)
    for tp, dp in ((8, 1), (4, 2), (2, 4), (1, 8)):
        # Replicas with MTP come near it; nobody has measured them.
        near = 1.0 if dp == 1 else 1.15
        for knobs in ({}, {"speculative_tokens": 1}, {"max_running_requests": 256}):
            for ep in (1, 8):
                assert near * sglang > tokens_per_s("vllm", tp, dp, ep, **SHORTER, **knobs)


def test_sglang_dp_attention_more_than_doubles_tp8_and_ep_adds_little():
    assert tokens_per_s("sglang", 1, 8) > 1.7 * tokens_per_s("sglang")
    # Measured 7294 against 7352 and 8376; predicted 9 % less.
    assert tokens_per_s("sglang", 1, 8, 8) == pytest.approx(tokens_per_s("sglang", 1, 8), rel=0.1)


def test_vllm_dp8_ep_beats_tp8_by_about_a_tenth():
    gain = tokens_per_s("vllm", 1, 8, 8, **SHORTER) / tokens_per_s("vllm")
    assert 1.03 < gain < 1.3


@pytest.mark.parametrize("model", [R1, V32])
def test_sglang_mtp_with_its_cap_of_48_is_far_below(model):
    capped = tokens_per_s("sglang", model=model, speculative_tokens=1, max_running_requests=48)
    # Measured 0.32 (R1) and 0.42 (V3.2, predicted 0.68).
    assert capped < 0.7 * tokens_per_s("sglang", model=model)


def test_vllm_mtp_gains_nothing_at_full_load():
    assert tokens_per_s("vllm", speculative_tokens=1) == pytest.approx(
        tokens_per_s("vllm"), rel=0.12
    )


def test_vllm_mtp_helps_at_concurrency_4():
    few = {"workload": "sharegpt-c4"}
    assert tokens_per_s("vllm", speculative_tokens=1, **few) > 1.1 * tokens_per_s("vllm", **few)


def test_trt_expert_parallel_beats_tensor_sharded_experts():
    assert tokens_per_s("tensorrt_llm", 8, 1, 8) > 1.3 * tokens_per_s("tensorrt_llm")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt_llm"])
def test_at_concurrency_4_plain_tp8_beats_eight_replicas(engine):
    plain, replicas = (
        max(tokens_per_s(engine, tp, dp, ep, workload="sharegpt-c4", **SHORTER) for ep in (1, 8))
        for tp, dp in ((8, 1), (1, 8))
    )
    assert plain > 1.05 * replicas


def test_a_bf16_cache_under_flashmla_kv_is_slow_where_it_starts():
    backends = {
        "prefill_attention_backend": "flashmla_sparse",
        "decode_attention_backend": "flashmla_kv",
    }
    assert tokens_per_s("sglang", 1, 8, **backends) < 0.75 * tokens_per_s("sglang", 1, 8)


@pytest.mark.parametrize("workload", ["short", "medium", "long", "very-long"])
def test_v32_prompts_of_any_length_prefer_sglang_dp8_to_vllm_tp8(workload):
    assert tokens_per_s("sglang", 1, 8, workload=workload) > 1.3 * tokens_per_s(
        "vllm", workload=workload
    )


def test_long_outputs_exhaust_the_cache_of_h200_but_not_of_mi300x():
    h200, mi300x = (
        run("vllm", model=R1, hw=hw, workload="output-sweep") for hw in ("h200", "mi300x")
    )
    assert h200.preemptions > 5 * mi300x.preemptions
    points = {
        hw: run_points("vllm", model=R1, hw=hw, workload="output-sweep")
        for hw in ("h200", "mi300x")
    }
    assert points["h200"][-1]["mean_ttft_ms"] > 3 * points["h200"][0]["mean_ttft_ms"]
    kept = {
        hw: found[-1]["output_throughput"] / found[1]["output_throughput"]
        for hw, found in points.items()
    }
    assert kept["h200"] < kept["mi300x"]


def test_prefix_caching_helps_where_prompts_share_a_beginning():
    on, off = (
        run("vllm", workload="shared-prefix", prefix_caching=flag).metrics for flag in (True, False)
    )
    assert on["cache_hit_rate"] > 0.4 > off["cache_hit_rate"] == 0
    assert on["total_token_throughput"] > 1.1 * off["total_token_throughput"]
