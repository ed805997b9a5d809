"""A server that streams at a known pace and remembers when it wrote what: ``python benchmarks/paced_server.py``.

Prints its port. Every stream gets a chunk per interval, evenly spread over the interval or all in the same instant
(``--lockstep``, as batching engines do). GET /truth returns, by the CRC-32 of a request's body, the times of its
writes in ns of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import zlib
from collections import defaultdict
from time import perf_counter_ns
from typing import Any, cast

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _event(**more: Any) -> bytes:
    body = {"id": "cmpl-3a3ff1d7a6f94bdf8bdb4a5a1c0ac05f", "object": "text_completion", "created": 1763720000, **more}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


_TOKEN = _chunk(
    _event(model="m", choices=[{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}], usage=None)
)


class Stream:
    """One answer under way."""

    __slots__ = ("left", "read", "times", "total", "transport")

    def __init__(self, transport: asyncio.Transport, read: int, total: int) -> None:
        self.transport, self.read, self.left, self.total = transport, read, total, total
        self.times: list[int] = []

    def emit(self) -> bool:
        """Write one chunk; whether more are to come."""
        self.times.append(perf_counter_ns())
        self.transport.write(_HEAD + _TOKEN if self.left == self.total else _TOKEN)
        self.left -= 1
        if self.left:
            return True
        usage = {"prompt_tokens": self.read, "completion_tokens": self.total, "total_tokens": self.read + self.total}
        self.transport.write(_chunk(_event(choices=[], usage=usage)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return False


class Pacer:
    """Emits in ticks of 1 ms; a stream has its tick within the interval."""

    def __init__(self, interval_ms: int, lockstep: bool) -> None:
        self._interval_ms, self._lockstep = interval_ms, lockstep
        self._ticks: dict[int, list[Stream]] = defaultdict(list)
        self._next = 0
        self.truth: dict[int, list[int]] = {}

    def add(self, key: int, stream: Stream) -> None:
        """Begin a stream at its tick of the next interval."""
        self.truth[key] = stream.times
        self._ticks[0 if self._lockstep else self._next % self._interval_ms].append(stream)
        self._next += 1

    async def run(self) -> None:
        """Emit for ever."""
        start_ns, tick = perf_counter_ns(), 0
        while True:
            slot = tick % self._interval_ms
            self._ticks[slot] = [stream for stream in self._ticks[slot] if stream.emit()]
            tick += 1
            wait_ns = start_ns + tick * 1_000_000 - perf_counter_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            elif tick % 16 == 0:
                await asyncio.sleep(0)


class Handler(asyncio.Protocol):
    """Reads requests with a Content-Length, one at a time."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        if not found or len(rest) < length:
            return
        self._buffer.clear()
        if head.startswith(b"GET"):
            body = json.dumps(self._pacer.truth).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        asked = json.loads(rest)
        stream = Stream(self._transport, len(asked["prompt"]), asked["max_tokens"])
        self._pacer.add(zlib.crc32(rest), stream)


async def _serve(interval_ms: int, lockstep: bool) -> None:
    pacer = Pacer(interval_ms, lockstep)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Handler(pacer), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await pacer.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval-ms", type=int, default=67)
    parser.add_argument("--lockstep", action="store_true")
    options = parser.parse_args()
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(options.interval_ms, options.lockstep))
