"""A model of each architecture of ours, and of each way of storing weights that the engines ask
about, with its ``config.json`` as published, cut to what the engines ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.engines.space.published import (
    DEEPSEEK_V3,
    FP8_BLOCKS,
    GLM_4_6,
    GLM_5_2,
    GPT_OSS,
    KIMI_K2,
    LLAMA_70B,
    MINIMAX_M2,
    QWEN3_235B,
)
from tests.engines.space.published_qwen import QWEN3_5_9B, QWEN3_5_35B, QWEN3_14B, QWEN3_32B

# Of the family's config.json: routing, which the engines' classes read, and the context that is
# stretched.
_DEEPSEEK: dict[str, Any] = {
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
# As the files of zai-org's FP8 checkpoints have it: a scale per channel, and per token.
_FP8_CHANNELS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "float",
                "strategy": "channel",
                "symmetric": True,
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}
_INDEXER = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-ai/DeepSeek-V3.2": {
        **DEEPSEEK_V3,
        **_DEEPSEEK,
        **_INDEXER,
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
    },
    "deepseek-ai/DeepSeek-R1": {**DEEPSEEK_V3, **_DEEPSEEK},
    "deepseek-ai/DeepSeek-R1-0528": {**DEEPSEEK_V3, **_DEEPSEEK},
    "moonshotai/Kimi-K2-Instruct": {
        **KIMI_K2,
        **_DEEPSEEK,
        "n_group": 1,
        "topk_group": 1,
        "rope_scaling": {**_DEEPSEEK["rope_scaling"], "factor": 32},
    },
    "zai-org/GLM-4.6": GLM_4_6,
    "zai-org/GLM-4.6-FP8": {**GLM_4_6, "quantization_config": _FP8_CHANNELS},
    "zai-org/GLM-5.2-FP8": {**GLM_5_2, "quantization_config": FP8_BLOCKS},
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": {**QWEN3_235B, "quantization_config": FP8_BLOCKS},
    "MiniMaxAI/MiniMax-M2.5": {
        **MINIMAX_M2,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_qk_norm": True,
        "rotary_dim": 64,
        "rope_theta": 5000000,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    },
    "openai/gpt-oss-120b": GPT_OSS,
    "meta-llama/Llama-3.3-70B-Instruct": {
        **LLAMA_70B,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "Qwen/Qwen3-14B": QWEN3_14B,
    "Qwen/Qwen3-32B": QWEN3_32B,
    "Qwen/Qwen3.5-35B-A3B": {
        **QWEN3_5_35B,
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    },
    "Qwen/Qwen3.5-9B": QWEN3_5_9B,
}


_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {
        "type": "WordLevel",
        "unk_token": "?",
        "vocab": {"?": 0, "<think>": 1, "</think>": 2},
    },
}


def write_checkpoint(model: str, folder: Path) -> Path:
    """Write a folder that stands for the model's checkpoint: its configuration and a tokenizer; no
    weight is read."""
    place = folder / model.replace("/", "--")
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(CONFIGS[model], indent=1))
    (place / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    (place / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return place
