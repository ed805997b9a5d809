"""TensorRT-LLM: a strict ``click`` command line, and a YAML file that wins over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.engines.engine import Engine
from autotune.engines.options import read_mapping
from autotune.errors import MalformedFile, UnknownName
from autotune.trial import Command


class TensorRTLLM(Engine):
    """``trtllm-serve MODEL …``; ``click`` knows no abbreviations."""

    abbreviations = False

    def config(self, values: Mapping[str, Any], command: Command, version: str) -> dict[str, Any]:
        """The YAML file that ``--config`` or ``--extra_llm_api_options`` names, among the command's own files or on
        disk. Raises `BadInput` when it cannot be read or has a key that the engine refuses.
        """
        name = values.get("extra_llm_api_options")
        if not name:
            return {}
        document = read_mapping(name, command.files)
        known = self.table(version).config_keys
        # An installed version without a table of its own: which keys it has is not known.
        for key in _keys(document, known) if known else ():
            if key not in known:
                siblings = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]]
                raise MalformedFile(name, str(UnknownName(f"TensorRT-LLM {version} setting", key, siblings)))
        return document


def _keys(document: Mapping[str, Any], known: frozenset[str], prefix: str = "") -> Iterator[str]:
    """Every key, dotted; below a key whose own keys are not known, none."""
    for key, value in document.items():
        yield f"{prefix}{key}"
        below = f"{prefix}{key}."
        if isinstance(value, Mapping) and any(k.startswith(below) for k in known):
            yield from _keys(value, known, below)
