"""A server that misbehaves: each fault is a counted, named outcome, and the load ends."""

import itertools
import json
import socket
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from autotune.load import LoadOptions, Measurement, measure
from autotune.load.client.messages import RequestLog, RequestTimeouts
from autotune.load.client.stream import failure_sentence, tally
from autotune.load.measuring import to_json
from autotune.load.metrics.formulas import summarize
from autotune.load.workloads import load_workload
from tests.load.misbehaving import FAULTS, Fault
from tests.load.odd import ODD, begin
from tests.load.sending import LONG, completion, send
from tests.load.server import (
    DONE,
    END,
    STREAM_HEAD,
    Call,
    Handler,
    Server,
    event,
    good,
    usage_event,
)

KEY = "top-secret-7"


def answered(handler: Handler, **options: object) -> RequestLog:
    with Server(handler) as server:
        return send(server.url, **options)  # type: ignore[arg-type]


def measured(handler: Handler, workload: str = "random:5:3:4", **options: object) -> Measurement:
    given = {"timeouts": RequestTimeouts(connect_s=5, stall_s=0.3), "warm_up": False, **options}
    with Server(handler) as server:
        return measure(server.url, "m", load_workload(workload), 1, LoadOptions(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_and_counted(case: Fault):
    log = answered(case.handler)
    assert tally(log.outcomes) == {case.name: 4}
    assert case.words in log.outcomes[0].message
    metrics = summarize(log.records)
    assert (metrics["completed"], metrics["failed"], metrics["total_token_throughput"]) == (0, 4, 0)
    json.dumps(metrics, allow_nan=False)


@pytest.mark.parametrize("handler", ODD.values(), ids=ODD)
def test_an_odd_answer_is_measured_as_any_other(handler: Handler):
    log = answered(handler, concurrency=2)
    assert tally(log.outcomes) == {"ok": 4}, failure_sentence(log.outcomes)
    assert log.records.input_tokens.tolist() == [5] * 4
    assert log.records.output_tokens.tolist() == [3] * 4 == log.chunks.tolist()
    metrics = summarize(log.records)
    assert 0 < metrics["mean_ttft_ms"] <= metrics["mean_e2el_ms"]


def test_each_request_is_judged_by_its_own_answer():
    """Half of the requests are answered well, and each of the others is answered wrongly in another
    way."""
    asked = list(itertools.chain.from_iterable(zip(FAULTS, itertools.cycle(ODD), strict=False)))

    async def as_asked(call: Call) -> None:
        name = call.body["prompt"]
        await (FAULTS[name].handler if name in FAULTS else ODD[name])(call)

    bodies = [completion(name) for name in asked]
    log = answered(
        as_asked, bodies=bodies, concurrency=16, timeouts=RequestTimeouts(connect_s=5, stall_s=1)
    )
    expected = [FAULTS[name].name if name in FAULTS else "ok" for name in asked]
    assert [outcome.name for outcome in log.outcomes] == expected
    assert tally(log.outcomes) == Counter(expected)
    metrics = summarize(log.records)
    assert metrics["completed"] == len(FAULTS) == metrics["failed"]
    assert metrics["total_output_tokens"] == 3 * len(FAULTS)
    assert log.length_error == 0


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, {"detail": "Not Found"}, "Not Found"),  # a wrong path
        (
            404,
            {"error": {"message": "The model `m` does not exist.", "code": 404}},
            "does not exist",
        ),  # vLLM
        (
            404,
            {"object": "error", "message": "The model `m` does not exist."},
            "does not exist",
        ),  # older vLLM
        (
            400,
            {"object": "error", "message": "Model m not found", "code": 400},
            "Model m not found",
        ),  # SGLang
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (422, {"detail": [{"loc": ["body"], "msg": "Field required"}]}, "Field required"),
        (429, {"error": {"message": "Too many requests", "type": "x"}}, "Too many requests"),
        (503, {"detail": "overloaded"}, "overloaded"),
        (
            503,
            {"error": {"message": "\ud800\x1b[31m\u202ered"}},
            "[31m red",
        ),  # nothing that a terminal would obey
        (400, ["odd"], "odd"),
    ],
)
def test_an_http_status_keeps_the_servers_words(status: int, body: object, words: str):
    async def refuse(call: Call) -> None:
        await call.answer(status, body)

    log = answered(refuse)
    assert tally(log.outcomes) == {f"http_{status}": 4}
    assert words in log.outcomes[0].message
    assert log.outcomes[0].message.isprintable()


@pytest.mark.parametrize(
    ("answer", "name", "words"),
    [
        (b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", "http_503", "Service Unavailable"),
        (b"HTTP/1.1 599 x\r\nContent-Length: 0\r\n\r\n", "http_599", "without a reason"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "http_204", "No Content"),
        (
            b"HTTP/1.1 307 x\r\nLocation: /login?t=1\r\nContent-Length: 2\r\n\r\nhi",
            "http_307",
            "redirects to /login",
        ),
        (
            b"HTTP/1.1 500 x\r\nContent-Length: 50\r\n\r\nTraceback",
            "http_500",
            "Traceback",
        ),  # not whole
        (b"HTTP/1.0 502 x\r\n\r\n<html>\nBad Gateway", "http_502", "<html> Bad Gateway"),
        (
            b"HTTP/1.1 500 x\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
            "http_500",
            "Internal",
        ),
        (b"HTTP/1.1 500 x\r\n\r\n" + b"x" * 200_000, "http_500", "xxx…"),
    ],
    ids=["empty", "unknown", "no_content", "redirect", "cut", "html", "compressed", "long"],
)
def test_a_refusal_that_is_not_json(answer: bytes, name: str, words: str):
    async def refuse(call: Call) -> None:
        await call.write(answer)
        call.writer.close()

    log = answered(refuse)
    assert tally(log.outcomes) == {name: 4}
    assert words in log.outcomes[0].message
    assert "t=1" not in log.outcomes[0].message
    assert len(log.outcomes[0].message) < 310


def test_a_refusal_that_never_ends_is_still_that_refusal():
    async def refuse(call: Call) -> None:
        await call.write(b"HTTP/1.1 429 x\r\nContent-Length: 99\r\n\r\nslow down")
        await call.writer.wait_closed()

    log = answered(refuse)
    assert tally(log.outcomes) == {"http_429": 4}
    assert log.outcomes[0].message == "slow down"


def test_a_burst_of_503_fails_only_those_requests():
    seen = []

    async def busy(call: Call) -> None:
        seen.append(call)
        await (call.answer(503, "busy") if len(seen) in (2, 3) else good(call))

    log = answered(busy)
    assert tally(log.outcomes) == {"ok": 2, "http_503": 2}
    assert summarize(log.records)["total_output_tokens"] == 6


def test_nothing_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: nobody else gets the port
        log = send(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert tally(log.outcomes) == {"connect_error": 4}
    assert "refused" in log.outcomes[0].message


def test_a_failed_measurement_says_how_in_one_sentence():
    result = measured(FAULTS["closes"].handler)
    assert result.failure.startswith(
        "4 of 4 requests failed: 4 closed (the server closed the connection within"
    )
    assert result.invalid == ""
    json.dumps(to_json([result]), allow_nan=False)


def test_answers_without_counts_make_a_measurement_invalid():
    assert "4 no_usage" in measured(FAULTS["no_usage"].handler).invalid


def test_a_server_that_answers_no_warm_up_gets_no_load():
    result = measured(FAULTS["silent"].handler, warm_up=True)
    assert result.points == ()
    assert tally(result.outcomes) == {"stall_timeout": 4}
    assert result.metrics["failed"] == 4


WHOLE = b'{"choices":[{"text":"abc"}],"usage":{"prompt_tokens":5,"completion_tokens":3}}'


@pytest.mark.parametrize(
    ("body", "name", "words"),
    [
        (WHOLE, "ok", ""),
        (WHOLE[:-5], "malformed", "no completion: '{"),
        (b"<html>", "malformed", "no completion: '<html>'"),
        (b'{"error":{"message":"dead"}}', "server_error", "dead"),
        (b'{"object":"error","message":"dead"}', "server_error", "dead"),
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":3}}', "malformed", "no completion"),
        (b'{"choices":[{"text":"abc"}],"usage":null}', "no_usage", "no token counts"),
        (b"[" * 100_000, "malformed", "no completion"),
    ],
    ids=["good", "cut", "html", "error", "vllm", "empty", "no_usage", "nested"],
)
@pytest.mark.parametrize("until_the_end", [False, True])
def test_answers_that_are_not_streamed(body: bytes, name: str, words: str, until_the_end: bool):
    async def answer(call: Call) -> None:
        length = b"" if until_the_end else f"Content-Length: {len(body)}\r\n".encode()
        await call.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + body)
        if until_the_end:
            call.writer.close()

    log = answered(answer, streaming=False)
    assert tally(log.outcomes) == {name: 4}
    assert words in log.outcomes[0].message


async def twenty_megabytes(call: Call) -> None:
    await begin(call, event("x" * 20_000_000))
    await call.finish(2)


async def an_event_beyond_the_limit(call: Call) -> None:
    await call.write(STREAM_HEAD + b"2200000\r\ndata: ")  # 34 MiB
    for _ in range(34):
        await call.write(b"x" * 2**20)


async def an_answer_beyond_the_limit(call: Call) -> None:
    await call.write(b"HTTP/1.1 200 OK\r\nContent-Length: 35651584\r\n\r\n" + b"x" * 34 * 2**20)


@pytest.mark.parametrize(
    ("handler", "streaming", "name", "words"),
    [
        (twenty_megabytes, True, "ok", ""),
        (an_event_beyond_the_limit, True, "malformed", "an event of more than 32 MiB"),
        (an_answer_beyond_the_limit, False, "malformed", "an answer of more than 32 MiB"),
    ],
)
def test_what_is_very_long(handler: Handler, streaming: bool, name: str, words: str):
    log = answered(handler, bodies=[completion()], streaming=streaming, timeouts=LONG)
    assert tally(log.outcomes) == {name: 1}
    assert words in log.outcomes[0].message
    assert log.chunks.tolist() == [3 if name == "ok" else 0]


REPEATS: dict[str, Callable[[bytes], bytes]] = {
    "json": lambda key: b'HTTP/1.1 401 x\r\n\r\n{"error":{"message":"Bad key: ' + key + b'"}}',
    "text": lambda key: b"HTTP/1.1 403 x\r\n\r\n" + key,
    "cut": lambda key: b"HTTP/1.1 403 x\r\n\r\n" + b"x" * 290 + key,  # where a long message is cut
    "html": lambda key: b"HTTP/1.1 200 OK\r\n\r\n<html>" + key,
    "location": lambda key: b"HTTP/1.1 302 x\r\nLocation: /" + key + b"\r\n\r\n",
    "coding": lambda key: b"HTTP/1.1 200 OK\r\nContent-Encoding: " + key + b"\r\n\r\n",
    "error": lambda key: b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": "' + key + b'"}\n\n',
    "nonsense": lambda key: b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"x" * 250 + key + b"\n\n",
    "half": lambda key: b"HTTP/1.1 200 OK\r\nContent-Length: 51\r\n\r\ndata: " + (key * 9)[:45],
    "unasked": lambda key: key,
}


@pytest.mark.parametrize("answer", REPEATS.values(), ids=REPEATS)
def test_the_api_key_is_sent_and_never_repeated(answer: Callable[[bytes], bytes]):
    async def tells(call: Call) -> None:
        assert call.headers["authorization"] == f"Bearer {KEY}"
        await call.write(answer(KEY.encode()))
        call.writer.close()

    log = answered(tells, api_key=KEY)
    assert "ok" not in tally(log.outcomes)
    assert KEY[:8] not in json.dumps([outcome.message for outcome in log.outcomes])


def test_an_answer_of_another_length_makes_the_numbers_invalid_but_is_no_failure():
    async def another_length(call: Call) -> None:
        await begin(call, event(), usage_event(5, 1), DONE)
        await call.write(END)

    result = measured(another_length)
    assert tally(result.outcomes) == {"ok": 4}
    assert result.failure == ""
    assert (
        result.invalid
        == "1.0 tokens per answer instead of 3.0; the server may not honour ignore_eos"
    )
    log = result.points[0].log
    assert log.length_error == pytest.approx(2 / 3)
    assert log.expected_tokens.tolist() == [3] * 4
    assert RequestLog.merged([log, log], [np.arange(len(log))] * 2).length_error == log.length_error


@pytest.mark.parametrize(("missing", "valid"), [(1, True), (3, False)])
def test_the_mean_length_may_be_off_by_one_percent(missing: int, valid: bool):
    seen = []

    async def some_missing(call: Call) -> None:
        seen.append(call)
        await begin(call, event(), usage_event(5, 50 - missing if len(seen) == 1 else 50), DONE)
        await call.write(END)

    result = measured(some_missing, "random:5:50:4")
    assert result.points[0].log.length_error == pytest.approx(missing / 200)
    assert (result.invalid == "") == valid


def test_a_failed_request_has_no_say_in_the_length():
    async def one_fails(call: Call) -> None:
        await (call.answer(503, "busy") if call.body["prompt"] == "busy" else good(call))

    log = answered(
        one_fails, bodies=[completion("busy", max_tokens=900), completion(), completion()]
    )
    assert tally(log.outcomes) == {"ok": 2, "http_503": 1}
    assert log.length_error == 0
    assert answered(FAULTS["closes"].handler).length_error == 0
