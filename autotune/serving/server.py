"""A server, and waiting for it by its progress: health check, served model, one generated token."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx

from autotune.serving import StartupTimeouts, StopReport
from autotune.serving.secrets import masked
from autotune.trial import Failure, FailureKind

_POLL_S = (0.05, 0.5)
"""First and longest pause between two looks; it grows, as most starts take minutes."""
_ANSWER_S = 5.0
_MOST_BROKEN = 10
"""So many answers in a row with a server error are no start any more."""
PATHS = ("/v1/models", "/v1/completions")
"""What is asked for besides the health check."""
_LATER = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY, httpx.codes.TOO_MANY_REQUESTS)


class Server(ABC):
    """One launched server. Leaving its ``with`` block stops it.

    Attributes:
        url: where it serves, without a trailing slash and without ``/v1``.
        model: the name under which the model is served; empty until `wait_ready` succeeded.
        title: the engine's, for messages.
        health: path of the health check.
        api_key: the bearer token that it wants of its clients; None when it wants none.
        secrets: values that it was given and may repeat, to be masked in whatever it prints.
        emulated: whether a server that we did not start says that it stands in for an engine.
        log: the file of what it prints; None when that is not ours to read.
        log_offset: bytes that the log held before this launch.
        generated: whether it has generated a token.
        served: whether it has been found ready.
    """

    url: str
    title: str
    health: str
    model: str = ""
    api_key: str | None = None
    secrets: frozenset[str] = frozenset()
    emulated: bool = False
    log: Path | None = None
    log_offset: int = 0
    _use_proxy = True
    generated = False
    served = False
    _broken_answers = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the server; after its end those seen last. Empty for a server that somebody else runs."""
        return ()

    def wait_ready(self, timeouts: StartupTimeouts = StartupTimeouts()) -> Failure | None:  # noqa: B008
        """Wait until the server answers its health check and has generated a token; None when it has."""
        return wait_all([self], timeouts)

    def client(self) -> httpx.Client:
        """Make a client of this server."""
        return httpx.Client(base_url=self.url, headers=authorization(self.api_key), trust_env=self._use_proxy)

    def look(self, client: httpx.Client, clock: Clock) -> Failure | None:
        """Look whether it is ready, which `generated` then tells; why it never will be."""
        problem = "" if self.generated else clock.problem(self.progress())
        failure = self.ended() or (self._timeout(f"{self.title} {problem}.") if problem else None)
        if failure is None and not self.generated and self._is_healthy(client, clock.left_s()):
            failure = self._port_conflict() or self._generate(client, clock.left_s())
        return failure

    @abstractmethod
    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Explain why the server died; None while it lives. Cheap: may be called between requests.

        Args:
            within_s: how long to wait for its end, for a caller whose requests have just been cut off.
        """

    @abstractmethod
    def stop(self) -> StopReport:
        """End the server and prove that nothing is left; a second call returns the same report."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ended(self) -> Failure | None:
        """Explain why it has ended; None while it lives, as far as that can be seen."""
        return None

    def progress(self) -> int:
        """A number that grows while it gets on, e.g. the bytes of its log."""
        return 0

    def pause(self, seconds: float) -> None:
        """Wait up to so many seconds, or until something happened to it."""
        time.sleep(seconds)

    def _port_conflict(self) -> Failure | None:
        """Explain what is wrong with whoever answers on its port; None when it is the server itself."""
        return None

    def _timeout(self, message: str) -> Failure:
        return Failure(FailureKind.TIMEOUT, message)

    def _is_healthy(self, client: httpx.Client, left_s: float) -> bool:
        try:
            return client.get(self.health, timeout=min(_ANSWER_S, left_s)).is_success
        except httpx.TransportError:
            return False

    def _generate(self, client: httpx.Client, left_s: float) -> Failure | None:
        """Ask for one token, with which it serves; a failure when it refuses and that will not change."""
        try:
            model = self.model
            if not model:
                models = client.get("/v1/models", timeout=min(_ANSWER_S, left_s))
                model = served_models(models.json())[0]
            body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
            answer = client.post("/v1/completions", json=body, timeout=left_s)
        except (httpx.TransportError, LookupError, ValueError):
            return None
        if answer.is_success and _tokens(answer) > 0:
            self.model, self.generated = model, True
        broken = answer.is_server_error and answer.status_code != httpx.codes.SERVICE_UNAVAILABLE
        self._broken_answers = self._broken_answers + 1 if broken else 0
        refused = answer.is_client_error and answer.status_code not in _LATER
        if not refused and self._broken_answers < _MOST_BROKEN:
            return None
        reason = " ".join(answer.text.split())[:300]
        message = f"{self.title} is up but refuses a request for one token: HTTP {answer.status_code} {reason}"
        return Failure(FailureKind.LOAD_ERRORS, message, reason)


class Clock:
    """Tells when a start has taken too long, or has made no progress for too long."""

    def __init__(self, timeouts: StartupTimeouts, progress: int) -> None:
        self._timeouts, self._seen = timeouts, progress
        self._began = self._last_progress = time.monotonic()

    def problem(self, progress: int) -> str:
        """Describe what took too long, behind the server's title; empty when nothing did."""
        now = time.monotonic()
        if progress != self._seen:
            self._seen, self._last_progress = progress, now
        if now - self._began > self._timeouts.total_s:
            return f"was not ready after {self._timeouts.total_s:g} s"
        if now - self._last_progress > self._timeouts.silence_s:
            return f"printed nothing for {self._timeouts.silence_s:g} s and was not ready"
        return ""

    def left_s(self) -> float:
        """How long an answer may take, at least a moment."""
        total, silence = self._began + self._timeouts.total_s, self._last_progress + self._timeouts.silence_s
        return max(0.1, min(total, silence) - time.monotonic())


def wait_all(servers: Sequence[Server], timeouts: StartupTimeouts) -> Failure | None:
    """Wait until all servers are ready, side by side; None when they are, else why the first of them never will be."""
    pause_s = _POLL_S[0]
    with ExitStack() as stack:
        starting = [(one, stack.enter_context(one.client()), Clock(timeouts, one.progress())) for one in servers]
        while True:
            failed = [(one, why) for one, client, clock in starting if (why := one.look(client, clock))]
            waiting = [one for one in servers if not one.generated]
            if failed or not waiting:
                break
            waiting[0].pause(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])
    # A first process that ended while its children answered is no server that can be relied on.
    failed = failed or [(one, why) for one in servers if (why := one.ended())]
    for one in servers:
        one.served = not failed
    return masked(failed[0][1], failed[0][0].secrets) if failed else None


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
