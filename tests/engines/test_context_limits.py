"""A config.json is what an engine's version makes of it: the limit of the context, the cache.

Right values: the engines' own configuration classes (vLLM 0.32.0, SGLang 0.5.23), other versions by
their code: vLLM, config/model.py _get_and_verify_max_len; SGLang, utils/hf_transformers/common.py
get_context_length.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.engines import Context, engine, split_command
from autotune.engines.cards import kv_bytes_per_token
from autotune.engines.library import Library
from autotune.node.resolve_command import resolve_for
from tests.engines.space.published_qwen import QWEN3_8B

LIBRARY = Library()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONGROPE = {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}
SCALED = {
    "yarn": {"rope_scaling": YARN},
    "linear": {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 8.0}},
    "llama3": {"rope_parameters": {**YARN, "rope_type": "llama3"}},
    "longrope": {
        **LONGROPE,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
    },
    "lengths": {"model_max_length": 16384, "seq_length": 8192},
    "seq_length alone": {"max_position_embeddings": None, "seq_length": 8192},
}
START = {
    "vllm": "vllm serve",
    "sglang": "python3 -m sglang.launch_server --model-path",
    "tensorrt_llm": "trtllm-serve",
}


def limit(folder: Path, changes: dict[str, Any], name: str, version: str, more: str = "") -> Any:
    (folder / "config.json").write_text(json.dumps({**QWEN3_8B, **changes}))
    context = Context(LIBRARY.model(str(folder)), LIBRARY.hardware["h100"], 1, version)
    resolved = resolve_for(engine(name), split_command(f"{START[name]} {folder} {more}"), context)
    if resolved.failure is not None:
        return resolved.failure.message
    return resolved.effective.knobs["context_length"] or (
        resolved.context.model.architecture.context_limit
    )


@pytest.mark.parametrize(
    ("scaled", "name", "version", "tokens"),
    [
        ("yarn", "vllm", "0.26.0", 131072),
        ("yarn", "vllm", "0.29.0", 131072),
        ("yarn", "vllm", "0.30.0", 40960),
        ("yarn", "vllm", "0.33.0", 40960),
        ("yarn", "sglang", "0.5.9", 40960),
        ("yarn", "sglang", "0.5.23", 40960),
        ("yarn", "tensorrt_llm", "1.2.0", 40960),
        ("linear", "vllm", "0.33.0", 32768),
        ("linear", "sglang", "0.5.23", 32768),
        ("linear", "tensorrt_llm", "1.2.0", 32768),
        ("llama3", "vllm", "0.33.0", 40960),
        ("longrope", "vllm", "0.11.0", 131072),
        ("longrope", "vllm", "0.33.0", 4096),
        ("longrope", "sglang", "0.5.23", 131072),
        ("lengths", "vllm", "0.33.0", 16384),
        ("lengths", "sglang", "0.5.23", 8192),
        ("seq_length alone", "vllm", "0.33.0", 8192),
    ],
)
def test_each_version_makes_its_own_limit(
    tmp_path: Path, scaled: str, name: str, version: str, tokens: int
) -> None:
    assert limit(tmp_path, SCALED[scaled], name, version) == tokens


def test_longrope_is_long_where_it_is_asked_for(tmp_path: Path) -> None:
    more = "--max-model-len 131072 --gpu-memory-utilization 0.95"
    assert limit(tmp_path, SCALED["longrope"], "vllm", "0.33.0", more) == 131072
    beyond = limit(tmp_path, SCALED["longrope"], "vllm", "0.33.0", "--max-model-len 131073")
    assert "positions end at its context limit" in beyond


@pytest.mark.parametrize(
    ("name", "version", "asked", "more"),
    [
        ("vllm", "0.33.0", "--max-model-len", "--hf-overrides.max_position_embeddings 131072"),
        (
            "sglang",
            "0.5.23",
            "--context-length",
            "--json-model-override-args '{\"max_position_embeddings\": 131072}'",
        ),
    ],
)
def test_a_refusal_says_what_serves_yarn_s_length(
    tmp_path: Path, name: str, version: str, asked: str, more: str
) -> None:
    refused = limit(tmp_path, SCALED["yarn"], name, version, f"{asked} 131072")
    assert "max_position_embeddings" in refused
    assert more.split()[0].partition(".")[0] in refused
    assert limit(tmp_path, SCALED["yarn"], name, version, f"{asked} 131072 {more}") == 131072


MINICPM3 = {
    **dict.fromkeys(("head_dim", "num_key_value_heads")),
    "architectures": ["MiniCPM3ForCausalLM"],
    "model_type": "minicpm3",
    "num_hidden_layers": 62,
    "hidden_size": 2560,
    "num_attention_heads": 40,
    "intermediate_size": 6400,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "max_position_embeddings": 32768,
}


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "per_token"),
    [("vllm", 1, 952_320), ("vllm", 8, 119_040), ("sglang", 1, 35_712), ("sglang", 8, 35_712)],
)
def test_an_engine_may_cache_latent_attention_s_heads(
    tmp_path: Path, name: str, tensor_parallel: int, per_token: int
) -> None:
    """As vLLM 0.32.0 specifies the cache of its own class for MiniCPM3, in bf16."""
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3_8B, **MINICPM3}))
    card, model = LIBRARY.engine(name), LIBRARY.model(str(tmp_path))
    context = Context(model, LIBRARY.hardware["h100"], 8, card.newest)
    a = context.as_read(card).model.architecture
    assert kv_bytes_per_token(a, "bfloat16", tensor_parallel) == per_token
