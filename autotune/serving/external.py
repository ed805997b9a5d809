"""A server that somebody else runs: it is asked, loaded, and left alone."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

import httpx

from autotune.errors import BadInput, UnknownName
from autotune.serving import StartupTimeouts, StopReport
from autotune.serving.server import PATHS, Server, authorization, served_models
from autotune.trial import EMULATOR_NAME, Failure, FailureKind

_ANSWER_S = 10.0


def connect(url: str, model: str | None = None, api_key: str | None = None) -> ExternalServer:
    """Check that a server answers at a URL and serves the model; starts nothing.

    Args:
        url: as the user gave it; a scheme is added, a trailing ``/v1`` taken away.
        model: the name that must be served; None: the first that is.
        api_key: sent as a bearer token.

    Raises:
        BadInput: the URL does not answer, or does not serve the model.
    """
    url = normalised(url)
    answer, served = _ask_models(url, api_key)
    if model is not None and model not in served:
        raise UnknownName(f"model at {url}:", model, served)
    server = ExternalServer(url, model or served[0], api_key)
    server.emulated = answer.headers.get("server") == EMULATOR_NAME
    server.owner = str(answer.json()["data"][0].get("owned_by", ""))
    return server


class ExternalServer(Server):
    """A server of which only the URL is known. `stop` leaves it running.

    Attributes:
        owner: the engine, as its model list names it (``owned_by``); empty where it does not.
    """

    owner: str = ""
    # A gateway may have no health check, but it has served its models a moment ago.
    health = PATHS[0]

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        self.url, self.model, self.api_key, self.title = url, model, api_key, url
        self.secrets = frozenset() if api_key is None else frozenset({api_key})

    def wait_ready(self, timeouts: StartupTimeouts = StartupTimeouts(120.0, 120.0)) -> Failure | None:  # noqa: B008
        """See `Server.wait_ready`; without a log there is no progress to see, so the shorter timeout counts."""
        return super().wait_ready(StartupTimeouts(min(timeouts.total_s, timeouts.silence_s), math.inf))

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Send one request; a failure when it is not answered."""
        try:
            headers = authorization(self.api_key)
            httpx.get(f"{self.url}/v1/models", headers=headers, timeout=max(_ANSWER_S, within_s))
        except httpx.TransportError as error:
            message = f"{self.url} does not answer any more ({_reason(error)})."
            return Failure(FailureKind.INFRASTRUCTURE, message)
        return None

    def stop(self) -> StopReport:
        """Leave the server running."""
        return StopReport()


def normalised(url: str) -> str:
    """Normalise a server's URL, ``host:8000/v1/`` to ``http://host:8000``; raises `BadInput` on another text."""
    text = url if "://" in url else f"http://{url}"
    if "@" in text.partition("://")[2].partition("/")[0]:
        # Not repeated in the message: it holds a password.
        raise BadInput(
            "the URL of the server holds a user name or password, which would be kept in the study's files; leave it "
            "out, and name where an API key is with --api-key-env NAME or --api-key-file FILE"
        )
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or any(character.isspace() for character in text):
        raise BadInput(f"not the URL of a server: {url!r}; write e.g. http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _ask_models(url: str, api_key: str | None) -> tuple[httpx.Response, list[str]]:
    try:
        answer = httpx.get(f"{url}/v1/models", headers=authorization(api_key), timeout=_ANSWER_S)
    except httpx.TransportError as error:
        raise BadInput(f"nothing answers at {url} ({_reason(error)}); start the server, or correct the URL") from error
    if answer.status_code in (401, 403):
        wants = "wants an API key" if api_key is None else "does not take this API key"
        right = "name where it is with --api-key-env NAME or --api-key-file FILE"
        raise BadInput(f"{url} {wants} (HTTP {answer.status_code} for /v1/models); {right}")
    try:
        served = served_models(answer.raise_for_status().json())
    except (httpx.HTTPStatusError, LookupError, ValueError) as error:
        problem = f"HTTP {answer.status_code} for /v1/models"
        raise BadInput(f"{url} answers, but not as an OpenAI-compatible server ({problem}); correct the URL") from error
    if not served:
        raise BadInput(f"{url} serves no model (its /v1/models is empty)")
    return answer, served


def _reason(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
