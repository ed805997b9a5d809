"""Reads the figures of a ``config.json``; every error names the file and the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autotune.errors import MalformedFile

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
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
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
    except (OSError, ValueError) as error:
        raise MalformedFile(path, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedFile(path, "the top level is not an object")
    return document
