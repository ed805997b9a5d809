"""What the requests of a load say: made from (seed, workload, load point, request, attempt) alone.

Every configuration gets the same prompts, every repeat (another seed) new ones, and no two requests begin alike
unless the workload has shared beginnings, so that a prefix cache finds what it is meant to find.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from autotune.arrays import Ints
from autotune.errors import BadInput
from autotune.loadgen.client.requests import Content, Requests
from autotune.loadgen.client.texts import Texts
from autotune.loadgen.client.tokenizers import Tokenizer

Ids = Ints

_LOWEST_ID = 1000
"""Special and byte tokens mostly stand at the beginning of a vocabulary."""

_HIGHEST_ID = 100_000
_SAFE_VOCABULARY = 32_000
"""The smallest vocabulary in common use (Llama 2's); taken where the model's is not known."""


class Purpose(IntEnum):
    """Keeps the random streams of one seed apart."""

    LOAD = 0
    PREFIX = 1
    WARM_UP = 2
    AGAIN = 3


_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class PromptKey:
    """What the prompts of one load are made from.

    Attributes:
        point: position of the load point in the workload.
        attempt: counts how often this load was sent before: one that is sent again, as the client had not kept up,
            gets prompts that no cache holds.
    """

    workload: str
    point: int
    seed: int
    attempt: int = 0

    def generator(self, *stream: int) -> np.random.Generator:
        """Random numbers of their own for each stream."""
        again = (Purpose.AGAIN, self.attempt) if self.attempt else ()
        return np.random.default_rng([self.seed, zlib.crc32(self.workload.encode()), self.point, *again, *stream])


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes request bodies for one endpoint.

    Attributes:
        model: the name that the server knows the model by.
        endpoint: ``/v1/completions`` takes token ids and text, ``/v1/chat/completions`` text.
        vocabulary: how many tokens the model has; None = the tokenizer's, or what every model has.
        tokenizer: gives text the right length, see `Texts`.
        temperature: None leaves it to the server.
        as_text: whether random prompts are text where token ids are possible.
    """

    model: str
    endpoint: str = "/v1/completions"
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    temperature: float | None = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    as_text: bool = False

    def bodies(
        self, requests: Requests, key: PromptKey, streaming: bool = True, part: slice = _ALL, warm_up: bool = False
    ) -> list[bytes]:
        """The JSON bodies of the requests of a load point.

        Args:
            part: of the requests, those that are wanted.
            warm_up: make other prompts: nothing that the load will ask for gets into a cache.

        Raises `BadInput` for prompts of a file that the endpoint does not take.
        """
        chosen = range(len(requests))[part]
        purpose, given = (Purpose.WARM_UP, ()) if warm_up else (Purpose.LOAD, requests.contents)
        written = requests.output_tokens[part].tolist()
        return self._bodies(written, self._contents(requests, chosen, key, purpose, given), streaming)

    def ids(self, requests: Requests, request: int, key: PromptKey, purpose: Purpose = Purpose.LOAD) -> Ids:
        """The token ids of one prompt, shape (input tokens,)."""
        return np.concatenate(self._drawn(requests, request, key, purpose))

    @property
    def _chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")

    def _drawn(self, requests: Requests, request: int, key: PromptKey, purpose: Purpose) -> tuple[Ids, Ids]:
        """The ids that a prompt shares with its group, and its own."""
        low, high = self._range()
        count, group = int(requests.input_tokens[request]), int(requests.group[request])
        shared = min(requests.prefix_tokens, count) if group >= 0 else 0
        own = key.generator(purpose, request).integers(low, high, count - shared)
        beginning = key.generator(Purpose.PREFIX, group, purpose).integers(low, high, shared) if shared else own[:0]
        return beginning, own

    def _range(self) -> tuple[int, int]:
        """Ids that are ordinary tokens: not the first ones, and not the last ones, which may be special or unused."""
        size = self.vocabulary or (self.tokenizer.vocabulary if self.tokenizer else None) or _SAFE_VOCABULARY
        high = max(min(_HIGHEST_ID, size - size // 16), 1)
        return min(_LOWEST_ID, high // 4), high

    def _contents(
        self,
        requests: Requests,
        chosen: Sequence[int],
        key: PromptKey,
        purpose: Purpose,
        given: Sequence[Content | None],
    ) -> Iterator[Content]:
        """The prompts in the form of the endpoint; random where none is given."""
        texts = Texts(self.tokenizer)
        for request in chosen:
            content = given[request] if given else None
            if content is None:
                beginning, own = self._drawn(requests, request, key, purpose)
                random_text = self._chat or self.as_text
                content = texts.text(beginning, own) if random_text else [*beginning.tolist(), *own.tolist()]
            yield self._formed(content)

    def _formed(self, content: Content) -> Content:
        if isinstance(content, str):
            return [{"role": "user", "content": content}] if self._chat else content
        if isinstance(content[0], dict) != self._chat:
            is_, takes = ("token ids", "/v1/completions") if self._chat else ("messages", "/v1/chat/completions")
            raise BadInput(f"the workload's file gives prompts as {is_}, which go to {takes}, not to {self.endpoint}")
        return content

    def _bodies(self, written: Sequence[int], contents: Iterator[Content], streaming: bool) -> list[bytes]:
        name = "messages" if self._chat else "prompt"
        common: dict[str, Any] = {"ignore_eos": True}
        if self.temperature is not None:
            common["temperature"] = self.temperature
        if streaming:
            common |= {"stream": True, "stream_options": {"include_usage": True}}
        common |= self.extra
        return [
            _json({"model": self.model, name: content, "max_tokens": tokens, **common})
            for content, tokens in zip(contents, written, strict=True)
        ]


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
