"""Single calls to a server: its availability, its models, its metrics, its prefix cache, its
tokenizer.

httpx, which is right for single calls and too slow for a measured stream.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx

from autotune.base import BadInput, Json, UnknownName
from autotune.base.evidence import EMULATOR_NAME

from .client.stream import refusal, whole_answer
from .client.target import Target
from .prompts import NOTHING_REFUSED, Prompts, Refused
from .tokenizers import Approximate, FileTokenizer, Tokenizer

_Client = TypeVar("_Client", httpx.Client, httpx.AsyncClient)
_TOKENIZE_S = 60.0
_PROBE_TEXT = "The quick brown fox"
_COMPLETIONS = "/v1/completions"
_JSON = {"Content-Type": "application/json"}
_PAUSE_S = 0.1  # Seconds between two requests to a busy server


class ResetOutcome(Enum):
    """Result of a request to empty the prefix cache of a server."""

    DONE = "done"
    NOT_OFFERED = "not offered"
    """The server has no such endpoint, or did not enable it at start."""
    NOT_ALLOWED = "not allowed"
    REFUSED = "refused"
    """Requests still hold parts of the cache."""
    FAILED = "failed"
    NO_ANSWER = "no answer"
    UNKNOWN = "unknown"
    """One of several servers behind this address was emptied."""


_STATUSES = {
    **dict.fromkeys((404, 405), ResetOutcome.NOT_OFFERED),
    **dict.fromkeys((401, 403), ResetOutcome.NOT_ALLOWED),
    **dict.fromkeys((200, 400, 409), ResetOutcome.REFUSED),
}
"""Meaning of the status of an answer that does not empty the cache; other statuses are failures."""


class CacheReset(NamedTuple):
    """Answer to a request to empty the prefix cache: true if the server reports it empty, else the
    reason."""

    outcome: ResetOutcome
    reason: str = ""

    def __bool__(self) -> bool:
        return self.outcome is ResetOutcome.DONE


class ServerClient:
    """HTTP client of one load's servers, a context manager: queries the first; counts and caches
    cover all."""

    def __init__(self, target: Target, timeout_s: float = 30.0) -> None:
        self._target = target
        self._all = [http_client(httpx.Client, address, timeout_s) for address in target]
        self._http = self._all[0]

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        for http in self._all:
            http.close()

    @cached_property
    def _listing(self) -> httpx.Response:
        """The server's list of its models, requested once; raises `BadInput` if nothing listens."""
        try:
            answer = self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise BadInput(
                f"nothing answers at {self._target.url}/v1/models ({error}); is the server running?"
            ) from error
        if answer.status_code in (401, 403):
            wants = "refuses this API key" if self._target.api_key else "wants an API key"
            status = f"HTTP {answer.status_code}"
            raise BadInput(
                f"{self._target.url} {wants} ({status}); give it with --api-key-env NAME"
            )
        return answer

    def model(self, asked: str) -> str:
        """Return the model in the server's list; the only one of the list for "".

        Raises `BadInput`: nothing listens, an API key is wanted, or none is asked for and the
        server does not serve one; `UnknownName`: the server lists its models and this is none of
        them.
        """
        served = served_models(self._listing)
        if not asked:
            if served is None or len(served) != 1:
                names = f"serves {', '.join(served)}" if served else "does not report its models"
                raise BadInput(f"{self._target.url} {names}: name the model with --model")
            return served[0]
        # A list may be empty although a model is served (transformers serve).
        if served and asked not in served:
            raise UnknownName(
                "model", asked, served, f"These are the models that {self._target.url} serves."
            )
        return asked

    def served_as(self, names: Sequence[str]) -> tuple[str, str]:
        """Return the name under which the model of these names is served, and its root; the only
        one of the list else.

        Adapters (``parent``) and further names of one model (``root``) are no other models.

        Raises `BadInput` where nothing listens, or no models are listed and the first name is not
        answered; `UnknownName` for several other models.
        """
        listed = served_models(self._listing)
        # The list of `transformers serve` is empty, or fails, although it serves a model.
        if not listed and self.asked(names[0])[0]:
            return names[0], names[0]
        if not listed:
            raise BadInput(
                f"{self._target.url} answers, but /v1/models lists no models; correct the URL"
            )
        rows = self._listing.json()["data"]
        roots = {
            str(row["id"]): str(row.get("root") or row["id"])
            for row in rows
            if not row.get("parent")
        }
        own = next((name for name in names if name in listed), None)
        if own is None and len(set(roots.values())) == 1:
            own = next(iter(roots))
        if own is None:
            way = f"--model NAME --model-id {names[0]} names the one to measure."
            hint = f"These are the models that {self._target.url} serves; {way}"
            raise UnknownName("model", names[0], listed, hint)
        return own, roots.get(own, own)

    def asked(self, model: str) -> tuple[bool, Refused]:
        """Ask for one token as a load does; return whether it came, and what of the request the
        server refuses."""
        refused = NOTHING_REFUSED
        question = [{"role": "user", "content": "Hello"}]
        with suppress(httpx.HTTPError):
            while True:
                body = Prompts(model, streaming=False, refused=refused).history_body(
                    question, (), 1
                )
                answer = self._http.post(_COMPLETIONS, content=body, headers=_JSON)
                words = refusal(answer.content) if answer.is_client_error else ""
                if (more := refused.with_refusal(words)) == refused:
                    return answer.is_success and whole_answer(answer.content)[0].ok, refused
                refused = more
        return False, refused

    def emulated(self) -> bool:
        """Return whether the server declares itself emulated."""
        return bool(self._listing.headers.get("server") == EMULATOR_NAME)

    def owner(self) -> str:
        """Return the owner of the first model of the list, which engines set to their name; empty
        for none."""
        with suppress(ValueError, LookupError, TypeError):
            return str(self._listing.json()["data"][0]["owned_by"])
        return ""

    def metrics_text(self, path: str = "/metrics") -> str | None:
        """Return the servers' metrics in Prometheus text, one page after the other; None if one has
        none."""
        with suppress(httpx.HTTPError):
            answers = [http.get(path) for http in self._all]
            if all(answer.is_success for answer in answers):
                return "\n".join(answer.text for answer in answers)
        return None

    def reset_cache(self, path: str, patience_s: float = 5.0) -> CacheReset:
        """Empty the prefix cache of each server with a POST; the first failure is reported.

        Engines refuse while requests run, also for a moment after the last answer: they are asked
        again for `patience_s`. Some versions report success although they refused (vLLM 0.13,
        SGLang 0.4.3), so only the hit rate of the next load is proof.
        """
        resets = (self._reset(http, path, patience_s) for http in self._all)
        return next((reset for reset in resets if not reset), CacheReset(ResetOutcome.DONE))

    def _reset(self, http: httpx.Client, path: str, patience_s: float) -> CacheReset:
        until_ns = time.perf_counter_ns() + int(patience_s * 1e9)
        while True:
            try:
                answer = http.post(path)
            except httpx.HTTPError as error:
                return CacheReset(ResetOutcome.NO_ANSWER, f"POST {path}: no answer: {error}")
            document: Any = None
            with suppress(ValueError):
                document = answer.json()
            # vLLM 0.32 reports a failure with status 200.
            denied = isinstance(document, dict) and document.get("success") is False
            if answer.is_success and not denied:
                return CacheReset(ResetOutcome.DONE)
            outcome = _STATUSES.get(answer.status_code, ResetOutcome.FAILED)
            again = outcome in (ResetOutcome.REFUSED, ResetOutcome.FAILED)
            if not again or time.perf_counter_ns() >= until_ns:
                break
            time.sleep(_PAUSE_S)
        # Do not repeat SGLang's message, which is the same for a refusal as for a success.
        message = "refused, as always while requests run"
        if outcome is not ResetOutcome.REFUSED:
            message = self._target.redacted(refusal(answer.content))
        return CacheReset(outcome, f"POST {path}: HTTP {answer.status_code}: {message}")

    def get_json(self, path: str) -> Any:
        """Return any JSON document of the server, such as its resolved arguments; None for none."""
        with suppress(httpx.HTTPError, ValueError, RecursionError):
            answer = self._http.get(path)
            return answer.json() if answer.is_success else None
        return None


@dataclass(eq=False)
class ServerTokenizer:
    """The model's own tokenizer behind the server's ``/tokenize``, one call per text.

    vLLM and SGLang take ``prompt``, llama-server ``content``; all answer with ``tokens``.
    TensorRT-LLM has no such endpoint.
    """

    target: Target
    body: Json
    key: str
    vocabulary: int | None
    exact = True
    words = ()

    def __post_init__(self) -> None:
        self._http = http_client(httpx.Client, self.target, _TOKENIZE_S)
        weakref.finalize(self, self._http.close)

    def __reduce__(self) -> tuple[type[ServerTokenizer], tuple[Any, ...]]:
        """Pickle for a worker process, which opens its own connections."""
        return ServerTokenizer, (replace(self.target), self.body, self.key, self.vocabulary)

    @classmethod
    def find(cls, target: Target, model: str) -> ServerTokenizer | None:
        """Find the server's ``/tokenize``; None if it does not answer with tokens."""
        forms = (
            ({"model": model, "add_special_tokens": False}, "prompt"),
            ({"add_special": False}, "content"),
        )
        with http_client(httpx.Client, target, _TOKENIZE_S) as http:
            for body, key in forms:
                try:
                    count = _tokens(http.post("/tokenize", json={**body, key: _PROBE_TEXT}))
                except httpx.HTTPError:
                    return None
                if count:
                    return cls(target, body, key, _vocabulary(http, model))
        return None

    def count(self, text: str) -> int:
        """Return the number of tokens; raises `BadInput` when the server stops answering."""
        if not text:
            return 0
        try:
            answer = self._http.post("/tokenize", json={**self.body, self.key: text})
        except httpx.HTTPError as error:
            raise self._lost(str(error)) from error
        count = _tokens(answer)
        if count is None:
            message = self.target.redacted(answer.text[:200])
            raise self._lost(f"HTTP {answer.status_code}: {message}")
        return count

    def describe(self) -> str:
        return "the server's /tokenize"

    def _lost(self, why: str) -> BadInput:
        return BadInput(
            f"{self.target.url}/tokenize no longer counts tokens ({why}); give the model's --tokenizer"
        )


def tokenizer_for(path: Path | None, target: Target, model: str) -> Tokenizer:
    """Return a file's tokenizer, else the server's ``/tokenize``, else an approximation; raises
    `BadInput`."""
    if path is not None:
        return FileTokenizer.load(path)
    return ServerTokenizer.find(target, model) or Approximate()


def http_client(kind: Callable[..., _Client], target: Target, timeout_s: float) -> _Client:
    """Make an httpx client for calls to a server, each with this timeout."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    # Servers close idle connections after 5 s: give them up earlier, so that none closes during a
    # call.
    limits = httpx.Limits(keepalive_expiry=2.0)
    # Without proxies of the environment, as in the measured path.
    return kind(
        base_url=target.url, headers=headers, timeout=timeout_s, limits=limits, trust_env=False
    )


def served_models(answer: httpx.Response) -> list[str] | None:
    """Return the model names of a ``/v1/models`` answer; None for another answer."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        if answer.is_success:
            return [str(row["id"]) for row in answer.json()["data"]]
    return None


def _tokens(answer: httpx.Response) -> int | None:
    """Count the tokens of an answer of ``/tokenize``; None for another answer."""
    with suppress(ValueError, KeyError, TypeError):
        tokens = answer.json()["tokens"]
        if answer.is_success and isinstance(tokens, list):
            return len(tokens)
    return None


def _vocabulary(http: httpx.Client, model: str) -> int | None:
    """Return the vocabulary size, which only llama-server reports in its list of models."""
    with suppress(httpx.HTTPError, ValueError, LookupError, TypeError):
        listed = http.get("/v1/models").json()["data"]
        named = [row for row in listed if row["id"] == model] or listed[:1]
        size = named[0]["meta"]["n_vocab"]
        if type(size) is int and size > 0:
            return size
    return None
