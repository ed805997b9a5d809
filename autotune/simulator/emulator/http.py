"""A lean HTTP/1.1 server on httptools: one protocol per connection, one write per event.

Why not an ASGI server: see the package's docstring. It speaks what load generators and the engines' clients use:
keep-alive, bodies of known length and chunked ones, ``Expect: 100-continue``, requests one after the other.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import httptools

from autotune.trial import EMULATOR_NAME

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_LARGEST_BODY = 64 * 2**20


@dataclass(slots=True)
class HttpExchange:
    """A request that has arrived whole and the way to answer it; writing after the client has gone does nothing.

    Attributes:
        on_abandoned: called when the client goes before the answer has ended.
    """

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    _keep_alive: bool
    _connection: HttpConnection
    on_abandoned: Callable[[], None] | None = None

    def respond(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        """Answer in one piece."""
        kind = f"content-type: {content_type}\r\n" if body else ""
        head = self._head(status, f"{kind}content-length: {len(body)}\r\n")
        self._connection.write(head + body)
        self.finished()

    def begin_stream(self) -> None:
        """Answer with server-sent events; what is written next must be HTTP chunks."""
        more = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
        self._connection.write(self._head(200, more))

    def write(self, data: bytes) -> None:
        """Write HTTP chunks; one system call."""
        self._connection.write(data)

    def finished(self) -> None:
        """The answer has been written."""
        self.on_abandoned = None
        self._connection.answered(self._keep_alive)

    def break_off(self, reset: bool = False) -> None:
        """Close the connection in the middle of the answer, or reset it."""
        if reset:
            self._connection.reset()
        else:
            self._connection.close()

    def _head(self, status: int, fields: str) -> bytes:
        keep = "" if self._keep_alive else "connection: close\r\n"
        return f"HTTP/1.1 {status} {_REASONS[status]}\r\nserver: {EMULATOR_NAME}\r\n{fields}{keep}\r\n".encode()


Application = Callable[[HttpExchange], None]
"""Answers an exchange, now or later."""


class HttpConnection(asyncio.Protocol):
    """One connection; requests that come in a row are answered in their order."""

    def __init__(self, application: Application, open_connections: set[HttpConnection]) -> None:
        self._application, self._open = application, open_connections
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._pending: deque[HttpExchange] = deque()
        self._current: HttpExchange | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._size = 0

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._open.discard(self)
        self._pending.clear()
        current, self._current = self._current, None
        if current is not None and current.on_abandoned is not None:
            current.on_abandoned()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request came whole and is answered as if nothing else had been offered.
            return
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError:
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.close()

    # httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body, self._size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= _LARGEST_BODY:
            self._body.append(body)

    def on_message_complete(self) -> None:
        exchange = HttpExchange(
            self._parser.get_method().decode(),
            self._url.partition(b"?")[0].decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self._parser.should_keep_alive(),
            self,
        )
        self._pending.append(exchange)
        self._next()

    # Answers

    def _next(self) -> None:
        if self._current is None and self._pending:
            self._current = self._pending.popleft()
            self._application(self._current)

    def write(self, data: bytes) -> None:
        """Write if the client is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def answered(self, keep_alive: bool) -> None:
        """The current answer has ended: take the next request."""
        self._current = None
        if not keep_alive:
            self.close()
        elif self._pending:
            asyncio.get_running_loop().call_soon(self._next)

    def reset(self) -> None:
        """Close at once; what was not sent is lost, and the client is told so (RST, socket(7) ``SO_LINGER``)."""
        if self._transport is not None:
            peer: socket.socket = self._transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    def close(self) -> None:
        """Close after what has been written."""
        if self._transport is not None:
            self._transport.close()
