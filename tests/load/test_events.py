"""One streamed answer, cut in any way, is one record."""

import json
import tracemalloc
from bisect import bisect_left
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.client.stream import EventStream, OutcomeKind
from tests.load.server import DONE, event, usage_event

TEXTS = [
    "Grüße",
    " 東京",
    "",
    "🙂",
    'a"text":"b',
    "\n\n",
    "data: x",
    "\r",
    '"usage"',
    "\u2028\x85\ufeff",
]
COUNTED = {
    "prompt_tokens": 11,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
}
MANY_LINES = b'event: message\nid: 7\ndata: {"choices": [{"index": 0,\ndata: "text": "\xc3\xbc"}]}'
CHAT = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}',
    b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": null}',
    b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "y", "content": null}}], "usage": null}',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": null}',
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}',
    DONE,
]
STREAMS = {
    "usage in an event of its own": [b": ping", *map(event, TEXTS), usage_event(11, 8), DONE],
    "usage in the last event": [*map(event, TEXTS), event("z", usage=COUNTED), DONE],
    "usage in every event": [
        event("a", usage={"prompt_tokens": 1}),
        *[event("b", usage=COUNTED)] * 5,
        DONE,
    ],
    "usage behind the end": [event(), DONE, usage_event(11, 8)],
    "data on many lines": [
        b"retry: 5",
        MANY_LINES,
        b"data:",
        event(),
        b"\n: a\n\n",
        usage_event(1, 2),
        DONE,
    ],
    "chat": CHAT,
    "no usage": [event(), event(), DONE],
    "no end": [event(), event()],
}
FAULTY = {
    "error": [event(), b'data: {"error":{"message":"dead"}}', DONE],
    "named error": [event(), b"event: error\ndata: dead", DONE],
    "no JSON": [event(), b"data: nonsense", DONE],
    "no UTF-8": [event(), b'data: {"choices":[{"text":"\xff\xfe"}]}', DONE],
    "half a character": [event(), b'data: {"choices":[{"text":"\xf0\x9f\x99"}]}', DONE],
    "no object": [event(), b"data: 7"],
    "no token": [usage_event(5, 1), DONE],
    "no stream": [b"<html>", b"<p>Welcome"],
    "an error object": [b'{"error": {"message": "dead"}}'],
}


def joined(parts: list[bytes], line_end: bytes = b"\n") -> bytes:
    return b"".join(part + b"\n\n" for part in parts).replace(b"\n", line_end)


def record(pieces: list[bytes]) -> tuple[object, ...]:
    stream = EventStream()
    for piece in pieces:
        stream.feed(piece, 7)
    stream.finish(7)
    usage = stream.usage()
    return list(stream.times_ns), stream.last_ns, usage, stream.done, stream.outcome()


def test_the_whole_stream_at_once():
    times, last, usage, done, outcome = record([joined(STREAMS["usage in an event of its own"])])
    assert times == [7] * len(TEXTS)
    assert (last, usage, done, outcome.ok) == (7, (11, 8, None), True, True)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("parts", [*STREAMS.values(), *FAULTY.values()], ids=[*STREAMS, *FAULTY])
def test_a_cut_at_any_byte_changes_nothing(parts: list[bytes], line_end: bytes):
    whole, stream = record([joined(parts)]), joined(parts, line_end)
    assert whole[-1].ok == (parts in STREAMS.values())
    for cut in range(len(stream) + 1):
        assert record([stream[:cut], stream[cut:]]) == whole
    assert record([stream[i : i + 1] for i in range(len(stream))]) == whole


SHORT = st.text(st.characters(codec="utf-8"), max_size=6)
TOKENS = st.one_of(
    SHORT.map(event),
    SHORT.map(lambda text: event(text, usage={"prompt_tokens": 1, "completion_tokens": 1})),
    SHORT.map(lambda text: b"id: 3\n" + event(text).replace(b',"choices"', b',\ndata: "choices"')),
    SHORT.map(lambda text: event(text).replace(b"data: ", b"data:")),
)
SILENT = st.sampled_from(
    [b": ping", b"id: 5", b"event: ping\ndata", b"", b"\n", b"retry: 1\n: x", b"data:"]
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """The events of a good answer, and how many of them carry a token."""
    tokens = draw(st.lists(TOKENS, min_size=1, max_size=8))
    parts = list(tokens)
    for silent in draw(st.lists(SILENT, max_size=4)):
        parts.insert(draw(st.integers(0, len(parts))), silent)
    counted = draw(st.booleans())
    last = event("z", usage=COUNTED) if counted else usage_event(11, 8)
    return [*parts, last, *[DONE] * draw(st.booleans())], len(tokens) + counted


@given(
    streams(), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 2000), max_size=30)
)
def test_any_stream_in_any_pieces_is_one_record(
    drawn: tuple[list[bytes], int], line_end: bytes, cuts: list[int]
):
    parts, tokens = drawn
    stream = joined(parts, line_end)
    ends = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})
    times, last, usage, done, outcome = record([stream[a:b] for a, b in pairwise(ends)])
    assert (len(times), last, done) == (tokens, 7, parts[-1] == DONE)
    assert usage is not None
    assert usage[:2] == (11, 8)
    assert outcome.ok


@given(
    st.lists(st.booleans(), min_size=40, max_size=40), st.lists(st.integers(0, 900), max_size=20)
)
def test_line_ends_may_be_mixed(windows: list[bool], cuts: list[int]):
    """As when a proxy speaks for a while."""
    parts = STREAMS["usage in an event of its own"]
    stream = b"".join(
        part + (b"\r\n\r\n" if other else b"\n\n")
        for part, other in zip(parts, windows, strict=False)
    )
    ends = sorted({0, *(cut % len(stream) for cut in cuts), len(stream)})
    assert record([stream[a:b] for a, b in pairwise(ends)]) == record([joined(parts)])


@given(st.sets(st.integers(1, 700)), st.sampled_from([b"\n", b"\r\n"]))
def test_times_are_those_of_the_read_that_completed_an_event(cuts: set[int], line_end: bytes):
    parts = [joined([event(text)], line_end) for text in TEXTS]
    body = b"".join(parts)
    ends = sorted({cut for cut in cuts if cut < len(body)} | {len(body)})
    stream = EventStream()
    for number, (a, b) in enumerate(pairwise([0, *ends])):
        stream.feed(body[a:b], number)
    assert list(stream.times_ns) == [bisect_left(ends, end) for end in accumulate(map(len, parts))]


def test_chat_counts_neither_the_role_nor_the_end_as_a_token():
    times, last, usage, _, outcome = record([joined(CHAT)])
    assert (len(times), last, usage, outcome.ok) == (2, 7, (5, 2, None), True)


def test_a_single_token_without_text_is_still_the_first():
    last = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
    times, *_ = record([joined([last, usage_event(3, 1), DONE])])
    assert times == [7]


def test_usage_in_the_last_event_with_a_choice():
    _, _, usage, _, outcome = record([joined(STREAMS["usage in the last event"])])
    assert usage == (11, 8, 4)
    assert outcome.ok


def test_of_several_counts_the_last_ones_hold():
    """An engine may tell them in every event, the one that only opens the answer included."""
    opening = b'data: {"choices":[{"delta":{"role":"a"}}],"usage":{"prompt_tokens":11,"completion_tokens":0}}'
    assert record([joined([opening, event(usage=COUNTED), DONE])])[2] == (11, 8, 4)
    assert record([joined([event(usage=COUNTED), opening, DONE])])[2] == (11, 0, None)


@pytest.mark.parametrize(
    "usage",
    [None, {}, 7, {"prompt_tokens": 5}, {"prompt_tokens": 5, "completion_tokens": -1}]
    + [
        {"prompt_tokens": 5, "completion_tokens": wrong}
        for wrong in (10**400, 1.5, True, "3", None)
    ],
)
def test_what_is_no_count_is_missing(usage: object):
    assert record([joined([event(usage=usage), DONE])])[2] is None


def test_an_end_without_a_blank_line_is_an_end():
    assert record([event() + b"\n\n" + DONE])[3]
    assert record([event() + b"\n\n" + usage_event(1, 2)])[2] == (1, 2, None)


def test_a_byte_order_mark_is_no_part_of_the_first_event():
    assert record([b"\xef\xbb\xbf" + joined([event(), DONE])]) == record([joined([event(), DONE])])


@pytest.mark.parametrize("end", range(1, len(event())))
def test_an_event_that_ends_anywhere_within_is_no_token(end: int):
    """What stands there is malformed, or nothing at all as long as it holds no data."""
    times, *_, outcome = record([event() + b"\n\n" + event("b")[:end]])
    assert len(times) == 1
    if end > len("data: "):
        assert outcome.kind is OutcomeKind.MALFORMED
        assert "within an event" in outcome.message


@pytest.mark.parametrize("data", [b'{"choices":[{"te', b"7", b"nonsense", b"\xff"])
def test_what_is_no_event_is_malformed(data: bytes):
    outcome = record([joined([event(), b"data: " + data])])[-1]
    assert outcome.kind is OutcomeKind.MALFORMED
    assert outcome.message


def test_an_error_in_the_stream_is_told_in_the_servers_words():
    body = json.dumps({"error": {"message": "engine  died", "code": 500}}).encode()
    outcome = record([event() + b"\n\ndata: " + body + b"\n\n"])[-1]
    assert (outcome.kind, outcome.message) == (OutcomeKind.SERVER_ERROR, "engine died")


def test_an_answer_that_the_engine_aborts_has_failed_although_its_stream_ends_well():
    """As vLLM 0.32 closes streams when its engine process gets SIGTERM."""
    last = b'{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}'
    outcome = record([joined([event(), b"data: " + last, b"data: [DONE]"])])[-1]
    assert outcome.kind is OutcomeKind.SERVER_ERROR
    assert "aborted" in outcome.message


def test_a_very_long_event_is_taken_in_pieces():
    long = event("x" * 3_000_000) + b"\n\n"
    assert len(record([long[i : i + 65536] for i in range(0, len(long), 65536)])[0]) == 1


def test_what_is_kept_of_a_stream_are_times_and_counts():
    """2000 events of 10 kB, then half a one of 3 MB, leave no more than 2000 times behind."""
    long = joined([event("x" * 10_000)])
    stream = EventStream()
    tracemalloc.start()
    try:
        for number in range(2000):
            stream.feed(long, number)
        stream.feed(event("x" * 3_000_000)[:-9], 2000)
        while_under_way, _ = tracemalloc.get_traced_memory()
        stream.release()
        afterwards, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(stream.times_ns) == 2000
    assert while_under_way < 8_000_000  # the half event twice, as it grows, and the last few
    assert afterwards < 2000 * 8 * 2
