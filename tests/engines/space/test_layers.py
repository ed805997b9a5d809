"""Layers that differ within a model: weights, cache and states as the engines lay them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.engines.cards import (
    Architecture,
    ModelCard,
    active_parameters,
    expert_layers,
    kv_bytes_per_token,
    state_bytes,
    total_parameters,
    weight_bytes_per_gpu,
)
from autotune.engines.library import Library
from tests.engines.space.published import FP8_BLOCKS
from tests.engines.space.published_layers import (
    DEEPSEEK_V4_FLASH,
    GEMMA4_26B,
    GEMMA4_31B,
    MIMO_V2_FLASH,
)

LIBRARY = Library()
SHARED = Path(__file__).parents[4] / "shared" / "data"


def described(folder: Path, config: dict[str, Any]) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config))
    card = LIBRARY.model(str(folder))
    assert not card.unpredicted
    return card.architecture


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (DEEPSEEK_V4_FLASH, 284, 13),
        (MIMO_V2_FLASH, 309, 15),
        (GEMMA4_26B, 25.2, 3.8),
        (GEMMA4_31B, 30.7, 30.7),
    ],
    ids=["DeepSeek-V4-Flash", "MiMo-V2-Flash", "gemma-4-26B-A4B", "gemma-4-31B"],
)
def test_the_parameters_are_those_that_the_authors_publish(
    tmp_path: Path, config: dict[str, Any], total: float, active: float
) -> None:
    a = described(tmp_path, config)
    assert total_parameters(a) / 1e9 == pytest.approx(total, rel=0.005)
    assert active_parameters(a) / 1e9 == pytest.approx(active, rel=0.02)


def test_a_compressed_cache_is_laid_out_in_blocks_of_256_tokens(tmp_path: Path) -> None:
    """vLLM 0.33 (`MLAAttentionSpec` with ``alignment=576``): 64 entries of 584 bytes and their
    index keys of 132 where four tokens share one, 2 entries where 128 do."""
    flash = described(tmp_path, DEEPSEEK_V4_FLASH)
    four, many = 37440 + 8640, 1728
    for ranks in (1, 8):
        for kv_type in ("bfloat16", "fp8", "fp8_ds_mla"):
            token = kv_bytes_per_token(flash, kv_type, ranks)
            assert token == (21 * four + 20 * many) / 256 == 3915
    # Windows of 128 tokens in blocks of 64, one more than they fill; float32 values and scores of
    # tokens to compress: 8 in blocks of 4, twice as wide, and 128 in blocks of 8.
    window = 3 * 64 * 584
    states = 21 * 12 * 2 * 2 * (512 + 128) * 4 + 20 * 136 * 2 * 512 * 4
    assert state_bytes(flash, 8, 2.0) == 43 * window + states


def test_weights_of_compressed_attention_are_in_the_types_of_the_checkpoint(tmp_path: Path) -> None:
    """deepseek-ai/DeepSeek-V4-Flash: experts in fp4, the rest in fp8, compressors in bf16;
    nvidia/DeepSeek-V4-Flash-NVFP4: experts in NVFP4."""
    flash = described(tmp_path, DEEPSEEK_V4_FLASH)
    assert (flash.weight_bytes, flash.attention_weight_bytes, flash.dense_weight_bytes) == (
        *(0.53125, 1.0, 1.0),
    )
    quantization = {
        **DEEPSEEK_V4_FLASH["quantization_config"],
        "moe_quant_algo": "NVFP4",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
        "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
    }
    nvidia = described(tmp_path, {**DEEPSEEK_V4_FLASH, "quantization_config": quantization})
    assert (nvidia.weight_bytes, nvidia.matrices_in) == (0.5625, "fp4")
    assert nvidia.attention_weight_bytes == 1.0


@pytest.mark.parametrize(
    ("config", "whole", "cut"),
    [
        (DEEPSEEK_V4_FLASH, 156.006, 20.645),
        ({**MIMO_V2_FLASH, "quantization_config": FP8_BLOCKS}, 310.252, 38.961),
        (GEMMA4_26B, 50.495, 6.354),
    ],
    ids=["DeepSeek-V4-Flash", "MiMo-V2-Flash", "gemma-4-26B-A4B"],
)
def test_a_rank_has_the_bytes_that_the_engine_counts(
    tmp_path: Path, config: dict[str, Any], whole: float, cut: float
) -> None:
    """GB of parameters of vLLM 0.32's own model class on the meta device at TP 1 and 8, without
    vision parts. Routers are in bf16 on every rank."""
    a = described(tmp_path, config)
    router = a.experts * a.hidden_size * 2 * expert_layers(a)
    for ranks, gigabytes in ((1, whole), (8, cut)):
        counted = weight_bytes_per_gpu(a, ranks, ranks, 1, mtp=False) + router
        assert counted / 1e9 == pytest.approx(gigabytes, rel=0.003)


def test_a_file_that_transformers_saved_is_the_same_model(tmp_path: Path) -> None:
    published = described(tmp_path, DEEPSEEK_V4_FLASH)
    names = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    ratios = DEEPSEEK_V4_FLASH["compress_ratios"][:43]
    keys = ("compress_ratios", "qk_rope_head_dim", "expert_dtype")
    saved = {
        **{key: value for key, value in DEEPSEEK_V4_FLASH.items() if key not in keys},
        "layer_types": [names.get(ratio, "heavily_compressed_attention") for ratio in ratios],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        "mlp_layer_types": [*["hash_moe"] * 3, *["moe"] * 40],
        "quantization_config": {**DEEPSEEK_V4_FLASH["quantization_config"], "expert_dtype": "fp4"},
    }
    assert described(tmp_path, saved) == published
    dense = described(tmp_path, GEMMA4_31B)
    text = {
        key: value for key, value in GEMMA4_31B["text_config"].items() if not key.count("global")
    }
    full = {f"{n:02}": {"head_dim": 512, "num_key_value_heads": 4} for n in range(5, 60, 6)}
    gemma = {**GEMMA4_31B, "text_config": {**text, "per_layer_config": full}}
    assert described(tmp_path, gemma) == dense


def test_heads_of_two_sizes_are_cached_each_in_its_own(tmp_path: Path) -> None:
    gemma = described(tmp_path, GEMMA4_26B)
    # Keys and values: 8 heads of 256 in 25 layers, 2 of 512 in 5.
    assert kv_bytes_per_token(gemma, "bfloat16", 1) == 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512)
    assert kv_bytes_per_token(gemma, "bfloat16", 8) == 2 * 2 * (25 * 256 + 5 * 512)
    mimo = described(tmp_path, MIMO_V2_FLASH)
    # Values are narrower: 192 + 128.
    assert kv_bytes_per_token(mimo, "fp8", 4) == 39 * 2 * 320 + 9 * 320
    beyond = kv_bytes_per_token(mimo, "fp8", 1, length=12800)
    assert beyond == 39 * 8 * 320 / 100 + 9 * 4 * 320
    # Its draft layer has a dense part.
    draft = weight_bytes_per_gpu(mimo, 1, 1, 1, mtp=True) - weight_bytes_per_gpu(
        mimo, 1, 1, 1, False
    )
    assert draft / 2 == pytest.approx(3 * 4096 * 16384 + 2 * 4096**2 + 94e6, rel=0.02)


def test_a_file_of_transformers_has_its_own_figures_by_layer(tmp_path: Path) -> None:
    file = SHARED / "cases/discovery/layers/gemma4_dense_saved_by_transformers.json"
    if not file.is_file():
        pytest.skip("needs ../shared")
    a = described(tmp_path, json.loads(file.read_text()))
    assert total_parameters(a) == pytest.approx(7267e6, rel=0.001)
    full = a.groups[-1]
    assert full.layers == 2
    assert full.kv_bytes("bfloat16", 1, 0) == 2 * 4096


def test_more_listed_layers_than_the_model_has_are_an_error(tmp_path: Path) -> None:
    mimo = described(tmp_path, MIMO_V2_FLASH)
    with pytest.raises(ValidationError, match="layer_groups have 39 layers, more than the 38 "):
        Architecture.model_validate({**mimo.model_dump(), "layers": 38, "dense_layers": 1})
    card = ModelCard(id="a", family="b", architecture=mimo, source="c")
    again = ModelCard.model_validate(card.model_dump(mode="json"))
    assert again.architecture == mimo
