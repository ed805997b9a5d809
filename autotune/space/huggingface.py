"""A `ModelCard` from a Hugging Face ``config.json``.

What the keys mean is what the model's class in ``transformers`` makes of them; what is described here is a decoder with
full, sliding-window, latent, DeepSeek's sparse or Gated DeltaNet's linear attention, dense or with experts. Everything
else is refused, since its memory and its speed follow other rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.space.architecture import Architecture, Indexer
from autotune.space.cards import ModelCard
from autotune.space.config_json import ConfigJson, precision

CONFIG = "config.json"
_REQUIRED = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "max_position_embeddings")
_MEASURE = "is not simulated; to measure such a model on real servers, describe it in a YAML file (docs/models.md)"
# DeepSeek's indexer keeps one fp8 key of `index_head_dim` and one fp32 scale per token and layer.
_INDEXER_SCALE_BYTES = 4
# What a class fills in where the file is silent (transformers, configuration_<type>.py).
_GEMMA3 = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "llama4_text": {"interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "n_shared_experts": 1},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True},
}
_SLIDING_IN_ALL_LAYERS = {"mistral", "mixtral", "phi3", "phimoe", "starcoder2"}
"""Classes for which ``sliding_window`` alone means every layer."""
_PLAIN_FEED_FORWARD = {"phi", "starcoder2", "gpt_neox", "nemotron", "opt"}
"""Classes whose feed-forward parts have no gate: two matrices."""
# Key to what it stands for. Sources: the models' configuration classes in transformers and on the hub.
_OTHER_ARCHITECTURES = {
    "linear_attn_config": "linear attention in most layers (Kimi Linear)",
    "hybrid_override_pattern": "state-space layers (Nemotron-H)",
    "layers_block_type": "state-space layers (Bamba, Zamba, Falcon-H1)",
    "block_types": "recurrent layers (RecurrentGemma)",
    "attn_layer_period": "state-space layers (Jamba)",
    "mamba_d_state": "state-space layers (Mamba)",
    "ssm_cfg": "state-space layers (Mamba)",
    "state_size": "state-space layers (Mamba)",
    "conv_L_cache": "convolution layers (LFM2)",
    "compress_ratios": "compressed attention (DeepSeek-V4)",
    "hc_mult": "hyper-connections (DeepSeek-V4)",
    "block_configs": "layers of different sizes (Nemotron NAS)",
    "altup_num_inputs": "per-layer embeddings (Gemma 3n)",
    "hidden_size_per_layer_input": "per-layer embeddings (Gemma 3n, Gemma 4)",
    "global_head_dim": "attention heads of different sizes (Gemma 4)",
    "swa_num_attention_heads": "attention heads that differ between layers (MiMo-V2)",
    "num_kv_shared_layers": "a KV cache that layers share",
    "encoder_layers": "an encoder",
}
_ATTENTION_KINDS = {
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "deepseek_sparse_attention",
    "attention",
    "linear_attention",
}
_MOST_LAYERS = 10_000
"""Of more, what each layer is would not be listed in reasonable time."""


def model_from_file(path: Path) -> ModelCard:
    """Describe a model by its ``config.json`` (and ``hf_quant_config.json`` beside it).

    Raises `MalformedFile` when figures are missing, or when it is not a model that the simulator can follow.
    """
    config = ConfigJson.read(path, _DEFAULTS)
    _refuse_others(config)
    config.required(*_REQUIRED)
    classes = config.get("architectures")
    return ModelCard(
        id=str(path.parent),
        aliases=[path.resolve().parent.name],
        family=str(config.get("model_type") or "unknown"),
        architectures=[str(name) for name in classes] if isinstance(classes, list) else [],
        architecture=_architecture(config),
        source=str(path),
    )


def _refuse_others(config: ConfigJson) -> None:
    if config.get("is_encoder_decoder"):
        config.refuse(f"is_encoder_decoder: an encoder with a decoder {_MEASURE}")
    for key, meaning in _OTHER_ARCHITECTURES.items():
        if config.get(key):
            config.refuse(f"{key}: {meaning} {_MEASURE}")
    kinds = config.get("layer_types")
    odd = sorted({str(kind) for kind in kinds} - _ATTENTION_KINDS) if isinstance(kinds, list) else []
    if odd:
        config.refuse(f"layer_types: {', '.join(odd)} {_MEASURE}")
    attention = config.get("attn_type_list")
    if isinstance(attention, list) and not all(attention):
        config.refuse(f"attn_type_list: linear attention in some layers (MiniMax-01) {_MEASURE}")
    classes = config.get("architectures")
    if isinstance(classes, list) and classes and not any("CausalLM" in str(c) or "Condit" in str(c) for c in classes):
        config.refuse(
            f"architectures: {', '.join(map(str, classes))}, which does not write text token by token, {_MEASURE}"
        )


def _architecture(config: ConfigJson) -> Architecture:
    layers, hidden, heads = (config.number(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if layers > _MOST_LAYERS:
        config.refuse(f"num_hidden_layers is {layers}; a number up to {_MOST_LAYERS:,} is needed")
    if heads > hidden:
        config.refuse(f"num_attention_heads is {heads}, more than hidden_size, {hidden}")
    latent = config.number("kv_lora_rank")
    if latent:
        config.required("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    rope, nope = config.number("qk_rope_head_dim"), config.number("qk_nope_head_dim")
    head_dim = rope + nope if latent else config.number("head_dim", default=hidden // heads)
    with_experts = _with_experts(config, layers)
    figures: dict[str, Any] = {
        "layers": layers,
        "hidden_size": hidden,
        "vocab_size": config.number("vocab_size"),
        "heads": heads,
        "kv_heads": heads if latent else config.number("num_key_value_heads", default=heads),
        "head_dim": head_dim,
        "feed_forward_matrices": 2 if config.get("model_type") in _PLAIN_FEED_FORWARD else 3,
        "q_lora_rank": config.number("q_lora_rank"),
        "kv_lora_rank": latent,
        "qk_rope_head_dim": rope if latent else 0,
        "qk_nope_head_dim": nope if latent else 0,
        "v_head_dim": config.number("v_head_dim") if latent else 0,
        "indexer": _indexer(config, layers),
        "mtp_layers": config.number("num_nextn_predict_layers", "mtp_num_hidden_layers"),
        "context_limit": _context_limit(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings")),
        **_sliding(config, layers),
        **_linear(config, layers),
        **_feed_forward(config, with_experts),
    }
    stored = precision(config, _attention_matrices(figures), with_experts, mtp=bool(figures["mtp_layers"]))
    return Architecture(**figures, **stored)


def _feed_forward(config: ConfigJson, with_experts: list[bool]) -> dict[str, int]:
    """Widths of dense layers and experts, and how many there are."""
    experts = _experts(config)
    dense = config.number("intermediate_size_mlp", "intermediate_size")
    if not experts or not any(with_experts):
        config.required("intermediate_size")
        return {"intermediate_size": dense}
    if not all(with_experts) or not config.number("moe_intermediate_size"):
        config.required("intermediate_size")
    per_token = config.number("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
    if not 0 < per_token <= experts:
        config.refuse(
            f"num_experts_per_tok is {per_token or 'missing'}; a number up to the {experts} experts is needed"
        )
    return {
        "intermediate_size": dense,
        "dense_layers": with_experts.count(False),
        "experts": experts,
        "experts_per_token": per_token,
        "expert_intermediate_size": config.number("moe_intermediate_size", "intermediate_size"),
        "shared_experts": config.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        "shared_intermediate_size": config.number("shared_expert_intermediate_size", "shared_intermediate_size"),
    }


def _experts(config: ConfigJson) -> int:
    return config.number("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def _with_experts(config: ConfigJson, layers: int) -> list[bool]:
    """Which layers have experts: a list per layer, or DeepSeek's, Qwen's, Llama 4's or Ernie's rule."""
    if not _experts(config):
        return [False] * layers
    kinds = config.per_layer("mlp_layer_types", layers)
    if kinds is not None:
        return [kind != "dense" for kind in kinds]
    frequencies = config.per_layer("moe_layer_freq", layers)
    if frequencies is not None:
        return [bool(one) for one in frequencies]
    chosen = config.get("moe_layers")
    if isinstance(chosen, list) and chosen:
        return [layer in chosen for layer in range(layers)]
    every = config.number("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    only_dense = config.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        config.refuse(f"mlp_only_layers is {only_dense!r}; a list of layers is needed")
    first = config.number("first_k_dense_replace", "moe_layer_start_index")
    step = config.number("moe_layer_freq", "moe_layer_interval", default=1)
    return [
        layer >= first and layer % step == 0 and (layer + 1) % every == 0 and layer not in only_dense
        for layer in range(layers)
    ]


def _sliding(config: ConfigJson, layers: int) -> dict[str, int]:
    """How many layers attend to a window only, and its tokens; a chunk of Llama 4 counts as a window."""
    if config.get("use_sliding_window") is False:
        return {}
    chunked = config.get("no_rope_layers") is not None or config.get("model_type") == "llama4_text"
    window = config.number("attention_chunk_size") if chunked else config.number("sliding_window")
    kinds = config.per_layer("layer_types", layers)
    cut = 0
    if kinds is not None:
        cut = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    elif chunked:
        positions = config.per_layer("no_rope_layers", layers)
        every = config.number("no_rope_layer_interval", default=4)
        cut = sum(bool(one) for one in positions) if positions else layers - layers // every
    elif isinstance(pattern := config.get("sliding_window_pattern"), str) and pattern:
        cut = sum(pattern[layer % len(pattern)] == "L" for layer in range(layers))
    elif config.number("sliding_window_pattern"):
        cut = layers - layers // config.number("sliding_window_pattern")
    elif config.get("use_sliding_window"):
        cut = max(0, layers - config.number("max_window_layers"))
    elif config.get("model_type") in _SLIDING_IN_ALL_LAYERS:
        cut = layers
    if not window or not cut or window >= _context_limit(config):
        return {}
    return {"sliding_window": window, "sliding_layers": cut}


def _linear(config: ConfigJson, layers: int) -> dict[str, Any]:
    """Layers with Gated DeltaNet in place of attention (Qwen3-Next, Qwen3.5): most of every few, or as listed."""
    kinds = config.per_layer("layer_types", layers)
    every = config.number("full_attention_interval")
    linear = sum(kind == "linear_attention" for kind in kinds) if kinds is not None else layers - layers // (every or 1)
    if not linear:
        return {}
    config.required("linear_num_value_heads", "linear_num_key_heads", "linear_value_head_dim")
    return {
        "linear_layers": linear,
        "linear_key_heads": config.number("linear_num_key_heads"),
        "linear_value_heads": config.number("linear_num_value_heads"),
        "linear_head_dim": config.number("linear_value_head_dim"),
        "gated_attention": True,
    }


def _context_limit(config: ConfigJson) -> int:
    """Positions, stretched by YaRN where the file says so (as the engines derive it)."""
    limit = config.number("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict) or "yarn" not in (scaling.get("rope_type"), scaling.get("type")):
        return limit
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if isinstance(original, int) and isinstance(factor, int | float):
        return max(limit, int(original * factor))
    return limit


def _indexer(config: ConfigJson, layers: int) -> Indexer | None:
    if not config.number("index_topk"):
        return None
    config.required("index_head_dim", "index_n_heads")
    width = config.number("index_head_dim")
    return Indexer(
        heads=config.number("index_n_heads"),
        head_dim=width,
        top_k=config.number("index_topk"),
        bytes_per_token_layer=width + _INDEXER_SCALE_BYTES,
        layers=_own_indexers(config, layers),
    )


def _own_indexers(config: ConfigJson, layers: int) -> int | None:
    """Layers with an indexer of their own where some reuse another's choice (GLM-5.2); None: all."""
    kinds = config.per_layer("indexer_types", layers) or config.per_layer("index_topk_pattern", layers)
    if kinds is not None:
        return sum(kind in ("full", "F") for kind in kinds)
    every, first = config.number("index_topk_freq", default=1), config.number("index_skip_topk_offset", default=1)
    if every == 1:
        return None
    return sum(max(layer - first + 1, 0) % every == 0 for layer in range(layers))


def _attention_matrices(figures: dict[str, Any]) -> dict[str, int]:
    """Name and elements of each of a layer's projections, which a checkpoint's quantisation may or may not cover."""
    hidden, heads, kv_heads, head_dim = (figures[key] for key in ("hidden_size", "heads", "kv_heads", "head_dim"))
    latent, rank, v_dim = figures["kv_lora_rank"], figures["q_lora_rank"], figures["v_head_dim"] or head_dim
    attention = {"o_proj": heads * v_dim * hidden}
    if latent:
        query = {"q_a_proj": hidden * rank, "q_b_proj": rank * heads * head_dim}
        attention |= query if rank else {"q_proj": hidden * heads * head_dim}
        attention["kv_a_proj_with_mqa"] = hidden * (latent + figures["qk_rope_head_dim"])
        attention["kv_b_proj"] = latent * heads * (figures["qk_nope_head_dim"] + v_dim)
    else:
        attention["q_proj"] = hidden * heads * head_dim
        attention |= dict.fromkeys(("k_proj", "v_proj"), hidden * kv_heads * head_dim)
    return attention
