"""Outcomes of requests: a closed list, so that every fault is named and counted; and what an answer says of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

Usage = tuple[int, int, int | None]
"""Prompt tokens, generated tokens, and prompt tokens that came from the cache, where told."""

MAX_KEPT = 16 * 2**10
"""Bytes or characters kept of a server's words: more than a message shows, so that an API key among them is whole
when it is taken out (`Target.redacted`)."""

_STATUSES = frozenset(HTTPStatus)

_MAX_COUNT = 2**53
"""Token counts from here on are no counts, and no exact floats either."""


class OutcomeKind(StrEnum):
    """Ways in which a request can end.

    ``ok``; ``connect_error``: no connection; ``http_status``: the server refused; ``closed``: the connection ended
    before the answer did; ``stall_timeout``: nothing came for too long; ``malformed``: not the protocol;
    ``server_error``: the answer reports an error; ``no_usage``: it is whole, but the token counts are missing. An
    answer of another length than asked for is no failure: `RequestLog.length_error` judges the mean.
    """

    OK = "ok"
    CONNECT_ERROR = "connect_error"
    HTTP_STATUS = "http_status"
    CLOSED = "closed"
    STALL_TIMEOUT = "stall_timeout"
    MALFORMED = "malformed"
    SERVER_ERROR = "server_error"
    NO_USAGE = "no_usage"


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Outcome of one request.

    Attributes:
        message: what happened, with the server's own words where it gave some; empty when it succeeded.
        status: the HTTP status; 0 unless the kind is ``http_status``.
    """

    kind: OutcomeKind
    message: str = ""
    status: int = 0

    @property
    def ok(self) -> bool:
        return self.kind is OutcomeKind.OK

    @property
    def name(self) -> str:
        """The kind as reports count it; a status is part of it, e.g. ``http_404``."""
        return f"http_{self.status}" if self.kind is OutcomeKind.HTTP_STATUS else self.kind.value


OK = RequestOutcome(OutcomeKind.OK)


def malformed(message: str) -> RequestOutcome:
    """Return the outcome of a response that violates HTTP or the format of its stream."""
    return RequestOutcome(OutcomeKind.MALFORMED, message)


def tally(outcomes: Iterable[RequestOutcome]) -> dict[str, int]:
    """Count the outcomes, the most frequent first."""
    return dict(Counter(outcome.name for outcome in outcomes).most_common())


def failure_sentence(outcomes: Iterable[RequestOutcome]) -> str:
    """Return a sentence on the requests that failed, each way with the first message; empty when none failed."""
    listed = list(outcomes)
    counts = tally(outcome for outcome in listed if not outcome.ok)
    if not counts:
        return ""
    first: Mapping[str, str] = {outcome.name: outcome.message for outcome in reversed(listed)}
    parts = [f"{count} {name} ({first[name]})" if first[name] else f"{count} {name}" for name, count in counts.items()]
    return f"{sum(counts.values())} of {len(listed)} requests failed: {'; '.join(parts)}"


def parsed(data: bytes | bytearray) -> Any:
    """JSON in UTF-8; raises `ValueError` for anything else, and for what is nested too deep to be read."""
    try:
        return json.loads(data.decode())
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def is_error(body: Mapping[str, Any]) -> bool:
    """Return whether a JSON object reports an error, in either of the forms that engines use."""
    return bool(body.get("error")) or body.get("object") == "error"


def error_message(body: Mapping[str, Any]) -> str:
    """Return the server's own words, wherever the engines put them."""
    error = body.get("error", body)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or body.get("detail") or error
    return one_line(str(error))


def refusal(body: bytes | bytearray) -> str:
    """Return the message of an answer with an error status; empty when it has none."""
    try:
        answer = parsed(body)
    except ValueError:
        return one_line(body[:MAX_KEPT].decode("utf-8", "replace"))
    return error_message(answer) if isinstance(answer, dict) else one_line(str(answer))


def why_refused(status: int, body: bytes | bytearray, location: str = "") -> str:
    """Return the server's reason for an error status, or at least what the status means."""
    if location and 300 <= status < 400:
        return f"redirects to {location}"
    phrase = HTTPStatus(status).phrase if status in _STATUSES else "without a word of why"
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
    """Return the beginning of something that was not understood, in quotes."""
    return f"'{one_line(data[:MAX_KEPT].decode('utf-8', 'backslashreplace'))}'"


def one_line(text: str) -> str:
    """Return text on one line, without anything that a terminal would obey or could not show."""
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
