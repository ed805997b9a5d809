"""Keys of a config.json are read as the model's class in transformers reads them.

Right values without another source: transformers 5.23.0, the class on the meta device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import MalformedFile
from autotune.engines.cards import Architecture, total_parameters
from autotune.engines.library import Library
from tests.engines.space.published import DEEPSEEK_V3, LLAMA_70B

LIBRARY = Library()
APERTUS = {
    **LLAMA_70B,
    "model_type": "apertus",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 131072,
}
AFM = {
    **LLAMA_70B,
    "model_type": "arcee",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "head_dim": 128,
    "intermediate_size": 18432,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "vocab_size": 128004,
}
TRINITY_MINI = {
    **LLAMA_70B,
    "model_type": "afmoe",
    "num_hidden_layers": 32,
    "hidden_size": 2048,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 1024,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_dense_layers": 2,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "vocab_size": 200192,
}
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "block_ff_dim": 12288,
    "conv_L_cache": 3,
    "hidden_size": 2048,
    "layer_types": [
        "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
    ],
    "max_position_embeddings": 128000,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "vocab_size": 65536,
}
DBRX = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "max_seq_len": 32768,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}


def described(folder: Path, config: dict[str, Any]) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config))
    return LIBRARY.model(str(folder)).architecture


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (APERTUS, 8_053_338_176),
        (AFM, 4_619_184_640),
        (TRINITY_MINI, 26_123_974_400),
        (DBRX, 131_600_000_000),  # as its model card says
        (LFM2, 1_170_340_608),  # the checkpoint's
    ],
    ids=["apertus", "arcee", "afmoe", "dbrx", "lfm2"],
)
def test_feed_forward_parts_are_those_of_the_class(
    tmp_path: Path, config: dict[str, Any], parameters: int
) -> None:
    assert total_parameters(described(tmp_path, config)) == pytest.approx(parameters, rel=0.001)


def test_a_file_saved_by_transformers_says_what_the_hub_s_says(tmp_path: Path) -> None:
    """Transformers 5.23 lists DeepSeek-V3.2's layers by a name of its own."""
    hub = {**DEEPSEEK_V3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
    saved = {**hub, "layer_types": ["indexed_attention"] * 61}
    assert described(tmp_path, saved) == described(tmp_path, hub)


@pytest.mark.parametrize(
    ("model_type", "heads"),
    [
        *(("qwen2", 32), ("qwen3", 32), ("exaone4", 32)),
        *(("mistral", 8), ("mixtral", 8), ("gpt_oss", 8), ("seed_oss", 8)),
        *(("ernie4_5", 2), ("glm4", 2), ("llama", 64)),
    ],
)
def test_without_key_and_value_heads_the_class_s_own_default_counts(
    tmp_path: Path, model_type: str, heads: int
) -> None:
    config = {**LLAMA_70B, "model_type": model_type}
    del config["num_key_value_heads"]
    assert described(tmp_path, config).kv_heads == heads


def test_the_top_level_says_whether_embeddings_are_tied(tmp_path: Path) -> None:
    """As vLLM 0.32.0 builds InternVL's decoder (config/vllm.py with_hf_config)."""
    nested = {**LLAMA_70B, "tie_word_embeddings": False}
    tops = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {}
    configs = [{"text_config": nested, "architectures": ["X4CausalLM"], **top} for top in tops]
    assert [described(tmp_path, one).tied_embeddings for one in configs] == [True, False, False]


def test_a_mixture_that_is_off_is_none(tmp_path: Path) -> None:
    doge = {**LLAMA_70B, "model_type": "doge", "num_experts": 16384, "num_experts_per_tok": 64}
    assert described(tmp_path, {**doge, "is_moe": False}).experts == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_layers": 28, "zero_expert_num": 256}, "two attentions in each layer"),
        ({"per_layer_config": {"05": {"d_ff": 512}}}, "layers with their own d_ff"),
        ({"hc_mult": 4}, "hyper-connections"),
        ({"model_type": "jetmoe"}, "experts of the attention"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_layers_of_another_kind_are_not_predicted(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, **changes}))
    assert words in LIBRARY.model(str(tmp_path)).unpredicted


def test_an_encoder_is_a_decoder_where_it_says_so(tmp_path: Path) -> None:
    roberta = {**LLAMA_70B, "model_type": "roberta"}
    with pytest.raises(MalformedFile, match="roberta: an encoder, not a decoder alone"):
        described(tmp_path, roberta)
    assert described(tmp_path, {**roberta, "is_decoder": True}).layers == 80
