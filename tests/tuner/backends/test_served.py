"""What a server's log tells of the requests that it takes."""

from __future__ import annotations

import pytest

from autotune.engines.command import Configuration
from autotune.engines.registry import engine as registered
from autotune.tuner.backends.read_back import kv_cache_tokens
from tests.engines.settings import context


@pytest.mark.parametrize(
    ("engine", "log", "tokens"),
    [
        # As vLLM 0.32 printed it on a CPU; one line per data-parallel rank, of which the smallest
        # counts.
        (
            "vllm",
            "INFO [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens, Maximum concurrency for 8",
            131072,
        ),
        (
            "vllm",
            "GPU KV cache size: 568,166 tokens\nINFO\nGPU KV cache size: 568,112 tokens\n",
            568112,
        ),
        (
            "sglang",
            "TP0] max_total_num_tokens=70656, chunked_prefill_size=8192, max_prefill_tokens=16384",
            70656,
        ),
        ("sglang", "TP0] KV Cache is allocated. #tokens: 53056, KV size: 2.30 GB", 53056),
        (
            "tensorrt_llm",
            "[I] [MemUsageChange] Allocated 21.10 GiB for max tokens in paged KV cache (322592).",
            322592,
        ),
        # As 1.1.0rc3 printed it on one GPU (gpt-oss-120b, 20 December 2025): the first cache is the
        # one that the memory is estimated with.
        (
            "tensorrt_llm",
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).\n"
            "[12/20/2025-04:21:51] [TRT-LLM] [I] Estimated max memory in KV cache : 5.95 GiB\n"
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).",
            86720,
        ),
        # The newer manager tells GiB of a rank (kv_cache_manager_v2.py): 61 layers of 576 values of
        # 16 bits and the indexer's 128 + 4 bytes a token; a second one is the drafts'.
        (
            "tensorrt_llm",
            "[I] KV cache manager v2 device quota set to 50.0GiB\n"
            "[I] KV cache manager v2 host cache quota set to 50.00GiB\n"
            "[I] KV cache manager v2 device quota set to 0.81GiB",
            int(50 * 2**30 / (61 * (576 * 2 + 132))),
        ),
        ("vllm", "INFO Starting vLLM server; max_total_num_tokens is not its word", None),
    ],
)
def test_each_engines_log_tells_how_many_tokens_its_kv_cache_holds(
    engine: str, log: str, tokens: int | None
) -> None:
    kind = registered(engine)
    judged = context(kind.card.newest)
    ran = Configuration(engine, kind.default_knobs(judged))
    assert kv_cache_tokens(kind.card, f"starting\n{log}\nready\n", ran, judged) == tokens
