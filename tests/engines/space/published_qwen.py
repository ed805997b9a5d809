"""Configurations of dense and hybrid Qwen3 models, as `tests.engines.space.published` has others; same
sources."""

from __future__ import annotations

from typing import Any

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "use_sliding_window": False,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_14B = {
    **QWEN3_8B,
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "intermediate_size": 17408,
}
QWEN3_32B = {
    **QWEN3_14B,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "intermediate_size": 25600,
}
QWEN3_5_9B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "vocab_size": 248320,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 12288,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_key_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
}
QWEN3_5_35B = {
    **QWEN3_5_9B,
    "model_type": "qwen3_5_moe",
    "text_config": {
        **QWEN3_5_9B["text_config"],
        "num_hidden_layers": 40,
        "hidden_size": 2048,
        "num_key_value_heads": 2,
        "intermediate_size": 0,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
}
