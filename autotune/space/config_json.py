"""Reads ``config.json``, and the bytes per weight of each part of a checkpoint from its ``quantization_config``.

Scales count: 4-bit weights in groups of 128 with a scale of 16 bits and a zero point of 4 take 4.16 bits. Formats:
``compressed-tensors`` (github.com/vllm-project/compressed-tensors), ``modelopt`` (NVIDIA Model Optimizer), MXFP4 and
MXFP8 (OCP Microscaling Formats 1.0: one scale of 8 bits for 32 values), NVFP4 (one of 8 bits for 16), AutoAWQ, GPTQ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autotune.errors import MalformedFile
from autotune.space.architecture import MatrixType

_PREFIXES = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.")
_EXPERT = ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "feed_forward.experts.gate_up_proj")
_SHARED = ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "feed_forward.shared_expert.gate_proj")
_DENSE = ("mlp.gate_proj", "feed_forward.gate_proj")
_IGNORE = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude")
_PLAIN_16, _PLAIN_32 = 2.0, 4.0
_NESTED = ("text_config", "llm_config", "language_config")
"""Where a model that also sees or hears keeps the figures of its decoder."""


@dataclass(frozen=True, slots=True)
class ConfigJson:
    """The keys of a decoder's configuration; a nested one's stand before the outer ones."""

    path: Path
    keys: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, defaults: Mapping[str, Mapping[str, Any]]) -> ConfigJson:
        """Read a file; `defaults` are, by ``model_type``, what its class fills in where the file is silent."""
        keys = read_json(path)
        for nested in _NESTED:
            if isinstance(keys.get(nested), Mapping):
                keys = {**keys, **keys[nested]}
        if not isinstance(keys.get("model_type", ""), str | None):
            raise MalformedFile(path, f"model_type is {keys['model_type']!r}; the name of an architecture is needed")
        return cls(path, {**defaults.get(str(keys.get("model_type")), {}), **keys})

    def refuse(self, problem: str) -> NoReturn:
        """Raise `MalformedFile`."""
        raise MalformedFile(self.path, problem)

    def get(self, key: str) -> Any:
        """A value as it stands; None when there is none."""
        return self.keys.get(key)

    def number(self, *keys: str, default: int = 0) -> int:
        """The first of some keys that has a value other than null and 0."""
        for key in keys:
            value = self.keys.get(key)
            if value is None or value is False:
                continue
            # Products of a few such numbers are within a float's range.
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                self.refuse(f"{key} is {value!r}; one whole number for all layers is needed")
            if value:
                return value
        return default

    def required(self, *keys: str) -> None:
        """Refuse a file in which one of these numbers is missing."""
        missing = [key for key in keys if not self.number(key)]
        if missing:
            self.refuse(
                f"is not a decoder's configuration: {', '.join(missing)} missing. Add the figures to the file, or "
                "describe the model in a YAML file (docs/models.md)"
            )

    def per_layer(self, key: str, layers: int) -> list[Any] | None:
        """A list with one entry per layer (more, of draft layers, are left out); None when there is no list."""
        value = self.keys.get(key)
        if not isinstance(value, list) or not value:
            return None
        if len(value) < layers:
            self.refuse(f"{key} has {len(value)} entries, but there are {layers} layers")
        return value[:layers]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises `MalformedFile`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MalformedFile(path, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedFile(path, "the top level is not an object")
    return document


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the modules that a pattern names are stored, and multiplied."""

    weight_bytes: float
    matrices_in: MatrixType
    block: int = 0
    targets: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    schemes: Sequence[Scheme]
    ignored: re.Pattern[str] | None
    plain_bytes: float

    def scheme(self, layer: int, names: Iterable[str]) -> Scheme | None:
        """The scheme of a module, which may have one of several names; None: it is not quantised."""
        full = [f"{prefix}{layer}.{name}" for name in names for prefix in _PREFIXES]
        if self.ignored is not None and any(self.ignored.match(name) for name in full):
            return None
        return next((s for s in self.schemes if s.targets is None or any(map(s.targets.match, full))), None)

    def mean_bytes(self, layers: Sequence[int], modules: Mapping[tuple[str, ...], int]) -> float:
        """Bytes per weight over some modules (names to elements) of some layers."""
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
    """``weight_bytes`` and, where they differ from it, the other ``…weight_bytes``, ``weight_block``, ``matrices_in``.

    Args:
        attention: name and elements of a layer's projections.
        with_experts: per layer, whether it has experts.
        mtp: whether a layer for multi-token prediction follows.

    Raises `MalformedFile` for a quantisation that is not known.
    """
    checkpoint = _checkpoint(config)
    layers = range(len(with_experts))
    of_experts = [layer for layer in layers if with_experts[layer]]
    dense = [layer for layer in layers if not with_experts[layer]]
    large, names = (of_experts, _EXPERT) if of_experts else (dense, _DENSE)
    main = checkpoint.mean_bytes(large, {names: 1})
    parts = {
        "attention_weight_bytes": checkpoint.mean_bytes(
            layers, {(f"self_attn.{name}",): elements for name, elements in attention.items()}
        ),
        # Of shared experts where there are layers with experts, else of the dense layers.
        "dense_weight_bytes": checkpoint.mean_bytes(large, {_SHARED if of_experts else _DENSE: 1}),
    }
    if mtp:
        parts["mtp_weight_bytes"] = checkpoint.mean_bytes([len(layers)], {names: 1})
    scheme = checkpoint.scheme(large[-1], names)
    figures: dict[str, Any] = {"weight_bytes": main, **{key: size for key, size in parts.items() if size != main}}
    if scheme is not None:
        figures |= {"weight_block": scheme.block, "matrices_in": scheme.matrices_in}
    return figures


def _checkpoint(config: ConfigJson) -> _Checkpoint:
    quantization = config.get("quantization_config")
    beside = config.path.parent / "hf_quant_config.json"
    if not isinstance(quantization, Mapping) and beside.is_file():
        inner = read_json(beside).get("quantization")
        quantization = {"quant_method": "modelopt", **(inner if isinstance(inner, Mapping) else {})}
    plain = _PLAIN_32 if "float32" in (config.get("dtype"), config.get("torch_dtype")) else _PLAIN_16
    if not isinstance(quantization, Mapping) or not (
        quantization.get("quant_method") or quantization.get("quant_algo")
    ):
        return _Checkpoint([], None, plain)
    lists = {key: quantization.get(key) or [] for key in _IGNORE}
    if wrong := next((key for key, names in lists.items() if not isinstance(names, list)), None):
        config.refuse(f"{wrong} is {quantization[wrong]!r}; a list of modules' names is needed")
    ignored = [str(name) for names in lists.values() for name in names]
    return _Checkpoint(_schemes(config, quantization), _pattern(config, ignored), plain)


def _schemes(config: ConfigJson, q: Mapping[str, Any]) -> list[Scheme]:
    method = str(q.get("quant_method") or "modelopt").replace("_", "-")
    if method == "compressed-tensors" or isinstance(q.get("config_groups"), Mapping):
        return [_group(config, group) for group in (q.get("config_groups") or {}).values()]
    if method.startswith("modelopt"):
        return _modelopt(config, q)
    if method == "quark":
        weight = (q.get("global_quant_config") or {}).get("weight") or {}
        return [_named(config, f"quark {weight.get('dtype')}", q)]
    if method in ("awq", "gptq", "auto-round", "gptq-marlin", "awq-marlin"):
        return [_integer(config, q)]
    if method == "bitsandbytes":
        return [Scheme(0.5 if q.get("load_in_4bit") else 1.0, "bf16")]
    return [_named(config, method, q)]


def _named(config: ConfigJson, method: str, q: Mapping[str, Any]) -> Scheme:
    block = _block(config, q.get("weight_block_size"))
    known = {
        "fp8": Scheme(1.0, "fp8", block),
        "fbgemm-fp8": Scheme(1.0, "fp8"),
        "mxfp4": Scheme(_bytes(4, 32, 8), "bf16"),
        "quark fp8_e4m3": Scheme(1.0, "fp8"),
        "quark fp4": Scheme(_bytes(4, 32, 8), "fp4"),
        "modelopt FP8": Scheme(1.0, "fp8"),
        "modelopt FP8_PB_WO": Scheme(1.0, "fp8", 128),
        "modelopt MXFP8": Scheme(_bytes(8, 32, 8), "fp8"),
        "modelopt NVFP4": Scheme(_bytes(4, 16, 8), "fp4"),
        "modelopt W4A16_NVFP4": Scheme(_bytes(4, 16, 8), "bf16"),
        "modelopt W4A8_AWQ": Scheme(_bytes(4, 128, 16), "fp8"),
        "modelopt W4A16_AWQ": Scheme(_bytes(4, 128, 16), "bf16"),
    }
    if method not in known:
        config.refuse(
            f"quantization_config: {method!r} is not known (known: {', '.join(known)}, awq, gptq, auto-round, "
            "bitsandbytes, compressed-tensors). Describe the model by its weight_bytes in a YAML file (docs/models.md)"
        )
    return known[method]


def _block(config: ConfigJson, shape: Any) -> int:
    """Rows of weights that share a scale; 0 where they all do."""
    rows = shape[0] if isinstance(shape, list) and shape else 0
    if not isinstance(rows, int):
        config.refuse(f"quantization_config: weight_block_size is {shape!r}; whole numbers are needed")
    return rows


def _bytes(bits: float, group: int, scale_bits: float) -> float:
    return (bits + scale_bits / group) / 8


def _integer(config: ConfigJson, q: Mapping[str, Any]) -> Scheme:
    """AWQ and GPTQ: weights alone, multiplied in 16 bits; a scale of 16 bits and a zero point per group."""
    bits, group = q.get("bits") or q.get("w_bit"), q.get("group_size") or q.get("q_group_size") or 128
    if not isinstance(bits, int) or not isinstance(group, int):
        config.refuse(f"quantization_config: bits is {bits!r} and group_size {group!r}; whole numbers are needed")
    return Scheme(_bytes(bits, group, 16 + bits) if group > 0 else bits / 8, "bf16")


def _group(config: ConfigJson, group: Mapping[str, Any]) -> Scheme:
    """One of the ``config_groups`` of compressed-tensors: which modules, how many bits, in groups of how many."""
    weights, targets = group.get("weights") or {}, group.get("targets") or ["Linear"]
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if not isinstance(bits, int):
        config.refuse(f"quantization_config: config_groups: weights.num_bits is {bits!r}; a whole number is needed")
    # Scales of 8 bits with 4-bit floats (MXFP4 in groups of 32, NVFP4 of 16), else of 16.
    floating = weights.get("type") == "float"
    scaled = _bytes(bits, size, 8 if floating else 16) if isinstance(size, int) and size > 0 else bits / 8
    activations = (group.get("input_activations") or {}).get("num_bits") or 16
    kind: MatrixType = "bf16" if activations >= 16 else "fp4" if max(bits, activations) <= 4 else "fp8"
    block = _block(config, weights.get("block_structure"))
    everything = not {"Linear", "FusedMoE"}.isdisjoint(targets)
    return Scheme(scaled, kind, block, None if everything else _pattern(config, [str(t) for t in targets]))


def _modelopt(config: ConfigJson, q: Mapping[str, Any]) -> list[Scheme]:
    """One algorithm for all, or (``MIXED_PRECISION``) one per module."""
    algorithm, layers = str(q.get("quant_algo")), q.get("quantized_layers")
    if algorithm != "MIXED_PRECISION" or not isinstance(layers, Mapping):
        return [_named(config, f"modelopt {algorithm}", q)]
    by_algorithm: dict[str, list[str]] = {}
    for module, how in layers.items():
        by_algorithm.setdefault(str(how.get("quant_algo")), []).append(module)
    schemes = []
    for name, modules in by_algorithm.items():
        one = _named(config, f"modelopt {name}", q)
        schemes.append(Scheme(one.weight_bytes, one.matrices_in, one.block, _pattern(config, modules)))
    return schemes


def _pattern(config: ConfigJson, names: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for what the names stand for: a module and all below it; ``re:`` and ``*`` as the formats have."""
    parts = []
    for name in names:
        if name.startswith("re:"):
            parts.append(f"(?:{name.removeprefix('re:')})")
        else:
            parts.append(r"(?:.*\.)?" + re.escape(name).replace(r"\*", ".*") + r"(?:\..*)?$")
    try:
        return re.compile("|".join(parts)) if parts else None
    except re.error as error:
        config.refuse(f"quantization_config: {error} in a pattern of modules ({', '.join(names)[:80]})")
