"""Find how a checkpoint stores its weights, by its ``quantization_config`` or the file beside it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.base import Json, JsonObject, by_key, frozen

from ..cards import MatrixType
from ..layers import Projection
from .keys import ConfigJson, facts, read_json

_DRAFT = "mtp.layers.0."
Names = Sequence[str]
_IGNORE = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude")
_IGNORED_BY_FP8 = ("modules_to_not_convert", "ignored_layers")


@frozen
class Scheme:
    """Storage and multiplication of the modules of a pattern."""

    weight_bytes: float
    matrices_in: MatrixType
    block: int = 0
    group: int = 0
    expert_tile: int = 0
    targets: re.Pattern[str] | None = None


@frozen
class _Checkpoint:
    schemes: Sequence[Scheme]
    ignored: re.Pattern[str] | None
    plain_bytes: float
    layers: int
    method: str | None = None
    cache: str | None = None
    ordered: bool = False

    def scheme(self, layer: int, names: Names) -> Scheme | None:
        """Find the scheme of a module with one or more names; None: it is not quantised."""
        full = [f"{prefix}{layer}.{name}" for name in names for prefix in facts().prefixes]
        # Nemotron-H has one name for whatever a layer is.
        full += [f"backbone.layers.{layer}.mixer.{name.partition('.')[2]}" for name in names]
        full += [f"{_DRAFT}{name}" for name in names if layer == self.layers]
        if self.ignored and any(self.ignored.match(name) for name in full):
            return None
        return next(
            (s for s in self.schemes if s.targets is None or any(map(s.targets.match, full))), None
        )

    def mean_bytes(self, parts: Iterable[tuple[Sequence[int], Names, float]]) -> float:
        """Return the mean bytes per weight of modules: layers, names, and elements of each."""
        total = size = 0.0
        for layers, names, elements in parts:
            for layer in layers:
                scheme = self.scheme(layer, names)
                size += elements * (scheme.weight_bytes if scheme else self.plain_bytes)
            total += elements * len(layers)
        return round(size / total, 6)


def precision(
    config: ConfigJson,
    mixers: Iterable[tuple[Sequence[int], Projection]],
    with_experts: Sequence[bool],
    *,
    mtp: bool,
) -> Json:
    """Return ``weight_bytes``, the other ``…weight_bytes`` that differ from it, ``weight_block``
    and ``matrices_in``.

    Args:
        mixers: layers, and a matrix that each of them has.
        with_experts: per layer.
        mtp: a layer for multi-token prediction follows.

    Raises `NotPredicted` for a quantisation that is not known.
    """
    checkpoint = _checkpoint(config, len(with_experts))
    layers = range(len(with_experts))
    of_experts = [layer for layer in layers if with_experts[layer]]
    large = of_experts or layers
    modules = facts().modules
    names = modules["experts" if of_experts else "dense"]
    main = checkpoint.mean_bytes([(large, names, 1)])
    projections: list[tuple[Sequence[int], Names, float]] = [
        (having, (matrix.name, *facts().in_parts.get(matrix.name, ())), matrix.elements)
        for having, matrix in mixers
        if not matrix.stored_bytes
    ]
    parts = {
        "attention_weight_bytes": checkpoint.mean_bytes(projections or [(large, names, 1)]),
        # The shared experts, or without experts the dense layers.
        "dense_weight_bytes": checkpoint.mean_bytes(
            [(large, modules["shared" if of_experts else "dense"], 1)]
        ),
    }
    if mtp:
        parts["mtp_weight_bytes"] = checkpoint.mean_bytes([([len(layers)], names, 1)])
    scheme = checkpoint.scheme(large[-1], names)
    figures: Json = {
        "weight_bytes": main,
        **{key: size for key, size in parts.items() if size != main},
    }
    for named in checkpoint.schemes:
        if named.targets and named.targets.match("lm_head"):
            figures["head_weight_bytes"] = named.weight_bytes
    if scheme:
        figures |= {
            "weight_block": scheme.block,
            "weight_group": scheme.group,
            "expert_tile": scheme.expert_tile,
            "matrices_in": scheme.matrices_in,
            "activation_order": checkpoint.ordered,
        }
    return {**figures, "quant_method": checkpoint.method, "kv_cache_scheme": checkpoint.cache}


def untold(config: ConfigJson) -> str:
    """Say which quantisation a file or a name promises without describing it; empty for none."""
    if _described(config):
        return ""
    if config.get("quantization_config"):
        return "its quantization_config names no quant_method: read as 16-bit weights, as vLLM does"
    if config.path.resolve().parent.name.upper().endswith("FP4"):
        return (
            "its name says FP4, but no file says how: read as 16-bit weights; put the checkpoint's "
            "hf_quant_config.json beside config.json"
        )
    return ""


def _described(config: ConfigJson) -> JsonObject:
    """Return the quantisation in ``config.json`` or beside it; empty where none has a method."""
    quantization = config.get("quantization_config") or config.get("compression_config")
    beside = config.path.parent / "hf_quant_config.json"
    if not isinstance(quantization, Mapping) and beside.is_file():
        quantization = {"quantization": {}, **read_json(beside)}
    if isinstance(quantization, Mapping) and isinstance(quantization.get("quantization"), Mapping):
        quantization = {"quant_method": "modelopt", **quantization["quantization"]}
    named = isinstance(quantization, Mapping) and quantization.get("quant_method")
    return quantization if named else {}


def _checkpoint(config: ConfigJson, layers: int) -> _Checkpoint:
    quantization = _described(config)
    plain = 4.0 if "float32" in (config.get("dtype"), config.get("torch_dtype")) else 2.0
    if not quantization:
        return _Checkpoint([], None, plain, layers)
    lists = {key: quantization.get(key) or [] for key in _IGNORE}
    if wrong := next((key for key, names in lists.items() if not isinstance(names, list)), None):
        config.refuse(f"{wrong} is {quantization[wrong]!r}; a list of modules' names is needed")
    ignored = [str(name) for names in lists.values() for name in names]
    method = str(quantization["quant_method"])
    experts = _experts_of_their_own(config, quantization)
    if experts:
        ignored = [str(name) for key in _IGNORED_BY_FP8 for name in lists[key]]
        quantization = {**quantization, "config_groups": None}
    schemes = experts + _schemes(config, quantization, method.replace("_", "-"))
    cache = _cache_type(quantization)
    ordered = bool(quantization.get("desc_act"))
    return _Checkpoint(schemes, _pattern(config, ignored), plain, layers, method, cache, ordered)


def _cache_type(q: JsonObject) -> str | None:
    """Return what a checkpoint says of its KV cache: a name, or a scheme like that of weights."""
    scheme = q.get("kv_cache_scheme") or q.get("kv_cache_quant_algo")
    if not isinstance(scheme, Mapping):
        return "fp8" if str(scheme).upper() == "FP8" else None
    if (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
        return None
    per_tensor = scheme.get("strategy", "tensor") == "tensor" and not scheme.get("dynamic")
    return "fp8" if per_tensor and scheme.get("symmetric", True) else "fp8_scaled"


def _experts_of_their_own(config: ConfigJson, q: JsonObject) -> list[Scheme]:
    """Return the scheme of experts whose type is not that of the other weights (DeepSeek-V4)."""
    algorithm = q.get("moe_quant_algo") or q.get("expert_dtype") or config.get("expert_dtype")
    form = facts().expert_types.get(str(algorithm))
    if not form or q.get("quant_method") != "fp8":
        return []
    return [replace(_named(config, form, {}), targets=_pattern(config, ["ffn.experts"]))]


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
        return [Scheme(_bytes(bits, size, 16 + bits), "bf16", group=max(size, 0))]
    if method == "bitsandbytes":
        return [Scheme(0.5 if q.get("load_in_4bit") else 1.0, "bf16")]
    return [_named(config, method, q)]


def _named(config: ConfigJson, method: str, q: JsonObject) -> Scheme:
    block = _block(config, q.get("weight_block_size"))
    known = facts().formats
    if method not in known:
        config.unknown(f"quantization_config: {method!r} is unknown")
    form = known[method]
    size = _bytes(form.bits, form.group, form.scale_bits)
    return Scheme(size, form.matrices_in, form.block or block, expert_tile=form.expert_tile)


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
    weights = group.get("weights") or {}
    targets = group.get("targets") or ["Linear"]
    bits = weights.get("num_bits")
    size = weights.get("group_size")
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
    group_size = size if isinstance(size, int) and weights.get("type") != "float" else 0
    return Scheme(scaled, kind, block, max(group_size, 0), targets=pattern)


def _modelopt(config: ConfigJson, q: JsonObject) -> list[Scheme]:
    """Parse one algorithm for all, or (``MIXED_PRECISION``) one per module."""
    algorithm = str(q.get("quant_algo"))
    layers = q.get("quantized_layers")
    if algorithm != "MIXED_PRECISION" or not isinstance(layers, Mapping):
        return [_named(config, f"modelopt {algorithm}", q)]
    by_algorithm = by_key((str(how.get("quant_algo")), module) for module, how in layers.items())
    return [
        replace(_named(config, f"modelopt {name}", q), targets=_pattern(config, modules))
        for name, modules in by_algorithm.items()
    ]


def _pattern(config: ConfigJson, names: Sequence[str]) -> re.Pattern[str] | None:
    """Join names of modules, and of all below them, to one expression; ``re:`` and ``*`` as the
    formats have."""
    parts = [
        f"(?:{name.removeprefix('re:')})"
        if name.startswith("re:")
        else r"(?:.*\.)?" + re.escape(name).replace(r"\*", ".*") + r"(?:\..*)?$"
        for name in names
    ]
    try:
        return re.compile("|".join(parts)) if parts else None
    except re.error as error:
        config.refuse(
            f"quantization_config: {error} in a pattern of modules ({', '.join(names)[:80]})"
        )
