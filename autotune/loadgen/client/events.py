"""Parser of one streamed answer: times and counts of its events, from bytes that come in any pieces.

Server-sent events as in https://html.spec.whatwg.org/multipage/server-sent-events.html. What is hot, an event with
text, is told by a byte match; only the few events without text and the last ones are decoded as JSON.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from autotune.loadgen.client.outcomes import (
    MAX_KEPT,
    OK,
    OutcomeKind,
    RequestOutcome,
    Usage,
    error_message,
    excerpt,
    is_error,
    malformed,
    parsed,
    refusal,
    usage_counts,
)

MAX_EVENT_BYTES = 32 * 2**20
"""A longer event is no token any more; the request ends as ``malformed``."""

_KEPT = 3
"""Events kept as bytes: usage stands in one of the last (with the last token, behind it, or before ``[DONE]``)."""

_TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)"\s*:\s*"[^"]')
_BOM = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"(?:data|event|id|retry)?:|data$")


class EventStream:
    """Times and counts of one streamed answer; all times are those that `feed` is given, in ns.

    Attributes:
        times_ns: one entry per event that carries a token, in order.
        last_ns: when the last event with a choice came; 0 before the first.
        heard_ns: when the last event of any kind came; comments (a server's heartbeat) do not count.
        others: how many events came that carry no plain text.
        done: whether ``[DONE]`` came.
        problem: what ended the stream early, if anything did.
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
        self._usage: Mapping[str, Any] | None = None

    def feed(self, body: bytes, now_ns: int) -> None:
        """Parse the next piece of the body, which came at `now_ns`; it may be cut anywhere."""
        if self._open_cr or b"\r" in body:
            body = self._with_newlines(body)
        if not self._carry:
            if body.endswith(b"\n\n"):
                for event in body[:-2].split(b"\n\n"):
                    self._event(event, now_ns)
                return
            self._cut(body, now_ns)
            return
        seen = max(len(self._carry) - 1, 0)
        self._carry += body
        if self._carry.find(b"\n\n", seen) >= 0:
            whole, self._carry = bytes(self._carry), bytearray()
            self._cut(whole, now_ns)
        elif len(self._carry) > MAX_EVENT_BYTES:
            self._fail(f"an event of more than {MAX_EVENT_BYTES // 2**20} MiB")
            self._carry = bytearray()

    def finish(self, now_ns: int) -> None:
        """Parse the end of the body; a last event may lack its blank line."""
        if self._open_cr:
            self._open_cr = False
            self.feed(b"\n", now_ns)
        left, self._carry = bytes(self._carry).rstrip(b"\n"), bytearray()
        if left and not self.done and self.problem is None:
            self._other(left, now_ns)  # decoded even with text, as it may be half of one
            if self.problem is not None and self.problem.kind is OutcomeKind.MALFORMED:
                self.problem = malformed(f"the stream ends within an event: {excerpt(left)}")

    def release(self) -> None:
        """Keep the times and counts, not the bytes, as nothing more will come."""
        self._recent.clear()
        self._carry, self._stray = bytearray(), b""

    def usage(self) -> Usage | None:
        """Prompt tokens, generated tokens, and cached prompt tokens where told; None when the counts are missing."""
        while self._recent:  # later than what `_usage` holds
            event = self._recent.pop()
            if b'"usage"' in event and self._look_for_usage(event):
                break
        self._recent.clear()
        return usage_counts(self._usage)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete as far as its own bytes tell; what is no stream of events has no end."""
        return self.done or self.usage() is not None or self._is_no_stream()

    def _is_no_stream(self) -> bool:
        beginning = (self._stray or bytes(self._carry[:MAX_KEPT])).lstrip(b"\n")
        return not self.heard_ns and bool(beginning) and _FIELD.match(beginning) is None

    def _with_newlines(self, body: bytes) -> bytes:
        """CR LF and CR end a line too; a CR at the end waits, as its LF may come next."""
        if self._open_cr:
            body = b"\r" + body
        self._open_cr = body.endswith(b"\r")
        if self._open_cr:
            body = body[:-1]
        return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

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
        """Everything that is not a plain event with text."""
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
        try:
            chunk = parsed(data)
        except UnicodeDecodeError:
            self._fail(f"an event that is not UTF-8: {excerpt(data)}")
        except ValueError:
            self._fail(f"an event that is not JSON: {excerpt(data)}")
        else:
            if isinstance(chunk, dict):
                self._chunk(chunk, now_ns)
            else:
                self._fail(f"an event that is no object: {excerpt(data)}")

    def _chunk(self, chunk: Mapping[str, Any], now_ns: int) -> None:
        if is_error(chunk):
            self._fail(error_message(chunk), OutcomeKind.SERVER_ERROR)
            return
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
            self._recent.clear()
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        self.last_ns = now_ns
        if _carries_token(choices[0], first=not self.times_ns):
            self.times_ns.append(now_ns)

    def _look_for_usage(self, event: bytes) -> bool:
        """Whether an event with text, which was not decoded when it came, holds the counts."""
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
        """Outcome of a stream whose body ended in good order, token counts aside."""
        if self.problem is None and not self.times_ns:
            if not self._is_no_stream():
                self._fail("an answer without any event that carries a token")
            with suppress(ValueError):
                body = parsed(self._stray)
                if isinstance(body, dict) and is_error(body):
                    self._fail(error_message(body), OutcomeKind.SERVER_ERROR)
            self._fail(f"an answer that is no stream of events: {excerpt(self._stray)}")
        return self.problem or OK


def _carries_token(choice: Mapping[str, Any], first: bool) -> bool:
    """Whether an event without plain text stands for a token.

    A token may have no text of its own (half a character, a special token), and engines send it so. An event that
    only opens the answer (the role) is none; one that only closes it (the reason) is one if no other came before.
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
