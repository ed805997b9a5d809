"""Parses YAML that somebody else may have written."""

from __future__ import annotations

import re
from typing import Any

import yaml

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C is eight times as fast, which `autotune list` of many studies needs; the other one takes less."""

_DEEPEST = 200
"""The parser in C recurses for each level, and ends the process where the stack ends; no document needs as many."""

_BRACKET = re.compile(r"[\[\]{}]")
_BLOCKS = re.compile(rf"^(?:[ \t?:-][ \t?:-]){{{_DEEPEST}}}", re.MULTILINE)


def parse_yaml(text: str) -> Any:
    """Parse a YAML document into dictionaries, lists and scalars; raises ``yaml.YAMLError``."""
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth = max(depth + (1 if bracket[0] in "[{" else -1), 0)
        if depth > _DEEPEST:
            break
    if depth > _DEEPEST or _BLOCKS.search(text):
        raise yaml.YAMLError(f"nested more than {_DEEPEST} deep")
    return yaml.load(text, Loader=LOADER)
