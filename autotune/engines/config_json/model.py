"""Build a `ModelCard` from a Hugging Face ``config.json``.

What the keys mean is what the model's class in ``transformers`` makes of them; what is described
here is a decoder with full, sliding-window, latent, DeepSeek's sparse or linear attention, or with
state-space layers, dense or with experts. The memory and the speed of everything else follow other rules: it
is `unpredicted`.
"""

import math
import re
from pathlib import Path

from ..cards import Architecture, ModelCard
from ..layers import INDEXER_SCALE_BYTES, Indexer
from .attention import listed_attention
from .keys import ConfigJson, NotPredicted, facts, read_json
from .mixers import layer_words, listed_groups, with_parts
from .plain import FEW_FIGURES, MOST_LAYERS, plain_decoder
from .positions import context_figures
from .quantization import precision, untold

_LAYER = re.compile(r"(?:model\.)?mtp|(?:model\.|language_model\.)*layers\.(\d+)\.")


def model_from_file(path: Path) -> ModelCard:
    """Describe a model by its ``config.json``, as far as its figures are known.

    Raises `MalformedFile` for a file that describes no decoder.
    """
    config = ConfigJson.read(path)
    unpredicted = ""
    _refuse_others(config)
    try:
        _check_known(config)
        architecture = _architecture(config)
    except NotPredicted as unknown:
        unpredicted = unknown.reason
        architecture = plain_decoder(config)
    return ModelCard(
        id=str(path.parent),
        aliases=[path.resolve().parent.name],
        # A part of a multimodal model is called as the whole one: rules name that.
        family=str(config.get("model_type") or "unknown").removesuffix("_text"),
        architectures=[str(name) for name in config.items("architectures")],
        architecture=architecture,
        unpredicted=unpredicted,
        untold=untold(config),
        source=str(path),
    )


def _refuse_others(config: ConfigJson) -> None:
    family = config.get("model_type")
    for key, meaning in facts().encoders.items():
        if config.get(key) or (key == family and not config.get("is_decoder")):
            config.refuse(f"{key}: {meaning}, not a decoder alone; give a decoder's config.json")
    classes = [str(name) for name in config.items("architectures")]
    if classes and not any(part in name for name in classes for part in facts().decoders):
        config.refuse(
            f"architectures: {', '.join(classes)}, not an autoregressive text model; give such a model"
        )


def _check_known(config: ConfigJson) -> None:
    """Raise `NotPredicted` for layers that are not described here, and for missing figures."""
    for key, meaning in facts().other_architectures.items():
        if config.get(key) or key == config.get("model_type"):
            config.unknown(f"{meaning}, by {key}")
    if not all(config.items("attn_type_list")):
        config.unknown("linear attention in some layers (MiniMax-01), by attn_type_list")
    config.required(*FEW_FIGURES)


def _architecture(config: ConfigJson) -> Architecture:
    figures = config.figures("decoder")
    layers, hidden, heads = (figures[name] for name in ("layers", "hidden_size", "heads"))
    if layers > MOST_LAYERS:
        config.refuse(f"num_hidden_layers is {layers}; a number up to {MOST_LAYERS:,} is needed")
    if config.get("block_auto_adjust_ff_dim"):
        figures["intermediate_size"] = _adjusted(config, figures["intermediate_size"])
    figures["mtp_layers"] = figures["mtp_layers"] or _unnamed_drafts(config, layers)
    if heads > hidden:
        config.refuse(f"num_attention_heads is {heads}, more than hidden_size, {hidden}")
    if figures["kv_lora_rank"]:
        config.required("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        figures["kv_heads"] = heads
        figures["head_dim"] = figures["qk_rope_head_dim"] + figures["qk_nope_head_dim"]
    else:
        figures |= {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0}
        figures["head_dim"] = config.number("head_dim", default=hidden // heads)
    words = layer_words(config, layers)
    with_experts = _with_experts(config, layers) if figures["experts"] else [False] * layers
    with_experts, feed_forward = with_parts(words, with_experts)
    common = {name: figures[name] for name in ("heads", "head_dim", "kv_heads")}
    listed = listed_groups(config, words, common)
    windowed = _windowed(config, layers)
    listed += listed_attention(
        config, figures, windowed, {n for _, having in listed for n in having}
    )
    taken = {n for _, having in listed for n in having}
    windowed = [cut and n not in taken for n, cut in enumerate(windowed)]
    no_gate = config.is_among("plain_feed_forward")
    figures |= {
        "feed_forward_matrices": 2 if no_gate else 3,
        "mtp_experts": not config.is_among("mtp_without_experts"),
        "gated_attention": config.is_among("gated_attention")
        or "linear_attention" in words
        or bool(config.get("mla_use_output_gate")),
        "indexer": None if any("ratio" in one for one, _ in listed) else _indexer(config, layers),
        **context_figures(config),
        "vision_heads": _vision_heads(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings")),
        "layer_groups": [group for group, _ in listed],
        # Layers with two mixers count twice.
        "layers": max(layers, sum(len(having) for _, having in listed)),
        **_sliding(config, windowed),
        **_feed_forward(config, figures["experts"], feed_forward),
    }
    plain = Architecture(**figures)
    # The layers of each group, in the groups' order.
    cut = {n for n, one in enumerate(windowed) if one} if plain.sliding_layers else set[int]()
    full = [n for n in range(layers) if n not in cut | taken]
    positions = [one for one in (full, sorted(cut), *(having for _, having in listed)) if one]
    mixers = [
        (having, matrix)
        for group, having in zip(plain.groups, positions, strict=True)
        for matrix in group.projections(plain.hidden_size)
    ]
    stored = precision(config, mixers, with_experts, mtp=figures["mtp_layers"] > 0)
    return Architecture(**figures, **stored)


def _unnamed_drafts(config: ConfigJson, layers: int) -> int:
    """Count the layers for multi-token prediction by the index of the weights; without one, those
    of the model's class."""
    index = config.path.parent / "model.safetensors.index.json"
    if not index.is_file():
        return facts().unnamed_mtp_layers.get(str(config.get("model_type")), 0)
    weights = read_json(index).get("weight_map")
    numbers = {found[1] for name in weights or () if (found := _LAYER.match(str(name)))}
    beyond = {number for number in numbers if number and int(number) >= layers}
    return len(beyond) or int(None in numbers)


def _vision_heads(config: ConfigJson) -> int:
    """Return the attention heads of the vision part, or those of its class; 0 without one."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    names = config.items("architectures")
    usual = next((facts().vision_heads[name] for name in names if name in facts().vision_heads), 0)
    return ConfigJson(config.path, vision).number(
        *facts().figures["vision"]["heads"], default=usual
    )


def _adjusted(config: ConfigJson, width: int) -> int:
    """Return the feed-forward width that LFM2's class makes of the file's: two thirds of it times the
    file's factor, rounded up to a multiple."""
    factor = config.get("block_ffn_dim_multiplier")
    unit = config.number("block_multiple_of")
    factor = factor if isinstance(factor, int | float) and 0 < factor < 2**31 else 1
    return math.ceil(2 * width // 3 * factor / (unit or 1)) * (unit or 1)


def _feed_forward(config: ConfigJson, experts: int, with_experts: list[bool]) -> dict[str, int]:
    """Return the widths and numbers of dense layers and experts."""
    if not any(with_experts):
        config.required("intermediate_size")
        return {"experts": 0}
    if not all(with_experts) or not config.number("moe_intermediate_size"):
        config.required("intermediate_size")
    figures = config.figures("experts")
    per_token = figures["experts_per_token"]
    if not per_token:
        config.unknown("num_experts_per_tok missing")
    if per_token > experts:
        config.refuse(
            f"num_experts_per_tok is {per_token}; a number up to the {experts} experts is needed"
        )
    if config.is_among("experts_beside_dense"):
        figures["shared_intermediate_size"] = config.number("intermediate_size")
    return {"dense_layers": with_experts.count(False), **figures}


def _with_experts(config: ConfigJson, layers: int) -> list[bool]:
    """Return the layers with experts: a list per layer, or DeepSeek's, Qwen's, Llama 4's, Ernie's
    or Jamba's rule."""
    if kinds := config.per_layer("mlp_layer_types", layers):
        return [kind != "dense" for kind in kinds]
    if frequencies := config.per_layer("moe_layer_freq", layers):
        return [bool(one) for one in frequencies]
    if chosen := config.items("moe_layers"):
        return [layer in chosen for layer in range(layers)]
    if period := config.number("expert_layer_period"):
        return [n % period == config.number("expert_layer_offset") for n in range(layers)]
    every = config.number("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    only_dense = config.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        config.refuse(f"mlp_only_layers is {only_dense!r}; a list of layers is needed")
    first = config.number("first_k_dense_replace", "moe_layer_start_index")
    step = config.number("moe_layer_freq", "moe_layer_interval", default=1)
    return [
        layer >= first
        and layer % step == 0
        and (layer + 1) % every == 0
        and layer not in only_dense
        for layer in range(layers)
    ]


def _windowed(config: ConfigJson, layers: int) -> list[bool]:
    """Return the layers with windowed attention; a chunk of Llama 4 counts as a window."""
    if config.get("use_sliding_window") is False:
        return [False] * layers
    if pattern := config.per_layer("hybrid_layer_pattern", layers):
        return [bool(one) for one in pattern]
    if kinds := config.per_layer("layer_types", layers):
        return [kind in ("sliding_attention", "chunked_attention") for kind in kinds]
    if _chunked(config):
        positions = config.per_layer("no_rope_layers", layers)
        every = config.number("no_rope_layer_interval", default=4)
        return [bool(one) for one in positions] or _most_of_every(every, layers)
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return [pattern[layer % len(pattern)] == "L" for layer in range(layers)]
    if every := config.number("sliding_window_pattern"):
        return _most_of_every(every, layers)
    if config.get("use_sliding_window"):
        return [layer >= config.number("max_window_layers") for layer in range(layers)]
    return [config.is_among("sliding_in_all_layers")] * layers


def _most_of_every(number: int, layers: int) -> list[bool]:
    """Return all layers but the last of each number of them."""
    return [(layer + 1) % number > 0 for layer in range(layers)]


def _chunked(config: ConfigJson) -> bool:
    return config.get("no_rope_layers") is not None or config.get("model_type") == "llama4_text"


def _sliding(config: ConfigJson, windowed: list[bool]) -> dict[str, int]:
    """Return the number of layers with a window and its tokens, if it ever limits them."""
    window = config.number("attention_chunk_size" if _chunked(config) else "sliding_window")
    if not window or not any(windowed) or window >= context_figures(config)["context_limit"]:
        return {}
    return {"sliding_window": window, "sliding_layers": sum(windowed)}


def _indexer(config: ConfigJson, layers: int) -> Indexer | None:
    if not config.number("index_topk"):
        return None
    config.required("index_head_dim", "index_n_heads")
    figures = config.figures("indexer")
    # Some layers may reuse another's choice (GLM-5.2).
    own = None
    kinds = config.per_layer("indexer_types", layers) or config.per_layer(
        "index_topk_pattern", layers
    )
    every = config.number("index_topk_freq", default=1)
    first = config.number("index_skip_topk_offset", default=1)
    if kinds:
        own = sum(kind in ("full", "F") for kind in kinds)
    elif every != 1:
        own = sum(max(layer - first + 1, 0) % every == 0 for layer in range(layers))
    key_bytes = figures["head_dim"] + INDEXER_SCALE_BYTES
    return Indexer(**figures, bytes_per_token_layer=key_bytes, layers=own)
