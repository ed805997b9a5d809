"""Read the layers whose attention has other heads, windows or compression than the model's others
(Gemma 4, MiMo-V2, DeepSeek-V4)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from autotune.base import JsonObject

from ..layers import INDEXER_SCALE_BYTES
from .keys import ConfigJson, facts
from .mixers import Listed

_CHOSEN = 4
_RATIOS = (0, _CHOSEN, 128)
"""Ratios that vLLM 0.33 has kernels for (models/deepseek_v4): tokens per entry of the KV cache. An
indexer chooses entries at `_CHOSEN`; at 0 a layer has its window alone."""


def listed_attention(
    config: ConfigJson, figures: JsonObject, windowed: Sequence[bool], taken: Collection[int]
) -> Listed:
    """Describe the layers, without the ones `taken`, whose attention needs a description of its
    own; none in most models."""
    if ratios := _compress_ratios(config, len(windowed)):
        return _compressed(config, figures, ratios)
    if config.number("hc_mult") > 1:
        config.unknown("hyper-connections, by hc_mult")
    common = {name: figures[name] for name in ("heads", "kv_heads", "head_dim", "v_head_dim")}
    window = config.number("sliding_window")
    several: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for layer, cut in enumerate(windowed):
        if layer in taken:
            continue
        own = common | _own_figures(config, layer, cut)
        if not cut and config.get("attention_k_eq_v"):
            own["keys_are_values"] = True
        if own != common:
            one = {"mixer": "attention", **own, "window": window if cut else 0}
            several.setdefault(tuple(one.items()), []).append(layer)
    return [({**dict(one), "layers": len(having)}, having) for one, having in several.items()]


def _own_figures(config: ConfigJson, layer: int, cut: bool) -> dict[str, int]:
    """Return the figures that a layer has of its own, by its kind or its number."""
    own = config.figures("windowed_layers" if cut else "full_layers")
    several = config.get("per_layer_config")
    several = several if isinstance(several, Mapping) else {}
    listed = several.get(f"{layer:02}", several.get(str(layer)))
    if isinstance(listed, Mapping):
        named = facts().per_layer_figures
        if odd := sorted(listed.keys() - named.keys()):
            config.unknown(f"layers with their own {', '.join(odd)}, by per_layer_config")
        own |= {named[key]: ConfigJson(config.path, listed).number(key) for key in listed}
    return {figure: value for figure, value in own.items() if value}


def _compress_ratios(config: ConfigJson, layers: int) -> list[int]:
    """Return the tokens per compressed entry of each layer, by DeepSeek's key or transformers'."""
    rates = config.get("compress_rates")
    if isinstance(rates, Mapping):
        named = ConfigJson(config.path, rates)
        return [named.number(str(kind)) for kind in config.per_layer("layer_types", layers)]
    ratios = config.per_layer("compress_ratios", layers)
    if odd := [one for one in ratios if not isinstance(one, int)]:
        config.refuse(f"compress_ratios has {odd[0]!r}; whole numbers are needed")
    return ratios


def _compressed(config: ConfigJson, figures: JsonObject, ratios: Sequence[int]) -> Listed:
    """Describe each ratio's layers; those with the window alone last, as the draft layer is one."""
    if odd := {*ratios} - {*_RATIOS}:
        config.unknown(f"{min(odd)} tokens for one entry of the cache")
    config.required("sliding_window", "q_lora_rank", "o_lora_rank", "o_groups", "index_topk")
    indexer = config.figures("indexer")
    indexer["bytes_per_token_layer"] = indexer["head_dim"] + INDEXER_SCALE_BYTES
    common = {
        "mixer": "compressed",
        "heads": figures["heads"],
        "head_dim": figures["head_dim"],
        "window": config.number("sliding_window"),
        "residual_streams": config.number("hc_mult", default=1),
        **config.figures("compressed_attention"),
    }
    return [
        (
            {**common, "layers": ratios.count(ratio), "ratio": ratio}
            | ({"indexer": indexer} if ratio == _CHOSEN else {}),
            [layer for layer, one in enumerate(ratios) if one == ratio],
        )
        for ratio in sorted({*ratios}, key=lambda ratio: (not ratio, ratio))
    ]
