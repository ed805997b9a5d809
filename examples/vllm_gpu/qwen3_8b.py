"""Write a model of Qwen3-8B's shape with random weights on a GPU: 16 GB, and what it says means
nothing.

    python qwen3_8b.py FOLDER

The folder is as transformers would write it. The tokenizer is that of
``examples/vllm_cpu/tiny_model.py`` with 151,936 tokens. The shape is from
https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).resolve().parent.parent / "vllm_cpu"))
import tiny_model

LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD, VOCABULARY = 36, 4096, 12288, 32, 8, 128, 151_936
CONFIG: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 40_960,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": VOCABULARY - 1,
    "eos_token_id": VOCABULARY - 1,
    "dtype": "bfloat16",
}


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def weight(*shape: int) -> torch.Tensor:
    return (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) / shape[-1] ** 0.5).cpu()


def layer(name: str) -> dict[str, torch.Tensor]:
    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    shapes = {
        "q_proj": (queries, HIDDEN),
        "k_proj": (keys, HIDDEN),
        "v_proj": (keys, HIDDEN),
        "o_proj": (HIDDEN, queries),
    }
    tensors = {f"{name}.self_attn.{part}.weight": weight(*shape) for part, shape in shapes.items()}
    for part, shape in {
        "gate_proj": (WIDE, HIDDEN),
        "up_proj": (WIDE, HIDDEN),
        "down_proj": (HIDDEN, WIDE),
    }.items():
        tensors[f"{name}.mlp.{part}.weight"] = weight(*shape)
    for part, size in {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}.items():
        tensors[f"{name}.{part}.weight"] = torch.ones(size, dtype=torch.bfloat16)
    for part in ("q_norm", "k_norm"):
        tensors[f"{name}.self_attn.{part}.weight"] = torch.ones(HEAD, dtype=torch.bfloat16)
    return tensors


def write(
    folder: Path,
    config: dict[str, object],
    layers_of_a_file: int,
    layer: Callable[[str], dict[str, torch.Tensor]],
) -> None:
    """Write a model of this shape, a file at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    vocabulary, hidden, layers = (
        int(str(config[k])) for k in ("vocab_size", "hidden_size", "num_hidden_layers")
    )
    tiny_model.tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    for name, content in {
        "config.json": config,
        "tokenizer_config.json": tiny_model.TOKENIZER_CONFIG,
    }.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    ends = {
        "model.embed_tokens.weight": weight(vocabulary, hidden),
        "lm_head.weight": weight(vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    index: dict[str, str] = {}
    count = 1 + layers // layers_of_a_file
    for number in range(count):
        tensors = ends if number == 0 else {}
        for at in (
            range((number - 1) * layers_of_a_file, number * layers_of_a_file) if number else ()
        ):
            tensors |= layer(f"model.layers.{at}")
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file)
    about = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(about, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), CONFIG, 9, layer)
