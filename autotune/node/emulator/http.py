"""Lean HTTP/1.1 server on httptools: one protocol per connection, one write per event.

The package's docstring says why it is no ASGI server. It speaks the HTTP of load generators and of
the engines' clients: keep-alive, bodies of known length and chunked ones, ``Expect: 100-continue``,
requests one after the other.

The bodies of ``/v1/completions`` and ``/v1/chat/completions`` are read without a tokenizer: text
counts as one token per piece of up to six letters, per three digits and per other sign, which is
near the count of real tokenizers for English. Token ids count as they are.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from typing import Any, cast
from zlib import crc32

import httptools

from autotune.base import Json, Strings, frozen
from autotune.base.evidence import EMULATOR_NAME

from .launch import HttpDialect, fill_template

_LARGEST_BODY = 64 * 2**20


@dataclass(slots=True)
class HttpExchange:
    """A complete request and its response."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    _keep_alive: bool
    connection: HttpConnection
    on_abandoned: Callable[[], None] | None = None

    def respond_json(self, document: Any, status: int = 200) -> None:
        self.respond(status, json.dumps(document, default=str).encode())

    def respond(
        self, status: int, body: bytes = b"", content_type: str = "application/json"
    ) -> None:
        kind = f"content-type: {content_type}\r\n" if body else ""
        head = self._head(status, f"{kind}content-length: {len(body)}\r\n")
        self.connection.write(head + body)
        self.finished()

    def begin_stream(self) -> None:
        """Answer with server-sent events; later writes to the connection must be HTTP chunks."""
        more = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        self.connection.write(self._head(200, more))

    def finished(self) -> None:
        """End the response after its content."""
        self.on_abandoned = None
        self.connection.answered(self._keep_alive)

    def _head(self, status: int, fields: str) -> bytes:
        keep = "" if self._keep_alive else "connection: close\r\n"
        return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nserver: {EMULATOR_NAME}\r\n{fields}{keep}\r\n".encode()


Application = Callable[[HttpExchange], None]
"""Callback that responds to an exchange, now or later."""


class HttpConnection(asyncio.Protocol):
    """Respond to the requests of one connection in order."""

    def __init__(self, application: Application, open_connections: set[HttpConnection]) -> None:
        self._application = application
        self._open = open_connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[HttpExchange] = deque()
        self._current: HttpExchange | None = None

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._open.discard(self)
        self._pending.clear()
        current = self._current
        self._current = None
        if current is not None and current.on_abandoned is not None:
            current.on_abandoned()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answer the request, which came whole, as if nothing else had been offered.
            return
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            self.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.close()

    # httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if len(self._body) < _LARGEST_BODY:
            self._body += body

    def on_message_complete(self) -> None:
        exchange = HttpExchange(
            self._parser.get_method().decode(),
            self._url.partition(b"?")[0].decode("latin-1"),
            self._headers,
            bytes(self._body),
            self._parser.should_keep_alive(),
            self,
        )
        self._pending.append(exchange)
        self._next()

    # Answers

    def _next(self) -> None:
        if self._current is None and self._pending:
            self._current = self._pending.popleft()
            self._application(self._current)

    def write(self, data: bytes) -> None:
        """Send data, unless the client has gone."""
        if self._transport is not None:
            self._transport.write(data)

    def answered(self, keep_alive: bool) -> None:
        self._current = None
        if not keep_alive:
            self.close()
        elif self._pending:
            asyncio.get_running_loop().call_soon(self._next)

    def reset(self) -> None:
        """Close at once; unsent data is lost, and the client gets a reset (RST, socket(7)
        ``SO_LINGER``)."""
        if self._transport is not None:
            peer: socket.socket = self._transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


_PIECE = re.compile(r" ?[^\W\d_]{1,6}| ?\d{1,3}|\s+|[^\w\s]|_")
_NATURAL_TOKENS = 220
"""Mean length of an answer that may end by itself, about that of ShareGPT's answers."""
_TEMPLATE_TOKENS = 3
"""Marks of a chat template around one message, about."""
_PREDICTED_BY = 512
_LEAST_PREDICTED_BY = 64
"""Number of final prompt tokens examined, and the least number with information."""
_PREDICTABLE = 0.04
_GENERATE = 0
"""Mark that tells the model to answer."""


@dataclass(eq=False)
class RequestRefused(Exception):
    """Request answered with an error; its `kind` is the engines' name."""

    message: str
    status: int = 400
    kind: str = "BadRequestError"


@frozen
class CompletionRequest:
    """Completion request with prompts in token ids; `greedy` answers are those of
    `completions.GreedyAnswer`."""

    chat: bool
    stream: bool
    include_usage: bool
    prompts: list[list[int]]
    output_tokens: Sequence[int]
    finish_reasons: Sequence[str]
    were_text: bool
    greedy: bool
    logprobs: int


@frozen
class Limits:
    """A server's limits in tokens: of prompt and answer by context and KV pool, and of a prompt
    that is not chunked."""

    dialect: HttpDialect
    models: Strings
    context: int
    pool: int
    step: int | None = None


def read_request(body: bytes, *, chat: bool, limits: Limits) -> CompletionRequest:
    """Read and check a request; raises `RequestRefused`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestRefused("the body is not a JSON object")
    if limits.dialect.checks_model and document.get("model", limits.models[0]) not in limits.models:
        message = limits.dialect.unknown_model.replace("{name}", str(document["model"]))
        raise RequestRefused(message, 404, "NotFoundError")
    if document.get("n", 1) != 1:
        raise RequestRefused("the emulator gives one answer per prompt: n must be 1")
    prompt: Any = document.get("prompt")
    prompts = [_chat_tokens(document)] if chat else _prompts(prompt)
    wanted = _count(document, "max_completion_tokens") if chat else None
    if wanted is None:
        wanted = _count(document, "max_tokens")
    if wanted is None and not chat:
        wanted = limits.dialect.completion_tokens
    natural = not document.get("ignore_eos")
    least = _count(document, "min_tokens") or 0
    answers = (_answer(prompt, wanted, least, natural, limits) for prompt in prompts)
    lengths, reasons = zip(*answers, strict=True)
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestRefused("stream_options must be an object")
    stream = bool(document.get("stream"))
    logprobs: int | None = 0
    if document.get("logprobs") or not chat:
        logprobs = _count(document, "top_logprobs" if chat else "logprobs")
    return CompletionRequest(
        chat=chat,
        stream=stream,
        include_usage=not stream or bool(options.get("include_usage")),
        prompts=prompts,
        output_tokens=lengths,
        finish_reasons=reasons,
        were_text=chat or isinstance(prompt, str) or isinstance(prompt[0], str),
        # Only natural answers are read; a load's answers of a given length cost nothing to make.
        greedy=document.get("temperature") == 0 and natural,
        logprobs=logprobs or 0,
    )


def _count(document: Json, name: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise RequestRefused(f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def _answer(
    prompt: list[int], wanted: int | None, least: int, natural: bool, limits: Limits
) -> tuple[int, str]:
    """Return tokens to generate and the reason of the end; raises `RequestRefused` when they do not
    fit."""
    room = min(limits.context, limits.pool) - len(prompt)
    beyond_step = limits.step is not None and len(prompt) > limits.step
    if room < 1 or (wanted or 0) > room or beyond_step:
        message = limits.dialect.too_long
        if beyond_step:
            message = limits.dialect.too_long_for_step or message
        facts = {
            "context": limits.context,
            "prompt": len(prompt),
            "answer": wanted or 0,
            "total": len(prompt) + (wanted or 0),
            "step": limits.step or 0,
        }
        raise RequestRefused(fill_template(message, facts))
    most = max(1, room if wanted is None else wanted)
    if not natural:
        return most, "length"
    # Spread the lengths evenly around the mean by the prompt's hash, so that the same prompt always
    # gets the same answer.
    spread = crc32(repr(prompt[-32:]).encode()) % (2 * _NATURAL_TOKENS - 1)
    end = max(least, 1 + spread)
    return (end, "stop") if end < most else (most, "length")


def is_predictable(tokens: Sequence[int]) -> bool:
    """Return whether a prompt has natural repetition, so that a draft model often predicts it.

    In prose and code every tenth token or more follows the same token as the last time; in random
    words every fortieth at most, in random ids none.
    """
    seen: dict[int, int] = {}
    tokens = tokens[-_PREDICTED_BY:]
    guessed = 0
    for before, token in pairwise(tokens):
        guessed += seen.get(before) == token
        seen[before] = token
    return len(tokens) >= _LEAST_PREDICTED_BY and guessed >= _PREDICTABLE * len(tokens)


def text_tokens(text: str) -> list[int]:
    """Return a token id per piece of a text, at least one."""
    return [crc32(piece.encode("utf-8", "surrogatepass")) for piece in _PIECE.findall(text)] or [0]


def _prompts(prompt: Any) -> list[list[int]]:
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
    raise RequestRefused(message)


def _are_ids(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}


def _chat_tokens(document: Json) -> list[int]:
    messages = document.get("messages")
    if not (messages and isinstance(messages, list) and all(type(m) is dict for m in messages)):
        raise RequestRefused("messages must be a list of at least one message")
    tools = document.get("tools")
    # Templates write the tools before everything else.
    tokens = text_tokens(json.dumps(tools)) if tools else []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(
                str(part.get("text", "")) for part in content if isinstance(part, dict)
            )
        role = crc32(str(message.get("role")).encode())
        text = text_tokens("" if content is None else str(content))
        if message.get("role") == "assistant":
            # Repeat it as it was generated: behind the mark that a prompt ends with.
            tokens += [_GENERATE, *text, *[role] * (_TEMPLATE_TOKENS - 1)]
        else:
            tokens += [*[role] * _TEMPLATE_TOKENS, *text]
    return [*tokens, _GENERATE]
