"""A server whose truth is known: it streams at a set pace and remembers when it wrote what.

``python benchmarks/load/paced_server.py --rate 15000 --streams 1000 [--lockstep]`` listens on loopback,
prints its port, and lives until its standard input is closed. Each stream gets one token per
interval of streams/rate seconds: evenly spread over the interval, or all streams in the same
instant, as batching engines do.

    POST, any path   a streamed completion of ``max_tokens`` tokens; ``cached_tokens`` in its usage is no count but
                     the number of the request since the truth was last asked for, which tells whose
                     truth is whose
    GET, any path    the truth so far, which is forgotten then, see `read_truth`

One thread, no event loop: a write is a system call of its own, right after its time was taken, so
that the truth holds no delay of the server's.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import select
import socket
import sys
import time
from array import array
from time import perf_counter_ns
from typing import Any

import numpy as np

from autotune.base.arrays import Ints
from autotune.load.client.generator import allow_open_files

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LOOK_NS = 500_000
"""Between two looks for requests while streams are under way."""


def _event(**more: Any) -> bytes:
    body = {
        "id": "cmpl-3a3ff1d7a6f94bdf8bdb4a5a1c0ac05f",
        "object": "text_completion",
        "created": 1763720000,
        **more,
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


_TOKEN = _chunk(
    _event(
        model="m",
        choices=[{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
        usage=None,
    )
)
"""As long as vLLM's, 220 bytes: what a client does with a chunk depends on its length."""


def read_truth(answer: bytes) -> list[Ints]:
    """When each token of each request was written: ns of `time.perf_counter_ns`, which all
    processes of a machine share; one array per request, in the order of their numbers."""
    numbers = np.frombuffer(answer, dtype=np.int64)
    counts, times = numbers[1 : 1 + numbers[0]], numbers[1 + numbers[0] :]
    return np.split(times, np.cumsum(counts)[:-1]) if len(counts) else []


class _Stream:
    """A connection, and the answer under way on it."""

    __slots__ = (
        "_epoll",
        "_last",
        "_unsent",
        "buffer",
        "left",
        "number",
        "read",
        "socket",
        "times",
        "total",
    )

    def __init__(self, connection: socket.socket, epoll: select.epoll) -> None:
        self.socket, self._epoll = connection, epoll
        self.buffer = bytearray()
        self._unsent = bytearray()
        self._last = b""
        self.left = self.total = self.read = self.number = 0
        self.times = array("q")

    def begin(self, number: int, asked: dict[str, Any]) -> None:
        """An answer; its first token comes with the first `emit`."""
        prompt = asked.get("prompt") or ""
        self.number, self.read = number, len(prompt.split() if isinstance(prompt, str) else prompt)
        self.left = self.total = int(asked["max_tokens"])
        self.times = array("q")
        self._last = self._end()

    def emit(self) -> bool:
        """Write one token; whether more are to come."""
        data = _TOKEN if self.left < self.total else _HEAD + _TOKEN
        self.left -= 1
        if not self.left:
            data += self._last
        self.times.append(perf_counter_ns())
        self.write(data)
        return self.left > 0

    def write(self, data: bytes) -> None:
        """Send at once; what a full socket does not take waits until it does."""
        sent = 0
        if not self._unsent:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                pass
            except OSError:  # the client has gone
                self.left = 0
                return
        if sent < len(data):
            self._unsent += data[sent:]
            self._epoll.modify(self.socket, select.EPOLLIN | select.EPOLLOUT)

    def write_on(self) -> None:
        """The socket takes more."""
        waiting, self._unsent = bytes(self._unsent), bytearray()
        self._epoll.modify(self.socket, select.EPOLLIN)
        self.write(waiting)

    def _end(self) -> bytes:
        usage = {
            "prompt_tokens": self.read,
            "completion_tokens": self.total,
            "total_tokens": self.read + self.total,
            "prompt_tokens_details": {"cached_tokens": self.number},
        }
        return _chunk(_event(choices=[], usage=usage)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Pacer:
    """Who gets a token when: slots that come round once per interval, each due at its own moment of
    it."""

    def __init__(self, interval_ns: int, slots: int) -> None:
        self._interval_ns = interval_ns
        self._slots: list[list[_Stream]] = [[] for _ in range(slots)]
        # Streams that come one after the other get slots far apart: their first tokens are spread
        # evenly too.
        self._stride = next(
            s for s in range(max(round(slots * 0.618), 1), slots + 2) if math.gcd(s, slots) == 1
        )
        self._begun = self._turn = self._start_ns = 0
        self.active = 0

    def add(self, stream: _Stream) -> None:
        """From the next turn of its slot on."""
        if not self.active:
            self._turn, self._start_ns = (
                0,
                perf_counter_ns() + self._interval_ns // len(self._slots),
            )
        self._slots[self._begun * self._stride % len(self._slots)].append(stream)
        self._begun += 1
        self.active += 1

    def due_ns(self) -> int:
        """When the next slot is due."""
        return self._start_ns + self._turn * self._interval_ns // len(self._slots)

    def emit(self, until_ns: int) -> None:
        """Write all tokens that are due until then; slots are never skipped, a late server catches
        up."""
        while self.active and self.due_ns() <= until_ns:
            slot = self._turn % len(self._slots)
            streams = self._slots[slot]
            self._slots[slot] = going_on = [stream for stream in streams if stream.emit()]
            self.active -= len(streams) - len(going_on)
            self._turn += 1


class Server:
    """Everything on one thread, in a loop of its own: emit what is due, look for requests, sleep
    until the next."""

    def __init__(self, interval_ns: int, slots: int, backlog: int) -> None:
        self._pacer = _Pacer(interval_ns, slots)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._streams: dict[int, _Stream] = {}
        self._truth: list[array[int]] = []
        self.port = int(self._listener.getsockname()[1])

    def run(self, alive: int) -> None:
        """Serve until the file descriptor `alive` is closed at its other end."""
        self._epoll.register(alive, select.EPOLLIN)
        looked_ns = 0
        while True:
            now_ns = perf_counter_ns()
            if not self._pacer.active or now_ns - looked_ns > _LOOK_NS:
                if not self._look(alive, 0 if self._pacer.active else None):
                    return
                looked_ns = now_ns = perf_counter_ns()
            self._pacer.emit(now_ns)
            left_ns = self._pacer.due_ns() - perf_counter_ns()
            if self._pacer.active and left_ns > 0:
                time.sleep(min(left_ns, _LOOK_NS) / 1e9)

    def _look(self, alive: int, timeout_s: float | None) -> bool:
        """Take what has come in; False when it is time to leave."""
        for number, events in self._epoll.poll(timeout_s):
            if number == alive:
                if not os.read(alive, 4096):
                    return False
            elif number == self._listener.fileno():
                self._accept()
            else:
                if events & select.EPOLLOUT:
                    self._streams[number].write_on()
                if events & ~select.EPOLLOUT:
                    self._receive(number)
        return True

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[connection.fileno()] = _Stream(connection, self._epoll)
            self._epoll.register(connection, select.EPOLLIN)

    def _receive(self, number: int) -> None:
        stream = self._streams[number]
        try:
            data = stream.socket.recv(2**18)
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(number)
            del self._streams[number]
            stream.socket.close()
            return
        stream.buffer += data
        head, found, body = bytes(stream.buffer).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        if not found or len(body) < length:
            return
        stream.buffer.clear()
        if head.startswith(b"GET"):
            self._tell(stream)
            return
        try:
            stream.begin(len(self._truth), json.loads(body))
        except (ValueError, KeyError, TypeError):
            stream.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            return
        self._truth.append(stream.times)
        self._pacer.add(stream)

    def _tell(self, stream: _Stream) -> None:
        counts = array("q", [len(self._truth), *map(len, self._truth)])
        body = b"".join([counts.tobytes(), *(times.tobytes() for times in self._truth)])
        self._truth = []
        stream.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def main() -> None:
    """The process; its parent holds the other end of its standard input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rate", type=float, default=15_000, help="tokens per second, all streams together"
    )
    parser.add_argument(
        "--streams", type=int, default=1000, help="how many streams the rate is meant for"
    )
    parser.add_argument("--lockstep", action="store_true", help="all streams in the same instant")
    parser.add_argument("--core", type=int, help="the core to run on")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    allow_open_files(options.streams)
    interval_ns = round(options.streams / options.rate * 1e9)
    server = Server(
        interval_ns, 1 if options.lockstep else options.streams, backlog=2 * options.streams
    )
    gc.disable()
    print(server.port, flush=True)
    server.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
