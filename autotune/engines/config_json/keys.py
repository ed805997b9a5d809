"""Read the keys of a Hugging Face ``config.json``, and what a model's class adds to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from autotune.base import FloatDict, Json, JsonObject, MalformedFile, StringDict, frozen

from ..cards import MatrixType
from ..entry import Entry, spaces_file

_NESTED = ("text_config", "llm_config", "language_config")
"""Keys of the decoder's figures in a multimodal model."""


class NotPredicted(MalformedFile):
    """Description of a decoder with a part whose memory and speed are unknown, in words."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.reason = reason


@frozen
class ConfigJson:
    """Keys of a decoder's configuration, under their usual names; nested ones take precedence."""

    path: Path
    keys: JsonObject

    @classmethod
    def read(cls, path: Path) -> ConfigJson:
        """Read a file; missing keys have the defaults of its ``model_type``."""
        keys = read_json(path)
        known = facts()
        for nested in _NESTED:
            if isinstance(keys.get(nested), Mapping):
                top = {key: keys[key] for key in known.of_the_top if key in keys}
                keys = {**keys, **keys[nested], **top}
        if not isinstance(keys.get("model_type", ""), str | None):
            raise MalformedFile(
                path, f"model_type is {keys['model_type']!r}; the name of an architecture is needed"
            )
        parts = [(name, part) for name, part in keys.items() if isinstance(part, Mapping)]
        written = {f"{name}.{key}": value for name, part in parts for key, value in part.items()}
        written |= keys
        for key, others in known.names.items():
            named = next((written[name] for name in others if written.get(name)), None)
            if named is not None and not keys.get(key):
                keys[key] = named
        for switch, figure in known.switched_by.items():
            if keys.get(switch) is False:
                keys[figure] = None
        listed = keys.get("layers_block_type") or keys.get("layer_types")
        layers = {"num_hidden_layers": len(listed)} if isinstance(listed, list) else {}
        return cls(path, {**layers, **known.defaults.get(str(keys.get("model_type")), {}), **keys})

    def refuse(self, problem: str) -> NoReturn:
        raise MalformedFile(self.path, problem)

    def unknown(self, part: str) -> NoReturn:
        raise NotPredicted(self.path, part)

    def get(self, key: str) -> Any:
        return self.keys.get(key)

    def is_among(self, classes: str) -> bool:
        """Return whether the model's class is one of those that have something in common."""
        return self.get("model_type") in facts().classes[classes]

    def items(self, key: str) -> list[Any]:
        """Return a list; empty for another value."""
        value = self.get(key)
        return value if isinstance(value, list) else []

    def number(self, *keys: str, default: int = 0) -> int:
        """Return the first value of some keys other than null and 0; raises `NotPredicted` for a
        list."""
        for key in keys:
            value = self.get(key)
            if value is None or value is False:
                continue
            if isinstance(value, list):
                self.unknown(f"{key} differs between layers")
            # Products of a few such numbers are within a float's range.
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                self.refuse(f"{key} is {value!r}; one whole number for all layers is needed")
            if value:
                return value
        return default

    def figures(self, part: str) -> Json:
        """Return the numbers of a part of the model, by the architecture's name of each."""
        named = facts().figures.get(part, {})
        return {figure: self.number(*keys) for figure, keys in named.items()}

    def required(self, *keys: str) -> None:
        """Raise `NotPredicted` where one of these numbers is missing."""
        missing = [key for key in keys if not self.number(key)]
        if missing:
            self.unknown(f"{', '.join(missing)} missing in {self.path.name}")

    def per_layer(self, key: str, layers: int) -> list[Any]:
        """Return a list with one entry per layer, without draft layers' entries; empty without a
        list."""
        value = self.items(key)
        if value and len(value) < layers:
            self.refuse(f"{key} has {len(value)} entries, but there are {layers} layers")
        return value[:layers]


class Format(Entry):
    """Storage of quantised weights, and the type of their multiplication."""

    bits: int
    group: int = 0
    scale_bits: int = 0
    matrices_in: MatrixType
    block: int = 0
    expert_tile: int = 0


Lists = dict[str, list[str]]


class ConfigFacts(Entry):
    """Content of ``search_spaces/config_json.yaml``: additions of a model's class to its
    ``config.json``."""

    defaults: dict[str, Json]
    names: Lists
    lengths: list[str]
    first_of_lengths: list[str]
    unscaled: list[str]
    of_the_top: list[str]
    switched_by: StringDict
    figures: dict[str, Lists]
    unnamed_mtp_layers: dict[str, int]
    vision_heads: dict[str, int]
    classes: Lists
    mixers: StringDict
    beside_attention: StringDict
    state_types: FloatDict
    per_layer_figures: StringDict
    expert_types: StringDict
    decoders: list[str]
    encoders: StringDict
    other_architectures: StringDict
    prefixes: list[str]
    modules: Lists
    in_parts: Lists
    formats: dict[str, Format]


@cache
def facts() -> ConfigFacts:
    return ConfigFacts.model_validate(spaces_file("config_json.yaml"))


def read_json(path: Path) -> Json:
    """Read a JSON object; raises `MalformedFile`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MalformedFile(path, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedFile(path, "the top level is not an object")
    return document
