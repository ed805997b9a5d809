"""The events of one streamed answer: times and counts, while the bytes come in any pieces.

Server-sent events as in https://html.spec.whatwg.org/multipage/server-sent-events.html. What is hot, an event with
text, is told by a byte match; only the few events without text and the last ones are decoded as JSON.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

from autotune.client.outcomes import OK, Outcome, OutcomeKind

MAX_EVENT_BYTES = 32 * 2**20
"""A longer event is no token any more; the request ends as ``malformed``."""

_KEPT = 3
"""Events kept as bytes: usage stands in one of the last (with the last token, behind it, or before ``[DONE]``)."""

_TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)"\s*:\s*"[^"]')
_DONE = b"data: [DONE]"


class EventStream:
    """What is kept of one answer; all times are those that `feed` is given, in ns.

    Attributes:
        times_ns: one entry per event that carries a token, in order.
        last_ns: when the last event with a choice came; 0 before the first.
        heard_ns: when the last event of any kind came; comments (a server's heartbeat) do not count.
        done: whether ``[DONE]`` came.
        problem: what ended the stream early, if anything did.
    """

    __slots__ = ("_carry", "_open_cr", "_recent", "_usage", "done", "heard_ns", "last_ns", "problem", "times_ns")

    def __init__(self) -> None:
        self.times_ns = array("q")
        self.last_ns = self.heard_ns = 0
        self.done = False
        self.problem: Outcome | None = None
        self._carry = bytearray()
        self._open_cr = False
        self._recent: deque[bytes] = deque(maxlen=_KEPT)
        self._usage: Mapping[str, Any] | None = None

    def feed(self, body: bytes, now_ns: int) -> None:
        """The next piece of the body, which came at `now_ns`; it may be cut anywhere."""
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
        """The body has ended; a last event may lack its blank line."""
        if self._open_cr:
            self._open_cr = False
            self.feed(b"\n", now_ns)
        left, self._carry = bytes(self._carry).rstrip(b"\n"), bytearray()
        if left in (_DONE, b"data:[DONE]"):
            self.done = True
        elif left.startswith(b"data"):
            self._fail(f"the stream ends within an event: {_excerpt(left)}")

    def usage(self) -> tuple[int, int, int | None] | None:
        """Prompt tokens, generated tokens, and cached prompt tokens where told; None when the counts are missing."""
        if self._usage is None:
            for event in reversed(self._recent):
                self._look_for_usage(event)
        self._recent.clear()
        return usage_counts(self._usage)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete as far as the stream itself tells."""
        return self.done or self.usage() is not None

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
        lines = [line for line in event.split(b"\n") if line.startswith(b"data")]
        if not lines:
            return
        data = b"\n".join(line.partition(b":")[2].removeprefix(b" ") for line in lines)
        self.heard_ns = now_ns
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            self._fail(f"an event that is not JSON: {_excerpt(data)}")
            return
        if isinstance(chunk, dict):
            self._chunk(chunk, now_ns)
        else:
            self._fail(f"an event that is no object: {_excerpt(data)}")

    def _chunk(self, chunk: Mapping[str, Any], now_ns: int) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self.problem = self.problem or Outcome(OutcomeKind.SERVER_ERROR, error_message(chunk))
            return
        self._take_usage(chunk)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        self.last_ns = now_ns
        if _carries_token(choices[0], first=not self.times_ns):
            self.times_ns.append(now_ns)

    def _look_for_usage(self, event: bytes) -> None:
        if self._usage is None and b'"usage"' in event:
            try:
                self._take_usage(json.loads(event[5:]))
            except ValueError:
                self._fail(f"an event that is not JSON: {_excerpt(event)}")

    def _take_usage(self, chunk: Mapping[str, Any]) -> None:
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]

    def _fail(self, message: str) -> None:
        self.problem = self.problem or Outcome(OutcomeKind.MALFORMED, message)

    def outcome(self) -> Outcome:
        """How a stream that ended in good order is to be judged, its length aside."""
        if self.problem is not None:
            return self.problem
        if not self.last_ns:
            return Outcome(OutcomeKind.MALFORMED, "an answer without any event that carries a choice")
        return OK


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


def usage_counts(usage: Mapping[str, Any] | None) -> tuple[int, int, int | None] | None:
    """Prompt, generated and (where told) cached tokens of a ``usage`` object; None unless both counts are there."""
    if usage is None:
        return None
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(read) is not int or type(written) is not int:
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return read, written, cached if type(cached) is int else None


def error_message(body: Mapping[str, Any]) -> str:
    """The server's own words, wherever the engines put them."""
    error = body.get("error", body)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or body.get("detail") or error
    return " ".join(str(error).split())[:300]


def _is_utf8(event: bytes) -> bool:
    try:
        event.decode()
    except UnicodeDecodeError:
        return False
    return True


def _excerpt(data: bytes) -> str:
    return repr(data[:80].decode("utf-8", "backslashreplace"))
