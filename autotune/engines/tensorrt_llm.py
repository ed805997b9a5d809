"""TensorRT-LLM: a strict ``click`` command line, and a YAML file that overrides it or not, by
version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from autotune.base import MalformedFile, UnknownName

from .command import Command
from .engine import Engine, ParsedCommand, read_mapping
from .entry import in_range

_COMMAND_LINE_WINS = ">=1.3.0rc21"
"""https://github.com/NVIDIA/TensorRT-LLM/pull/14812 (June 2026; 1.3.0rc21 was begun on 30 June)."""
_OTHER_KEYS = {"free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction"}
"""Option to the file's key of the same meaning, if its name differs
(``tensorrt_llm/commands/serve.py``)."""


class TensorRTLLM(Engine):
    """``trtllm-serve MODEL …``; ``click`` knows no abbreviations."""

    abbreviations = False

    def parse(self, command: Command, version: str) -> ParsedCommand:
        """Parse a command; keys of the file that an option overrides are removed."""
        parsed = super().parse(command, version)
        if not in_range(version, _COMMAND_LINE_WINS):
            return parsed
        overridden = {_OTHER_KEYS.get(option, option) for option in parsed.given}
        return replace(parsed, config=_without(parsed.config, overridden))

    def config(self, values: Mapping[str, Any], command: Command, version: str) -> dict[str, Any]:
        """Read the YAML file of ``--config``; raises `BadInput` if it is not readable, or a key
        would be refused."""
        name = values.get("extra_llm_api_options")
        if not name:
            return {}
        document = read_mapping(name, command.files)
        known = self.table(version).config_keys
        # An installed version without a table of its own: which keys it has is not known.
        for key in _keys(document, known) if known else ():
            if key not in known:
                siblings = [k for k in known if k.rpartition(".")[0] == key.rpartition(".")[0]]
                raise MalformedFile(
                    name, str(UnknownName(f"TensorRT-LLM {version} setting", key, siblings))
                )
        return document


def _keys(document: Mapping[str, Any], known: frozenset[str], prefix: str = "") -> Iterator[str]:
    """Yield every key, dotted; none below a key with unknown keys."""
    for key, value in document.items():
        yield f"{prefix}{key}"
        below = f"{prefix}{key}."
        if isinstance(value, Mapping) and any(k.startswith(below) for k in known):
            yield from _keys(value, known, below)


def _without(document: Mapping[str, Any], keys: Set[str], prefix: str = "") -> dict[str, Any]:
    """Copy a document without some dotted keys."""
    return {
        key: _without(value, keys, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in document.items()
        if f"{prefix}{key}" not in keys
    }
