"""The tokenizer of a server, and which tokenizer a load has."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from autotune.errors import BadInput
from autotune.loadgen.client.target import Target
from autotune.loadgen.client.tokenizers import Approximate, FileTokenizer, Tokenizer

_PROBE = "The quick brown fox"


class ServerTokenizer:
    """The model's own tokenizer behind the server's ``/tokenize``, one call per text.

    vLLM and SGLang take ``prompt``, llama-server ``content``; all answer with ``tokens``. TensorRT-LLM has no such
    endpoint.

    Args:
        body: what is sent besides the text.
        key: under which the text is sent.
        vocabulary: how many tokens the model has; None = not known.
    """

    exact = True
    words: Sequence[str] = ()

    def __init__(self, target: Target, body: dict[str, Any], key: str, vocabulary: int | None) -> None:
        self.vocabulary = vocabulary
        self._target, self._body, self._key = target, body, key
        self._http = _client(target)
        weakref.finalize(self, self._http.close)

    def __reduce__(self) -> tuple[type[ServerTokenizer], tuple[Any, ...]]:
        """For a worker process, which makes connections of its own."""
        return ServerTokenizer, (replace(self._target), self._body, self._key, self.vocabulary)

    @classmethod
    def find(cls, target: Target, model: str) -> ServerTokenizer | None:
        """None where the server has no ``/tokenize`` that answers with tokens, or does not answer at all."""
        forms = (({"model": model, "add_special_tokens": False}, "prompt"), ({"add_special": False}, "content"))
        with _client(target) as http:
            for body, key in forms:
                try:
                    found = _tokens(http.post("/tokenize", json={**body, key: _PROBE}))
                except httpx.HTTPError:
                    return None
                if found:
                    return cls(target, body, key, _vocabulary(http, model))
        return None

    def count(self, text: str) -> int:
        """Raises `BadInput` when the server stops answering."""
        if not text:
            return 0
        try:
            answer = self._http.post("/tokenize", json={**self._body, self._key: text})
        except httpx.HTTPError as error:
            raise self._lost(str(error)) from error
        found = _tokens(answer)
        if found is None:
            raise self._lost(f"HTTP {answer.status_code}: {self._target.redacted(answer.text[:200])}")
        return found

    def describe(self) -> str:
        return "the server's /tokenize"

    def _lost(self, why: str) -> BadInput:
        return BadInput(f"{self._target.url}/tokenize no longer counts tokens ({why}); give the model's --tokenizer")


def tokenizer_for(path: Path | None, target: Target, model: str) -> Tokenizer:
    """The file where one is given, else the server's ``/tokenize``, else an approximation, which says so.

    Raises `BadInput` for a file that is no tokenizer.
    """
    if path is not None:
        return FileTokenizer.load(path)
    return ServerTokenizer.find(target, model) or Approximate()


def _client(target: Target) -> httpx.Client:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    # Servers close idle connections after 5 s; given up before, none is closed while a call goes out on it.
    limits = httpx.Limits(keepalive_expiry=2.0)
    return httpx.Client(base_url=target.url, headers=headers, timeout=60.0, limits=limits, trust_env=False)


def _tokens(answer: httpx.Response) -> int | None:
    """How many tokens an answer of ``/tokenize`` holds; None when it is none."""
    try:
        tokens = answer.json()["tokens"] if answer.is_success else None
    except (ValueError, KeyError, TypeError):
        return None
    return len(tokens) if isinstance(tokens, list) else None


def _vocabulary(http: httpx.Client, model: str) -> int | None:
    """llama-server tells it in its list of models; the others do not."""
    try:
        listed = http.get("/v1/models").json()["data"]
        named = [one for one in listed if one["id"] == model] or listed[:1]
        size = named[0]["meta"]["n_vocab"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError):
        return None
    return size if type(size) is int and size > 0 else None
