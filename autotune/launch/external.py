"""A server that somebody else runs: it is asked, loaded, and left alone."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from autotune.errors import BadInput, UnknownName
from autotune.launch import Patience, StopReport
from autotune.launch.readiness import PATHS, Readiness, Watched, served_models
from autotune.space.schema import EngineCard
from autotune.trial import EMULATOR_NAME, Command, Failure, FailureKind

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class ExternalLauncher:
    """Finds the server at a URL.

    Attributes:
        url: as the user gave it; a scheme is added, a trailing ``/v1`` taken away.
        model: the name that must be served; None: the first that is.
    """

    url: str
    model: str | None = None

    def launch(
        self, command: Command | None = None, folder: Path | None = None, card: EngineCard | None = None
    ) -> ExternalServer:
        """Check that the URL answers and serves the model; raises `BadInput` otherwise. Starts nothing."""
        del command, folder, card
        url = normalised(self.url)
        answer = _ask_models(url)
        served = served_models(answer.json())
        if self.model is not None and self.model not in served:
            raise UnknownName(f"model at {url}:", self.model, served)
        emulated = answer.headers.get("server") == EMULATOR_NAME
        return ExternalServer(url, self.model or served[0], emulated, _owner(answer.json()))


class ExternalServer:
    """A server of which only the URL is known; see `Server`. `stop` leaves it running.

    Attributes:
        emulated: whether it says of itself that it stands in for an engine.
        owner: the engine, as its model list names it (``owned_by``); empty where it does not.
    """

    def __init__(self, url: str, model: str, emulated: bool = False, owner: str = "") -> None:
        self._url, self._model = url, model
        self.emulated, self.owner = emulated, owner

    @property
    def url(self) -> str:
        return self._url

    @property
    def model(self) -> str:
        return self._model

    @property
    def pids(self) -> tuple[int, ...]:
        return ()

    @property
    def log(self) -> None:
        return None

    def wait_ready(self, patience: Patience = Patience(total_s=120.0, silence_s=120.0)) -> Failure | None:  # noqa: B008
        """See `Server.wait_ready`; without a log there is no progress to see, so the shorter patience counts."""
        nothing_wrong = _Unknown()
        # A gateway may have no health check, but it has served its models a moment ago.
        watched = Watched(self._url, PATHS[0], nothing_wrong, lambda: 0, time.sleep, listening=nothing_wrong)
        patience = Patience(min(patience.total_s, patience.silence_s), math.inf)
        with httpx.Client(base_url=self._url) as client:
            return Readiness(client, watched, patience).wait(self._model)

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Whether it still answers; one request."""
        try:
            httpx.get(f"{self._url}/v1/models", timeout=max(_ANSWER_S, within_s))
        except httpx.TransportError as error:
            message = f"{self._url} does not answer any more ({_reason(error)})."
            return Failure(FailureKind.INFRASTRUCTURE, message)
        return None

    def stop(self) -> StopReport:
        """Nothing is stopped that was not started."""
        return StopReport()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Unknown:
    """Of somebody else's server nothing more is known than what it answers."""

    def __call__(self) -> None:
        return None


def normalised(url: str) -> str:
    """``host:8000/v1/`` as ``http://host:8000``; raises `BadInput` on what is no URL of a server."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or any(character.isspace() for character in text):
        raise BadInput(f"not the URL of a server: {url!r}; write e.g. http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _owner(document: Any) -> str:
    try:
        return str(document["data"][0]["owned_by"])
    except (LookupError, TypeError):
        return ""


def _ask_models(url: str) -> httpx.Response:
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=_ANSWER_S)
    except httpx.TransportError as error:
        raise BadInput(f"nothing answers at {url} ({_reason(error)}); start the server, or correct the URL") from error
    if answer.status_code in (401, 403):
        raise BadInput(f"{url} wants an API key (HTTP {answer.status_code} for /v1/models)")
    try:
        served = served_models(answer.raise_for_status().json())
    except (httpx.HTTPStatusError, LookupError, ValueError) as error:
        problem = f"HTTP {answer.status_code} for /v1/models"
        raise BadInput(f"{url} answers, but not as an OpenAI-compatible server ({problem}); correct the URL") from error
    if not served:
        raise BadInput(f"{url} serves no model (its /v1/models is empty)")
    return answer


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
