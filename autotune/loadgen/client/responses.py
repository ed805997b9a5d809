"""Parsing of a server's answers: JSON, errors, token counts, and text for messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from autotune.loadgen.client.outcomes import OK, OutcomeKind, RequestOutcome, malformed

Usage = tuple[int, int, int | None]
"""Prompt tokens, generated tokens, and prompt tokens that came from the cache, where told."""

MAX_KEPT = 16 * 2**10
"""Bytes or characters kept of a server's words: more than a message shows, so that an API key among them is whole
when it is taken out (`Target.redacted`)."""

_STATUSES = frozenset(HTTPStatus)

_MAX_COUNT = 2**53
"""Token counts from here on are no counts, and no exact floats either."""


def parsed(data: bytes | bytearray) -> Any:
    """JSON in UTF-8; raises `ValueError` for anything else, and for what is nested too deep to be read."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def is_error(body: Mapping[str, Any]) -> bool:
    """Whether a JSON object reports an error, in either of the forms that engines use."""
    return bool(body.get("error")) or body.get("object") == "error"


def error_message(body: Mapping[str, Any]) -> str:
    """The server's own words, wherever the engines put them."""
    error = body.get("error", body)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or body.get("detail") or error
    return one_line(str(error))


def refusal(body: bytes | bytearray) -> str:
    """The message of an answer with an error status; empty when it has none."""
    try:
        answer = parsed(body)
    except ValueError:
        return one_line(body[:MAX_KEPT].decode("utf-8", "replace"))
    return error_message(answer) if isinstance(answer, dict) else one_line(str(answer))


def why_refused(status: int, body: bytes | bytearray, location: str = "") -> str:
    """The server's reason for an error status, or at least what the status means."""
    if location and 300 <= status < 400:
        return f"redirects to {location}"
    phrase = HTTPStatus(status).phrase if status in _STATUSES else "without a word of why"
    return refusal(body) or phrase


def whole_answer(body: bytes | bytearray) -> tuple[RequestOutcome, Usage | None]:
    """Outcome of a completion that is not streamed, and its token counts."""
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
    """The beginning of something that was not understood, in quotes."""
    return f"'{one_line(data[:MAX_KEPT].decode('utf-8', 'backslashreplace'))}'"


def one_line(text: str) -> str:
    """Text on one line, without anything that a terminal would obey or could not show."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:MAX_KEPT]).split())


def usage_counts(usage: Any) -> Usage | None:
    """Prompt, generated and (where told) cached tokens of a ``usage`` object; None unless both counts are there."""
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if read is None or written is None:
        return None
    details = usage.get("prompt_tokens_details")
    return read, written, _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else None
