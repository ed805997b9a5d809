"""Outcomes of requests: a closed list, so that every fault is named and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


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
    """An answer that does not keep to the protocol."""
    return RequestOutcome(OutcomeKind.MALFORMED, message)


def tally(outcomes: Iterable[RequestOutcome]) -> dict[str, int]:
    """How many requests ended in which way, the most frequent first."""
    return dict(Counter(outcome.name for outcome in outcomes).most_common())


def failure_sentence(outcomes: Iterable[RequestOutcome]) -> str:
    """One sentence on the requests that failed, each way with the first message; empty when none failed."""
    listed = list(outcomes)
    counts = tally(outcome for outcome in listed if not outcome.ok)
    if not counts:
        return ""
    first: Mapping[str, str] = {outcome.name: outcome.message for outcome in reversed(listed)}
    parts = [f"{count} {name} ({first[name]})" if first[name] else f"{count} {name}" for name, count in counts.items()]
    return f"{sum(counts.values())} of {len(listed)} requests failed: {'; '.join(parts)}"
