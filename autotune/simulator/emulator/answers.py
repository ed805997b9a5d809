"""Writes completions as the engines do: whole, or as server-sent events in HTTP chunks.

Every token's text has the same length, so an ordinary event of a stream is a fixed frame around a word: nothing is
serialised per token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from autotune.simulator.emulator.card import CachedTokensReport
from autotune.simulator.emulator.requests import Asked

WORDS = (" the", " and", " one", " all", " day", " sun", " sea", " own", " far", " new", " way", " old", " sky", " air")
"""The texts of the tokens that are generated; all of one length."""

_MARK = "\x00"


def http_chunk(payload: bytes) -> bytes:
    """A payload as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"
DONE = http_chunk(b"data: [DONE]\n\n") + LAST_CHUNK


@dataclass(slots=True)
class Answer:
    """The completion of one request.

    Attributes:
        chunk_keys, choice_keys: what this engine adds to a chunk and to its choices.
        generated: tokens so far, per prompt.
        report: when the usage tells of cached tokens; None: it does not.
        cached_tokens: prompt tokens that the prefix cache had, over all prompts.
    """

    asked: Asked
    model: str
    chunk_keys: Mapping[str, Any]
    choice_keys: Mapping[str, Any]
    report: CachedTokensReport | None = None
    cached_tokens: int = field(init=False, default=0)
    generated: list[int] = field(init=False)
    _head: dict[str, Any] = field(init=False)
    _frames: list[tuple[bytes, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        kind, name = ("chatcmpl", "chat.completion") if self.asked.chat else ("cmpl", "text_completion")
        if self.asked.chat and self.asked.stream:
            name += ".chunk"
        self._head = {"id": f"{kind}-{uuid4().hex}", "object": name, "created": int(time()), "model": self.model}
        self.generated = [0] * len(self.asked.prompts)
        self._frames = [self._frame(index) for index in range(len(self.asked.prompts))] if self.asked.stream else []

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        document = {**self._head, "choices": choices, **self.chunk_keys, **more}
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        content = {"delta": {"content": text}} if self.asked.chat else {"text": text}
        return {"index": index, **content, "logprobs": None, "finish_reason": reason, **self.choice_keys}

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the word in an event of one token."""
        mark = _MARK * len(WORDS[0])
        event = http_chunk(self._event([self._choice(index, mark, None)]))
        before, _, after = event.partition(json.dumps(mark)[1:-1].encode())
        # The mark is longer than a word once it is escaped; the chunk's size counts the word.
        size = len(before.split(b"\r\n", 1)[1]) + len(WORDS[0]) + len(after) - 2
        return b"%x\r\n%b" % (size, before.split(b"\r\n", 1)[1]), after

    def events(self, index: int, count: int, *, last: bool) -> bytes:
        """The HTTP chunks for tokens of one prompt that came in one step."""
        reached = self.generated[index]
        self.generated[index] = reached + count
        if count == 1 and not last and reached:
            before, after = self._frames[index]
            return before + _WORD_BYTES[reached % len(WORDS)] + after
        role = b""
        if self.asked.chat and not reached:
            first = self._choice(index, "", None)
            first["delta"] = {"role": "assistant", "content": ""}
            role = http_chunk(self._event([first]))
        reason = self.asked.finish_reasons[index] if last else None
        return role + http_chunk(self._event([self._choice(index, words(reached, count), reason)]))

    def end(self) -> bytes:
        """What ends a stream: the usage, where it was asked for, and the mark of the end."""
        if not self.asked.include_usage:
            return DONE
        return http_chunk(self._event([], usage=self.usage())) + DONE

    def usage(self) -> dict[str, Any]:
        """Token counts over all prompts."""
        read, written = sum(map(len, self.asked.prompts)), sum(self.generated)
        counts = {"prompt_tokens": read, "total_tokens": read + written, "completion_tokens": written}
        if self.report is None or (self.report.unless_zero and not self.cached_tokens):
            return counts
        return {**counts, "prompt_tokens_details": {"cached_tokens": self.cached_tokens}}

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        choices = []
        for index, count in enumerate(self.generated):
            choice = self._choice(index, "", self.asked.finish_reasons[index])
            text = words(0, count)
            if self.asked.chat:
                del choice["delta"]
                choice["message"] = {"role": "assistant", "content": text, "tool_calls": []}
            else:
                choice["text"] = text
            choices.append(choice)
        return json.dumps({**self._head, "choices": choices, "usage": self.usage()}).encode()


_WORD_BYTES = tuple(word.encode() for word in WORDS)


def words(start: int, count: int) -> str:
    """The texts of so many tokens, the first of them the `start`-th of the answer."""
    return "".join(WORDS[(start + i) % len(WORDS)] for i in range(count))
