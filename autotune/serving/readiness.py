"""Waiting for a server by its progress: health check, served model, one generated token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from autotune.serving import StartupTimeouts
from autotune.trial import Failure, FailureKind

_POLL_S = (0.05, 0.5)
"""First and longest pause between two looks; it grows, as most starts take minutes."""
_ANSWER_S = 5.0
_BREAKDOWNS = 10
"""So many answers in a row with a server error are no start any more."""
PATHS = ("/v1/models", "/v1/completions")
"""What is asked for besides the health check."""
_LATER = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY, httpx.codes.TOO_MANY_REQUESTS)


@dataclass(frozen=True, slots=True)
class StartupProbe:
    """What a launcher knows of a server that is starting.

    Attributes:
        title: the engine's, for messages.
        health: path of the health check.
        died: why it has ended; None while it lives.
        progress: a number that grows while it gets on, e.g. the bytes of its log.
        pause: waits up to so many seconds, or until something happened to it.
        port_conflict: what is wrong with whoever answers on its port; None when it is the server itself.
    """

    title: str
    health: str
    died: Callable[[], Failure | None]
    progress: Callable[[], int]
    pause: Callable[[float], None]
    port_conflict: Callable[[], Failure | None]


class Readiness:
    """Waits once for one server; `model` holds the served name afterwards."""

    def __init__(self, client: httpx.Client, probe: StartupProbe, timeouts: StartupTimeouts) -> None:
        self._client, self._probe, self._timeouts = client, probe, timeouts
        self._began = self._last_progress = time.monotonic()
        self._seen = probe.progress()
        self._breakdowns = 0
        self._refusal: Failure | None = None
        self.model = ""

    def wait(self, model: str = "") -> Failure | None:
        """Wait; None once a token has been generated, else why the start failed.

        Args:
            model: the name to ask for; empty = the first that is served.
        """
        pause_s = _POLL_S[0]
        while True:
            failure = self._probe.died() or self._timed_out()
            if failure is not None:
                return failure
            if self._is_healthy():
                failure = self._probe.port_conflict()
                if failure is not None or self._has_generated(model):
                    # A first process that ended while its children answered is no server that can be relied on.
                    return failure or self._refusal or self._probe.died()
            self._probe.pause(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])

    def _timed_out(self) -> Failure | None:
        now, progress = time.monotonic(), self._probe.progress()
        if progress != self._seen:
            self._seen, self._last_progress = progress, now
        title = self._probe.title
        if now - self._began > self._timeouts.total_s:
            return Failure(FailureKind.TIMEOUT, f"{title} was not ready after {self._timeouts.total_s:g} s.")
        if now - self._last_progress > self._timeouts.silence_s:
            silence = f"{title} printed nothing for {self._timeouts.silence_s:g} s and was not ready."
            return Failure(FailureKind.TIMEOUT, silence)
        return None

    def _left_s(self) -> float:
        now = time.monotonic()
        total = self._began + self._timeouts.total_s - now
        return max(0.1, min(total, self._last_progress + self._timeouts.silence_s - now))

    def _is_healthy(self) -> bool:
        try:
            answer = self._client.get(self._probe.health, timeout=min(_ANSWER_S, self._left_s()))
        except httpx.TransportError:
            return False
        return answer.is_success

    def _has_generated(self, model: str) -> bool:
        """Whether one token came; a refusal that will not change counts as an end too."""
        try:
            self.model = model
            if not model:
                models = self._client.get("/v1/models", timeout=min(_ANSWER_S, self._left_s()))
                self.model = served_models(models.json())[0]
            body = {"model": self.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
            answer = self._client.post("/v1/completions", json=body, timeout=self._left_s())
        except (httpx.TransportError, LookupError, ValueError):
            return False
        broken = answer.is_server_error and answer.status_code != httpx.codes.SERVICE_UNAVAILABLE
        self._breakdowns = self._breakdowns + 1 if broken else 0
        refused = answer.is_client_error and answer.status_code not in _LATER
        if refused or self._breakdowns >= _BREAKDOWNS:
            reason = " ".join(answer.text.split())[:300]
            status = f"HTTP {answer.status_code} {reason}"
            message = f"{self._probe.title} is up but refuses a request for one token: {status}"
            self._refusal = Failure(FailureKind.LOAD_ERRORS, message, reason)
            return True
        return answer.is_success and _tokens(answer) > 0


def authorization(api_key: str | None) -> dict[str, str]:
    """Build the ``Authorization`` header of a bearer token; no header without a key."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def served_models(document: Any) -> list[str]:
    """Parse the names in an answer of ``/v1/models``; raises ``LookupError`` or ``ValueError`` on another shape."""
    try:
        return [str(model["id"]) for model in document["data"]]
    except TypeError as error:
        raise ValueError("not a list of models") from error


def _tokens(answer: httpx.Response) -> int:
    """Count the generated tokens: of the usage where it is given (a token's text may be empty), else of the choices."""
    try:
        document = answer.json()
        usage = document.get("usage")
        return int(usage["completion_tokens"]) if usage else len(document["choices"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0
