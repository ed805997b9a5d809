"""A server that misbehaves: each fault is a counted, named outcome, and the load ends."""

import asyncio
import json
import socket

import pytest

from autotune.client.stream import Connection, Exchange
from autotune.client.watch import Stalls
from autotune.load import Limits, LoadOptions, Measurement, measure
from autotune.load.workloads import load_workload
from tests.load.server import END, STREAM_HEAD, Call, Handler, Server, chunked, event, good, usage_event

LIMITS = Limits(connect_s=5, stall_s=0.2)
SECOND = 1_000_000_000
FOUR = load_workload("random:5:3:4")


def load(url: str, **options: object) -> Measurement:
    given = {"limits": LIMITS, "warm_up": False, **options}
    return measure(url, "m", FOUR, 1, LoadOptions(**given))  # type: ignore[arg-type]


def outcomes(handler: Handler, **options: object) -> Measurement:
    with Server(handler) as server:
        return load(server.url, **options)


async def silent(call: Call) -> None:
    await asyncio.Event().wait()


async def heartbeats(call: Call) -> None:
    """Keeps the connection busy and says nothing."""
    await call.write(STREAM_HEAD)
    while True:
        await call.write(chunked(b": ping\n\n"))
        await asyncio.sleep(0.02)


async def stops(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(event())
    await asyncio.Event().wait()


async def endless(call: Call) -> None:
    await call.write(STREAM_HEAD)
    while True:
        await call.stream(*[event()] * 20)
        await asyncio.sleep(0.01)


async def closes(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(event())
    call.writer.close()


async def closes_at_once(call: Call) -> None:
    call.writer.close()


async def half_an_event(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(event())
    await call.write(chunked(event()[:20]) + END)


async def invalid_utf8(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(event(), b'data: {"choices":[{"text":"\xc3\x28"}]}', usage_event(5, 3), b"data: [DONE]")
    await call.write(END)


async def no_usage(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(*[event()] * 3, b"data: [DONE]")
    await call.write(END)


async def another_length(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(event(), usage_event(5, 1), b"data: [DONE]")
    await call.write(END)


async def no_http(call: Call) -> None:
    await call.write(b"220 smtp.example.org ready\r\n")
    call.writer.close()


async def no_stream(call: Call) -> None:
    await call.answer(200, {"choices": [{"text": "abc"}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})


async def error_event(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(event(), b'data: {"error":{"message":"EngineDeadError"}}', b"data: [DONE]")
    await call.write(END)


@pytest.mark.parametrize(
    ("handler", "name", "words"),
    [
        (silent, "stall_timeout", "no answer"),
        (heartbeats, "stall_timeout", "no answer"),
        (stops, "stall_timeout", "after 1 with text"),
        (endless, "malformed", "far more events"),
        (closes, "closed", "after 1 events"),
        (closes_at_once, "closed", "before it answered"),
        (half_an_event, "malformed", "within an event"),
        (invalid_utf8, "malformed", "not JSON"),
        (no_usage, "no_usage", "no token counts"),
        (another_length, "wrong_length", "1 tokens instead of 3"),
        (no_http, "malformed", "not HTTP"),
        (no_stream, "malformed", "without any event"),
        (error_event, "server_error", "EngineDeadError"),
    ],
)
def test_a_fault_is_named_and_counted(handler: Handler, name: str, words: str):
    measured = outcomes(handler)
    assert measured.tally == {name: 4}
    assert words in measured.failure
    assert measured.failure.startswith("4 of 4 requests failed")
    assert (measured.metrics["completed"], measured.metrics["failed"]) == (0, 4)
    assert measured.metrics["total_token_throughput"] == 0
    assert bool(measured.invalid) == (name in ("no_usage", "wrong_length"))
    json.dumps(measured.to_json(columns=True), allow_nan=False)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, {"object": "error", "message": "The model `m` does not exist."}, "does not exist"),
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (429, {"error": {"message": "Too many requests", "type": "x"}}, "Too many requests"),
        (503, {"detail": "overloaded"}, "overloaded"),
        (400, ["odd"], "odd"),
    ],
)
def test_an_http_status_keeps_the_servers_words(status: int, body: object, words: str):
    async def refuse(call: Call) -> None:
        await call.answer(status, body)

    measured = outcomes(refuse)
    assert measured.tally == {f"http_{status}": 4}
    assert words in measured.failure


def test_a_burst_of_503_fails_only_those_requests():
    seen = []

    async def busy(call: Call) -> None:
        seen.append(call)
        await (call.answer(503, "busy") if len(seen) in (2, 3) else good(call))

    measured = outcomes(busy)
    assert measured.tally == {"ok": 2, "http_503": 2}
    assert measured.metrics["total_output_tokens"] == 6


def test_nothing_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets the port
        measured = load(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert measured.tally == {"connect_error": 4}


def test_an_http_1_0_body_ends_with_the_connection():
    async def old(call: Call) -> None:
        await call.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for part in [*[event()] * 3, usage_event(5, 3), b"data: [DONE]"]:
            await call.write(part + b"\n\n")
        call.writer.close()

    measured = outcomes(old)
    assert measured.tally == {"ok": 4}
    assert measured.metrics["total_input_tokens"] == 20


def test_an_http_1_0_body_that_lacks_its_end_is_closed():
    async def old(call: Call) -> None:
        await call.write(b"HTTP/1.0 200 OK\r\n\r\n" + event() + b"\n\n")
        call.writer.close()

    assert outcomes(old).tally == {"closed": 4}


def test_chunks_cut_anywhere_are_one_answer():
    async def crumbs(call: Call) -> None:
        body = event("Grüße 東京") + b"\r\n\r\n" + event("🙂") * 1 + b"\n\n" + event() + b"\n\n"
        body += usage_event(5, 3) + b"\n\ndata: [DONE]\n\n"
        raw = STREAM_HEAD + b"".join(chunked(body[i : i + 3]) for i in range(0, len(body), 3)) + END
        for i in range(0, len(raw), 7):
            await call.write(raw[i : i + 7])
            await asyncio.sleep(0)

    measured = outcomes(crumbs)
    assert measured.tally == {"ok": 4}
    assert measured.points[0].log.chunks.tolist() == [3] * 4


def test_a_stale_connection_is_retried_and_counted():
    async def one_request_per_connection(call: Call) -> None:
        """Announces keep-alive, and hangs up when the next request comes."""
        if call.on_connection:
            call.writer.close()
        else:
            await good(call)

    with Server(one_request_per_connection) as server:
        measured = measure(server.url, "m", FOUR.with_concurrency(1), 1, LoadOptions(limits=LIMITS, warm_up=False))
    assert measured.tally == {"ok": 4}
    assert measured.points[0].log.retries.tolist() == [0, 1, 1, 1]
    assert measured.to_json()["stale_connections"] == 3


def test_an_answer_that_ends_with_the_connection_close_header():
    async def polite(call: Call) -> None:
        head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        await call.write(head)
        await call.stream(*[event()] * 3, usage_event(5, 3), b"data: [DONE]")
        await call.write(END)

    with Server(polite) as server:
        measured = load(server.url)
        assert server.connections == 4
    assert measured.tally == {"ok": 4}


def test_a_server_that_answers_no_warm_up_gets_no_load():
    measured = outcomes(silent, warm_up=True)
    assert measured.points == ()
    assert measured.tally == {"stall_timeout": 4}
    assert measured.metrics["failed"] == 4


def test_the_api_key_is_sent_and_never_repeated():
    async def tells(call: Call) -> None:
        await call.answer(401, {"error": {"message": f"Incorrect API key: {call.headers['authorization']}"}})

    measured = outcomes(tells, api_key="top-secret-7")
    assert "Bearer ***" in measured.failure
    assert "top-secret-7" not in json.dumps(measured.to_json(columns=True))


def test_a_waiting_request_is_not_stalled_while_others_are_served():
    """A queue in front of a busy server is not silence; a stream that stops within its answer is."""
    stalls, connection = Stalls(10.0), Connection()
    waiting, served, stuck = Exchange(3), Exchange(3), Exchange(3)
    start = waiting.sent_ns
    with stalls.watching(waiting, connection), stalls.watching(served, connection), stalls.watching(stuck, connection):
        stuck.events.feed(event() + b"\n\n", start + SECOND)
        served.events.feed(event() + b"\n\n", start + 9 * SECOND)
        assert [exchange for exchange, _ in stalls.over(start + 10 * SECOND)] == []
        assert [exchange for exchange, _ in stalls.over(start + 12 * SECOND)] == [stuck]
        assert set(dict(stalls.over(start + 20 * SECOND))) == {waiting, served, stuck}
