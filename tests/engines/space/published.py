"""Configurations as their authors publish them, cut to what says how large a model is, and what
they say of it.

Sources: ``https://huggingface.co/<name>/blob/main/config.json``; parameters from model cards and
reports: DeepSeek-V3 (arXiv:2412.19437), Kimi K2 (arXiv:2507.20534), GLM-4.5 (arXiv:2508.06471),
Qwen3 (arXiv:2505.09388), Qwen2 (arXiv:2407.10671), gpt-oss (arXiv:2508.10925), Mixtral
(arXiv:2401.04088), Gemma 3 (arXiv:2503.19786); model cards of GLM-5.2, Llama 3 and 4, Mistral Small
3. In units of 10^9; None: not published, or all are active.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.engines.space.published_qwen import (
    QWEN3_5_9B,
    QWEN3_5_35B,
    QWEN3_8B,
    QWEN3_14B,
    QWEN3_32B,
)
from tests.engines.space.published_recurrent import RECURRENT

_CONFIGS = json.loads(Path(__file__).with_name("published.json").read_text())
FP8_BLOCKS = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "vocab_size": 129280,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": FP8_BLOCKS,
}
KIMI_K2 = {
    **DEEPSEEK_V3,
    "model_type": "kimi_k2",
    "vocab_size": 163840,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 131072,
}
# Of Kimi-K2.5 (and K2-Thinking): experts alone in groups of 32 with 4 bits.
INT4_EXPERTS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "group_size": 32,
                "strategy": "group",
                "symmetric": True,
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
}
GLM_4_6: dict[str, Any] = _CONFIGS["GLM_4_6"]
GLM_4_5_AIR = {
    **GLM_4_6,
    "num_hidden_layers": 46,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "n_routed_experts": 128,
    "max_position_embeddings": 131072,
}
MINIMAX_M2: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "vocab_size": 200064,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 196608,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": FP8_BLOCKS,
}
GLM_5_2: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "hidden_size": 6144,
    "vocab_size": 154880,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 192,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "indexer_types": ["full" if max(layer - 2, 0) % 4 == 0 else "shared" for layer in range(78)],
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 1048576,
    "dtype": "bfloat16",
}
QWEN3_30B: dict[str, Any] = _CONFIGS["QWEN3_30B"]
QWEN3_235B = {
    **QWEN3_30B,
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "max_position_embeddings": 262144,
}
QWEN2_57B = {
    **QWEN3_30B,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
    "num_experts": 64,
    "sliding_window": 65536,
    "max_window_layers": 28,
    "max_position_embeddings": 32768,
}
LLAMA_70B: dict[str, Any] = _CONFIGS["LLAMA_70B"]
LLAMA_1B = {
    **LLAMA_70B,
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "head_dim": 64,
    "intermediate_size": 8192,
    "tie_word_embeddings": True,
}
MAVERICK: dict[str, Any] = _CONFIGS["MAVERICK"]
SCOUT = {
    **MAVERICK,
    "text_config": {
        **MAVERICK["text_config"],
        "num_local_experts": 16,
        "interleave_moe_layer_step": 1,
        "max_position_embeddings": 10485760,
    },
}
MIXTRAL: dict[str, Any] = _CONFIGS["MIXTRAL"]
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "vocab_size": 201088,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}
GPT_OSS_20B = {
    **GPT_OSS,
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
GEMMA_27B: dict[str, Any] = _CONFIGS["GEMMA_27B"]
MISTRAL_24B = {
    **LLAMA_70B,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "vocab_size": 131072,
    "num_attention_heads": 32,
    "head_dim": 128,
    "intermediate_size": 32768,
    "sliding_window": None,
    "max_position_embeddings": 32768,
    "rope_scaling": None,
}
MISTRAL_3_2 = {
    **MISTRAL_24B,
    "architectures": ["Mistral3ForConditionalGeneration"],
    "max_position_embeddings": 131072,
}
# The maker's params.json, in the names of config.json.
MISTRAL_LARGE_3 = {
    **DEEPSEEK_V3,
    "architectures": ["MistralLarge3ForCausalLM"],
    "model_type": "mistral_large_3",
    "vocab_size": 131072,
    "intermediate_size": 16384,
    "moe_intermediate_size": 4096,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 294912,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "FP8_BLOCK": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": "block",
                    "block_structure": [128, 128],
                },
                "input_activations": {"num_bits": 8, "type": "float", "group_size": 128},
            }
        },
        "ignore": [
            "lm_head",
            "re:.*kv_a_proj_with_mqa$",
            "re:.*q_a_proj$",
            "re:.*gate$",
        ],
    },
}
PHI_4 = {
    **LLAMA_70B,
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "vocab_size": 100352,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "head_dim": 128,
    "intermediate_size": 17920,
    "max_position_embeddings": 16384,
    "rope_scaling": None,
}
QWEN3_NEXT: dict[str, Any] = {
    **QWEN3_30B,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    # The weights have the layer (mtp.*), the file does not name it.
    "mtp_num_hidden_layers": 1,
}
QWEN3_CODER = {
    **QWEN3_30B,
    "num_hidden_layers": 62,
    "hidden_size": 6144,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "moe_intermediate_size": 2560,
    "num_experts": 160,
    "max_position_embeddings": 262144,
}
PUBLISHED: dict[str, tuple[dict[str, Any], float, float | None]] = {
    "deepseek-ai/DeepSeek-V3": (DEEPSEEK_V3, 671, 37),
    "moonshotai/Kimi-K2-Instruct": (KIMI_K2, 1040, 32.6),
    "zai-org/GLM-4.6": (GLM_4_6, 355, 32),
    "zai-org/GLM-4.5-Air": (GLM_4_5_AIR, 106, 12),
    "zai-org/GLM-5.2": (GLM_5_2, 743, 39),
    "MiniMaxAI/MiniMax-M2.5": (MINIMAX_M2, 230, None),
    "Qwen/Qwen3-30B-A3B": (QWEN3_30B, 30.5, 3.3),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": (QWEN3_235B, 235, 22),
    "Qwen/Qwen2-57B-A14B": (QWEN2_57B, 57.4, 14.2),
    "meta-llama/Llama-3.3-70B-Instruct": (LLAMA_70B, 70.6, None),
    "meta-llama/Llama-3.2-1B": (LLAMA_1B, 1.23, None),
    "meta-llama/Llama-4-Maverick-17B-128E": (MAVERICK, 400, 17),
    "meta-llama/Llama-4-Scout-17B-16E": (SCOUT, 109, 17),
    "mistralai/Mixtral-8x7B-v0.1": (MIXTRAL, 46.7, 12.9),
    "openai/gpt-oss-120b": (GPT_OSS, 116.8, 5.1),
    "openai/gpt-oss-20b": (GPT_OSS_20B, 20.9, 3.6),
    "Qwen/Qwen3-8B": (QWEN3_8B, 8.2, None),
    "Qwen/Qwen3-14B": (QWEN3_14B, 14.8, None),
    "Qwen/Qwen3-32B": (QWEN3_32B, 32.8, None),
    "Qwen/Qwen3.5-9B": (QWEN3_5_9B, 9.0, None),
    "Qwen/Qwen3.5-35B-A3B": (QWEN3_5_35B, 35.0, 3.0),
    "google/gemma-3-27b-it": (GEMMA_27B, 27.0, None),
    "mistralai/Mistral-Small-24B-Instruct-2501": (MISTRAL_24B, 23.6, None),
    **RECURRENT,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": (MISTRAL_3_2, 23.6, None),
    "mistralai/Mistral-Large-3-675B-Instruct-2512": (MISTRAL_LARGE_3, 673, 39),
    "microsoft/phi-4": (PHI_4, 14.7, None),
    "moonshotai/Kimi-K2-Thinking": (
        {**KIMI_K2, "max_position_embeddings": 262144, "quantization_config": INT4_EXPERTS},
        1040,
        32.6,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (QWEN3_NEXT, 79.6, None),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (QWEN3_CODER, 480, 35),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (
        {**QWEN3_30B, "max_position_embeddings": 262144},
        30.5,
        3.3,
    ),
}
