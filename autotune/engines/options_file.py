"""The YAML file of options that vLLM and SGLang read with ``--config``: its keys stand for long options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import BadInput, MalformedFile

_OPTION = "--config"


def expand(arguments: Sequence[str], files: Mapping[str, str], at: int) -> list[str]:
    """Put the file's options into the arguments at a position, so that what stands on the command line wins.

    Args:
        files: content of files that come with the command; others are read from disk.
        at: how many arguments stay in front, e.g. a positional model.

    Raises `BadInput` when the file cannot be read or is no mapping.
    """
    words = list(arguments)
    index = next((i for i, word in enumerate(words) if word.partition("=")[0] == _OPTION), None)
    if index is None:
        return words
    _, equals, name = words[index].partition("=")
    if not equals and index + 1 == len(words):
        raise BadInput(f"error: argument {_OPTION}: expected one argument")
    taken = words[index] if equals else words[index + 1]
    del words[index : index + (1 if equals else 2)]
    document = read_mapping(name if equals else taken, files)
    at = min(at, len(words))
    return [*words[:at], *_words(document), *words[at:]]


def read_text(name: str, files: Mapping[str, str]) -> str:
    """The content of a file that comes with a command or lies on disk; raises `BadInput` when it cannot be read."""
    if name in files:
        return files[name]
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the config file {name} cannot be read: {error}") from error


def read_mapping(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """The YAML mapping in such a file; raises `MalformedFile` when it is none."""
    try:
        document = yaml.safe_load(read_text(name, files)) or {}
    except yaml.YAMLError as error:
        raise MalformedFile(name, f"not YAML: {error}") from error
    if not isinstance(document, dict):
        raise MalformedFile(name, "the top level is not a mapping of keys to values")
    return document


def _words(document: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in document.items():
        option = f"--{key}"
        if isinstance(value, bool):
            words += [option] if value else []
        elif isinstance(value, list):
            words += [option, *(str(item) for item in value)]
        elif isinstance(value, Mapping):
            words += [option, json.dumps(value)]
        else:
            words += [option, str(value)]
    return words
