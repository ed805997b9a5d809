"""A `ModelCard` from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import MalformedFile
from autotune.space.cards import Architecture, Indexer, ModelCard

_REQUIRED = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "intermediate_size")
_FP8_METHODS = {"fp8", "fbgemm_fp8", "compressed-tensors"}
# DeepSeek's indexer keeps one fp8 key of `index_head_dim` and one fp32 scale per token and layer.
_INDEXER_SCALE_BYTES = 4


def model_from_config(name: str, config: Mapping[str, Any], path: Path) -> ModelCard:
    """Describe a model by its ``config.json``; raises `MalformedFile` when figures are missing."""
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    missing = [key for key in _REQUIRED if not isinstance(config.get(key), int)]
    if missing:
        raise MalformedFile(path, f"is not a decoder's configuration: {', '.join(missing)} missing")
    return ModelCard(
        id=name,
        aliases=[name.rstrip("/").rsplit("/", 1)[-1]],
        family=str(config.get("model_type", "unknown")),
        architecture=_architecture(config),
        source=str(path),
    )


def _architecture(config: Mapping[str, Any]) -> Architecture:
    heads = int(config["num_attention_heads"])
    latent = int(config.get("kv_lora_rank") or 0)
    rope, nope = int(config.get("qk_rope_head_dim") or 0), int(config.get("qk_nope_head_dim") or 0)
    head_dim = rope + nope if latent else int(config.get("head_dim") or config["hidden_size"] // heads)
    experts = int(_first(config, "n_routed_experts", "num_experts", "num_local_experts"))
    return Architecture(
        layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        intermediate_size=config["intermediate_size"],
        dense_layers=int(config.get("first_k_dense_replace") or 0),
        experts=experts,
        experts_per_token=int(_first(config, "num_experts_per_tok", "moe_topk")),
        shared_experts=int(config.get("n_shared_experts") or 0),
        expert_intermediate_size=int(
            config.get("moe_intermediate_size") or (config["intermediate_size"] if experts else 0)
        ),
        q_lora_rank=int(config.get("q_lora_rank") or 0),
        kv_lora_rank=latent,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
        v_head_dim=int(config.get("v_head_dim") or head_dim),
        indexer=_indexer(config),
        mtp_layers=int(config.get("num_nextn_predict_layers") or 0),
        context_limit=int(config.get("max_position_embeddings") or 4096),
        weight_bytes=_weight_bytes(config),
    )


def _first(config: Mapping[str, Any], *keys: str) -> Any:
    return next((config[key] for key in keys if config.get(key)), 0)


def _indexer(config: Mapping[str, Any]) -> Indexer | None:
    if not config.get("index_topk"):
        return None
    width = int(config["index_head_dim"])
    return Indexer(
        heads=int(config["index_n_heads"]),
        head_dim=width,
        top_k=int(config["index_topk"]),
        bytes_per_token_layer=width + _INDEXER_SCALE_BYTES,
    )


def _weight_bytes(config: Mapping[str, Any]) -> float:
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        if quantization.get("quant_method") in _FP8_METHODS:
            return 1.0
        bits = quantization.get("bits")
        if isinstance(bits, int):
            return bits / 8
    return 4.0 if config.get("torch_dtype") == "float32" else 2.0
