"""Read which layers have a recurrent state, and which are a mixer (attention, Mamba …) or a
feed-forward part alone."""

from collections.abc import Mapping, Sequence

from autotune.base import Json, JsonObject

from .keys import ConfigJson, facts

_ATTENTION = "attention"
_EXPERTS, _DENSE = ("moe", "E"), ("mlp", "-")
"""Words for feed-forward parts that are layers of their own; then mixers are, too."""
_LEFT_TO_CLASS = ("key_dim", "convolution", "chunk")
"""Figures that a group's class has where the file is silent."""
Listed = list[tuple[Json, list[int]]]
"""Groups as `Architecture.layer_groups` has them, and the numbers of their layers."""


def layer_words(config: ConfigJson, layers: int) -> list[str]:
    """Return the names of the layers' mixers in the file; empty without any. Raises `NotPredicted`
    for one that is not known."""
    words = _words(config, layers)
    if odd := {*words} - {*facts().mixers}:
        config.unknown(f"layers of the kind {', '.join(sorted(odd))}")
    kinds = {facts().mixers[word] for word in words}
    if (
        kinds
        and _ATTENTION not in kinds
        and config.get("model_type") not in facts().beside_attention
    ):
        config.unknown("no layer with attention")
    if words and len(words) != layers:
        config.refuse(f"{len(words)} layers are listed, but there are {layers}")
    if config.number("mamba_d_state") and not words:
        config.unknown("state-space layers that are not listed, by mamba_d_state")
    return words


def _words(config: ConfigJson, layers: int) -> list[str]:
    pattern = config.get("hybrid_override_pattern")
    linear = config.get("linear_attn_config")
    if isinstance(pattern, str | list) and pattern:
        return [str(word) for word in pattern]
    if isinstance(linear, Mapping):
        delta = linear.get("kda_layers")
        delta = delta if isinstance(delta, list) else []
        return ["kimi_delta" if n in delta else _ATTENTION for n in range(1, layers + 1)]
    for key in ("layers_block_type", "layer_types"):
        if words := config.per_layer(key, layers):
            return [str(word) for word in words]
    if period := config.number("attn_layer_period"):
        first = config.number("attn_layer_offset")
        return [_ATTENTION if n % period == first else "selective_scan" for n in range(layers)]
    if word := facts().beside_attention.get(str(config.get("model_type"))):
        return [word] * layers
    every = config.number("full_attention_interval", default=1)
    words = ["linear_attention" if n % every else _ATTENTION for n in range(1, layers + 1)]
    return words if every > 1 else []


def with_parts(words: Sequence[str], with_experts: list[bool]) -> tuple[list[bool], list[bool]]:
    """Return which layers have experts, and the same of those with a feed-forward part alone."""
    if not _alone(words):
        return with_experts, with_experts
    experts = [word in _EXPERTS for word in words]
    return experts, [word in _EXPERTS for word in words if word in (*_EXPERTS, *_DENSE)]


def _alone(words: Sequence[str]) -> bool:
    return not {*words}.isdisjoint((*_EXPERTS, *_DENSE))


def listed_groups(config: ConfigJson, words: Sequence[str], attention: JsonObject) -> Listed:
    """Describe the layers that the model's figures of `attention` do not; with mixers alone, or two
    in each layer, also those that they do, last.

    Raises `NotPredicted` without one of their figures.
    """
    kinds = [facts().mixers[word] for word in words]
    alone = _alone(words)
    listed = []
    for kind in sorted({*kinds} - {_ATTENTION}) + [_ATTENTION] * alone:
        having = [n for n, one in enumerate(kinds) if one == kind]
        figures = {"mixer": kind, **attention} if kind == _ATTENTION else _described(config, kind)
        if alone and kind != "none":
            figures["feed_forward"] = False
        if having:
            listed.append(({**figures, "layers": len(having)}, having))
    if config.get("model_type") in facts().beside_attention:
        every = [*range(len(words))]
        both = {"mixer": _ATTENTION, **attention, "feed_forward": False, "layers": len(every)}
        listed.append((both, every))
    return listed


def _described(config: ConfigJson, mixer: str) -> Json:
    figures = config.figures(mixer)
    missing = [
        facts().figures[mixer][name][0]
        for name in figures
        if not figures[name] and name not in _LEFT_TO_CLASS
    ]
    if missing:
        config.unknown(f"{', '.join(missing)} missing in {config.path.name}")
    figures = {name: value for name, value in figures.items() if value}
    element = str(config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype"))
    if element in facts().state_types and "value_heads" in figures:
        figures["state_element_bytes"] = facts().state_types[element]
    if "expand" in figures:
        figures["width"] = figures.pop("expand") * config.number("hidden_size")
    if mixer == "kimi_delta":
        figures["full_rank_gate"] = bool(config.get("use_full_rank_gate"))
    return {"mixer": mixer, **figures}
