"""Real text that every Python brings along: its language reference as prose, its standard library as code.

Speculative decoding lives on text that can be guessed, which random tokens are not: their acceptance says nothing of
life. Under the PSF licence, which lets it be redistributed; nothing is fetched, and one Python version always gives
the same text.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from autotune.errors import BadInput

Kind = Literal["prose", "code"]

_CHARACTERS_PER_TOKEN = {"prose": 4.0, "code": 3.2}
"""About, of tokenizers in use: so much text is taken for a token that is asked for."""

_DOCUMENTATION = re.compile(r'"""(.*?)"""', re.DOTALL)
_LEAST_DOCUMENTATION = 400
"""Characters of a documentation string that is prose and not a remark."""


def passages(kind: Kind, tokens: int, count: int, generator: np.random.Generator) -> list[str]:
    """So many passages of about so many tokens, no two of the same place; chosen by the generator.

    Each begins at the beginning of a line and ends within one, where a model goes on with it.

    Raises:
        BadInput: this Python brings too little text along.
    """
    size = int(tokens * _CHARACTERS_PER_TOKEN[kind])
    texts = documents(kind)
    places = [(number, start) for number, text in enumerate(texts) for start in range(0, len(text) - size, size)]
    if len(places) < count:
        raise BadInput(f"{count} prompts of {tokens} tokens are asked for, but Python's own {kind} gives {len(places)}")
    chosen = generator.permutation(len(places))[:count]
    return [_passage(texts[number], start, size) for number, start in (places[place] for place in chosen)]


def _passage(text: str, start: int, size: int) -> str:
    """A piece of a text that begins with a line."""
    line = text.find("\n", start, start + size // 2) + 1 if start else 0
    return text[max(line, start) : start + size].strip("\n")


@lru_cache(maxsize=2)
def documents(kind: Kind) -> tuple[str, ...]:
    """The texts that passages are cut from, in an order that does not change.

    Raises:
        BadInput: this Python was installed without them.
    """
    found = tuple(_prose() if kind == "prose" else _sources())
    if not found:
        raise BadInput(f"this Python was installed without the {kind} of its standard library; use another workload")
    return found


def _prose() -> Iterator[str]:
    with suppress(ImportError):
        from pydoc_data.topics import topics

        yield from (topics[name] for name in sorted(topics))
    for source in _sources():
        strings = (text.strip() for text in _DOCUMENTATION.findall(source))
        yield "\n\n".join(text for text in strings if len(text) >= _LEAST_DOCUMENTATION)


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield path.read_text(encoding="utf-8")
