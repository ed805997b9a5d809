"""Published configurations whose layers differ from each other, cut to what says how large a model
is, and what their authors say of it.

Sources: ``https://huggingface.co/<name>/blob/main/config.json``; parameters in units of 10^9 from
the model cards: DeepSeek-V4-Flash 284 (13 active), MiMo-V2-Flash 309 (15), Gemma 4 26B-A4B 25.2
(3.8) and 31B 30.7 without their vision parts.
"""

from __future__ import annotations

from typing import Any

DEEPSEEK_V4_FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "vocab_size": 129280,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "hc_mult": 4,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 1048576,
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
MIMO_V2_FLASH: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "vocab_size": 152576,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "sliding_window": 128,
    "attention_chunk_size": 128,
    "hybrid_layer_pattern": [0, *[1, 1, 1, 1, 0], *[1, 1, 1, 1, 1, 0] * 7],
    "moe_layer_freq": [0, *[1] * 47],
    "intermediate_size": 16384,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
_GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "tie_word_embeddings": True,
}
_GEMMA4_TEXT = {
    "model_type": "gemma4_text",
    "attention_k_eq_v": True,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "vocab_size": 262144,
    "max_position_embeddings": 262144,
}
_FIVE_OF_SIX = [*["sliding_attention"] * 5, "full_attention"]
GEMMA4_26B: dict[str, Any] = {
    **_GEMMA4,
    "text_config": {
        **_GEMMA4_TEXT,
        "enable_moe_block": True,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "layer_types": _FIVE_OF_SIX * 5,
        "moe_intermediate_size": 704,
        "num_attention_heads": 16,
        "num_experts": 128,
        "num_global_key_value_heads": 2,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "top_k_experts": 8,
    },
}
GEMMA4_31B: dict[str, Any] = {
    **_GEMMA4,
    "text_config": {
        **_GEMMA4_TEXT,
        "enable_moe_block": False,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "layer_types": _FIVE_OF_SIX * 10,
        "num_attention_heads": 32,
        "num_global_key_value_heads": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 16,
    },
}
