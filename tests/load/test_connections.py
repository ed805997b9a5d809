"""Connections that the server ends or spoils: what is its fault is counted as one, and what is not
is sent again."""

import asyncio
import socket

import numpy as np
import pytest

from autotune.load.client.generator import Connections, StallTimeouts
from autotune.load.client.messages import Schedule
from autotune.load.client.stream import Connection, Exchange, OutcomeKind, RequestOutcome, tally
from autotune.load.client.target import Target
from tests.load.odd import begin
from tests.load.sending import SHORT, completion, run, send
from tests.load.server import END, STREAM_HEAD, Call, Handler, Server, event, good

SECOND = 1_000_000_000


def ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_one_connection_serves_a_closed_loop_of_one():
    with Server() as server:
        log = send(server.url, [completion()] * 5, concurrency=1)
        assert server.connections == 1
    assert tally(log.outcomes) == {"ok": 5}
    assert log.retries.tolist() == [0] * 5


@pytest.mark.skipif(not ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6():
    with Server(host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert tally(send(server.url).outcomes) == {"ok": 4}
        assert server.calls[0].headers["host"] == server.url.removeprefix("http://")


def test_a_stale_connection_is_retried_and_counted():
    async def one_request_per_connection(call: Call) -> None:
        """Announces keep-alive, and hangs up when the next request comes."""
        if call.on_connection:
            call.writer.close()
        else:
            await good(call)

    with Server(one_request_per_connection) as server:
        log = send(server.url, concurrency=1)
    assert tally(log.outcomes) == {"ok": 4}
    assert log.retries.tolist() == [0, 1, 1, 1]


def test_a_stale_connection_that_is_reset_is_retried_too():
    async def one_request_per_connection(call: Call) -> None:
        if call.on_connection:
            call.reset()
        else:
            await good(call)

    with Server(one_request_per_connection) as server:
        log = send(server.url, concurrency=1)
    assert (tally(log.outcomes), log.retries.sum()) == ({"ok": 4}, 3)


def test_a_retry_that_fails_is_a_fault_and_the_last_one():
    async def only_the_first(call: Call) -> None:
        if call.body["prompt"] == "refused":
            call.writer.close()
        else:
            await good(call)

    with Server(only_the_first) as server:
        log = send(server.url, [completion(), completion("refused"), completion()], concurrency=1)
        assert [call.body["prompt"] for call in server.calls].count("refused") == 2
    assert [outcome.name for outcome in log.outcomes] == ["ok", "closed", "ok"]
    assert log.retries.tolist() == [0, 1, 0]
    assert "before it answered" in log.outcomes[1].message


@pytest.mark.parametrize("first", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", STREAM_HEAD])
def test_nothing_is_sent_again_after_the_first_byte_of_an_answer(first: bytes):
    async def begins(call: Call) -> None:
        if call.on_connection:
            await call.write(first)
            call.writer.close()
        else:
            await good(call)

    with Server(begins) as server:
        log = send(server.url, concurrency=1)
        assert len(server.calls) == 4
    assert [outcome.name for outcome in log.outcomes] == ["ok", "closed", "ok", "closed"]
    assert log.retries.sum() == 0


def test_a_retried_request_keeps_the_time_at_which_it_was_first_sent():
    async def slow_to_hang_up(call: Call) -> None:
        if call.on_connection:
            await asyncio.sleep(0.1)
            call.writer.close()
        else:
            await good(call)

    with Server(slow_to_hang_up) as server:
        log = send(server.url, concurrency=1)
    assert log.retries.tolist() == [0, 1, 1, 1]
    assert (log.records.first_token_s - log.records.sent_s)[1:].min() > 0.1


def test_a_server_that_accepts_and_closes_at_once():
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with Server(talk=hang_up) as server:
        log = send(server.url, [completion()] * 40, concurrency=8)
    assert tally(log.outcomes) == {"closed": 40}
    assert "before it answered" in log.outcomes[0].message


def test_a_server_that_speaks_before_it_is_asked():
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 smtp.example.org ready\r\n")
        await reader.read()

    with Server(talk=greet) as server:
        log = send(server.url)
    assert tally(log.outcomes) == {"malformed": 4}


@pytest.mark.parametrize("said", [b"", b"220 ready\r\n"])
def test_a_connection_that_ended_before_its_first_request(said: bytes):
    """Between the moment at which a connection is made and the one at which it is used, it may have
    ended."""

    async def late() -> Exchange:
        ours, theirs = socket.socketpair()
        _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=ours)
        theirs.sendall(said)
        theirs.close()
        while connection.open:
            await asyncio.sleep(0)
        exchange = Exchange(3)
        await asyncio.wait_for(connection.run(exchange, b"POST / HTTP/1.1\r\n\r\n"), 10)
        connection.close()
        return exchange

    outcome = asyncio.run(late()).outcome
    assert outcome is not None
    assert outcome.name == ("malformed" if said else "closed")
    assert ("220 ready" if said else "before it answered") in outcome.message


async def and_more(call: Call) -> None:
    await good(call)
    await call.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")


async def in_one_piece(call: Call) -> None:
    await begin(call)
    await call.stream(*[event()] * 3)
    rest = b"".join(STREAM_HEAD + END for _ in range(3))
    await call.write(END + rest)


@pytest.mark.parametrize(("handler", "name"), [(and_more, "ok"), (in_one_piece, "malformed")])
def test_bytes_behind_an_answer_are_of_no_request(handler: Handler, name: str):
    """The connection is not used again, so that the next request is not given another's answer."""
    with Server(handler) as server:
        log = send(server.url, [completion()] * 6, concurrency=1)
        if name == "malformed":
            assert server.connections == 6
    assert set(tally(log.outcomes)) <= {name, "http_408"}
    assert log.outcomes[0].name == name
    assert log.chunks.max() == 3


def test_an_answer_before_the_request_is_whole():
    """The rest of the request would stand before the next one, so that one needs a connection of
    its own."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 x\r\nContent-Length: 8\r\n\r\ntoo long")
        await asyncio.Event().wait()

    with Server(talk=refuse) as server:
        target = Target.parse(server.url)
        request = target.request("/v1/completions", b"x" * 2**24)
        log = run(target, Schedule([request] * 3, np.zeros(3), np.full(3, 3), 1), SHORT)
        assert server.connections == 3
    assert tally(log.outcomes) == {"http_413": 3}
    assert log.outcomes[0].message == "too long"


def test_a_request_that_is_never_read_ends_by_the_stall_timeout():
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    with Server(talk=deaf) as server:
        target = Target.parse(server.url)
        request = target.request("/v1/completions", b"x" * 2**24)
        log = run(target, Schedule([request] * 2, np.zeros(2), np.full(2, 3), 2), SHORT)
    assert tally(log.outcomes) == {"stall_timeout": 2}


def test_tls_that_the_server_does_not_speak_is_no_connection():
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    with Server(talk=plain) as server:
        log = send(server.url.replace("http://", "https://"))
    assert tally(log.outcomes) == {"connect_error": 4}
    assert "SSL" in log.outcomes[0].message


def test_no_more_connections_are_opened_ahead_after_one_failed():
    """A thousand that each wait for a timeout would hold the load up for minutes, and then fail
    again."""

    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async def ahead(url: str) -> None:
        async with Connections(Target.parse(url), connect_s=5).opened(500):
            pass

    with Server(talk=no_tls) as server:
        asyncio.run(ahead(server.url.replace("http://", "https://")))
        assert 0 < server.connections <= 64


def test_a_waiting_request_is_not_stalled_while_others_are_served():
    """A queue in front of a busy server is not silence; a stream that stops within its answer
    is."""
    stalls, connection = StallTimeouts(10.0), Connection()
    waiting, served, stuck = Exchange(3), Exchange(3), Exchange(3)
    start = waiting.sent_ns
    with (
        stalls.watching(waiting, connection),
        stalls.watching(served, connection),
        stalls.watching(stuck, connection),
    ):
        stuck.events.feed(event() + b"\n\n", start + SECOND)
        served.events.feed(event() + b"\n\n", start + 9 * SECOND)
        assert [exchange for exchange, _ in stalls.over(start + 10 * SECOND)] == []
        assert [exchange for exchange, _ in stalls.over(start + 12 * SECOND)] == [stuck]
        assert set(dict(stalls.over(start + 20 * SECOND))) == {waiting, served, stuck}


@pytest.mark.parametrize(
    ("kind", "sign_of_life"),
    [
        (OutcomeKind.HTTP_STATUS, True),
        (OutcomeKind.CLOSED, True),
        (OutcomeKind.STALL_TIMEOUT, False),
    ],
)
def test_a_request_that_was_given_up_does_not_keep_the_others_waiting(
    kind: OutcomeKind, sign_of_life: bool
):
    """Otherwise n requests to a dead server would take n timeouts, one after the other."""
    stalls, connection = StallTimeouts(10.0), Connection()
    waiting, ended = Exchange(3), Exchange(3)
    with stalls.watching(waiting, connection):
        with stalls.watching(ended, connection):
            ended.fail(RequestOutcome(kind))
            ended.finished_ns = waiting.sent_ns + 10 * SECOND
        over = [exchange for exchange, _ in stalls.over(waiting.sent_ns + 11 * SECOND)]
        assert over == ([] if sign_of_life else [waiting])


def test_the_end_of_a_body_is_not_waited_for_long_once_the_stream_is_over():
    stalls, connection = StallTimeouts(600.0), Connection()
    done = Exchange(3)
    with stalls.watching(done, connection):
        done.events.feed(event() + b"\n\ndata: [DONE]\n\n", done.sent_ns + SECOND)
        assert stalls.over(done.sent_ns + 2 * SECOND) == []
        assert [exchange for exchange, _ in stalls.over(done.sent_ns + 4 * SECOND)] == [done]
