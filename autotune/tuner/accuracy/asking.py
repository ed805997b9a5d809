"""Greedy requests to a warm server, alone or concurrent, and the contents of their answers.

Token for token where the engine gives log-probabilities, in the form of completions (vLLM, SGLang,
TensorRT-LLM) or in that of chats (llama-server); else the words of the text stand for its tokens.
No time is measured here, so that the client for single calls serves.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import httpx

from autotune.base import AutotuneError, FloatDict, FloatMap, JsonObject, silent
from autotune.load.client.target import Target
from autotune.load.server_client import http_client

AT_ONCE = 128
"""Requests in flight for answers under load."""
TOP = 3
"""Requested alternatives to each token, with log-probabilities."""
_ANSWER_S = 900.0  # For one answer: the server is warm, but it may wait behind others
_WORD = re.compile(r"\s*\S+")
_TOO_LONG = (400, 413, 422)  # Statuses by which engines answer a prompt that they cannot take


class NoAnswers(AutotuneError):
    """The server did not answer; the message gives the reason."""

    exit_code = 4


class Token(NamedTuple):
    """One generated token, with log-probabilities, its own and the likeliest by text; None if not
    available."""

    text: str
    logprob: float | None = None
    others: FloatMap | None = None


class Answer(NamedTuple):
    """The answer to one request."""

    text: str
    tokens: tuple[Token, ...]


def ask(
    target: Target,
    model: str,
    bodies: Sequence[JsonObject],
    at_once: int,
    *,
    logprobs: bool = False,
    answered: Callable[[], None] = silent,
) -> list[Answer | None]:
    """Return the answers to some requests, in order; None for a prompt that the server cannot take.

    Bodies have ``prompt`` or ``messages``; greedy decoding is added. `answered` is called after
    each answer, by the thread that asked for it. Raises `NoAnswers`: a request failed otherwise.
    """

    async def answers() -> list[Answer | None]:
        room = asyncio.Semaphore(at_once)
        async with http_client(httpx.AsyncClient, target, _ANSWER_S) as client:

            async def answer(body: JsonObject) -> Answer | None:
                async with room:
                    reply = await _answer(client, target, model, body, logprobs)
                answered()
                return reply

            return await asyncio.gather(*map(answer, bodies))

    # Threads would hold a Ctrl-C until the last answer has come.
    return asyncio.run(answers())


def gives_logprobs(target: Target, model: str) -> bool:
    """Return whether a server gives log-probabilities of what it generates."""
    body = {"prompt": "One, two, three,", "max_tokens": 2}
    try:
        (answer,) = ask(target, model, [body], 1, logprobs=True)
    except NoAnswers:
        return False
    return answer is not None and any(token.logprob is not None for token in answer.tokens[:1])


async def _answer(
    client: httpx.AsyncClient, target: Target, model: str, body: JsonObject, logprobs: bool
) -> Answer | None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    whole = {"model": model, "temperature": 0.0, **({"logprobs": TOP} if logprobs else {}), **body}
    status, document = await _post(client, path, whole)
    refuses_logprobs = logprobs and status == 400 and "logprob" in str(document).lower()
    if status in _TOO_LONG and not refuses_logprobs:
        return None
    if status != 200:
        reason = f"HTTP {status}: " if status else ""
        raise NoAnswers(f"POST {path}: {reason}{target.redacted(str(document))}")
    try:
        choice = document["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        tokens = tuple(_tokens(choice.get("logprobs"))) if logprobs else ()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise NoAnswers(
            f"POST {path}: the answer is no completion: {target.redacted(str(document))}"
        ) from None
    text = text if isinstance(text, str) else ""
    return Answer(text, tokens or words(text))


async def _post(client: httpx.AsyncClient, path: str, body: JsonObject) -> tuple[int, Any]:
    """Return status and document of an answer; 0 and the reason in words without an answer.

    What broke off is sent once more: some servers close kept-alive connections while a call goes
    out on them.
    """
    for last in (False, True):
        try:
            answer = await client.post(path, json=body)
            break
        except httpx.TransportError as error:
            if last or isinstance(error, httpx.TimeoutException):
                return 0, f"no answer: {error or type(error).__name__}"
    try:
        return answer.status_code, answer.json()
    except (ValueError, RecursionError):
        return answer.status_code, answer.text


def words(text: str) -> tuple[Token, ...]:
    """Split a text into words, which replace tokens that the engine does not report."""
    return tuple(map(Token, _WORD.findall(text)))


def _tokens(logprobs: Any) -> list[Token]:
    """Return the tokens of a choice's ``logprobs`` in either form; none without them."""
    if not logprobs:
        return []
    if "content" in logprobs:
        rows = logprobs["content"] or []
        return [Token(r["token"], _log(r["logprob"]), _named(r.get("top_logprobs"))) for r in rows]
    top = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    rows = zip(logprobs["tokens"], logprobs["token_logprobs"], top, strict=True)
    return [Token(token, _log(own), _named(others)) for token, own, others in rows]


def _log(value: Any) -> float | None:
    return None if value is None else float(value)


def _named(top: Any) -> FloatDict | None:
    """Return alternatives as a mapping, the form of completions; chats have a list of objects."""
    if isinstance(top, list):
        top = {row["token"]: row["logprob"] for row in top}
    if not top:
        return None
    return {str(token): float(value) for token, value in top.items() if value is not None}
