"""One HTTP answer, read from the socket in any pieces, is one record."""

import asyncio
import gzip
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load.client.stream import Connection, Exchange
from tests.load.server import DONE, END, STREAM_HEAD, chunked, event, usage_event

BODY = b"".join(
    part + b"\r\n\r\n"
    for part in [b": ping", event("Grüße"), event("東京"), event("🙂"), usage_event(11, 3), DONE]
)
LENGTH = f"Content-Length: {len(BODY)}\r\n\r\n".encode()
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Memory(asyncio.Transport):
    """A connection without a socket: what is written is forgotten, what is aborted is lost at
    once."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self._protocol, self.closed = protocol, False

    def write(self, data: object) -> None:
        assert not self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


async def record(pieces: Sequence[bytes], streaming: bool = True) -> tuple[object, ...]:
    """What comes of an answer in these pieces, behind which the server closes the connection."""
    connection = Connection()
    transport = Memory(connection)
    connection.connection_made(transport)
    exchange = Exchange(3, streaming)
    running = asyncio.ensure_future(connection.run(exchange, b"POST / HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    for piece in pieces:
        if piece and not transport.closed:
            connection.data_received(piece)
    stays_open = connection.open and exchange.outcome is not None
    if not transport.closed:
        connection.connection_lost(None)
    await running
    assert exchange.outcome is not None
    seen = (len(exchange.events.times_ns), exchange.usage) if exchange.outcome.ok else ()
    return (exchange.outcome, exchange.status, stays_open, *seen)


def sized(body: bytes, size: int = 20) -> bytes:
    return b"".join(chunked(body[i : i + size]) for i in range(0, len(body), size)) + END


GOOD = (3, (11, 3, None))
ANSWERS: dict[str, tuple[bytes, tuple[object, ...]]] = {
    "chunked": (STREAM_HEAD + sized(BODY), ("ok", 200, True, *GOOD)),
    "small chunks": (STREAM_HEAD + sized(BODY, 5), ("ok", 200, True, *GOOD)),
    "trailer": (STREAM_HEAD + chunked(BODY) + b"0\r\nX-T: 1\r\n\r\n", ("ok", 200, True, *GOOD)),
    "length": (b"HTTP/1.1 200 OK\r\n" + LENGTH + BODY, ("ok", 200, True, *GOOD)),
    "close": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + LENGTH + BODY,
        ("ok", 200, False, *GOOD),
    ),
    "until the end": (b"HTTP/1.0 200 OK\r\n\r\n" + BODY, ("ok", 200, False, *GOOD)),
    "continue": (CONTINUE * 2 + STREAM_HEAD + sized(BODY), ("ok", 200, True, *GOOD)),
    "second answer": ((STREAM_HEAD + chunked(BODY) + END) * 2, ("ok", 200, False, *GOOD)),
    "garbage behind": (STREAM_HEAD + chunked(BODY) + END + b"garbage", ("ok", 200, False, *GOOD)),
    "closed": (STREAM_HEAD + sized(BODY)[:180], ("closed", 200, False)),
    "half an event": (STREAM_HEAD + chunked(BODY[:60]) + END, ("malformed", 200, False)),
    "no chunk": (STREAM_HEAD + chunked(BODY[:60]) + b"xyz", ("malformed", 200, False)),
    "gzip": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n" + LENGTH + BODY,
        ("malformed", 200, False),
    ),
    "no HTTP": (b"220 smtp", ("malformed", 0, False)),
    "error event": (
        STREAM_HEAD + chunked(b'data: {"error":"dead"}\n\n' + BODY) + END,
        ("server_error", 200, False),
    ),
    "refused": (b"HTTP/1.1 404 x\r\nContent-Length: 4\r\n\r\nnone", ("http_404", 404, True)),
    "redirected": (
        b"HTTP/1.1 307 x\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
        ("http_307", 307, True),
    ),
    "only continue": (CONTINUE, ("closed", 100, False)),
}


@pytest.mark.parametrize(("raw", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_a_cut_at_any_byte_changes_nothing(raw: bytes, expected: tuple[object, ...]):
    async def all_cuts() -> None:
        whole = await record([raw])
        for cut in range(1, len(raw)):
            assert await record([raw[:cut], raw[cut:]]) == whole, cut
        assert await record([raw[i : i + 1] for i in range(len(raw))]) == whole
        assert (whole[0].name, *whole[1:]) == expected  # type: ignore[attr-defined]

    asyncio.run(all_cuts())


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=20),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_any_chunks_in_any_pieces_are_one_record(sizes: list[int], cuts: list[int]):
    """Chunks of the HTTP body and reads of the socket are cut independently of each other and of
    the events."""
    raw, rest = STREAM_HEAD, BODY
    for size in sizes:
        raw, rest = raw + (chunked(rest[:size]) if rest else b""), rest[size:]
    raw += (chunked(rest) if rest else b"") + END
    ends = sorted({0, *(cut % len(raw) for cut in cuts), len(raw)})
    outcome, *seen = asyncio.run(record([raw[a:b] for a, b in pairwise(ends)]))
    assert outcome.ok  # type: ignore[attr-defined]
    assert tuple(seen) == (200, True, *GOOD)


@settings(deadline=None)
@given(st.binary(max_size=300), st.booleans(), st.sampled_from(["", "status", "stream", "length"]))
def test_no_bytes_whatever_crash_the_client(noise: bytes, streaming: bool, before: str):
    head = {
        "": b"",
        "status": b"HTTP/1.1 200 ",
        "stream": STREAM_HEAD,
        "length": b"HTTP/1.1 200 OK\r\n" + LENGTH,
    }
    outcome, *_ = asyncio.run(record([head[before] + noise], streaming))
    assert not outcome.ok  # type: ignore[attr-defined]
    assert outcome.message.isprintable()  # type: ignore[attr-defined]


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=40), st.integers(0, len(BODY)), st.booleans())
def test_noise_within_a_stream_crashes_nothing(noise: bytes, at: int, compressed: bool):
    body = gzip.compress(BODY) if compressed else BODY[:at] + noise + BODY[at:]
    outcome, _, _, *seen = asyncio.run(record([STREAM_HEAD + chunked(body) + END]))
    assert outcome.name in ("ok", "malformed", "no_usage", "server_error")  # type: ignore[attr-defined]
    assert not compressed or outcome.name == "malformed"  # type: ignore[attr-defined]
    assert not seen or 0 < int(str(seen[0])) <= 4
