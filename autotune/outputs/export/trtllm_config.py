"""The YAML that ``trtllm-serve`` reads: the engine's own config file with the command line's options in it.

Options of the command line that are fields of the file go into it; where both name one, the file's value
stands, as in the engine. What concerns the server alone (host, port, parsers) stays on the command line.
Source: https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html.
"""

from __future__ import annotations

import copy
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from autotune.engines import engine
from autotune.outputs.export import heading, options
from autotune.outputs.export.command import model_first
from autotune.outputs.export.engine_config import usage
from autotune.outputs.export.winner import Winner
from autotune.study.recommendation import Choice
from autotune.study.user_library import library_of


@cache
def _known() -> dict[str, Any]:
    """The options that name the file, and those that are fields of it."""
    known: dict[str, Any] = yaml.safe_load(files("autotune.outputs.export").joinpath("trtllm_config.yaml").read_text())
    return known


def render(winner: Winner) -> str:
    """The file, with the command that uses it in its first lines."""
    choice = winner.choice
    parts = options.parse(model_first(choice, engine(choice.engine, library_of(winner.spec))))
    named = [name for name in _known()["config_options"] if name in parts.options]
    own = [str(parts.options.pop(name)) for name in named]
    document = _own_document(choice, own)
    remaining: list[str] = []
    for name, value in parts.options.items():
        field = _known()["fields"].get(name)
        if field is None:
            remaining += _words(name, value)
        else:
            _set(document, field.split("."), value)
    flag = named[0] if named else _known()["config_options"][0]
    command = [*parts.program, f"--{flag}", "trtllm.yaml", *remaining, *parts.rest]
    about = heading.lines(winner) + usage(choice, command, set(choice.files) - set(own))
    about += [f"left out, as its value is a secret: pass {option} on the command line" for option in parts.secrets]
    return heading.comment(about) + options.dump(document)


def _own_document(choice: Choice, names: list[str]) -> dict[str, Any]:
    """The config file that the command line names, where autotune wrote it."""
    for name in names:
        if name in choice.files:
            document: dict[str, Any] = yaml.safe_load(choice.files[name]) or {}
            return copy.deepcopy(document)
    return {}


def _set(document: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a nested field unless the file has it: the file wins over the command line."""
    for name in path[:-1]:
        document = document.setdefault(name, {})
    document.setdefault(path[-1], value)


def _words(name: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
