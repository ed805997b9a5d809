"""Tokenizers: the number of tokens of a text, by the model's own tokenizer file or an
approximation.

A third way, the server's ``/tokenize``, is in `autotune.load.server_client`, as httpx is slow to
load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from autotune.base import BadInput

CHARACTERS_PER_TOKEN = 4
"""Rule of thumb for English text, used without a better source."""

_CANDIDATES = 4096
_FEWEST_WORDS = 64
"""Least whole words of a vocabulary of words; smaller ones are bytes or letters, and their prompts
would be similar."""


class Tokenizer(Protocol):
    """Count the tokens of a text."""

    @property
    def exact(self) -> bool:
        """True if it counts as the model does, special tokens aside."""

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens of the model; None = unknown."""

    @property
    def words(self) -> Sequence[str]:
        """Words that are one token after a blank; empty = unknown."""

    def count(self, text: str) -> int:
        """Return the tokens of a text, without special tokens that a server may add."""

    def describe(self) -> str:
        """Return its name in reports: after "tokens counted by" if it is exact, else after
        "tokens"."""


class Approximate:
    """Approximation without a tokenizer: a fixed number of characters per token."""

    exact = False
    vocabulary = None
    words = ()

    def count(self, text: str) -> int:
        return math.ceil(len(text) / CHARACTERS_PER_TOKEN)

    def describe(self) -> str:
        return f"approximated at {CHARACTERS_PER_TOKEN} characters per token"


@dataclass(frozen=True)
class FileTokenizer:
    """A ``tokenizer.json`` through the `tokenizers` package."""

    model: Any
    file: Path
    exact = True

    @classmethod
    def load(cls, path: Path) -> FileTokenizer:
        """Load a ``tokenizer.json`` or the folder that holds one; raises `BadInput` if that is
        impossible."""
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError as error:
            needed = "--tokenizer needs the `tokenizers` package: pip install '.[tokenizer]' in a clone of autotune"
            raise BadInput(needed) from error
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise BadInput(
                f"--tokenizer {path}: {file} does not exist; give a tokenizer.json or its folder"
            )
        try:
            return cls(Loaded.from_file(str(file)), file)
        except Exception as error:  # the package raises bare exceptions
            raise BadInput(f"--tokenizer {file}: cannot be read ({error})") from error

    @property
    def vocabulary(self) -> int | None:
        return int(self.model.get_vocab_size(with_added_tokens=False))

    @cached_property
    def words(self) -> Sequence[str]:
        size = self.vocabulary or 0
        ids = range(0, size, max(size // _CANDIDATES, 1))
        candidates = (str(self.model.decode([token])).strip() for token in ids)
        plain = [word for word in dict.fromkeys(candidates) if word.isascii() and word.isalnum()]
        # Keep the words that add one token after a blank.
        whole = [w for w in plain if self.count(f"{w} {w} {w}") - self.count(f"{w} {w}") == 1]
        return tuple(whole) if len(whole) >= _FEWEST_WORDS else ()

    def count(self, text: str) -> int:
        return len(self.model.encode(text, add_special_tokens=False))

    def describe(self) -> str:
        return f"tokenizer {self.file}"
