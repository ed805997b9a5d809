"""TensorRT-LLM: a strict ``click`` command line, and a YAML file that overrides it or not, by
version."""

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from pydantic_core import ErrorDetails

from autotune.base import Json, JsonObject, RefusedCommand

from .command import Command, Words
from .engine import Engine, ParsedCommand, read_mapping
from .entry import in_range, span
from .option_table import suggestion

_COMMAND_LINE_WINS = ">=1.3.0rc21"
"""https://github.com/NVIDIA/TensorRT-LLM/pull/14812 (June 2026; 1.3.0rc21 was begun on 30 June)."""
_OTHER_KEYS = {
    "free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_dtype": "kv_cache_config.dtype",
}
"""Option to the file's key of the same meaning, if its name differs
(``llmapi/llm_args.py`` update_llm_args_with_extra_dict)."""
_NO_KEY = "extra_forbidden"
"""Pydantic's kind of error for a key that a class has not."""


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

    def config(self, values: JsonObject, command: Command, version: str) -> Json:
        """Read the YAML file of ``--config``; raises `BadInput` if it is not readable, or this
        version refuses it."""
        name = values.get("extra_llm_api_options")
        if not name:
            return {}
        document = read_mapping(name, command.files)
        # An installed version without a table of its own: which keys it has is not known.
        for error in self.table(version).file_refusals(document):
            key = _key_of(error)
            hint = self._whereabouts(key, version) if error["type"] == _NO_KEY else ""
            said = f"{key}: {error['msg']} [input_value={error['input']!r}]"
            raise RefusedCommand(f"{self.name} {version}: {name}", said, hint)
        return document

    def _whereabouts(self, key: str, version: str) -> str:
        """Name an unknown key's new name, the known versions that have it, or a similar key."""
        for renamed in self.card.renamed:
            if renamed.old == key and in_range(version, renamed.new_versions):
                return f"; it is {renamed.new} now"
        having = [one for one in self.card.versions if key in self.table(one).config_keys]
        if having:
            return f"; it is a key of {span(having)}"
        return suggestion([key], self.table(version).config_keys)

    def lacking(self, version: str, words: Words) -> list[str]:
        """Add the keys of a file, and the values, that the nearest version refuses."""
        found = super().lacking(version, words)
        name = self.split_file(words)[1]
        if name and Path(name).is_file():
            near = self.table(self.by_distance(version)[0])
            for error in near.file_refusals(read_mapping(name, {})):
                value = "" if error["type"] == _NO_KEY else f": {error['input']}"
                found.append(f"{_key_of(error)}{value}")
        return found


def _key_of(error: ErrorDetails) -> str:
    return ".".join(map(str, error["loc"]))


def _without(document: JsonObject, keys: Set[str], prefix: str = "") -> Json:
    """Copy a document without some dotted keys."""
    return {
        key: _without(value, keys, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in document.items()
        if f"{prefix}{key}" not in keys
    }
