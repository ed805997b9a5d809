"""Build a `ModelCard` from a Hugging Face ``config.json``.

What the keys mean is what the model's class in ``transformers`` makes of them; what is described
here is a decoder with full, sliding-window, latent, DeepSeek's sparse or Gated DeltaNet's linear
attention, dense or with experts. Everything else is refused, since its memory and its speed follow
other rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from autotune.base import MalformedFile

from .cards import Architecture, Indexer, MatrixType, ModelCard
from .entry import Entry, parse_yaml, spaces_root

JsonObject = Mapping[str, Any]
CONFIG = "config.json"
_MEASURE = (
    "is not simulated; to measure such a model on real servers, describe it in a YAML file "
    "(docs/models.md)"
)
# DeepSeek's indexer keeps one fp8 key of `index_head_dim` and one fp32 scale per token and layer.
_INDEXER_SCALE_BYTES = 4
_MOST_LAYERS = 10_000  # Limit of layers: of more, the kinds would not be listed in reasonable time
_PREFIXES = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.")
_EXPERT = (
    "mlp.experts.0.gate_proj",
    "block_sparse_moe.experts.0.w1",
    "feed_forward.experts.gate_up_proj",
)
_SHARED = (
    "mlp.shared_experts.gate_proj",
    "mlp.shared_expert.gate_proj",
    "feed_forward.shared_expert.gate_proj",
)
_DENSE = ("mlp.gate_proj", "feed_forward.gate_proj")
_IGNORE = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude")
_NESTED = ("text_config", "llm_config", "language_config")
"""Keys of the decoder's figures in a multimodal model."""


@dataclass(frozen=True, slots=True)
class ConfigJson:
    """Keys of a decoder's configuration; nested ones take precedence."""

    path: Path
    keys: JsonObject

    @classmethod
    def read(cls, path: Path) -> ConfigJson:
        """Read a file; missing keys have the defaults of its ``model_type``."""
        keys = read_json(path)
        for nested in _NESTED:
            if isinstance(keys.get(nested), Mapping):
                keys = {**keys, **keys[nested]}
        if not isinstance(keys.get("model_type", ""), str | None):
            raise MalformedFile(
                path, f"model_type is {keys['model_type']!r}; the name of an architecture is needed"
            )
        return cls(path, {**_facts().defaults.get(str(keys.get("model_type")), {}), **keys})

    def refuse(self, problem: str) -> NoReturn:
        raise MalformedFile(self.path, problem)

    def get(self, key: str) -> Any:
        return self.keys.get(key)

    def items(self, key: str) -> list[Any]:
        """Return a list; empty for another value."""
        value = self.get(key)
        return value if isinstance(value, list) else []

    def number(self, *keys: str, default: int = 0) -> int:
        """Return the first value of some keys other than null and 0."""
        for key in keys:
            value = self.get(key)
            if value is None or value is False:
                continue
            # Products of a few such numbers are within a float's range.
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                self.refuse(f"{key} is {value!r}; one whole number for all layers is needed")
            if value:
                return value
        return default

    def figures(self, part: str) -> dict[str, Any]:
        """Return the numbers of a part of the model, by the architecture's name of each."""
        return {figure: self.number(*keys) for figure, keys in _facts().figures[part].items()}

    def required(self, *keys: str) -> None:
        """Refuse a file in which one of these numbers is missing."""
        missing = [key for key in keys if not self.number(key)]
        if missing:
            self.refuse(
                f"is not a decoder's configuration: {', '.join(missing)} missing. "
                "Add the figures to the file, or describe the model in a YAML file (docs/models.md)"
            )

    def per_layer(self, key: str, layers: int) -> list[Any]:
        """Return a list with one entry per layer, without draft layers' entries; empty without a
        list."""
        value = self.items(key)
        if value and len(value) < layers:
            self.refuse(f"{key} has {len(value)} entries, but there are {layers} layers")
        return value[:layers]


class _Format(Entry):
    """Storage of quantised weights, and the type of their multiplication."""

    bits: int
    group: int = 1
    scale_bits: int = 0
    matrices_in: MatrixType
    block: int = 0


class ConfigFacts(Entry):
    """Content of ``search_spaces/config_json.yaml``: additions of a model's class to its
    ``config.json``."""

    defaults: dict[str, dict[str, Any]]
    figures: dict[str, dict[str, list[str]]]
    sliding_in_all_layers: list[str]
    plain_feed_forward: list[str]
    attention_kinds: list[str]
    other_architectures: dict[str, str]
    formats: dict[str, _Format]


@cache
def _facts() -> ConfigFacts:
    return ConfigFacts.model_validate(
        parse_yaml((spaces_root() / "config_json.yaml").read_text(encoding="utf-8"))
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises `MalformedFile`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MalformedFile(path, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedFile(path, "the top level is not an object")
    return document


@dataclass(frozen=True, slots=True)
class Scheme:
    """Storage and multiplication of the modules of a pattern."""

    weight_bytes: float
    matrices_in: MatrixType
    block: int = 0
    targets: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    schemes: Sequence[Scheme]
    ignored: re.Pattern[str] | None
    plain_bytes: float
    method: str | None = None

    def scheme(self, layer: int, names: Iterable[str]) -> Scheme | None:
        """Find the scheme of a module with one or more names; None: it is not quantised."""
        full = [f"{prefix}{layer}.{name}" for name in names for prefix in _PREFIXES]
        if self.ignored and any(self.ignored.match(name) for name in full):
            return None
        return next(
            (s for s in self.schemes if s.targets is None or any(map(s.targets.match, full))), None
        )

    def mean_bytes(self, layers: Sequence[int], modules: Mapping[tuple[str, ...], int]) -> float:
        """Return the mean bytes per weight of some modules (names to elements) in some layers."""
        total = sum(modules.values()) * len(layers)
        size = 0.0
        for layer in layers:
            for names, elements in modules.items():
                scheme = self.scheme(layer, names)
                size += elements * (scheme.weight_bytes if scheme else self.plain_bytes)
        return round(size / total, 6)


def precision(
    config: ConfigJson, attention: Mapping[str, int], with_experts: Sequence[bool], *, mtp: bool
) -> dict[str, Any]:
    """Return ``weight_bytes``, the other ``…weight_bytes`` that differ from it, ``weight_block``
    and ``matrices_in``.

    Args:
        attention: name and elements of a layer's projections.
        with_experts: per layer.
        mtp: a layer for multi-token prediction follows.

    Raises `MalformedFile` for a quantisation that is not known.
    """
    checkpoint = _checkpoint(config)
    layers = range(len(with_experts))
    of_experts = [layer for layer in layers if with_experts[layer]]
    large = of_experts or layers
    names = _EXPERT if of_experts else _DENSE
    main = checkpoint.mean_bytes(large, {names: 1})
    projections: dict[tuple[str, ...], int] = {
        (f"self_attn.{name}",): elements for name, elements in attention.items()
    }
    parts = {
        "attention_weight_bytes": checkpoint.mean_bytes(layers, projections),
        # The shared experts, or without experts the dense layers.
        "dense_weight_bytes": checkpoint.mean_bytes(large, {_SHARED if of_experts else _DENSE: 1}),
    }
    if mtp:
        parts["mtp_weight_bytes"] = checkpoint.mean_bytes([len(layers)], {names: 1})
    scheme = checkpoint.scheme(large[-1], names)
    figures: dict[str, Any] = {
        "weight_bytes": main,
        **{key: size for key, size in parts.items() if size != main},
    }
    if scheme:
        figures |= {"weight_block": scheme.block, "matrices_in": scheme.matrices_in}
    return {**figures, "quant_method": checkpoint.method}


def _checkpoint(config: ConfigJson) -> _Checkpoint:
    quantization = config.get("quantization_config")
    beside = config.path.parent / "hf_quant_config.json"
    if not isinstance(quantization, Mapping) and beside.is_file():
        inner = read_json(beside).get("quantization")
        quantization = {"quant_method": "modelopt", **(inner if isinstance(inner, Mapping) else {})}
    plain = 4.0 if "float32" in (config.get("dtype"), config.get("torch_dtype")) else 2.0
    if not isinstance(quantization, Mapping) or not (
        quantization.get("quant_method") or quantization.get("quant_algo")
    ):
        return _Checkpoint([], None, plain)
    lists = {key: quantization.get(key) or [] for key in _IGNORE}
    if wrong := next((key for key, names in lists.items() if not isinstance(names, list)), None):
        config.refuse(f"{wrong} is {quantization[wrong]!r}; a list of modules' names is needed")
    ignored = [str(name) for names in lists.values() for name in names]
    method = str(quantization.get("quant_method") or "modelopt")
    schemes = _schemes(config, quantization, method.replace("_", "-"))
    return _Checkpoint(schemes, _pattern(config, ignored), plain, method)


def _schemes(config: ConfigJson, q: JsonObject, method: str) -> list[Scheme]:
    if method == "compressed-tensors" or isinstance(q.get("config_groups"), Mapping):
        return [_group(config, group) for group in (q.get("config_groups") or {}).values()]
    if method.startswith("modelopt"):
        return _modelopt(config, q)
    if method == "quark":
        weight = (q.get("global_quant_config") or {}).get("weight") or {}
        return [_named(config, f"quark {weight.get('dtype')}", q)]
    if method in ("awq", "gptq", "auto-round", "gptq-marlin", "awq-marlin"):
        # Weights alone, multiplied in 16 bits; a scale of 16 bits and a zero point per group.
        bits = q.get("bits") or q.get("w_bit")
        size = q.get("group_size") or q.get("q_group_size") or 128
        if not isinstance(bits, int) or not isinstance(size, int):
            config.refuse(
                f"quantization_config: bits is {bits!r} and group_size {size!r}; "
                "whole numbers are needed"
            )
        return [Scheme(_bytes(bits, size, 16 + bits), "bf16")]
    if method == "bitsandbytes":
        return [Scheme(0.5 if q.get("load_in_4bit") else 1.0, "bf16")]
    return [_named(config, method, q)]


def _named(config: ConfigJson, method: str, q: JsonObject) -> Scheme:
    block, known = _block(config, q.get("weight_block_size")), _facts().formats
    if method not in known:
        config.refuse(
            f"quantization_config: {method!r} is unknown (known: {', '.join(known)}, awq, gptq, "
            "auto-round, bitsandbytes, compressed-tensors). Describe the model by its "
            "weight_bytes in a YAML file (docs/models.md)"
        )
    form = known[method]
    size = _bytes(form.bits, form.group, form.scale_bits)
    return Scheme(size, form.matrices_in, form.block or block)


def _block(config: ConfigJson, shape: Any) -> int:
    """Return the rows of weights that share a scale; 0 if all do."""
    rows = shape[0] if isinstance(shape, list) and shape else 0
    if not isinstance(rows, int):
        config.refuse(
            f"quantization_config: weight_block_size is {shape!r}; whole numbers are needed"
        )
    return rows


def _bytes(bits: float, group: object, scale_bits: float) -> float:
    """Return the bytes of a weight, with its share of the scale of a group; without groups the
    scales do not count."""
    if isinstance(group, int) and group > 0:
        bits += scale_bits / group
    return bits / 8


def _group(config: ConfigJson, group: JsonObject) -> Scheme:
    """Parse one of the ``config_groups`` of compressed-tensors."""
    weights, targets = group.get("weights") or {}, group.get("targets") or ["Linear"]
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if not isinstance(bits, int):
        config.refuse(
            f"quantization_config: config_groups: weights.num_bits is {bits!r}; "
            "a whole number is needed"
        )
    # Scales of 8 bits with 4-bit floats (MXFP4 in groups of 32, NVFP4 of 16), else of 16.
    scaled = _bytes(bits, size, 8 if weights.get("type") == "float" else 16)
    activations = (group.get("input_activations") or {}).get("num_bits") or 16
    kind: MatrixType = (
        "bf16" if activations >= 16 else "fp4" if max(bits, activations) <= 4 else "fp8"
    )
    block = _block(config, weights.get("block_structure"))
    everything = not {"Linear", "FusedMoE"}.isdisjoint(targets)
    pattern = None if everything else _pattern(config, list(map(str, targets)))
    return Scheme(scaled, kind, block, pattern)


def _modelopt(config: ConfigJson, q: JsonObject) -> list[Scheme]:
    """Parse one algorithm for all, or (``MIXED_PRECISION``) one per module."""
    algorithm, layers = str(q.get("quant_algo")), q.get("quantized_layers")
    if algorithm != "MIXED_PRECISION" or not isinstance(layers, Mapping):
        return [_named(config, f"modelopt {algorithm}", q)]
    by_algorithm: dict[str, list[str]] = {}
    for module, how in layers.items():
        by_algorithm.setdefault(str(how.get("quant_algo")), []).append(module)
    return [
        replace(_named(config, f"modelopt {name}", q), targets=_pattern(config, modules))
        for name, modules in by_algorithm.items()
    ]


def _pattern(config: ConfigJson, names: Sequence[str]) -> re.Pattern[str] | None:
    """Join names of modules, and of all below them, to one expression; ``re:`` and ``*`` as the
    formats have."""
    parts = []
    for name in names:
        if name.startswith("re:"):
            parts.append(f"(?:{name.removeprefix('re:')})")
        else:
            parts.append(r"(?:.*\.)?" + re.escape(name).replace(r"\*", ".*") + r"(?:\..*)?$")
    try:
        return re.compile("|".join(parts)) if parts else None
    except re.error as error:
        config.refuse(
            f"quantization_config: {error} in a pattern of modules ({', '.join(names)[:80]})"
        )


def model_from_file(path: Path) -> ModelCard:
    """Describe a model by its ``config.json``; raises `MalformedFile` for missing figures or an
    unsupported model."""
    config = ConfigJson.read(path)
    _refuse_others(config)
    config.required(
        "num_hidden_layers",
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "max_position_embeddings",
    )
    return ModelCard(
        id=str(path.parent),
        aliases=[path.resolve().parent.name],
        family=str(config.get("model_type") or "unknown"),
        architectures=[str(name) for name in config.items("architectures")],
        architecture=_architecture(config),
        source=str(path),
    )


def _refuse_others(config: ConfigJson) -> None:
    for key, meaning in _facts().other_architectures.items():
        if config.get(key):
            config.refuse(f"{key}: {meaning} {_MEASURE}")
    odd = {str(kind) for kind in config.items("layer_types")} - {*_facts().attention_kinds}
    if odd:
        config.refuse(f"layer_types: {', '.join(sorted(odd))} {_MEASURE}")
    if not all(config.items("attn_type_list")):
        config.refuse(f"attn_type_list: linear attention in some layers (MiniMax-01) {_MEASURE}")
    classes = [str(name) for name in config.items("architectures")]
    if classes and not any("CausalLM" in name or "Condit" in name for name in classes):
        listed = ", ".join(classes)
        config.refuse(f"architectures: {listed}, not an autoregressive text model, {_MEASURE}")


def _architecture(config: ConfigJson) -> Architecture:
    figures = config.figures("decoder")
    layers, hidden, heads = (figures[name] for name in ("layers", "hidden_size", "heads"))
    if layers > _MOST_LAYERS:
        config.refuse(f"num_hidden_layers is {layers}; a number up to {_MOST_LAYERS:,} is needed")
    if heads > hidden:
        config.refuse(f"num_attention_heads is {heads}, more than hidden_size, {hidden}")
    if figures["kv_lora_rank"]:
        config.required("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        figures["v_head_dim"] = config.number("v_head_dim")
        figures["kv_heads"] = heads
        figures["head_dim"] = figures["qk_rope_head_dim"] + figures["qk_nope_head_dim"]
    else:
        figures |= {"qk_rope_head_dim": 0, "qk_nope_head_dim": 0}
        figures["kv_heads"] = config.number("num_key_value_heads", default=heads)
        figures["head_dim"] = config.number("head_dim", default=hidden // heads)
    with_experts = _with_experts(config, layers) if figures["experts"] else [False] * layers
    no_gate = config.get("model_type") in _facts().plain_feed_forward
    figures |= {
        "feed_forward_matrices": 2 if no_gate else 3,
        "indexer": _indexer(config, layers),
        "context_limit": _context_limit(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings")),
        **_sliding(config, layers),
        **_linear(config, layers),
        **_feed_forward(config, figures["experts"], with_experts),
    }
    projections = _attention_matrices(Architecture(**figures))
    stored = precision(config, projections, with_experts, mtp=figures["mtp_layers"] > 0)
    return Architecture(**figures, **stored)


def _feed_forward(config: ConfigJson, experts: int, with_experts: list[bool]) -> dict[str, int]:
    """Return the widths and numbers of dense layers and experts."""
    if not any(with_experts):
        config.required("intermediate_size")
        return {"experts": 0}
    if not all(with_experts) or not config.number("moe_intermediate_size"):
        config.required("intermediate_size")
    figures = config.figures("experts")
    per_token = figures["experts_per_token"]
    if not 0 < per_token <= experts:
        config.refuse(
            f"num_experts_per_tok is {per_token or 'missing'}; "
            f"a number up to the {experts} experts is needed"
        )
    return {"dense_layers": with_experts.count(False), **figures}


def _with_experts(config: ConfigJson, layers: int) -> list[bool]:
    """Return the layers with experts: a list per layer, or DeepSeek's, Qwen's, Llama 4's or Ernie's
    rule."""
    kinds = config.per_layer("mlp_layer_types", layers)
    if kinds:
        return [kind != "dense" for kind in kinds]
    frequencies = config.per_layer("moe_layer_freq", layers)
    if frequencies:
        return [bool(one) for one in frequencies]
    chosen = config.items("moe_layers")
    if chosen:
        return [layer in chosen for layer in range(layers)]
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


def _sliding(config: ConfigJson, layers: int) -> dict[str, int]:
    """Count the layers with windowed attention, with the window's tokens; a chunk of Llama 4 counts
    as a window."""
    if config.get("use_sliding_window") is False:
        return {}
    chunked = config.get("no_rope_layers") is not None or config.get("model_type") == "llama4_text"
    window = config.number("attention_chunk_size") if chunked else config.number("sliding_window")
    kinds = config.per_layer("layer_types", layers)
    cut = 0
    if kinds:
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
    elif config.get("model_type") in _facts().sliding_in_all_layers:
        cut = layers
    if not window or not cut or window >= _context_limit(config):
        return {}
    return {"sliding_window": window, "sliding_layers": cut}


def _linear(config: ConfigJson, layers: int) -> dict[str, Any]:
    """Count the layers with Gated DeltaNet (Qwen3-Next, Qwen3.5): most of every few, or as
    listed."""
    kinds = config.per_layer("layer_types", layers)
    every = config.number("full_attention_interval")
    linear = (
        sum(kind == "linear_attention" for kind in kinds)
        if kinds
        else layers - layers // (every or 1)
    )
    if not linear:
        return {}
    config.required("linear_num_value_heads", "linear_num_key_heads", "linear_value_head_dim")
    attention = config.figures("linear_attention")
    return {"linear_layers": linear, "gated_attention": True, **attention}


def _context_limit(config: ConfigJson) -> int:
    """Return the positions, stretched by YaRN if the file defines it (as the engines derive it)."""
    limit = config.number("max_position_embeddings")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict) or "yarn" not in (
        scaling.get("rope_type"),
        scaling.get("type"),
    ):
        return limit
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if isinstance(original, int) and isinstance(factor, int | float):
        return max(limit, int(original * factor))
    return limit


def _indexer(config: ConfigJson, layers: int) -> Indexer | None:
    if not config.number("index_topk"):
        return None
    config.required("index_head_dim", "index_n_heads")
    figures = config.figures("indexer")
    # Some layers may reuse another's choice (GLM-5.2).
    own: int | None = None
    kinds = config.per_layer("indexer_types", layers) or config.per_layer(
        "index_topk_pattern", layers
    )
    every = config.number("index_topk_freq", default=1)
    first = config.number("index_skip_topk_offset", default=1)
    if kinds:
        own = sum(kind in ("full", "F") for kind in kinds)
    elif every != 1:
        own = sum(max(layer - first + 1, 0) % every == 0 for layer in range(layers))
    key_bytes = figures["head_dim"] + _INDEXER_SCALE_BYTES
    return Indexer(**figures, bytes_per_token_layer=key_bytes, layers=own)


def _attention_matrices(a: Architecture) -> dict[str, int]:
    """Return the elements of a layer's projections, which a checkpoint's quantisation may or may
    not cover."""
    width = a.heads * a.head_dim
    query = {"q_proj": a.hidden_size * width}
    if not a.kv_lora_rank:
        keys = a.hidden_size * a.kv_heads * a.head_dim
        return {"o_proj": width * a.hidden_size, **query, "k_proj": keys, "v_proj": keys}
    if a.q_lora_rank:
        query = {"q_a_proj": a.hidden_size * a.q_lora_rank, "q_b_proj": a.q_lora_rank * width}
    return {
        "o_proj": a.heads * a.v_head_dim * a.hidden_size,
        **query,
        "kv_a_proj_with_mqa": a.hidden_size * (a.kv_lora_rank + a.qk_rope_head_dim),
        "kv_b_proj": a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim),
    }
