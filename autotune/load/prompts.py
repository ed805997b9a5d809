"""Prompts of a load: pure functions of (seed, workload, load point, request, attempt).

Every configuration gets the same prompts, every repeat (another seed) new ones, and no two requests
begin alike unless the workload has shared prefixes, so that a prefix cache finds what it is meant
to find.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from autotune.base import BadInput, Json, StringDict, Strings, frozen
from autotune.base.arrays import Ints

from .requests import Requests
from .tokenizers import Tokenizer

_LOWEST_ID = 1000
"""First ordinary id: special and byte tokens are mostly at the start of a vocabulary."""
_HIGHEST_ID = 100_000
_SAFE_VOCABULARY = 32_000
"""The smallest common vocabulary (Llama 2's), used if the model's is unknown."""


class Purpose(IntEnum):
    """Separates the random streams of one seed."""

    LOAD = 0
    PREFIX = 1
    WARM_UP = 2
    AGAIN = 3
    BLOCK = 4


_ALL = slice(None)


class PromptKey(NamedTuple):
    """Seeds of the prompts of one load.

    Attributes:
        point: position of the load point in the workload.
        attempt: counts how often this load was sent before: one that is sent again, as the client
            had not kept up, gets prompts that no cache holds.
        warm_up: other prompts: nothing that the load will ask for gets into a cache.
    """

    workload: str
    point: int
    seed: int
    attempt: int = 0
    warm_up: bool = False

    def generator(self, *stream: int) -> np.random.Generator:
        """Return a random generator of its own for each stream."""
        again = (Purpose.AGAIN, self.attempt) if self.attempt else ()
        return np.random.default_rng(
            [self.seed, zlib.crc32(self.workload.encode()), self.point, *again, *stream]
        )


_OPTIONAL = ("ignore_eos", "temperature", "stream_options")
"""Fields of a body without which a server can answer it, too."""
_UNKNOWN_FIELD = re.compile(
    r"(?i)unexpected|unknown|unrecogni[sz]ed|unsupported|not (?:supported|permitted|allowed)|extra|forbidden"
)
_WANTS_TEXT = re.compile(r"(?i)\bprompt\b.{0,80}\bbe (?:a )?(?:valid )?str(?:ing)?\b")


class Refused(NamedTuple):
    """Parts of a request that a server refuses, by its own words: fields, and token ids."""

    fields: Strings = ()
    ids: bool = False

    def with_refusal(self, words: str) -> Refused:
        """Add what an answer with status 400 or 422 names as unknown; unchanged if it names
        nothing."""
        named = [name for name in _OPTIONAL if name in words and name not in self.fields]
        if named and _UNKNOWN_FIELD.search(words):
            return self._replace(fields=(*self.fields, *named))
        return self._replace(ids=self.ids or _WANTS_TEXT.search(words) is not None)

    @property
    def any_length(self) -> bool:
        """Return whether answers may end before the requested length."""
        return "ignore_eos" in self.fields

    def sentences(self) -> list[str]:
        """Say how requests are sent, and what follows from that."""
        said = []
        if self.fields:
            end = ", so its answers may end early: rates are those of shorter answers"
            consequence = end if self.any_length else ""
            names = " and ".join(self.fields)
            said.append(f"sent without {names}, which the server refuses{consequence}")
        if self.ids:
            said.append(
                "sent as text, as the server refuses token ids: their lengths are the server's count"
            )
        return said


NOTHING_REFUSED = Refused()


@frozen
class Prompts:
    """Make request bodies for one endpoint.

    Attributes:
        endpoint: ``/v1/completions`` takes token ids and text, ``/v1/chat/completions`` text.
        vocabulary: how many tokens the model has; None = the tokenizer's, or what every model has.
        tokenizer: gives text the right length, see `Texts`.
        as_text: whether random prompts are text; None: where the server refuses token ids.
        refused: what the server refuses.
    """

    model: str
    endpoint: str = "/v1/completions"
    vocabulary: int | None = None
    tokenizer: Tokenizer | None = None
    as_text: bool | None = None
    streaming: bool = True
    refused: Refused = NOTHING_REFUSED

    def bodies(self, requests: Requests, key: PromptKey, part: slice = _ALL) -> list[bytes]:
        """Return the JSON bodies of a load point's requests; raises `BadInput` for prompts of
        another endpoint."""
        contents = () if key.warm_up else requests.contents
        texts = Texts(self.tokenizer)
        bodies = []
        blocks: dict[int, Ints] = {}
        for request in range(len(requests))[part]:
            content = contents[request] if contents else None
            if content is None:
                prefix, own = self._random_ids(requests, request, key, blocks)
                refused = self.as_text is None and self.refused.ids
                as_text = self._chat or self.as_text or refused
                content = texts.text(prefix, own) if as_text else [*prefix.tolist(), *own.tolist()]
            more: Json = dict(content) if isinstance(content, dict) else {}
            prompt = self._for_endpoint(more.pop("messages", content))
            bodies.append(self._body(prompt, int(requests.output_tokens[request]), **more))
        return bodies

    def _body(self, content: object, tokens: int, **more: object) -> bytes:
        common: Json = {"ignore_eos": True, "temperature": 0.0}
        if self.streaming:
            common |= {"stream": True, "stream_options": {"include_usage": True}}
        name = "messages" if self._chat else "prompt"
        for refused in self.refused.fields:
            common.pop(refused, None)
        body = {"model": self.model, name: content, "max_tokens": tokens, **common, **more}
        return json.dumps(body, separators=(",", ":")).encode()

    def history_body(
        self, messages: Sequence[StringDict], tools: Sequence[object], tokens: int
    ) -> bytes:
        """Return the body of a session's turn.

        Args:
            messages: the whole history, the user's turn last. Without a chat template an answer
                follows its question at once, and every other message follows after a blank line.
        """
        if self._chat:
            return self._body(messages, tokens, **({"tools": tools} if tools else {}))
        text = json.dumps(tools) if tools else ""
        for message in messages:
            if text and message["role"] != "assistant":
                text += "\n\n"
            text += message["content"]
        return self._body(text, tokens)

    def random_text(self, tokens: int, request: int, key: PromptKey) -> str:
        """Return random words of this number of tokens, another text for each request."""
        ids = key.generator(Purpose.LOAD, request).integers(*self.id_range, tokens)
        return Texts(self.tokenizer).text(ids[:0], ids)

    @property
    def _chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")

    @property
    def id_range(self) -> tuple[int, int]:
        """Return the range of ordinary tokens: without the first and last ids, which may be special
        or unused."""
        known = self.tokenizer.vocabulary if self.tokenizer else None
        size = self.vocabulary or known or _SAFE_VOCABULARY
        high = max(min(_HIGHEST_ID, size - size // 16), 1)
        return min(_LOWEST_ID, high // 4), high

    def _random_ids(
        self, requests: Requests, request: int, key: PromptKey, blocks: dict[int, Ints]
    ) -> tuple[Ints, Ints]:
        """Return the ids that a random prompt shares with its group, and its own; `blocks` caches
        those of a trace."""
        low, high = self.id_range
        count = int(requests.input_tokens[request])
        hashes = requests.blocks[request] if requests.blocks else None
        if hashes is not None:
            for block in hashes:
                if block not in blocks:
                    generator = key.generator(Purpose.BLOCK, block)
                    blocks[block] = generator.integers(low, high, requests.block_tokens)
            whole = np.concatenate([blocks[block] for block in hashes])[:count]
            return whole[:0], whole
        purpose = Purpose.WARM_UP if key.warm_up else Purpose.LOAD
        group = int(requests.group[request])
        shared = min(requests.prefix_tokens, count) if group >= 0 else 0
        own = key.generator(purpose, request).integers(low, high, count - shared)
        prefix = own[:0]
        if shared:
            prefix = key.generator(Purpose.PREFIX, group, purpose).integers(low, high, shared)
        return prefix, own

    def _for_endpoint(self, content: Any) -> Any:
        if isinstance(content, str):
            return [{"role": "user", "content": content}] if self._chat else content
        if isinstance(content[0], dict) != self._chat:
            other = "messages for /v1/chat/completions"
            if self._chat:
                other = "token ids for /v1/completions"
            raise BadInput(f"the workload's file has prompts as {other}, not for {self.endpoint}")
        return content


_FREQUENT_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such"
)
_FREQUENT = _FREQUENT_WORDS.split()
"""Frequent English words: with the preceding blank, each is one token of every large vocabulary."""
_LETTERS = "xqz"  # Letters that seldom continue a word


class Texts:
    """Make texts of a given number of tokens from random numbers, one word for each.

    Texts are whole words with a blank between them. Tokenizers split at blanks before anything
    else, so that the tokens of a text are those of its words, and a shared prefix keeps its tokens
    whatever follows. A text of words that are one token each has the length asked for at once;
    others are corrected by counting.

    Args:
        tokenizer: counts; without an exact one a word stands for a token, which a foreign
            vocabulary and the chat template's own tokens make inexact: the server's usage counts.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        exact = tokenizer if tokenizer is not None and tokenizer.exact else None
        self._count = exact.count if exact else None
        self._first = lru_cache(maxsize=None)(exact.count) if exact else None
        self._words = (exact.words if exact else ()) or _FREQUENT
        self._prefixes: dict[bytes, str] = {}

    def text(self, shared: Ints, own: Ints) -> str:
        """Return a text of ``len(shared) + len(own)`` tokens; texts with the same `shared` start
        with the same tokens.

        Words of several tokens can make the length impossible to hit; it comes as near as a letter
        allows.
        """
        prefix = ""
        if len(shared):
            key = shared.tobytes()
            if key not in self._prefixes:
                self._prefixes[key] = self._fitted("", shared, len(shared))
            prefix = self._prefixes[key]
        return self._fitted(prefix, own, len(shared) + len(own)) if len(own) else prefix

    def _fitted(self, prefix: str, ids: Ints, tokens: int) -> str:
        """Join words and cut them to this number of tokens, or as near as possible: whole words,
        then letters.

        Tokens grow with words: each try goes to where the end would be if all words were of the
        length seen so far.
        """
        words = [prefix] if prefix else []
        words += [self._words[i % len(self._words)] for i in ids.tolist()]
        if self._count is None or self._first is None:
            return " ".join(words)
        least = 2 if prefix else 1
        high = len(words)
        # Every word except the first has a blank before it.
        tried = high if prefix else high - self._first(words[0]) + 1
        excess = {}
        low = least  # Fewer than `low` words are too short, more than `high` too long.
        while low <= high:
            tried = min(max(tried, low), high)
            text = " ".join(words[:tried])
            excess[text] = self._count(text) - tokens
            if excess[text] == 0:
                return text
            if excess[text] < 0:
                low = tried + 1
            else:
                high = tried - 1
            tried -= math.ceil(excess[text] * tried / max(tokens + excess[text], 1))
        before = " ".join(words[:high])
        last = words[high] if high < len(words) else ""
        nearer = [f"{before} {last[:letters]}".strip() for letters in range(len(last) - 1, 0, -1)]
        # A blank can be a token of its own: then a letter more of the word before makes one token,
        # not two.
        nearer += [f"{before}{letter}" for letter in _LETTERS if high >= least]
        for text in nearer:
            excess[text] = self._count(text) - tokens
            if excess[text] == 0:
                return text
        return min(excess, key=lambda text: abs(excess[text]))
