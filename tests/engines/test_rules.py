"""Combinations that fail, that are ignored, and that the engine changes by itself: one row, one
command line."""

from __future__ import annotations

import pytest

from autotune.engines.command import Configuration, Scalar
from autotune.engines.context import broken_rules, effective, unsuited
from autotune.engines.entry import in_range
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.expression import evaluate
from autotune.engines.registry import engine
from tests.engines.settings import LIBRARY, OURS, R1, V32, context, failing_rules, read

VLLM = f"vllm serve {V32} -tp 8"
VLLM_R1 = f"vllm serve {R1} -tp 8"
SGLANG = f"python3 -m sglang.launch_server --model {V32} --tp 8"
SGLANG_R1 = f"python3 -m sglang.launch_server --model {R1} --tp 8"
TRT = f"trtllm-serve {V32} --tp_size 8"
EAGLE = "--speculative-algorithm EAGLE --speculative-num-steps 1"
FP8 = "--kv-cache-dtype fp8_e4m3"
NEW, OLD = "0.5.23", "0.5.6"

DRAFTED = "--speculative-algorithm EAGLE --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2"
HOST_CACHE = "--enable-hierarchical-cache --hicache-size 64"
# 8192 tokens of prompts, graphs of 128 on each of 4 replicas: SGLang computes a share of 0.88 by itself.
SHARE = f"{SGLANG} --attn-dp-size 4 --ep-size 8 {FP8} --cuda-graph-max-bs-decode 128"
SGLANG_OF = "python3 -m sglang.launch_server --model-path {} --tp-size 8"
GPT_OSS = "openai/gpt-oss-120b"
GLM = "zai-org/GLM-5.2-FP8"
QWEN8 = "Qwen/Qwen3-8B"
# 192 columns of an expert for each of 8 ranks: one block of 128 and a half.
QWEN3 = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
BLOCKS = "expert-shards-split-blocks"

NEWV = "0.33.0"
AITER = "VLLM_ROCM_USE_AITER=1 vllm serve"
SHUFFLED = f"VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT=1 {AITER}"
FA = "--attention-backend ROCM_AITER_FA"
SINKS = "rocm-attention-sink"

FAILS = [
    # command, version, model, node, the rule
    *(
        (f"{SGLANG} {asked}", version, V32, "h200", rule)
        for asked, version, rule in (
            (
                "--schedule-policy shortest-prefill-first --disable-radix-cache",
                NEW,
                "shortest-prefill-without-a-cache",
            ),
            ("--enable-mixed-chunk --pp-size 2", "0.5.9", "pipeline-with-mixed-chunk"),
            (
                "--enable-mixed-chunk --dsa-prefill-backend flashmla_sparse_q8",
                NEW,
                "mixed-chunk-with-q8",
            ),
        )
    ),
    (
        "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 4 --monokernel",
        NEWV,
        "deepseek-ai/DeepSeek-V4-Flash",
        "mi355x",
        "monokernel-elsewhere",
    ),
    (
        f"{SGLANG_R1} --dcp-size 8 {HOST_CACHE} {DRAFTED}",
        "0.5.23",
        R1,
        "h200",
        "host-cache-of-parted-cache",
    ),
    (
        f"{SGLANG_OF.format('deepseek-ai/DeepSeek-V4-Flash')} {HOST_CACHE}",
        "0.5.23",
        "deepseek-ai/DeepSeek-V4-Flash",
        "b200",
        "host-cache-of-compressed-attention",
    ),
    (
        f"{VLLM} --attention-backend CUTLASS_MLA",
        "0.32.0",
        V32,
        "h200",
        "sparse-model-dense-backend",
    ),
    (f"{VLLM} --attention-backend FLASHMLA", "0.32.0", V32, "h200", "sparse-model-dense-backend"),
    (f"{VLLM} --attention-backend TRITON_MLA", "0.13", V32, "h200", "sparse-model-dense-backend"),
    (
        f"{VLLM_R1} --attention-backend FLASHMLA_SPARSE",
        "0.32.0",
        R1,
        "h200",
        "dense-model-sparse-backend",
    ),
    (f"{VLLM} -dcp 8", "0.13", V32, "h200", "sparse-decode-context-parallel"),
    (f"{VLLM} -dcp 4", "0.28.0", V32, "h200", "sparse-decode-context-parallel"),
    (f"{VLLM} -dcp 8", "0.32.0", V32, "h200", "sparse-decode-context-parallel-bf16"),
    (
        f"{VLLM} -dcp 8 --kv-cache-dtype fp8_ds_mla",
        "0.33.0",
        V32,
        "h200",
        "sparse-decode-context-parallel-heads",
    ),
    (
        f"vllm serve {V32} -tp 4 -dp 2 -dcp 2 --kv-cache-dtype fp8",
        "0.33.0",
        V32,
        "h200",
        "sparse-decode-context-parallel-heads",
    ),
    (
        f"vllm serve {GLM} -tp 8 -dcp 4 --kv-cache-dtype fp8",
        "0.32.0",
        GLM,
        "h200",
        "shared-context-by-all-to-all",
    ),
    (
        f"vllm serve {QWEN3} -tp 8 -dcp 4",
        "0.33.0",
        QWEN3,
        "h200",
        "grouped-query-decode-context-parallel",
    ),
    (f"{VLLM} --kv-cache-dtype fp8_e5m2", "0.32.0", V32, "h200", "sparse-kv-dtype"),
    (f"{VLLM_R1} --kv-cache-dtype fp7", "0.33.0", R1, "h200", "unknown-cache-dtype"),
    (f"{VLLM_R1} --kv-cache-dtype fp8_ds_mla", "0.32.0", R1, "h200", "dense-kv-layout"),
    (f"VLLM_ROCM_USE_AITER=1 {VLLM_R1}", "0.11", R1, "mi300x", "aiter-mla-block-size"),
    (f"VLLM_ROCM_USE_AITER=1 {VLLM}", "0.13", V32, "mi300x", "sparse-aiter-block-size"),
    (f"{AITER} {QWEN3} -tp 8 -ep {FA} --block-size 1", NEWV, QWEN3, "mi300x", "rocm-block-size"),
    (f"{AITER} {GPT_OSS} --attention-backend ROCM_ATTN", NEWV, GPT_OSS, "mi300x", f"{SINKS}s"),
    (f"{AITER} {GPT_OSS} {FA}", "0.22.1", GPT_OSS, "mi300x", f"{SINKS}s-of-flash-attention"),
    (f"{AITER} {R1} -tp 8 {FA}", NEWV, R1, "mi300x", "rocm-latent-backend"),
    (f"{SHUFFLED} {GPT_OSS} {FA}", NEWV, GPT_OSS, "mi355x", "shuffled-cache-one-token"),
    (
        f"{AITER} {V32} -tp 8 --kv-cache-dtype fp8_ds_mla",
        NEWV,
        V32,
        "mi355x",
        "sparse-aiter-cache-type",
    ),
    (
        f"{VLLM} -dp 8 -tp 1 -ep --all2all-backend mori_low_latency",
        NEWV,
        V32,
        "h200",
        "mori-on-nvidia",
    ),
    (
        f"{VLLM} --block-size 1 --kv-cache-dtype fp8",
        "0.13",
        V32,
        "mi300x",
        "sparse-aiter-fp8-cache",
    ),
    (f"{VLLM_R1.replace('8', '1')} -dp 8 --enable-dbo", "0.32.0", R1, "h200", "dbo-needs-deepep"),
    (
        f"{VLLM} --max-num-batched-tokens 32 --max-num-seqs 64",
        "0.32.0",
        V32,
        "h200",
        "batch-smaller-than-sequences",
    ),
    (f"{VLLM} --max-model-len 200000", "0.32.0", V32, "h200", "context-beyond-model"),
    (f"{VLLM} -dp 2", "0.32.0", V32, "h200", "layout-needs-more-gpus"),
    (f"{VLLM_R1} --enable-eplb", "0.32.0", R1, "h200", "eplb-needs-experts"),
    (f"{SGLANG} {FP8} --dsa-decode-backend fa3", NEW, V32, "h200", "sparse-16-bit-kernels"),
    (
        f"{SGLANG} {FP8} --dsa-decode-backend flashmla_sparse",
        NEW,
        V32,
        "h200",
        "sparse-16-bit-kernels",
    ),
    (
        f"{SGLANG} --dsa-decode-backend flashmla_auto",
        NEW,
        V32,
        "h200",
        "flashmla-auto-is-prefill-only",
    ),
    (
        f"{SGLANG} --enable-two-batch-overlap",
        OLD,
        V32,
        "h200",
        "two-batch-overlap-needs-all-to-all",
    ),
    (
        f"{SGLANG} --enable-two-batch-overlap",
        NEW,
        V32,
        "h200",
        "two-batch-overlap-needs-dp-attention",
    ),
    (
        f"{SGLANG} --attn-dp-size 8 --moe-dense-tp-size 2",
        NEW,
        V32,
        "h200",
        "dense-layers-on-one-or-all",
    ),
    (
        f"{SGLANG} {FP8} --dsa-prefill-backend flashmla_sparse_q8",
        NEW,
        V32,
        "b200",
        "fp8-prefill-needs-hopper",
    ),
    (
        f"{SGLANG} {FP8} --dsa-prefill-backend flashmla_sparse_q8",
        NEW,
        V32,
        "mi300x",
        "fp8-prefill-needs-hopper",
    ),
    (
        f"{SGLANG} {FP8} --nsa-prefill flashmla_prefill",
        "0.5.3",
        V32,
        "h200",
        "sparse-16-bit-prefill",
    ),
    (f"{SGLANG} --dsa-decode-backend triton", NEW, V32, "h200", "sparse-kernels-of-other-vendor"),
    (f"{SGLANG} --dsa-decode-backend fa3", NEW, V32, "mi300x", "sparse-kernels-of-other-vendor"),
    (SGLANG, OLD, V32, "mi300x", "sparse-kernels-of-other-vendor"),
    (f"SGLANG_ENABLE_JIT_DEEPGEMM=0 {SGLANG}", NEW, V32, "h200", "sparse-needs-deep-gemm"),
    (f"{SGLANG} --dp-size 3 --enable-dp-attention", NEW, V32, "h200", "dp-divides-tp"),
    (f"{SGLANG_R1} --dp-size 3 --enable-dp-attention", OLD, R1, "h200", "dp-divides-tp"),
    (f"{SGLANG_R1} --dp-size 8", NEW, R1, "h200", "layout-needs-more-gpus"),
    (f"{SGLANG} {EAGLE}", NEW, V32, "h200", "speculative-incomplete"),
    (f"{SGLANG} --context-length 200k", NEW, V32, "h200", "context-beyond-model"),
    (f"{SGLANG} --kv-cache-dtype fp8_e5m2", NEW, V32, "h200", "sparse-kv-dtype"),
    (f"{SGLANG} --ep-size 3", NEW, V32, "h200", "expert-parallel-divides"),
    (SGLANG, "0.4.3.post2", V32, "h200", "sparse-attention-unknown"),
    (TRT, "1.0", V32, "h200", "sparse-attention-unknown"),
    (VLLM, "0.5.0", V32, "h200", "sparse-attention-unknown"),
    (VLLM_R1, "0.6.5", R1, "h200", "deepseek-v3-younger-than-engine"),
    (
        "vllm serve Qwen/Qwen3.5-9B -tp 8",
        "0.13.0",
        "Qwen/Qwen3.5-9B",
        "h200",
        "qwen3.5-younger-than-engine",
    ),
    (
        "vllm serve Qwen/Qwen3-8B -tp 8",
        "0.8.3",
        "Qwen/Qwen3-8B",
        "h200",
        "model-of-2025-younger-than-engine",
    ),
    (SGLANG, "0.5.2", V32, "h200", "sparse-attention-unknown"),
    (
        SGLANG_OF.format("Qwen/Qwen3.5-9B"),
        "0.5.6",
        "Qwen/Qwen3.5-9B",
        "h200",
        "qwen3.5-younger-than-engine",
    ),
    (SGLANG_OF.format(GPT_OSS), "0.4.10", GPT_OSS, "h200", "gpt-oss-younger-than-engine"),
    (f"vllm serve {QWEN3} -tp 8", "0.28.0", QWEN3, "h200", BLOCKS),
    (SGLANG_OF.format(QWEN3), NEW, QWEN3, "h200", BLOCKS),
    (SGLANG_OF.format(QWEN3), "0.5.10", QWEN3, "mi300x", f"{BLOCKS}-on-amd"),
]
RUNS = [
    (VLLM, "0.32.0", V32, "h200"),
    (f"{VLLM} --kv-cache-dtype fp8", "0.32.0", V32, "h200"),
    (f"{VLLM} -dcp 4 --kv-cache-dtype fp8_ds_mla", "0.29.0", V32, "h200"),
    (f"vllm serve {GLM} -tp 8 -dcp 8 --kv-cache-dtype fp8_ds_mla", "0.33.0", GLM, "h200"),
    (f"vllm serve {QWEN3} -tp 8 -ep -dcp 2", "0.33.0", QWEN3, "h200"),
    (f"{VLLM} -dcp 8", "0.33.0", V32, "b200"),
    (f"VLLM_ATTENTION_BACKEND=CUTLASS_MLA {VLLM}", "0.32.0", V32, "h200"),
    (f"VLLM_ROCM_USE_AITER=1 {VLLM_R1}", "0.32.0", R1, "mi300x"),
    (f"{SHUFFLED} {QWEN3} -tp 8 -ep {FA}", NEWV, QWEN3, "mi300x"),
    (f"{AITER} {V32} -tp 8 --kv-cache-dtype fp8", "0.22.1", V32, "mi355x"),
    (VLLM_R1, "0.11", R1, "mi300x"),
    (VLLM, "0.11", V32, "h200"),
    ("vllm serve Qwen/Qwen3.5-9B -tp 4", "0.17.0", "Qwen/Qwen3.5-9B", "h200"),
    (SGLANG, NEW, V32, "h200"),
    (f"{SGLANG} {FP8}", NEW, V32, "h200"),
    (f"{SGLANG} {FP8}", OLD, V32, "h200"),
    (f"{SGLANG} --nsa-decode-backend flashmla_kv", OLD, V32, "h200"),
    (
        f"{SGLANG} --attn-dp-size 8 --enable-two-batch-overlap --moe-dense-tp-size 1",
        NEW,
        V32,
        "h200",
    ),
    (f"{SGLANG} {FP8} --dsa-prefill-backend flashmla_sparse", NEW, V32, "h200"),
    (f"{SGLANG} {FP8} --dsa-prefill-backend flashmla_sparse_q8", NEW, V32, "h200"),
    (f"{SGLANG} --dsa-prefill-backend flashmla_sparse_q8", NEW, V32, "h200"),
    (f"{SGLANG} --dsa-decode-backend flashmla_kv", NEW, V32, "h200"),
    (f"vllm serve {QWEN3} -tp 8", "0.29.0", QWEN3, "h200"),
    (SGLANG_OF.format(QWEN3), NEW, QWEN3, "mi300x"),
    (f"{SGLANG} --dsa-prefill-backend tilelang --dsa-decode-backend tilelang", NEW, V32, "mi300x"),
    (f"{SGLANG_R1} --attention-backend aiter {FP8}", NEW, R1, "mi300x"),
    (f"{SGLANG} --speculative-algorithm EAGLE", NEW, V32, "h200"),
    # Drafts from the text need no layer of the checkpoint.
    (f"vllm serve {QWEN8} --spec-method ngram --spec-tokens 4", "0.33.0", QWEN8, "h200"),
    (f"vllm serve {QWEN8} --speculative-config.method suffix", "0.33.0", QWEN8, "h200"),
    # As the simulator launches it: with forced acceptance beside the short spelling.
    (
        f"vllm serve {QWEN8} --spec-method ngram --speculative-config.rejection_sample_method synthetic",
        "0.33.0",
        QWEN8,
        "h200",
    ),
    (f"{SGLANG_OF.format(QWEN8)} --speculative-algorithm NGRAM", NEW, QWEN8, "h200"),
    (
        f"{SGLANG_OF.format(QWEN8)} --speculative-algorithm NGRAM --speculative-num-draft-tokens 32",
        NEW,
        QWEN8,
        "h200",
    ),
    (TRT, "1.2.0rc5", V32, "h200"),
]


@pytest.mark.parametrize(("command", "version", "model", "node", "rule"), FAILS)
def test_a_combination_fails_by_its_rule(
    command: str, version: str, model: str, node: str, rule: str
) -> None:
    assert rule in failing_rules(command, version, model, node)


@pytest.mark.parametrize(("command", "version", "model", "node"), RUNS)
def test_a_combination_runs(command: str, version: str, model: str, node: str) -> None:
    assert failing_rules(command, version, model, node) == []


@pytest.mark.parametrize(
    "command", [f"{VLLM} --max-model-len 16384", f"{SGLANG} --context-length 16384"]
)
def test_a_context_below_the_workload_fails_only_where_the_workload_is_longer(command: str) -> None:
    newest = engine("vllm" if "vllm" in command else "sglang").card.newest
    assert failing_rules(command, newest, longest_request=16384) == []
    assert failing_rules(command, newest, longest_request=16385) == ["context-below-workload"]


@pytest.mark.parametrize(
    ("command", "version", "knob", "value"),
    [
        (f"{SGLANG} --schedule-policy lpm --disable-radix-cache", NEW, "schedule_policy", "fcfs"),
        (f"{SGLANG} --schedule-policy lpm", NEW, "schedule_policy", "lpm"),
        (f"{SGLANG} --enable-mixed-chunk {DRAFTED}", OLD, "enable_mixed_chunk", False),
        (f"{SGLANG} --enable-mixed-chunk {DRAFTED}", NEW, "enable_mixed_chunk", True),
        (
            f"VLLM_USE_RUST_FRONTEND=1 {VLLM} --api-server-count 4",
            NEWV,
            "api_server_count",
            None,
        ),
    ],
)
def test_an_engine_changes_a_setting_of_its_host(
    command: str, version: str, knob: str, value: Scalar
) -> None:
    assert made(command, version)[knob] == value


def made(command: str, version: str, model: str = V32) -> dict[str, object]:
    configuration = read(command, version, model)
    kind = engine(configuration.engine)
    judged = context(kind.version(version), model)
    return dict(effective(kind.card, configuration, judged).knobs)


EQUIVALENTS = [
    (
        f"{VLLM} --performance-mode throughput",
        f"{VLLM} --max-num-seqs 2048 --max-num-batched-tokens 16384",
        "0.33.0",
    ),
    (
        f"{VLLM} --performance-mode throughput --max-num-seqs 512",
        f"{VLLM} --max-num-seqs 512 --max-num-batched-tokens 16384",
        "0.17.0",
    ),
    (
        "vllm serve Qwen/Qwen3-8B --performance-mode throughput --max-num-seqs 1024",
        "vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 16384",
        "0.32.0",
    ),
    (f"{SHARE} --mem-fraction-static 0.88", SHARE, NEW),
    (f"{SGLANG} --enable-dp-attention", SGLANG, NEW),
    (f"{SGLANG} --dp-size 1 --enable-dp-attention --enable-dp-lm-head", SGLANG, OLD),
    (f"{SGLANG} --enable-dp-lm-head", SGLANG, NEW),
    (f"{SGLANG} --attn-dp-size 8", f"{SGLANG} --dp-size 8 --enable-dp-attention", NEW),
    (f"{SGLANG} --chunked-prefill-size 8192 --context-length 163840", SGLANG, NEW),
    (f"{SGLANG} --attention-backend nsa", SGLANG, NEW),
    (f"{SGLANG} --kv-cache-dtype bf16", SGLANG, OLD),
    (
        f"{SGLANG} --moe-a2a-backend deepep --ep 8",
        f"{SGLANG} --moe-a2a-backend deepep --ep-size 2",
        NEW,
    ),
    (f"{SGLANG} --moe-a2a-backend deepep --ep 8", f"{SGLANG} --moe-a2a-backend deepep", NEW),
    (f"{SGLANG} --deepep-mode normal", SGLANG, NEW),
    (f"{SGLANG} {FP8} --nsa-decode-backend fa3", f"{SGLANG} {FP8}", OLD),
    (
        f"{VLLM} --max-num-seqs 1024 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.92",
        VLLM,
        "0.32.0",
    ),
    (f"{VLLM} --kv-cache-dtype fp8", f"{VLLM} --kv-cache-dtype fp8_ds_mla", "0.32.0"),
    (f"{VLLM} --kv-cache-dtype bfloat16", VLLM, "0.13"),
    (f"{VLLM} --kv-cache-dtype fp8", VLLM, "0.11"),
    (
        f"{VLLM} --enforce-eager --max-cudagraph-capture-size 64",
        f"{VLLM} --enforce-eager",
        "0.32.0",
    ),
    (f"VLLM_ATTENTION_BACKEND=TRITON_MLA {VLLM}", VLLM, "0.32.0"),
    (f"{VLLM} --max-model-len 163840 --enable-prefix-caching", VLLM, "0.32.0"),
]


@pytest.mark.parametrize(("spelling", "other", "version"), EQUIVALENTS)
def test_two_spellings_are_one_configuration(spelling: str, other: str, version: str) -> None:
    assert made(spelling, version) == made(other, version)


def test_speculation_without_a_request_limit_is_capped_at_48() -> None:
    full = f"{SGLANG} {EAGLE} --speculative-eagle-topk 1 --speculative-num-draft-tokens 2"
    assert made(full, NEW)["max_running_requests"] == 48
    assert made(f"{full} --max-running-requests 512", NEW)["max_running_requests"] == 512
    assert made(SGLANG, NEW)["max_running_requests"] is None


def test_the_cap_of_speculation_and_the_same_number_asked_for_are_two_servers() -> None:
    full = f"{SGLANG} {EAGLE} --speculative-eagle-topk 1 --speculative-num-draft-tokens 2"
    asked = f"{full} --max-running-requests 48"
    graphs = [
        made(command, NEW)["cuda_graph_max_batch"]
        for command in (full, asked, f"{SGLANG} --max-running 600")
    ]
    # An explicit limit shrinks the graphs' default since 0.5.22, the cap comes after them.
    assert graphs == [512, 48, 512]
    assert made(f"{asked} --cuda-graph-max-bs-decode 512", NEW) == made(full, NEW)
    assert made(asked, OLD) == made(full, OLD)


def test_sglang_drafts_with_a_limit_of_running_requests() -> None:
    kind, judged = engine("sglang"), context(NEW, V32)
    pins = {"context_length": 32768, "prefix_caching": True, "max_batched_tokens": 8192}
    limits: dict[bool, set[object]] = {False: set(), True: set()}
    for candidate in enumerate_engine(kind.card, judged, pins).configurations:
        limits[bool(candidate.knobs["speculative_tokens"])].add(
            candidate.knobs["max_running_requests"]
        )
    assert limits == {False: {None, 512, 1024}, True: {256, 512, 1024}}


def test_the_kernels_of_latent_attention_on_hopper_take_blocks_of_64() -> None:
    kind = engine("tensorrt_llm")
    for node, blocks in (("h200", {64}), ("b200", {32, 64})):
        judged = context("1.2.0", V32, node=node)
        pins = {"context_length": 32768, "prefix_caching": True, "speculative_tokens": 0}
        found = enumerate_engine(kind.card, judged, pins).configurations
        assert {candidate.knobs["tokens_per_block"] for candidate in found} == blocks
    judged = context("1.2.0", R1)
    asked = Configuration("tensorrt_llm", {**kind.default_knobs(judged), "tokens_per_block": 32})
    assert effective(kind.card, asked, judged).knobs["tokens_per_block"] == 64


@pytest.mark.parametrize(
    ("version", "words", "model", "backend", "block"),
    # platforms/rocm.py _get_backend_priorities and the backends' supports_sink,
    # get_preferred_block_size of the wheels of these versions: without AITER and with it.
    [
        ("0.18.1", AITER, QWEN3, "ROCM_AITER_FA", 16),
        ("0.18.1", "vllm serve", QWEN3, "TRITON_ATTN", 16),
        ("0.19.0", AITER, QWEN3, "ROCM_ATTN", 16),
        ("0.33.0", AITER, QWEN3, "ROCM_ATTN", 16),
        ("0.33.0", "vllm serve", QWEN3, "ROCM_ATTN", 16),
        ("0.22.1", AITER, GPT_OSS, "ROCM_AITER_UNIFIED_ATTN", 64),
        ("0.23.0", AITER, GPT_OSS, "ROCM_AITER_FA", 16),
        ("0.23.0", "vllm serve", GPT_OSS, "ROCM_AITER_UNIFIED_ATTN", 64),
        ("0.33.0", AITER, R1, "ROCM_AITER_MLA", 16),
        ("0.33.0", "vllm serve", R1, "TRITON_MLA", 16),
        ("0.33.0", AITER, "google/gemma-3-27b-it", None, 16),
    ],
)
def test_the_attention_that_vllm_chooses_on_rocm(
    version: str, words: str, model: str, backend: str | None, block: int
) -> None:
    knobs = read(f"{words} {model} -tp 8", version, model, "mi300x").knobs
    assert (knobs["attention_backend"], knobs["block_size"]) == (backend, block)


def test_minimax_m3_runs_without_aiter_where_its_text_degenerates_with_it() -> None:
    """Tensor parallelism alone on MI355X (InferenceX, pull request 1946)."""
    kind, model = engine("vllm"), "MiniMaxAI/MiniMax-M3"

    def aiter(version: str, node: str, ranks: int) -> bool:
        known = context(version, model, node)
        knobs = kind.default_knobs(known, {"tensor_parallel": 8, "expert_parallel": ranks})
        command = kind.command(Configuration("vllm", knobs), known)
        return "VLLM_ROCM_USE_AITER" in command.env

    assert not aiter("0.24.0", "mi355x", 1)
    assert aiter("0.24.0", "mi355x", 8)
    assert aiter("0.24.0", "mi300x", 1)
    assert aiter("0.33.0", "mi355x", 1)


def test_deepep_s_normal_kernels_run_without_graphs() -> None:
    command = f"{SGLANG} --ep 8 --moe-a2a-backend deepep --deepep-mode"
    assert [
        made(f"{command} {mode}", NEW)["cuda_graph_max_batch"] for mode in ("auto", "normal")
    ] == [512, 0]


@pytest.mark.parametrize("name", OURS)
def test_a_layout_that_leaves_gpus_idle_is_none_of_the_candidates(name: str) -> None:
    kind = engine(name)
    judged = context(kind.card.newest)
    defaults = kind.default_knobs(judged)
    layouts = enumerate_engine(
        kind.card, judged, {k: v for k, v in defaults.items() if not k.endswith("_parallel")}
    )
    assert layouts.removed["layout-leaves-gpus-idle"]
    assert layouts.configurations


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"moe_backend": "DEEPGEMM"}, "deepgemm-experts-need-blackwell"),
        ({"moe_backend": "TRTLLM"}, "trtllm-experts-need-blackwell"),
        (
            {
                "tensor_parallel": 1,
                "data_parallel": 8,
                "speculative_tokens": 1,
                "relaxed_acceptance": True,
            },
            "relaxed-acceptance-attention-dp",
        ),
        ({"expert_parallel": 3}, "expert-parallel-divides"),
        ({"context_length": 200000}, "context-beyond-model"),
        ({}, None),
    ],
)
def test_tensorrt_llm_s_combinations(settings: dict[str, Scalar], rule: str | None) -> None:
    kind = engine("tensorrt_llm")
    judged = context("1.2.0", R1)
    made = effective(
        kind.card, Configuration(kind.name, kind.default_knobs(judged, settings)), judged
    )
    assert [r.name for r in broken_rules(kind.card, made, judged)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    "model", ["MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"]
)
def test_tensorrt_llm_wants_whole_blocks_of_each_expert_on_a_rank(model: str) -> None:
    """NVIDIA/TensorRT-LLM#14613: an expert's 1536 are 192 on each of 8 ranks, with blocks of 128."""
    kind = engine("tensorrt_llm")
    here = context(kind.version(), model, "h200")
    for sizes, refused in (
        ((8, 1, 1), True),
        ((1, 8, 1), True),
        ((4, 1, 1), False),
        ((1, 8, 8), False),
    ):
        names = ("tensor_parallel", "data_parallel", "expert_parallel")
        asked = kind.default_knobs(here, dict(zip(names, sizes, strict=True)))
        broken = broken_rules(kind.card, Configuration(kind.name, asked), here)
        assert ("expert-shards-split-blocks" in [rule.name for rule in broken]) == refused, sizes


def test_tensorrt_llm_needs_nvidia() -> None:
    card = engine("tensorrt_llm").card
    holds = {
        node: evaluate(card.requires[0].expect, context("1.2.0", node=node).scope({}))
        for node in LIBRARY.hardware
    }
    assert holds["h200"] is True
    assert holds["mi300x"] is False
    assert "AMD" in card.requires[0].reason
    assert all(in_range(version, "*") for version in card.versions)


@pytest.mark.parametrize("name", OURS)
def test_sparse_attention_needs_hopper_or_blackwell(name: str) -> None:
    card = engine(name).card

    def runs(model: str, version: str = card.newest) -> set[str]:
        """The nodes that the engine's card allows for a model."""
        return {
            node
            for node in LIBRARY.hardware
            if unsuited(card, context(version, model, node=node, gpus=1)) is None
        }

    assert {"h100", "h200", "h800", "h20-3e", "gh200", "b200", "b300", "gb300"} <= runs(V32)
    without = {"a100", "a800", "rtx-a6000", "a10", "l4", "l40", "l40s", "rtx4090"}
    assert not without & runs(V32)
    # FlashInfer has kernels for compute capability 12: vLLM takes them for any model from 0.24 on
    # (v1/attention/backends/registry.py), SGLang for GLM-5's class from 0.5.20 on
    # (flash_mla_sm120.py of 0.5.23).
    rtx = {"rtx5090", "rtx-pro-6000-blackwell-server", "gb10"}
    assert rtx & runs(V32) == (rtx if name == "vllm" else set())
    assert rtx & runs("zai-org/GLM-5.2-FP8") == (set() if name == "tensorrt_llm" else rtx)
    old = {"vllm": "0.13.0", "sglang": "0.5.9", "tensorrt_llm": "1.0.0"}[name]
    assert not rtx & (runs(V32, old) | runs("zai-org/GLM-5.2-FP8", old))


def test_sparse_attention_on_rtx_blackwell_has_one_kernel_and_one_layout_of_its_cache() -> None:
    """`platforms/cuda.py` and `flashinfer_mla_sparse_sm120.py` of vLLM 0.33."""
    node = "rtx-pro-6000-blackwell-server"
    space = enumerate_engine(engine("vllm").card, context("0.33.0", V32, node=node)).configurations
    pairs = {(c.knobs["attention_backend"], c.knobs["kv_cache_dtype"]) for c in space}
    assert pairs == {("FLASHINFER_MLA_SPARSE_SM120", "fp8_ds_mla")}
    assert {c.knobs["block_size"] for c in space} == {64}
    for command, rule in (
        (f"{VLLM} --attention-backend FLASHMLA_SPARSE", "backend-needs-hopper"),
        (f"{VLLM} --attention-backend FLASHINFER_MLA_SPARSE", "backend-needs-blackwell"),
    ):
        assert rule in failing_rules(command, "0.33.0", V32, node)
    command = f"{VLLM} --attention-backend FLASHINFER_MLA_SPARSE_SM120 --kv-cache-dtype fp8_ds_mla"
    assert "backend-of-one-generation" in failing_rules(command, "0.33.0", V32, "b200")


@pytest.mark.parametrize(
    ("command", "version", "rule", "runs_on", "fails_on"),
    [
        (f"{SGLANG_R1} --attention-backend fa3", NEW, "fa3-on-blackwell", "h100-pcie", "rtx5090"),
        (
            f"{SGLANG_R1} --attention-backend cutedsl_mla",
            NEW,
            "backend-needs-blackwell",
            "b300",
            "rtx5090",
        ),
        (
            f"{SGLANG_R1} --attention-backend trtllm_mla",
            NEW,
            "backend-needs-blackwell",
            "b300",
            "l40s",
        ),
        (
            f"{VLLM_R1} --attention-backend CUTLASS_MLA",
            "0.33.0",
            "backend-needs-blackwell",
            "b300",
            "rtx5090",
        ),
        (
            f"{VLLM_R1} --attention-backend FLASHMLA",
            "0.33.0",
            "backend-needs-hopper",
            "h100-pcie",
            "rtx5090",
        ),
    ],
)
def test_kernels_of_other_generations_fail(
    command: str, version: str, rule: str, runs_on: str, fails_on: str
) -> None:
    assert rule in failing_rules(command, version, R1, fails_on)
    assert rule not in failing_rules(command, version, R1, runs_on)


def test_the_kernels_that_are_tried_on_the_blackwell_of_data_centres() -> None:
    """`_get_backend_priorities` of platforms/cuda.py and the backends' own conditions (0.33)."""

    def tried(model: str, version: str = "0.33.0") -> set[tuple[Scalar, Scalar]]:
        found = enumerate_engine(engine("vllm").card, context(version, model, node="b200"))
        return {
            (one.knobs["kv_cache_dtype"], one.knobs["attention_backend"])
            for one in found.configurations
        }

    assert tried(V32) == {
        ("bfloat16", None),
        ("bfloat16", "FLASHMLA_SPARSE"),
        ("bfloat16", "FLASHINFER_MLA_SPARSE"),
        ("fp8_e4m3", "FLASHINFER_MLA_SPARSE"),
        ("fp8_ds_mla", "FLASHMLA_SPARSE"),
    }
    assert tried(R1) == {("bfloat16", None), ("fp8", None), ("fp8", "TOKENSPEED_MLA")}
    assert tried(R1, "0.32.0") == {("bfloat16", None), ("fp8", None)}


@pytest.mark.parametrize(
    ("node", "version", "budget", "sequences"),
    [
        ("a100", "0.33.0", 2048, 256),
        ("a800", "0.33.0", 8192, 1024),
        ("gb10", "0.32.0", 8192, 1024),
        ("gb10", "0.33.0", 2048, 256),
        ("rtx-a6000", "0.33.0", 2048, 256),
    ],
)
def test_a_node_s_budgets_are_those_of_its_name_and_memory(
    node: str, version: str, budget: int, sequences: int
) -> None:
    """`get_batch_defaults` of engine/arg_utils.py: 70 GiB and more, but no A100, nor (0.33) GB10."""
    made = effective(
        engine("vllm").card,
        read(f"vllm serve {QWEN8}", version, QWEN8, node),
        context(version, QWEN8, node=node, gpus=1),
    )
    assert made.knobs["max_batched_tokens"] == budget
    assert made.knobs["max_running_requests"] == sequences
