"""Ways to answer a completion that are odd and whole: each is measured like any other.

A good answer here has three tokens (`tests.load.server.good` with ``max_tokens`` 3).
"""

import asyncio

from tests.load.server import (
    DONE,
    END,
    STREAM_HEAD,
    Call,
    Handler,
    chunked,
    event,
    good,
    prompt_tokens,
    usage_event,
)

PLAIN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"

ODD: dict[str, Handler] = {"good": good}


def odd(handler: Handler) -> Handler:
    ODD[handler.__name__] = handler
    return handler


def whole(call: Call, line_end: bytes = b"\n") -> bytes:
    """The body of a good answer."""
    events = [*[event()] * 3, usage_event(prompt_tokens(call.body), 3), DONE]
    return b"".join(part + line_end * 2 for part in events)


async def begin(call: Call, *events: bytes) -> None:
    await call.write(STREAM_HEAD)
    await call.stream(*events)


@odd
async def http_1_0(call: Call) -> None:
    await call.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + whole(call))
    call.writer.close()


@odd
async def http_1_0_with_a_length(call: Call) -> None:
    body = whole(call)
    await call.write(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    call.writer.close()


@odd
async def http_1_0_kept_alive(call: Call) -> None:
    body = whole(call)
    head = f"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: {len(body)}\r\n\r\n"
    await call.write(head.encode() + body)


@odd
async def until_the_end(call: Call) -> None:
    await call.write(PLAIN_HEAD + b"Connection: close\r\n\r\n" + whole(call))
    call.writer.close()


@odd
async def says_that_it_will_close(call: Call) -> None:
    await call.write(STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    await call.finish()


@odd
async def closes_after_the_answer(call: Call) -> None:
    await good(call)
    call.writer.close()


@odd
async def trailers(call: Call) -> None:
    await call.write(
        STREAM_HEAD + chunked(whole(call)) + b"0\r\nX-Usage: 8\r\nContent-Encoding: gzip\r\n\r\n"
    )


@odd
async def chunk_extensions(call: Call) -> None:
    body = whole(call)
    await call.write(STREAM_HEAD + f'{len(body):X};name="a;b"\r\n'.encode() + body + b"\r\n" + END)


@odd
async def continues_first(call: Call) -> None:
    await call.write(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nLocation: /x\r\n\r\n"
    )
    await good(call)


@odd
async def garbage_behind_the_end(call: Call) -> None:
    await call.write(STREAM_HEAD + chunked(whole(call)) + END + b"and more\r\n\r\n")


@odd
async def a_second_answer_behind_the_end(call: Call) -> None:
    await call.write((STREAM_HEAD + chunked(whole(call)) + END) * 2)


@odd
async def no_end_of_the_body(call: Call) -> None:
    await call.write(STREAM_HEAD + chunked(whole(call)))
    await asyncio.Event().wait()


@odd
async def closes_behind_done(call: Call) -> None:
    body = whole(call)
    await call.write(PLAIN_HEAD + f"Content-Length: {len(body) + 9}\r\n\r\n".encode() + body)
    call.writer.close()


@odd
async def resets_behind_the_end(call: Call) -> None:
    await good(call)
    call.reset()


@odd
async def lines_of_windows(call: Call) -> None:
    await call.write(
        STREAM_HEAD + chunked(b"\xef\xbb\xbf: hello\r\n\r\n" + whole(call, line_end=b"\r\n")) + END
    )


@odd
async def every_byte_alone(call: Call) -> None:
    """HTTP chunks of one byte, so that each character of several bytes is cut everywhere."""
    body = b"".join(event(text) + b"\n\n" for text in ("Grüße", "東京", "🙂🏽"))
    body += usage_event(prompt_tokens(call.body), 3) + b"\n\n" + DONE + b"\n\n"
    await call.write(STREAM_HEAD)
    for i in range(len(body)):
        await call.write(chunked(body[i : i + 1]))
        await asyncio.sleep(0)
    await call.write(END)


@odd
async def other_fields(call: Call) -> None:
    """Named events, ids, data on several lines, an empty one, and the last one without its blank
    line."""
    one = b'id: 1\nevent: message\ndata: {"choices":\ndata: [{"index":0,"text":"a"}]}'
    await begin(
        call, b"retry: 5", b"data:", one, event(), event(), usage_event(prompt_tokens(call.body), 3)
    )
    await call.write(chunked(DONE) + END)
