"""Measured path: one kept-alive HTTP/1.1 connection, one request on it at a time.

An `asyncio.Protocol` on httptools: each read of the socket is stamped once, before anything is
parsed.

The events of a streamed answer are parsed from bytes that come in any pieces. Server-sent events as
in https://html.spec.whatwg.org/multipage/server-sent-events.html. An event with text, which is hot,
is told by a byte match; only the few events without text and the last ones are decoded as JSON.
Outcomes of requests are a closed list, so that every fault is named and counted.
"""

import asyncio
import json
import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from time import perf_counter_ns
from typing import Any, NamedTuple, cast

import httptools

from autotune.base import JsonObject

Usage = tuple[int, int, int | None]
"""Prompt tokens, generated tokens, and cached prompt tokens if reported."""

MAX_KEPT = 16 * 2**10
"""Bytes or characters stored of a server's message: longer than the shown part, so that an API key
in it can be removed completely (`Target.redacted`)."""

_STATUSES = frozenset(HTTPStatus)

_MAX_COUNT = 2**53  # Least number that is no token count; from here on floats are inexact


class OutcomeKind(StrEnum):
    """Ways in which a request can end.

    ``ok``; ``connect_error``: no connection; ``http_status``: the server refused; ``closed``: the
    connection ended before the answer did; ``stall_timeout``: nothing came for too long;
    ``malformed``: not the protocol; ``server_error``: the answer reports an error; ``no_usage``: it
    is whole, but the token counts are missing. An answer of another length than asked for is no
    failure: `RequestLog.length_error` judges the mean.
    """

    OK = "ok"
    CONNECT_ERROR = "connect_error"
    HTTP_STATUS = "http_status"
    CLOSED = "closed"
    STALL_TIMEOUT = "stall_timeout"
    MALFORMED = "malformed"
    SERVER_ERROR = "server_error"
    NO_USAGE = "no_usage"


class RequestOutcome(NamedTuple):
    """Outcome of one request: its kind, the message (the server's words, if any), the status of
    ``http_status``."""

    kind: OutcomeKind
    message: str = ""
    status: int = 0

    @property
    def ok(self) -> bool:
        return self.kind is OutcomeKind.OK

    @property
    def name(self) -> str:
        """Return the kind as in reports; a status is part of it, e.g. ``http_404``."""
        return f"http_{self.status}" if self.kind is OutcomeKind.HTTP_STATUS else self.kind.value


OK = RequestOutcome(OutcomeKind.OK)


def malformed(message: str) -> RequestOutcome:
    """Return the outcome of a response that violates HTTP or the format of its stream."""
    return RequestOutcome(OutcomeKind.MALFORMED, message)


def tally(outcomes: Iterable[RequestOutcome]) -> dict[str, int]:
    """Count the outcomes, the most frequent first."""
    return dict(Counter(outcome.name for outcome in outcomes).most_common())


def failure_sentence(outcomes: Iterable[RequestOutcome]) -> str:
    """Return a sentence on the failed requests, each kind with the first message; empty if none
    failed."""
    listed = list(outcomes)
    failed = [outcome for outcome in listed if not outcome.ok]
    if not failed:
        return ""
    first = {outcome.name: outcome.message for outcome in reversed(failed)}
    parts = []
    for name, count in tally(failed).items():
        message = f" ({first[name]})" if first[name] else ""
        parts.append(f"{count} {name}{message}")
    return f"{len(failed)} of {len(listed)} requests failed: {'; '.join(parts)}"


def parsed(data: bytes | bytearray) -> Any:
    """Parse UTF-8 JSON; raises `ValueError` for anything else, and for nesting that is too deep."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def is_error(body: JsonObject) -> bool:
    """Return whether a JSON object reports an error, in one of the engines' two forms."""
    return bool(body.get("error")) or body.get("object") == "error"


def error_message(body: JsonObject) -> str:
    """Return the server's error message from any of the engines' fields."""
    error = body.get("error", body)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or body.get("detail") or error
    return one_line(str(error))


def refusal(body: bytes | bytearray) -> str:
    """Return the message of an answer with an error status; empty for none."""
    try:
        answer = parsed(body)
    except ValueError:
        return one_line(body[:MAX_KEPT].decode("utf-8", "replace"))
    return error_message(answer) if isinstance(answer, dict) else one_line(str(answer))


def why_refused(status: int, body: bytes | bytearray, location: str = "") -> str:
    """Return the server's reason for an error status, or the meaning of the status."""
    if location and 300 <= status < 400:
        return f"redirects to {location}"
    phrase = HTTPStatus(status).phrase if status in _STATUSES else "without a reason"
    return refusal(body) or phrase


def whole_answer(body: bytes | bytearray) -> tuple[RequestOutcome, Usage | None]:
    """Return the outcome of a completion that is not streamed, and its token counts."""
    try:
        answer = parsed(body)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and is_error(answer):
        return RequestOutcome(OutcomeKind.SERVER_ERROR, error_message(answer)), None
    if not isinstance(answer, dict) or not answer.get("choices"):
        return malformed(f"the answer is no completion: {excerpt(body)}"), None
    return OK, usage_counts(answer.get("usage"))


def excerpt(data: bytes | bytearray) -> str:
    """Return the quoted start of unexpected content."""
    return f"'{one_line(data[:MAX_KEPT].decode('utf-8', 'backslashreplace'))}'"


def one_line(text: str) -> str:
    """Return text on one line, without control characters and unprintable ones."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:MAX_KEPT]).split())


def usage_counts(usage: Any) -> Usage | None:
    """Return prompt, generated and (if reported) cached tokens of a ``usage`` object; None unless
    both counts exist."""
    if not isinstance(usage, dict):
        return None
    read = _count(usage.get("prompt_tokens"))
    written = _count(usage.get("completion_tokens"))
    if read is None or written is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return read, written, cached


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else None


MAX_EVENT_BYTES = 32 * 2**20
"""Longest event of a token; a longer one ends the request as ``malformed``."""

_KEPT = 3
"""Events stored as bytes: usage is in one of the last (with the last token, after it, or before
``[DONE]``)."""

_TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)"\s*:\s*"[^"]')
_BOM = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"(?:data|event|id|retry)?:|data$")


class EventStream:
    """Times and counts of one streamed answer; all times are those that `feed` is given, in ns.

    Attributes:
        times_ns: one entry per event that carries a token, in order.
        last_ns: when the last event with a choice came; 0 before the first.
        heard_ns: when the last event of any kind came; comments (a server's heartbeat) do not
            count.
        others: number of events without plain text.
        problem: why the stream ended early; None if it did not.
    """

    def __init__(self) -> None:
        self.times_ns = array("q")
        self.last_ns = self.heard_ns = self.others = 0
        self.done = False
        self.problem: RequestOutcome | None = None
        self._carry = bytearray()
        self._open_cr = False
        self._recent: deque[bytes] = deque(maxlen=_KEPT)
        self._stray = b""
        self._usage: JsonObject | None = None

    def feed(self, body: bytes, now_ns: int) -> None:
        """Parse the next piece of the body, received at `now_ns`; it may be cut anywhere."""
        # CR LF and CR end a line too; a CR at the end waits, for its LF may come.
        if self._open_cr or b"\r" in body:
            body = b"\r" + body if self._open_cr else body
            self._open_cr = body.endswith(b"\r")
            body = body.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._carry:
            if body.endswith(b"\n\n"):
                # Whole events, as nearly every piece: nothing is copied.
                for event in body[:-2].split(b"\n\n"):
                    self._event(event, now_ns)
                return
            self._cut(body, now_ns)
            return
        seen = len(self._carry) - 1
        self._carry += body
        if self._carry.find(b"\n\n", seen) >= 0:
            whole = bytes(self._carry)
            self._carry = bytearray()
            self._cut(whole, now_ns)
        elif len(self._carry) > MAX_EVENT_BYTES:
            self._fail(f"an event of more than {MAX_EVENT_BYTES // 2**20} MiB")
            self._carry = bytearray()

    def finish(self, now_ns: int) -> None:
        """Parse the end of the body; a last event may lack its blank line."""
        if self._open_cr:
            self._open_cr = False
            self.feed(b"\n", now_ns)
        left = bytes(self._carry).rstrip(b"\n")
        self._carry = bytearray()
        if left and not self.done and self.problem is None:
            self._other(left, now_ns)  # decoded even with text, as it may be half of one
            if self.problem is not None and self.problem.kind is OutcomeKind.MALFORMED:
                self.problem = malformed(f"the stream ends within an event: {excerpt(left)}")

    def release(self) -> None:
        """Store the times and counts and free the bytes after the end."""
        self._recent.clear()
        self._carry = bytearray()
        self._stray = b""

    def usage(self) -> Usage | None:
        """Return prompt tokens, generated tokens, and cached prompt tokens if reported; None
        without counts."""
        while self._recent:  # later than what `_usage` holds
            event = self._recent.pop()
            if b'"usage"' in event and self._look_for_usage(event):
                break
        self._recent.clear()
        return usage_counts(self._usage)

    @property
    def ended(self) -> bool:
        """Return whether the answer's own bytes mark its end; a body without events has no end."""
        return self.done or self.usage() is not None or self._is_no_stream()

    def _is_no_stream(self) -> bool:
        beginning = (self._stray or bytes(self._carry[:MAX_KEPT])).lstrip(b"\n")
        return not self.heard_ns and bool(beginning) and _FIELD.match(beginning) is None

    def _cut(self, body: bytes, now_ns: int) -> None:
        *events, rest = body.split(b"\n\n")
        for event in events:
            self._event(event, now_ns)
        self._carry += rest

    def _event(self, event: bytes, now_ns: int) -> None:
        if event.startswith(b"data: {") and event.endswith(b"}") and b"\n" not in event:
            self.heard_ns = now_ns
            at = event.find(b'"text":"')
            has_text = event[at + 8] != 34 if at > 0 else _TEXT.search(event) is not None
            if has_text and (event.isascii() or _is_utf8(event)):
                self.times_ns.append(now_ns)
                self.last_ns = now_ns
                self._recent.append(event)
                return
        self._other(event, now_ns)

    def _other(self, event: bytes, now_ns: int) -> None:
        """Parse everything except a plain event with text."""
        if not self.heard_ns:
            event = event.removeprefix(_BOM)
        fields = [line.partition(b":") for line in event.split(b"\n") if _FIELD.match(line)]
        if not fields:
            self._stray += event[: MAX_KEPT - len(self._stray)]
        data = b"\n".join(value.removeprefix(b" ") for name, _, value in fields if name == b"data")
        if not data:
            return
        self.heard_ns = now_ns
        self.others += 1
        if data == b"[DONE]":
            self.done = True
        elif any(name == b"event" and value.strip() == b"error" for name, _, value in fields):
            self._fail(refusal(data), OutcomeKind.SERVER_ERROR)
        else:
            self._data(data, now_ns)

    def _data(self, data: bytes, now_ns: int) -> None:
        """Parse an event's data, usually a chunk of the answer."""
        try:
            chunk = parsed(data)
        except ValueError as error:
            form = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
            self._fail(f"an event that is not {form}: {excerpt(data)}")
            return
        if not isinstance(chunk, dict):
            self._fail(f"an event that is no object: {excerpt(data)}")
            return
        if is_error(chunk):
            self._fail(error_message(chunk), OutcomeKind.SERVER_ERROR)
            return
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
            self._recent.clear()
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        # vLLM and SGLang end the streams of a server that stops so, with [DONE].
        if choices[0].get("finish_reason") == "abort":
            self._fail("the engine aborted the answer", OutcomeKind.SERVER_ERROR)
        self.last_ns = now_ns
        if _carries_token(choices[0], first=not self.times_ns):
            self.times_ns.append(now_ns)

    def _look_for_usage(self, event: bytes) -> bool:
        """Return whether an event with text, not decoded on arrival, holds the counts."""
        try:
            chunk = parsed(event[5:])
        except ValueError:
            self._fail(f"an event that is not JSON: {excerpt(event)}")
            return False
        if not isinstance(chunk.get("usage"), dict):
            return False
        self._usage = chunk["usage"]
        return True

    def _fail(self, message: str, kind: OutcomeKind = OutcomeKind.MALFORMED) -> None:
        self.problem = self.problem or RequestOutcome(kind, message)

    def outcome(self) -> RequestOutcome:
        """Return the outcome of a stream whose body ended normally, token counts aside."""
        if self.problem is None and not self.times_ns:
            if not self._is_no_stream():
                self._fail("an answer without any event that carries a token")
            with suppress(ValueError):
                body = parsed(self._stray)
                if isinstance(body, dict) and is_error(body):
                    self._fail(error_message(body), OutcomeKind.SERVER_ERROR)
            self._fail(f"an answer that is no stream of events: {excerpt(self._stray)}")
        return self.problem or OK


def _carries_token(choice: JsonObject, first: bool) -> bool:
    """Return whether an event without plain text represents a token.

    A token may have no text of its own (half a character, a special token), and engines send it so.
    An event that only opens the answer (the role) is none; one that only closes it (the reason) is
    one if no other came before.
    """
    delta = choice.get("delta")
    body = delta if isinstance(delta, dict) else choice
    if any(body.get(name) for name in ("text", "content", "reasoning_content", "reasoning")):
        return True
    if choice.get("finish_reason") is not None:
        return first
    return "role" not in body


def _is_utf8(event: bytes) -> bool:
    try:
        event.decode()
    except UnicodeDecodeError:
        return False
    return True


class AnswerStream(EventStream):
    """An answer whose text is needed: its bytes are stored and parsed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._body = bytearray()

    def feed(self, body: bytes, now_ns: int) -> None:
        """Parse the next piece of the body, and store it."""
        self._body += body
        super().feed(body, now_ns)

    def text(self) -> str:
        """Return the answer's text without its reasoning, which is not sent again."""
        events = bytes(self._body).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
        return "".join(map(_text_of_event, events))


def _text_of_event(event: bytes) -> str:
    data = b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    with suppress(ValueError):
        chunk: Any = parsed(data)
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            delta = choice.get("delta")
            text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
            return text if isinstance(text, str) else ""
    return ""


_MAX_WHOLE = 32 * 2**20  # Most bytes of an answer that is no stream; a longer one is ``malformed``

_MAX_REFUSAL = 64 * 2**10  # Bytes stored of the body of an error status

_MAX_HEAD = 2**20  # Most bytes before the answer itself: its headers, and interim answers


@dataclass(eq=False, slots=True)
class Exchange:
    """One request and its answer; times in ns of `time.perf_counter_ns`.

    Attributes:
        sent_ns: when it was handed to the socket, or when a connection for it was asked for.
        finished_ns: when the last event with a choice came; for a failure, when it was known.
        status: HTTP status; 0 before the answer begins.
        location: the redirect's target, if the server names one.
    """

    expected_tokens: int
    streaming: bool = True
    events: EventStream = field(default_factory=EventStream)
    sent_ns: int = field(default_factory=perf_counter_ns)
    finished_ns: int = 0
    status: int = 0
    started: bool = False
    location: str = ""
    body: bytearray = field(default_factory=bytearray)
    usage: Usage | None = None
    outcome: RequestOutcome | None = None

    def complete(self, now_ns: int) -> None:
        """End the request with a whole answer."""
        if self.status != 200:
            words = why_refused(self.status, self.body, self.location)
            self._end(RequestOutcome(OutcomeKind.HTTP_STATUS, words, self.status), now_ns)
            return
        events = self.events
        if self.streaming:
            events.finish(now_ns)
            self.usage = events.usage()
            outcome = events.outcome()
        elif events.problem is not None:
            outcome = events.problem
        elif len(self.body) > _MAX_WHOLE:
            outcome = malformed(f"an answer of more than {_MAX_WHOLE // 2**20} MiB")
        else:
            outcome, self.usage = whole_answer(self.body)
            if outcome.ok:
                events.times_ns.append(now_ns)
                events.last_ns = now_ns
        if outcome.ok and self.usage is None:
            outcome = RequestOutcome(OutcomeKind.NO_USAGE, "the answer holds no token counts")
            if self.streaming and not events.done:  # Whether it is whole is unknown, too.
                count = len(events.times_ns)
                outcome = malformed(
                    f"the stream ends after {count} events with text, "
                    "without token counts or [DONE]"
                )
        self._end(outcome, events.last_ns if outcome.ok else now_ns)

    def cut(self, outcome: RequestOutcome, now_ns: int) -> None:
        """End the request within its answer; after ``[DONE]`` it is complete."""
        complete = self.streaming and self.events.done and not self.runs_on
        if self.refused or (self.status == 200 and complete):
            self.complete(now_ns)
        else:
            self._end(self.events.problem or outcome, now_ns)

    def fail(self, outcome: RequestOutcome) -> None:
        """End the request without an answer."""
        self._end(outcome, perf_counter_ns())

    def _end(self, outcome: RequestOutcome, at_ns: int) -> None:
        if self.outcome is None:  # the first one stands
            self.outcome = outcome
            self.finished_ns = at_ns
            self.body.clear()
            self.events.release()

    @property
    def refused(self) -> bool:
        """True for a status other than 200; an interim status is not an answer yet."""
        return self.status >= 200 and self.status != 200

    @property
    def runs_on(self) -> bool:
        """True for far more events than requested tokens: the server would stream endlessly."""
        return max(len(self.events.times_ns), self.events.others) > 2 * self.expected_tokens + 64


class Connection(asyncio.Protocol):
    """One connection to the server."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._over: asyncio.Future[None] | None = None
        self._now_ns = self._head = 0
        self._keep_alive = self._streams = self._has_length = False
        self._coding = b""
        self._unasked: RequestOutcome | None = None

    async def run(self, exchange: Exchange, request: bytes) -> None:
        """Send a request and wait for its end, which sets its outcome; cancelling closes the
        connection."""
        if not self.open:  # lost between the moment it was made and this one
            exchange.fail(
                self._unasked or RequestOutcome(OutcomeKind.CLOSED, _where(exchange, None))
            )
            return
        assert self._transport is not None
        self._head = 0
        self._over = asyncio.get_running_loop().create_future()
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        try:
            await self._over
        finally:
            self._exchange = self._parser = self._over = None
            if exchange.outcome is None:
                self.close()

    def abort(self, outcome: RequestOutcome) -> None:
        """Abort the request in flight, and close the connection."""
        if self._exchange is not None:
            self._exchange.cut(outcome, perf_counter_ns())
        self.close()
        self._wake()

    def close(self) -> None:
        """Close without waiting; closing twice does nothing."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own class does not derive from it.
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._now_ns = perf_counter_ns()
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self._unasked = malformed(f"unexpected bytes: {excerpt(data)}")
            self.close()
            return
        exchange.started = True
        if exchange.status < 200:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(malformed(f"not HTTP: {error}"))
        if exchange.outcome is not None:
            return
        if exchange.events.problem is not None:
            self.abort(exchange.events.problem)
        elif exchange.status < 200 and self._head > _MAX_HEAD:
            self.abort(malformed(f"headers of more than {_MAX_HEAD // 2**20} MiB"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        exchange = self._exchange
        if exchange is None:
            return
        now_ns = perf_counter_ns()
        # The end of the connection ends the answer where no length was announced and the stream is
        # complete.
        may_end = exc is None and exchange.status == 200 and not self._has_length
        if may_end and (exchange.events.ended if exchange.streaming else exchange.body):
            exchange.complete(now_ns)
        else:
            exchange.cut(RequestOutcome(OutcomeKind.CLOSED, _where(exchange, exc)), now_ns)
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        coding = name in (b"content-encoding", b"transfer-encoding")
        if coding and value.strip().lower() not in (b"", b"identity", b"chunked"):
            self._coding = value
        elif name == b"location" and self._exchange is not None:
            self._exchange.location = one_line(value.partition(b"?")[0].decode("latin-1"))

    def on_message_begin(self) -> None:
        self._has_length = False
        self._coding = b""
        if self._exchange is None:
            self.close()  # Later bytes would belong to no known request.

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        exchange = self._exchange
        if exchange is None:
            return
        exchange.status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()
        self._streams = exchange.streaming and exchange.status == 200
        if self._coding and exchange.status == 200:
            coding = one_line(self._coding.decode("latin-1"))
            exchange.events.problem = malformed(
                f"the answer has the encoding {coding}, which was not requested"
            )

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._coding:
            return
        if self._streams:
            exchange.events.feed(body, self._now_ns)
        elif len(exchange.body) <= (_MAX_REFUSAL if exchange.refused else _MAX_WHOLE):
            exchange.body += body

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.status < 200:
            return  # an interim answer, such as 100 Continue
        exchange.complete(self._now_ns)
        # Close if the request is not sent yet: its rest would stand before the next one.
        assert self._transport is not None
        writing = self.open and self._transport.get_write_buffer_size() > 0
        if not self._keep_alive or exchange.events.problem is not None or writing:
            self.close()
        self._wake()

    def _wake(self) -> None:
        """End the request in flight: later bytes do not belong to it."""
        self._exchange = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


def _where(exchange: Exchange, error: Exception | None) -> str:
    count = len(exchange.events.times_ns)
    reason = f" ({error})" if error else ""
    if not exchange.started:
        return f"the server closed the connection before it answered{reason}"
    return f"the server closed the connection within the answer, after {count} events with text{reason}"
