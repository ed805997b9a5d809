"""A small HTTP server that does what a test tells it, in a thread on loopback; only the standard
library."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
DONE = b"data: [DONE]"


@dataclass
class Call:
    """One request, and the connection to answer it on."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter
    on_connection: int  # how many requests came on this connection before

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def stream(self, *events: bytes) -> None:
        """Each of these as one event in one HTTP chunk."""
        for event in events:
            await self.write(chunked(event + b"\n\n"))

    async def finish(self, count: int = 3) -> None:
        """The end of a good answer: so many events, the counts, the end of the body."""
        read = prompt_tokens(self.body)
        await self.stream(*[event()] * count, usage_event(read, self.body["max_tokens"]), DONE)
        await self.write(END)

    def reset(self) -> None:
        """Let the connection end as when a process is killed: with RST instead of FIN."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    async def answer(self, status: int, body: Any, reason: str = "Whatever") -> None:
        text = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        await self.write(head.encode() + text)


Handler = Callable[[Call], Awaitable[None]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(text: str = "a", **more: Any) -> bytes:
    body = {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": None}], **more}
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def usage_event(read: int, written: int, **more: Any) -> bytes:
    body = {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": written}, **more}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode()


async def good(call: Call) -> None:
    """Answers every completion as it should be."""
    if call.method == "GET":
        await call.answer(200, {"data": [{"id": "m"}]})
        return
    await call.write(STREAM_HEAD)
    await call.finish(call.body["max_tokens"])


def prompt_tokens(body: Any) -> int:
    if "messages" in body:
        return len(body["messages"][0]["content"].split())
    return len(body["prompt"])


@dataclass
class Server:
    """Runs while it is a context.

    Attributes:
        talk: what is done with a connection instead of reading requests from it.
        host: the address to listen at.
        calls: the requests that came, in order.
        most_at_once: how many were under way at the same time at most.
    """

    handler: Handler = good
    talk: Talk | None = None
    host: str = "127.0.0.1"
    calls: list[Call] = field(default_factory=list)
    most_at_once: int = 0
    connections: int = 0
    url: str = ""
    _under_way: int = 0

    def __enter__(self) -> Server:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        ready.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def posts(self) -> list[Call]:
        return [call for call in self.calls if call.method == "POST"]

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connected, self.host, 0, backlog=1024)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http://{shown}:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        served = 0
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                if self.talk is not None:
                    await self.talk(reader, writer)
                    return
                while not writer.is_closing():
                    call = await self._read(reader, writer, served)
                    async with self._counted(call):
                        await self.handler(call)
                    served += 1
            finally:
                writer.close()

    @asynccontextmanager
    async def _counted(self, call: Call) -> AsyncIterator[None]:
        self.calls.append(call)
        self._under_way += call.method == "POST"
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            yield
        finally:
            self._under_way -= call.method == "POST"

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: int
    ) -> Call:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Call(method, path, headers, json.loads(body) if body else None, writer, served)
