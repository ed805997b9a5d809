"""What the requests of a load say: made from (seed, workload, request) alone.

Every configuration gets the same prompts, every repeat (another seed) new ones, and no two requests begin alike
unless the workload has shared beginnings, so that a prefix cache finds what it is meant to find.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.client.requests import Requests
from autotune.errors import BadInput

Ids = NDArray[np.int64]

_LOWEST_ID = 1000
"""Special and byte tokens mostly stand at the beginning of a vocabulary."""

_HIGHEST_ID = 100_000
_SAFE_VOCABULARY = 32_000
"""The smallest vocabulary in common use (Llama 2's); taken where the model's is not known."""

_FREQUENT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such"
)
_WORDS = _FREQUENT.split()
"""Frequent English words: with the blank before it, each is one token of every large vocabulary."""


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    @property
    def vocabulary(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Purpose(IntEnum):
    """Keeps the random streams of one seed apart."""

    LOAD = 0
    PREFIX = 1
    WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes request bodies for one endpoint.

    Attributes:
        model: the name that the server knows the model by.
        endpoint: ``/v1/completions`` takes token ids, ``/v1/chat/completions`` text.
        vocabulary: how many tokens the model has; None = not known.
        tokenizer: makes text of the right length for chat; without it a word stands for a token, which the chat
            template's own tokens and a foreign vocabulary make inexact: what counts is the server's usage.
        temperature: None leaves it to the server.
    """

    model: str
    endpoint: str = "/v1/completions"
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    temperature: float | None = 0.0
    extra: dict[str, Any] = field(default_factory=dict)

    def body(self, requests: Requests, request: int, key: tuple[str, int, int], streaming: bool = True) -> bytes:
        """The JSON body of one request of a load point.

        Args:
            request: its number in the load point.
            key: workload name, load point, seed.
        """
        return self._body(requests, request, key, Purpose.LOAD, streaming)

    def warm_up(self, requests: Requests, request: int, key: tuple[str, int, int], streaming: bool = True) -> bytes:
        """Like `body`, of another prompt: nothing that the load will ask for gets into a cache."""
        return self._body(requests, request, key, Purpose.WARM_UP, streaming)

    def bodies(self, requests: Requests, key: tuple[str, int, int], streaming: bool = True) -> list[bytes]:
        """The JSON bodies of all requests of a load point."""
        return [self.body(requests, i, key, streaming) for i in range(len(requests.input_tokens))]

    def ids(self, requests: Requests, request: int, key: tuple[str, int, int], purpose: Purpose) -> Ids:
        """The token ids of one prompt, shape (input tokens,)."""
        name, position, seed = key
        stream = [seed, zlib.crc32(name.encode()), position]
        low, high = self._range()
        count, group = int(requests.input_tokens[request]), int(requests.group[request])
        shared = min(requests.prefix_tokens, count) if group >= 0 else 0
        own = np.random.default_rng([*stream, purpose, request]).integers(low, high, count - shared)
        if not shared:
            return own
        beginning = [*stream, Purpose.PREFIX, group, purpose]
        return np.concatenate([np.random.default_rng(beginning).integers(low, high, shared), own])

    def _range(self) -> tuple[int, int]:
        """Ids that are ordinary tokens: not the first ones, and not the last ones, which may be special or unused."""
        size = self.vocabulary or (self.tokenizer.vocabulary if self.tokenizer else _SAFE_VOCABULARY)
        high = max(min(_HIGHEST_ID, size - size // 16), 1)
        return min(_LOWEST_ID, high // 4), high

    def _body(
        self, requests: Requests, request: int, key: tuple[str, int, int], purpose: Purpose, streaming: bool
    ) -> bytes:
        ids = self.ids(requests, request, key, purpose)
        text = requests.texts[request] if requests.texts and purpose is Purpose.LOAD else None
        body: dict[str, Any] = {"model": self.model}
        if self.endpoint.endswith("/chat/completions"):
            body["messages"] = [{"role": "user", "content": text or self._text(ids)}]
        else:
            body["prompt"] = text or ids.tolist()
        body["max_tokens"] = int(requests.output_tokens[request])
        body["ignore_eos"] = True
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if streaming:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(body | self.extra, separators=(",", ":")).encode()

    def _text(self, ids: Ids) -> str:
        if self.tokenizer is None:
            return " ".join(_WORDS[i % len(_WORDS)] for i in ids.tolist())
        # Ids that are decoded and encoded again come out a little longer or shorter; longer is cut once.
        text = self.tokenizer.decode(ids.tolist())
        return self.tokenizer.decode(self.tokenizer.encode(text)[: len(ids)])


@dataclass(frozen=True, slots=True)
class FileTokenizer:
    """A ``tokenizer.json`` through the `tokenizers` package."""

    model: Any

    @classmethod
    def load(cls, path: Path) -> FileTokenizer:
        """From a ``tokenizer.json`` or the folder that holds one; raises `BadInput` when that is not possible."""
        try:
            from tokenizers import Tokenizer as Loaded
        except ImportError as error:
            raise BadInput("--tokenizer needs the `tokenizers` package: pip install 'autotune[tokenizer]'") from error
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise BadInput(f"--tokenizer {path}: there is no {file}; give a tokenizer.json or its folder")
        try:
            return cls(Loaded.from_file(str(file)))
        except Exception as error:  # the package raises bare exceptions
            raise BadInput(f"--tokenizer {file}: cannot be read ({error})") from error

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_vocab_size(with_added_tokens=False))

    def encode(self, text: str) -> list[int]:
        return list(self.model.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.model.decode(list(ids)))
