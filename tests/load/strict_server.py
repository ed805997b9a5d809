"""Servers that refuse what they do not know; handlers for `tests.load.server.Server`.

``transformers`` answers as ``transformers serve`` 5.23.0 does, ``fastapi`` as a server whose
request is a pydantic model that forbids further fields, ``openai`` as OpenAI's own interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.load.server import END, STREAM_HEAD, Call, Handler, event, usage_event

KNOWN = {"model", "prompt", "messages", "max_tokens", "stream", "stream_options", "temperature"}


def transformers(unknown: list[str]) -> tuple[int, Any]:
    return 422, {"detail": f"Unexpected fields in the request: {set(unknown)}"}


def fastapi(unknown: list[str]) -> tuple[int, Any]:
    message = "Extra inputs are not permitted"
    return 422, {
        "detail": [
            {"type": "extra_forbidden", "loc": ["body", name], "msg": message, "input": True}
            for name in unknown
        ]
    }


def openai(unknown: list[str]) -> tuple[int, Any]:
    message = f"Unrecognized request argument supplied: {unknown[0]}"
    return 400, {"error": {"message": message, "type": "invalid_request_error"}}


REFUSALS: dict[str, Callable[[list[str]], tuple[int, Any]]] = {
    "transformers": transformers,
    "fastapi": fastapi,
    "openai": openai,
}


def strict(kind: str, listing: int = 200, known: set[str] = KNOWN) -> Handler:
    """A server that refuses further fields in the words of that kind, and token ids; its answers
    end after three tokens at most, and its streams without ``[DONE]``."""

    async def handle(call: Call) -> None:
        if call.path == "/v1/models":
            await call.answer(listing, {"object": "list", "data": []})
        elif not call.path.endswith("completions"):
            await call.answer(404, {"detail": "Not Found"})
        elif unknown := [name for name in call.body if name not in known]:
            await call.answer(*REFUSALS[kind](unknown))
        elif not isinstance(call.body["prompt"], str):
            await call.answer(400, {"detail": "prompt must be a string."})
        else:
            await complete(call)

    return handle


async def complete(call: Call) -> None:
    read, written = len(call.body["prompt"].split()), min(call.body["max_tokens"], 3)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    if not call.body.get("stream"):
        await call.answer(200, {"choices": [{"text": "a"}], "usage": usage})
        return
    await call.write(STREAM_HEAD)
    await call.stream(*[event()] * written, usage_event(read, written))
    await call.write(END)
