"""The measured path: one kept-alive HTTP/1.1 connection, one request on it at a time.

An `asyncio.Protocol` on httptools: each read of the socket is stamped once, before anything is parsed.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import cast

import httptools

from autotune.loadgen.client.events import EventStream
from autotune.loadgen.client.outcomes import (
    OutcomeKind,
    RequestOutcome,
    Usage,
    excerpt,
    malformed,
    one_line,
    whole_answer,
    why_refused,
)

_MAX_WHOLE = 32 * 2**20
"""Bytes of an answer that is no stream; a longer one is ``malformed``."""

_MAX_REFUSAL = 64 * 2**10
"""Bytes kept of what comes with an error status."""

_MAX_HEAD = 2**20
"""Bytes before the answer itself begins: its headers, and interim answers."""


class Exchange:
    """One request and what came back; times in ns of `time.perf_counter_ns`.

    Attributes:
        expected_tokens: how many tokens the answer must have.
        streaming: whether the answer was asked for as a stream of events.
        sent_ns: when it was handed to the socket, or when a connection for it was asked for.
        finished_ns: when the last event with a choice came; for a failure, when it was known.
        started: whether anything came back.
        status: HTTP status; 0 before the answer begins.
        location: where the server says the answer is to be found, if it says so.
        outcome: how it ended; None while it is under way.
    """

    def __init__(self, expected_tokens: int, streaming: bool = True, events: EventStream | None = None) -> None:
        self.expected_tokens, self.streaming = expected_tokens, streaming
        self.sent_ns = perf_counter_ns()
        self.finished_ns = 0
        self.status = 0
        self.started = False
        self.location = ""
        self.events = EventStream() if events is None else events
        self.body = bytearray()
        self.usage: Usage | None = None
        self.outcome: RequestOutcome | None = None

    def complete(self, now_ns: int) -> None:
        """End the request with a whole answer."""
        if self.status != 200:
            words = why_refused(self.status, self.body, self.location)
            self._end(RequestOutcome(OutcomeKind.HTTP_STATUS, words, self.status), now_ns)
            return
        if self.streaming:
            self.events.finish(now_ns)
            self.usage, outcome = self.events.usage(), self.events.outcome()
        else:
            outcome = self._read_whole(now_ns)
        if outcome.ok and self.usage is None:
            outcome = self._uncounted()
        self._end(outcome, self.events.last_ns if outcome.ok else now_ns)

    def cut(self, outcome: RequestOutcome, now_ns: int) -> None:
        """End the request within its answer; it is whole all the same where ``[DONE]`` had come."""
        said_all = self.streaming and self.events.done and not self.runs_on
        if self.refused or (self.status == 200 and said_all):
            self.complete(now_ns)
        else:
            self._end(self.events.problem or outcome, now_ns)

    def fail(self, outcome: RequestOutcome) -> None:
        """End the request without an answer."""
        self._end(outcome, perf_counter_ns())

    def _end(self, outcome: RequestOutcome, at_ns: int) -> None:
        if self.outcome is None:  # the first one stands
            self.outcome, self.finished_ns = outcome, at_ns
            self.body.clear()
            self.events.release()

    @property
    def refused(self) -> bool:
        """Whether the server answers with another status than 200; an interim one is no answer yet."""
        return self.status >= 200 and self.status != 200

    @property
    def runs_on(self) -> bool:
        """Whether there are far more events than tokens were asked for: the server would stream for ever."""
        return max(len(self.events.times_ns), self.events.others) > 2 * self.expected_tokens + 64

    def _uncounted(self) -> RequestOutcome:
        """An answer without token counts; whether it is whole is not known either unless the stream says so."""
        if self.streaming and not self.events.done:
            count = len(self.events.times_ns)
            return malformed(f"the stream ends after {count} events with text, without token counts and [DONE]")
        return RequestOutcome(OutcomeKind.NO_USAGE, "the answer holds no token counts")

    def _read_whole(self, now_ns: int) -> RequestOutcome:
        if self.events.problem is not None:
            return self.events.problem
        if len(self.body) > _MAX_WHOLE:
            return malformed(f"an answer of more than {_MAX_WHOLE // 2**20} MiB")
        outcome, self.usage = whole_answer(self.body)
        if outcome.ok:
            self.events.times_ns.append(now_ns)
            self.events.last_ns = now_ns
        return outcome


class Connection(asyncio.Protocol):
    """One connection to the server.

    Attributes:
        open: whether another request may be sent on it.
        reads: how often the socket was read.
    """

    def __init__(self) -> None:
        self.open = False
        self.reads = 0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._over: asyncio.Future[None] | None = None
        self._now_ns = self._head = 0
        self._keep_alive = self._streams = self._has_length = False
        self._coding = b""
        self._unasked: RequestOutcome | None = None

    async def run(self, exchange: Exchange, request: bytes) -> None:
        """Send a request and wait until it ended, in whatever way; its outcome is set then.

        Cancelling closes the connection.
        """
        if not self.open:  # lost between the moment it was made and this one
            exchange.fail(self._unasked or RequestOutcome(OutcomeKind.CLOSED, _where(exchange, None)))
            return
        assert self._transport is not None
        self._head = 0
        self._over = asyncio.get_running_loop().create_future()
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        try:
            await self._over
        finally:
            self._exchange = self._parser = self._over = None
            if exchange.outcome is None:
                self.close()

    def abort(self, outcome: RequestOutcome) -> None:
        """Give up the request under way, and the connection with it."""
        if self._exchange is not None:
            self._exchange.cut(outcome, perf_counter_ns())
        self.close()
        self._wake()

    def close(self) -> None:
        """Close without waiting; closing twice does nothing."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class does not derive from it
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._now_ns = perf_counter_ns()
        self.reads += 1
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self._unasked = malformed(f"bytes that nobody asked for: {excerpt(data)}")
            self.close()
            return
        exchange.started = True
        if exchange.status < 200:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(malformed(f"not HTTP: {error}"))
        if exchange.outcome is not None:
            return
        if exchange.events.problem is not None:
            self.abort(exchange.events.problem)
        elif exchange.status < 200 and self._head > _MAX_HEAD:
            self.abort(malformed(f"headers of more than {_MAX_HEAD // 2**20} MiB"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        exchange = self._exchange
        if exchange is None:
            return
        now_ns = perf_counter_ns()
        if exc is None and self._delimited_by_close(exchange):
            exchange.complete(now_ns)
        else:
            exchange.cut(RequestOutcome(OutcomeKind.CLOSED, _where(exchange, exc)), now_ns)
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        coding = name in (b"content-encoding", b"transfer-encoding")
        if coding and value.strip().lower() not in (b"", b"identity", b"chunked"):
            self._coding = value
        elif name == b"location" and self._exchange is not None:
            self._exchange.location = one_line(value.partition(b"?")[0].decode("latin-1"))

    def on_message_begin(self) -> None:
        self._has_length, self._coding = False, b""
        if self._exchange is None:
            self.close()  # bytes behind the end of the answer: who would know what the next ones belong to

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        exchange = self._exchange
        if exchange is None:
            return
        exchange.status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()
        self._streams = exchange.streaming and exchange.status == 200
        if self._coding and exchange.status == 200:
            coding = one_line(self._coding.decode("latin-1"))
            exchange.events.problem = malformed(f"the answer is coded as {coding}, which was not asked for")

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._coding:
            return
        if self._streams:
            exchange.events.feed(body, self._now_ns)
        elif len(exchange.body) <= (_MAX_REFUSAL if exchange.refused else _MAX_WHOLE):
            exchange.body += body

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.status < 200:
            return  # an interim answer, such as 100 Continue
        exchange.complete(self._now_ns)
        # An answer may come before the request is out, whose rest would stand before the next one.
        writing = self.open and self._transport is not None and self._transport.get_write_buffer_size() > 0
        if not self._keep_alive or exchange.events.problem is not None or writing:
            self.close()
        self._wake()

    def _delimited_by_close(self, exchange: Exchange) -> bool:
        """Whether the end of the connection ends the answer: no length was announced and the stream is complete."""
        if exchange.status != 200 or self._has_length:
            return False
        return exchange.events.ended if exchange.streaming else bool(exchange.body)

    def _wake(self) -> None:
        """End the request under way: what comes from here on does not belong to it."""
        self._exchange = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


def _where(exchange: Exchange, error: Exception | None) -> str:
    count = len(exchange.events.times_ns)
    reason = f" ({error})" if error else ""
    if not exchange.started:
        return f"the server closed the connection before it answered{reason}"
    return f"the server closed the connection within the answer, after {count} events with text{reason}"
