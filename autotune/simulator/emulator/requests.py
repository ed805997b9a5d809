"""Reads the bodies of ``/v1/completions`` and ``/v1/chat/completions``, and writes what answers them.

There is no tokenizer: text counts as one token per piece of up to six letters, per three digits and per other sign,
which is near what real tokenizers make of English. Token ids count as they are. Every token's text has the same
length, so an ordinary event of a stream is a fixed frame around a word: nothing is serialised per token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4
from zlib import crc32

from autotune.simulator.emulator.card import CachedTokensReport

_PIECE = re.compile(r" ?[^\W\d_]{1,6}| ?\d{1,3}|\s+|[^\w\s]|_")
_NATURAL_TOKENS = 220
"""Mean length of an answer that may end by itself: that of ShareGPT's answers, about."""
_TEMPLATE_TOKENS = 3
"""A chat template's marks around one message, about."""


class RequestRefused(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        kind: the error's type as the engines name it.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for completions.

    Attributes:
        prompts: token ids of each.
        output_tokens: how many to generate for each.
        were_text: whether a tokeniser had to make the prompts.
        finish_reasons: why each ends: ``length``, or ``stop`` where the answer ends by itself.
    """

    chat: bool
    stream: bool
    include_usage: bool
    prompts: list[list[int]]
    output_tokens: list[int]
    finish_reasons: list[str]
    were_text: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts.

    Attributes:
        models: names under which it serves.
        check_model: whether another name is refused.
        context: prompt + answer, tokens.
        pool: the same, by the KV cache of a replica.
        completion_tokens: answer's length on ``/v1/completions`` when none is asked for; None: what is left.
        too_long: template of the message for a request that is too long.
        unknown_model: template of the message for another model.
        step: tokens of a prompt that one step can compute; None: prompts are cut into chunks.
        too_long_for_step: template of the message for a prompt that is too long for a step.
    """

    models: tuple[str, ...]
    check_model: bool
    context: int
    pool: int
    completion_tokens: int | None
    too_long: str
    unknown_model: str
    step: int | None = None
    too_long_for_step: str = ""


def read_request(body: bytes, *, chat: bool, limits: Limits) -> CompletionRequest:
    """Read and check a request; raises `RequestRefused`."""
    document = _document(body)
    if limits.check_model and document.get("model", limits.models[0]) not in limits.models:
        message = limits.unknown_model.replace("{name}", str(document["model"]))
        raise RequestRefused(404, "NotFoundError", message)
    if document.get("n", 1) != 1:
        raise RequestRefused(400, "BadRequestError", "the emulator gives one answer per prompt: n must be 1")
    prompt: Any = document.get("prompt")
    prompts = [_chat_tokens(document)] if chat else _prompts(prompt)
    wanted = _count(document, "max_completion_tokens") if chat else None
    if wanted is None:
        wanted = _count(document, "max_tokens")
    if wanted is None and not chat:
        wanted = limits.completion_tokens
    natural = not document.get("ignore_eos", False)
    least = _count(document, "min_tokens") or 0
    answers = [_answer(prompt, wanted, least, natural, limits) for prompt in prompts]
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestRefused(400, "BadRequestError", "stream_options must be an object")
    stream = bool(document.get("stream", False))
    return CompletionRequest(
        chat=chat,
        stream=stream,
        include_usage=not stream or bool(options.get("include_usage", False)),
        prompts=prompts,
        output_tokens=[tokens for tokens, _ in answers],
        finish_reasons=[reason for _, reason in answers],
        were_text=chat or isinstance(prompt, str) or any(isinstance(part, str) for part in prompt),
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "BadRequestError", f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestRefused(400, "BadRequestError", "the body is not a JSON object")
    return document


def _count(document: dict[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RequestRefused(400, "BadRequestError", f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def _answer(prompt: list[int], wanted: int | None, least: int, natural: bool, limits: Limits) -> tuple[int, str]:
    """Tokens to generate and the reason of the end; raises `RequestRefused` when they do not fit."""
    room = min(limits.context, limits.pool) - len(prompt)
    beyond_step = limits.step is not None and len(prompt) > limits.step
    if room < 1 or (wanted or 0) > room or beyond_step:
        facts = {"context": limits.context, "prompt": len(prompt), "answer": wanted or 0, "step": limits.step or 0}
        facts["total"] = facts["prompt"] + facts["answer"]
        message = limits.too_long_for_step if beyond_step else limits.too_long
        for name, value in facts.items():
            message = message.replace(f"{{{name}}}", str(value))
        raise RequestRefused(400, "BadRequestError", message)
    most = max(1, room if wanted is None else wanted)
    if not natural:
        return most, "length"
    # The same prompt always gets the same answer: an even spread around the mean, by the prompt's hash.
    spread = crc32(repr(prompt[-32:]).encode()) % (2 * _NATURAL_TOKENS - 1)
    end = max(least, 1 + spread)
    return (end, "stop") if end < most else (most, "length")


def text_tokens(text: str) -> list[int]:
    """Stand-in token ids of a text."""
    return [crc32(piece.encode("utf-8", "surrogatepass")) for piece in _PIECE.findall(text)] or [0]


def _prompts(prompt: Any) -> list[list[int]]:
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    if isinstance(prompt, str):
        return [text_tokens(prompt)]
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(part, str) for part in prompt):
            return [text_tokens(part) for part in prompt]
        if all(isinstance(part, list) and part and _are_ids(part) for part in prompt):
            return prompt
    message = "prompt must be a text, a list of texts, a list of token ids, or a list of such lists"
    raise RequestRefused(400, "BadRequestError", message)


def _are_ids(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}


def _chat_tokens(document: dict[str, Any]) -> list[int]:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise RequestRefused(400, "BadRequestError", "messages must be a list of at least one message")
    tokens: list[int] = []
    for message in messages:
        role = crc32(str(message.get("role")).encode())
        tokens += [role] * _TEMPLATE_TOKENS + text_tokens(_content(message.get("content")))
    return [*tokens, 0]


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


WORDS = (" the", " and", " one", " all", " day", " sun", " sea", " own", " far", " new", " way", " old", " sky", " air")
"""The texts of the tokens that are generated; all of one length."""

_MARK = "\x00"


def http_chunk(payload: bytes) -> bytes:
    """A payload as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"
DONE = http_chunk(b"data: [DONE]\n\n") + LAST_CHUNK


@dataclass(slots=True)
class CompletionAnswer:
    """The completion of one request.

    Attributes:
        chunk_keys, choice_keys: what this engine adds to a chunk and to its choices.
        generated: tokens so far, per prompt.
        report: when the usage tells of cached tokens; None: it does not.
        cached_tokens: prompt tokens that the prefix cache had, over all prompts.
    """

    asked: CompletionRequest
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
