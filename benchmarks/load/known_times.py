"""A server whose times are known, for clients whose definitions are not: ``python
benchmarks/load/known_times.py --chunks 2 --role 0.1`` listens on loopback, prints its port, and
lives until its standard input is closed.

Its answers go round in four shapes (`SHAPES`), so that a load of four requests, or of a multiple,
has the same statistics wherever it begins. They are chosen to tell definitions apart: the mean over
requests of the time per token is 62.5 ms, that over tokens 70 ms; the median of the first tokens is
650 ms interpolated and 600 ms by the nearest rank.

    POST /v1/completions, /v1/chat/completions   streamed, or whole; ``max_tokens`` is ignored
    POST /generate                               SGLang's own endpoint
    GET  /v1/models, /book, any other            a model named ``m``; text; an empty object
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any, NamedTuple

WORDS = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa")


class Shape(NamedTuple):
    """An answer: seconds to its first chunk, its chunks, and seconds between two of them."""

    first_s: float
    chunks: int
    gap_s: float


SHAPES = (Shape(0.5, 11, 0.05), Shape(0.6, 11, 0.05), Shape(0.7, 11, 0.05), Shape(1.0, 21, 0.1))


class Server:
    """Answers in turn by `SHAPES`.

    Attributes:
        chunk: tokens in each chunk.
        role_s: seconds to a chunk of a chat that only opens the answer; None = there is none.
    """

    def __init__(self, chunk: int = 1, role_s: float | None = None) -> None:
        self.chunk = chunk
        self.role_s = role_s
        self.answered = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until the client closes it."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                sent = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
                }
                body = await reader.readexactly(int(sent.get("content-length", 0)))
                await self._answer(method, path.split("?")[0], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        posted = method == "POST" and path.endswith(("completions", "/generate"))
        if not posted:
            await _whole(writer, *_small(path))
            return
        begun = perf_counter()
        asked = json.loads(body)
        shape = SHAPES[self.answered % len(SHAPES)]
        self.answered += 1
        kind = path.rpartition("/")[2] if "chat" not in path else "chat"
        usage = {
            "prompt_tokens": _prompt_tokens(asked),
            "completion_tokens": shape.chunks * self.chunk,
        }
        usage["total_tokens"] = sum(usage.values())
        events = self._events(kind, shape, usage, asked)
        if not asked.get("stream"):
            last = shape.first_s + (shape.chunks - 1) * shape.gap_s
            await asyncio.sleep(last)
            await _whole(writer, _not_streamed(kind, self._text(shape.chunks), usage))
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        async for at_s, event in events:
            await asyncio.sleep(begun + at_s - perf_counter())
            _chunk(writer, b"data: " + event.encode() + b"\n\n")
            await writer.drain()
        _chunk(writer, b"")
        await writer.drain()

    async def _events(
        self, kind: str, shape: Shape, usage: dict[str, int], asked: dict[str, Any]
    ) -> AsyncIterator[tuple[float, str]]:
        """Yield each event with its time after the request."""
        if kind == "chat" and self.role_s is not None:
            yield self.role_s, _event(kind, {"role": "assistant", "content": ""})
        last = shape.first_s
        for i in range(shape.chunks):
            last = shape.first_s + i * shape.gap_s
            if kind == "generate":
                so_far = {
                    "prompt_tokens": usage["prompt_tokens"],
                    "completion_tokens": (i + 1) * self.chunk,
                }
                yield last, json.dumps({"text": self._text(i + 1), "meta_info": so_far})
            else:
                ends = "stop" if i == shape.chunks - 1 else None
                yield last, _event(kind, {"content": self._text(1, i)}, ends)
        if kind != "generate" and (asked.get("stream_options") or {}).get("include_usage"):
            yield last, json.dumps({**_HEAD[kind], "choices": [], "usage": usage})
        yield last, "[DONE]"

    def _text(self, chunks: int, first: int = 0) -> str:
        """Return the text of some chunks, a word per token."""
        words = range(first * self.chunk, (first + chunks) * self.chunk)
        return "".join(f" {WORDS[i % len(WORDS)]}" for i in words)


_HEAD = {
    "completions": {"id": "c", "object": "text_completion", "created": 1, "model": "m"},
    "chat": {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"},
}


def _event(kind: str, delta: dict[str, str], ends: str | None = None) -> str:
    body = {"delta": delta} if kind == "chat" else {"text": delta["content"], "logprobs": None}
    return json.dumps(
        {**_HEAD[kind], "choices": [{"index": 0, **body, "finish_reason": ends}], "usage": None}
    )


def _not_streamed(kind: str, text: str, usage: dict[str, int]) -> Any:
    if kind == "generate":
        return {"text": text, "meta_info": usage}
    body = {"message": {"role": "assistant", "content": text}} if kind == "chat" else {"text": text}
    head = {**_HEAD[kind], "object": _HEAD[kind]["object"].removesuffix(".chunk")}
    return {**head, "choices": [{"index": 0, **body, "finish_reason": "stop"}], "usage": usage}


def _prompt_tokens(asked: dict[str, Any]) -> int:
    """Count the words of a prompt, or its token ids."""
    prompt = asked.get("prompt", asked.get("text", asked.get("input_ids")))
    if prompt is None:
        prompt = " ".join(
            part if isinstance(part, str) else part.get("text", "")
            for message in asked.get("messages", [])
            for part in _parts(message.get("content"))
        )
    return max(len(prompt.split() if isinstance(prompt, str) else prompt), 1)


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content or ""]


def _small(path: str) -> tuple[Any, str]:
    if path.endswith("/models"):
        model = {"id": "m", "object": "model", "created": 1, "owned_by": "x", "max_model_len": 8192}
        return {"object": "list", "data": [model]}, "200 OK"
    if path == "/book":
        return " ".join(WORDS) * 5000, "200 OK"
    known = path in ("/health", "/", "/ping", "/get_model_info", "/server_info", "/get_server_info")
    return {}, "200 OK" if known else "404 Not Found"


async def _whole(writer: asyncio.StreamWriter, answer: Any, status: str = "200 OK") -> None:
    text = isinstance(answer, str)
    body = (answer if text else json.dumps(answer)).encode()
    kind = "text/plain" if text else "application/json"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")


async def _serve(server: Server) -> None:
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, limit=2**26)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    listening.close()


def main() -> None:
    """Serve until standard input is closed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=1, help="tokens in each chunk")
    parser.add_argument("--role", type=float, help="seconds to a chat's opening chunk")
    asked = parser.parse_args()
    asyncio.run(_serve(Server(asked.chunks, asked.role)))


if __name__ == "__main__":
    main()
