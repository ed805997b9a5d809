"""The measured path: one kept-alive HTTP/1.1 connection, one request on it at a time.

An `asyncio.Protocol` on httptools: each read of the socket is stamped once, before anything is parsed.
"""

from __future__ import annotations

import asyncio
import json
from math import nan
from time import perf_counter_ns
from typing import Any, cast

import httptools

from autotune.client.events import EventStream, error_message, usage_counts
from autotune.client.outcomes import OK, Outcome, OutcomeKind

_MAX_KEPT_BODY = 32 * 2**20
"""Bytes of an answer that is no stream: an error, or a whole completion."""


class Exchange:
    """One request and what came back; times in ns of `time.perf_counter_ns`.

    Attributes:
        expected_tokens: how many tokens the answer must have.
        streaming: whether the answer was asked for as a stream of events.
        sent_ns: when it was handed to the socket, or when a connection for it was asked for.
        finished_ns: when the last event with a choice came; for a failure, when it was known.
        status: HTTP status; 0 before the answer begins.
        outcome: how it ended; None while it is under way.
    """

    __slots__ = (
        "body",
        "events",
        "expected_tokens",
        "finished_ns",
        "outcome",
        "sent_ns",
        "started",
        "status",
        "streaming",
        "usage",
    )

    def __init__(self, expected_tokens: int, streaming: bool = True) -> None:
        self.expected_tokens, self.streaming = expected_tokens, streaming
        self.sent_ns = perf_counter_ns()
        self.finished_ns = 0
        self.status = 0
        self.started = False
        self.events = EventStream()
        self.body = bytearray()
        self.usage: tuple[int, int, int | None] | None = None
        self.outcome: Outcome | None = None

    def complete(self, now_ns: int) -> None:
        """The whole answer is there: judge it."""
        if self.status != 200:
            self._end(Outcome(OutcomeKind.HTTP_STATUS, _words(self.body), self.status), now_ns)
            return
        if self.streaming:
            self.events.finish(now_ns)
            self.usage = self.events.usage()
            outcome = self.events.outcome()
        else:
            outcome = self._read_whole(now_ns)
        if outcome.ok:
            outcome = self._judge_counts()
        self._end(outcome, self.events.last_ns if outcome.ok else now_ns)

    def cut(self, outcome: Outcome, now_ns: int) -> None:
        """The answer ends here and is not whole, unless the stream had said all that it has to say."""
        if self.status == 200 and self.streaming and self.events.done:
            self.complete(now_ns)
        else:
            self._end(self.events.problem or outcome, now_ns)

    def fail(self, outcome: Outcome) -> None:
        """It ends here, without an answer."""
        self._end(outcome, perf_counter_ns())

    def so_far(self) -> tuple[float, float, float, float, float]:
        """A row of `Report.columns`: NaN for what has not happened yet."""
        times = self.events.times_ns
        first_s = times[0] / 1e9 if times else nan
        finished_s = self.finished_ns / 1e9 if self.finished_ns else nan
        written = float(self.usage[1]) if self.usage is not None else nan
        return self.sent_ns / 1e9, first_s, finished_s, written, float(self.outcome is not None and self.outcome.ok)

    def _end(self, outcome: Outcome, at_ns: int) -> None:
        if self.outcome is None:  # the first one stands
            self.outcome, self.finished_ns = outcome, at_ns
            self.body.clear()

    @property
    def runs_on(self) -> bool:
        """Whether there are far more events than tokens were asked for: the server would stream for ever."""
        return len(self.events.times_ns) > 2 * self.expected_tokens + 64

    def _judge_counts(self) -> Outcome:
        """An answer of another length than asked for did not do the work asked for."""
        if self.usage is None:
            return Outcome(OutcomeKind.NO_USAGE, "the answer holds no token counts")
        written = self.usage[1]
        if written == self.expected_tokens:
            return OK
        message = f"{written} tokens instead of {self.expected_tokens}; the server may not honour ignore_eos"
        return Outcome(OutcomeKind.WRONG_LENGTH, message)

    def _read_whole(self, now_ns: int) -> Outcome:
        try:
            answer: Any = json.loads(self.body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            return Outcome(OutcomeKind.MALFORMED, "the answer is no JSON object")
        if answer.get("error"):
            return Outcome(OutcomeKind.SERVER_ERROR, error_message(answer))
        usage = answer.get("usage")
        self.usage = usage_counts(usage if isinstance(usage, dict) else None)
        self.events.times_ns.append(now_ns)
        self.events.last_ns = now_ns
        return OK


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
        self._now_ns = 0
        self._keep_alive = self._streams = self._has_length = False

    async def run(self, exchange: Exchange, request: bytes) -> None:
        """Send a request and wait until it ended, in whatever way; its outcome is set then.

        Cancelling closes the connection.
        """
        assert self._transport is not None
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

    def abort(self, outcome: Outcome) -> None:
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
            self.close()  # nothing was asked: the server is about to close
            return
        exchange.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if exchange.outcome is None:
                self.abort(Outcome(OutcomeKind.MALFORMED, f"not HTTP: {error}"))
            self.close()
        if exchange.events.problem is not None and exchange.outcome is None:
            self.abort(exchange.events.problem)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        exchange = self._exchange
        if exchange is None:
            return
        now_ns = perf_counter_ns()
        if self._delimited_by_close(exchange):
            exchange.complete(now_ns)
        else:
            exchange.cut(Outcome(OutcomeKind.CLOSED, _where(exchange, exc)), now_ns)
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        del value
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_message_begin(self) -> None:
        self._has_length = False

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        assert self._exchange is not None
        self._exchange.status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()
        self._streams = self._exchange.streaming and self._exchange.status == 200

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if self._streams:
            exchange.events.feed(body, self._now_ns)
        elif len(exchange.body) < _MAX_KEPT_BODY:
            exchange.body += body

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.status < 200:
            return  # an interim answer, such as 100 Continue
        exchange.complete(self._now_ns)
        if not self._keep_alive:
            self.close()
        self._wake()

    def _delimited_by_close(self, exchange: Exchange) -> bool:
        """Whether the end of the connection is a good end: no length was announced and the stream says it is over."""
        if not exchange.status or self._has_length:
            return False
        if exchange.status != 200:
            return True
        return exchange.events.ended if exchange.streaming else bool(exchange.body)

    def _wake(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


def _where(exchange: Exchange, error: Exception | None) -> str:
    count = len(exchange.events.times_ns)
    reason = f" ({error})" if error else ""
    if not exchange.started:
        return f"the server closed the connection before it answered{reason}"
    return f"the server closed the connection within the answer, after {count} events with text{reason}"


def _words(body: bytearray) -> str:
    """What a server says with an error status."""
    try:
        answer = json.loads(body)
    except ValueError:
        return " ".join(body[:2000].decode("utf-8", "replace").split())[:300]
    return error_message(answer) if isinstance(answer, dict) else str(answer)[:300]
