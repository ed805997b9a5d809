"""Ways in which a server can answer wrongly, each with the outcome it must come to.

A good answer would have three tokens (`tests.load.server.good` with ``max_tokens`` 3).
"""

import asyncio
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.load.odd import PLAIN_HEAD, begin, whole
from tests.load.server import DONE, END, STREAM_HEAD, Call, Handler, chunked, event, usage_event

PING_S = 0.01


@dataclass(frozen=True)
class Fault:
    """A way to answer wrongly, the outcome it must be counted under, and what the message must
    hold."""

    name: str
    words: str
    handler: Handler


FAULTS: dict[str, Fault] = {}


def fault(name: str, words: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        FAULTS[handler.__name__] = Fault(name, words, handler)
        return handler

    return add


async def for_ever(call: Call, data: bytes) -> None:
    while True:
        await call.write(data)
        await asyncio.sleep(PING_S)


# What never ends


@fault("stall_timeout", "no answer, and none to any other request, for 0.3 s")
async def silent(call: Call) -> None:
    await asyncio.Event().wait()


@fault("stall_timeout", "HTTP 200 and then no event")
async def headers_only(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await asyncio.Event().wait()


@fault("stall_timeout", "no further event for 0.3 s, after 1 with text")
async def stops(call: Call) -> None:
    await begin(call, event())
    await asyncio.Event().wait()


@fault("stall_timeout", "HTTP 200 and then no event")
async def heartbeats(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await for_ever(call, chunked(b": ping\n\n"))


@fault("stall_timeout", "HTTP 100 and then no event")
async def continues_for_ever(call: Call) -> None:
    await for_ever(call, b"HTTP/1.1 100 Continue\r\n\r\n")


@fault("malformed", "far more events")
async def endless(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await for_ever(call, chunked((event() + b"\n\n") * 20))


@fault("malformed", "far more events")
async def endless_without_text(call: Call) -> None:
    await call.write(STREAM_HEAD)
    await for_ever(call, chunked(b'data: {"choices":[]}\n\n' * 20))


@fault("malformed", "headers of more than 1 MiB")
async def endless_headers(call: Call) -> None:
    await call.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        await call.write(b"X-Pad: " + b"x" * 60_000 + b"\r\n")


# What ends too early


@fault("closed", "before it answered")
async def closes_at_once(call: Call) -> None:
    call.writer.close()


@fault("closed", "after 1 events")
async def closes(call: Call) -> None:
    await begin(call, event())
    call.writer.close()


@fault("closed", "after 1 events")
async def half_an_event_and_closes(call: Call) -> None:
    await begin(call, event())
    await call.write(chunked(event()[:20]))
    call.writer.close()


@fault("malformed", "within an event: 'data:")
async def half_an_event_in_good_order(call: Call) -> None:
    await begin(call, event())
    await call.write(chunked(event()[:20]) + END)


@fault("malformed", "ends after 2 events with text, without token counts or [DONE]")
async def ends_between_events(call: Call) -> None:
    await begin(call, event(), event())
    await call.write(END)


@fault("closed", "Connection reset")
async def resets(call: Call) -> None:
    await begin(call, event())
    call.reset()


@fault("closed", "after 0 events")
async def continues_and_closes(call: Call) -> None:
    await call.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    call.writer.close()


@fault("malformed", "within an event")
async def content_length_too_short(call: Call) -> None:
    body = whole(call)
    await call.write(PLAIN_HEAD + f"Content-Length: {len(event()) + 20}\r\n\r\n".encode() + body)


@fault("closed", "after 3 events")
async def content_length_too_long(call: Call) -> None:
    body = whole(call).removesuffix(DONE + b"\n\n")
    await call.write(PLAIN_HEAD + f"Content-Length: {len(body) + 9}\r\n\r\n".encode() + body)
    call.writer.close()


@fault("closed", "after 1 events")
async def http_1_0_without_its_end(call: Call) -> None:
    await call.write(b"HTTP/1.0 200 OK\r\n\r\n" + event() + b"\n\n" + event()[:30])
    call.writer.close()


# What is no stream of events


@fault("malformed", "not HTTP")
async def no_http(call: Call) -> None:
    await call.write(b"220 smtp.example.org ready\r\n")
    call.writer.close()


@fault("malformed", "not HTTP")
async def upgrades(call: Call) -> None:
    await call.write(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nx"
    )


@fault("malformed", "not HTTP")
async def broken_chunks(call: Call) -> None:
    await begin(call, event())
    await call.write(b"zz\r\nnonsense")


@fault("malformed", "not HTTP")
async def two_lengths(call: Call) -> None:
    await call.write(STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"))
    await call.finish()


@fault("malformed", "no stream of events: '<html> <h1>Welcome")
async def html(call: Call) -> None:
    page = b"<html>\n<h1>Welcome to nginx</h1>\n\n</html>"
    await call.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n".encode() + page)


@fault("malformed", "no stream of events: '<html>")
async def html_until_the_end(call: Call) -> None:
    await call.write(b"HTTP/1.0 200 OK\r\n\r\n<html></html>")
    call.writer.close()


@fault("malformed", "no stream of events")
async def not_streamed(call: Call) -> None:
    await call.answer(
        200, {"choices": [{"text": "abc"}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    )


@fault("malformed", "the encoding gzip")
async def compressed(call: Call) -> None:
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    await call.write(head + chunked(gzip.compress(whole(call))) + END)


@fault("malformed", "the encoding gzip, chunked")
async def compressed_transfer(call: Call) -> None:
    head = STREAM_HEAD.replace(b"chunked", b"gzip, chunked")
    await call.write(head + chunked(gzip.compress(whole(call))) + END)


@fault("malformed", "without any event that carries a token")
async def empty(call: Call) -> None:
    await call.write(STREAM_HEAD + END)


@fault("malformed", "without any event that carries a token")
async def only_the_role(call: Call) -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
    await begin(call, role, usage_event(5, 3), DONE)
    await call.write(END)


# What is no event


async def instead_of_an_event(call: Call, data: bytes) -> None:
    await begin(call, event(), data, usage_event(5, 3), DONE)
    await call.write(END)


@fault("malformed", "not UTF-8")
async def invalid_utf8_in_text(call: Call) -> None:
    await instead_of_an_event(call, b'data: {"choices":[{"text":"\xc3\x28"}]}')


@fault("malformed", "not UTF-8")
async def invalid_utf8_in_json(call: Call) -> None:
    await instead_of_an_event(call, b'data: {"choices":[{"te\xffxt":"a"}]}')


@fault("malformed", "not UTF-8")
async def half_a_character(call: Call) -> None:
    await instead_of_an_event(call, event("🙂").replace("🙂".encode(), "🙂".encode()[:3]))


@fault("malformed", "not UTF-8")
async def half_a_surrogate(call: Call) -> None:
    await instead_of_an_event(call, b'data: {"choices":[{"text":"\xed\xa0\x80"}]}')


@fault("malformed", "not JSON: 'nonsense'")
async def nonsense(call: Call) -> None:
    await instead_of_an_event(call, b"data: nonsense")


@fault("malformed", "not JSON")
async def nested_too_deep(call: Call) -> None:
    await instead_of_an_event(call, b"data: " + b"[" * 200_000)


# What says that it failed


@fault("server_error", "EngineDeadError")
async def an_error_event(call: Call) -> None:
    await instead_of_an_event(call, b'data: {"error":{"message":"EngineDeadError","code":500}}')


@fault("server_error", "out of memory")
async def an_event_named_error(call: Call) -> None:
    await instead_of_an_event(call, b"event: error\ndata: out of memory")


@fault("server_error", "engine is dead")
async def an_error_with_status_200(call: Call) -> None:
    await call.answer(200, {"error": {"message": "engine is dead", "type": "InternalServerError"}})


@fault("server_error", "engine is dead")
async def an_error_object_until_the_end(call: Call) -> None:
    body = {"object": "error", "message": "engine is dead", "code": 500}
    await call.write(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(body, indent=1).encode())
    call.writer.close()


# What holds no counts


@fault("no_usage", "no token counts")
async def no_usage(call: Call) -> None:
    await begin(call, *[event()] * 3, DONE)
    await call.write(END)


@fault("no_usage", "no token counts")
async def usage_that_is_none(call: Call) -> None:
    await begin(call, *[event()] * 3, usage_event(-5, 10**400), DONE)
    await call.write(END)
