"""Write a model of Qwen3-30B-A3B's shape with 16 of its 48 layers and random weights on a GPU: 21
GB.

    python qwen3_moe.py FOLDER
    python qwen3_moe.py FOLDER small

The small one has 8 layers, 512 wide, and 32 experts, for a CPU: 0.4 GB.
As `qwen3_8b.py`; the shape is from https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from qwen3_8b import CONFIG, weight, write

SMALL = sys.argv[2:] == ["small"]
LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD, EXPERTS = (
    (8, 512, 384, 8, 2, 64, 32) if SMALL else (16, 2048, 768, 32, 4, 128, 128)
)
MOE_CONFIG = CONFIG | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": HIDDEN,
    "intermediate_size": 6144,
    "moe_intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "vocab_size": 20_000 if SMALL else CONFIG["vocab_size"],
    "bos_token_id": 19_999 if SMALL else CONFIG["bos_token_id"],
    "eos_token_id": 19_999 if SMALL else CONFIG["eos_token_id"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def layer(name: str) -> dict[str, torch.Tensor]:
    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    shapes = {
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate": (EXPERTS, HIDDEN),
    }
    tensors = {f"{name}.{part}.weight": weight(*shape) for part, shape in shapes.items()}
    for part, shape in {
        "gate_proj": (WIDE, HIDDEN),
        "up_proj": (WIDE, HIDDEN),
        "down_proj": (HIDDEN, WIDE),
    }.items():
        # All experts at once: to make each by itself takes minutes.
        for expert, one in enumerate(weight(EXPERTS, *shape)):
            tensors[f"{name}.mlp.experts.{expert}.{part}.weight"] = one.clone()
    norms = {
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
        "self_attn.q_norm": HEAD,
    }
    for part, size in {**norms, "self_attn.k_norm": HEAD}.items():
        tensors[f"{name}.{part}.weight"] = torch.ones(size, dtype=torch.bfloat16)
    return tensors


if __name__ == "__main__":
    write(Path(sys.argv[1]), MOE_CONFIG, 2, layer)
