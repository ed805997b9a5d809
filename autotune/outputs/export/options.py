"""A command line taken apart into what an engine's own config file can hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from autotune import redact
from autotune.outputs.export import words


@dataclass(slots=True)
class Parts:
    """A command line's parts.

    Attributes:
        program: the words before the first option, the model among them where it is positional.
        options: long option without its hyphens to value: True for a flag, a list for several values.
        rest: words that a config file cannot hold (short options, repeated options).
        secrets: long options whose value is a secret; they are in neither of the others.
    """

    program: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)


def parse(argv: list[str]) -> Parts:
    """Take a command line apart: program and positional words first, then options, as autotune writes it."""
    groups = words.groups(argv, words.program_length(argv))
    parts = Parts(program=groups[0])
    seen = [group[0].partition("=")[0] for group in groups[1:]]
    for group in groups[1:]:
        name, equals, first = group[0].partition("=")
        values = [first, *group[1:]] if equals else group[1:]
        if redact.argv(group) != group or words.asked_for(group, {}):
            parts.secrets.append(name)
        elif not name.startswith("--") or seen.count(name) > 1:
            parts.rest += group
        else:
            parts.options[name[2:]] = _value(values)
    return parts


def _value(given: list[str]) -> Any:
    if not given:
        return True
    values = [_scalar(word) for word in given]
    return values[0] if len(values) == 1 else values


def _scalar(word: str) -> int | float | str:
    """A number where writing it as one and reading it back gives the same word, else the word itself."""
    value = yaml.safe_load(word) if re.fullmatch(r"-?\d+(?:\.\d+)?", word) else word
    return value if isinstance(value, int | float) and str(value) == word else word


def dump(document: dict[str, Any]) -> str:
    """YAML in the order of the command line."""
    # No allow_unicode: PyYAML would write line breaks such as U+0085 that it reads back as a space.
    return yaml.safe_dump(document, sort_keys=False, width=2**20)
