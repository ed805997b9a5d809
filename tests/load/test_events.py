"""One streamed answer, cut in any way, is one record."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.client.events import EventStream
from autotune.client.outcomes import OutcomeKind
from tests.load.server import event, usage_event

TEXTS = ["Grüße", " 東京", "", "🙂", 'a"text":"b', "\n\n", "data: x", "\r"]
STREAM = b"".join(part + b"\n\n" for part in [b": ping", *map(event, TEXTS), usage_event(11, 8), b"data: [DONE]"])
CHAT = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}',
    b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": null}',
    b'data: {"choices": [{"index": 0, "delta": {"reasoning_content": "y", "content": null}}], "usage": null}',
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": null}',
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}',
    b"data: [DONE]",
]


def record(pieces: list[bytes]) -> tuple[object, ...]:
    stream = EventStream()
    for piece in pieces:
        stream.feed(piece, 7)
    stream.finish(7)
    usage = stream.usage()
    return list(stream.times_ns), stream.last_ns, usage, stream.done, stream.outcome()


def test_the_whole_stream_at_once():
    times, last, usage, done, outcome = record([STREAM])
    assert times == [7] * len(TEXTS)
    assert (last, usage, done, outcome.ok) == (7, (11, 8, None), True, True)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_cut_at_any_byte_changes_nothing(line_end: bytes):
    stream = STREAM.replace(b"\n", line_end)
    whole = record([STREAM])
    for cut in range(len(stream) + 1):
        assert record([stream[:cut], stream[cut:]]) == whole
    assert record([stream[i : i + 1] for i in range(len(stream))]) == whole


@given(st.lists(st.integers(0, len(STREAM)), max_size=30), st.booleans())
def test_any_cuts_change_nothing(cuts: list[int], windows: bool):
    stream = STREAM.replace(b"\n", b"\r\n") if windows else STREAM
    ends = sorted([0, *cuts, len(stream)])
    assert record([stream[a:b] for a, b in pairwise(ends)]) == record([STREAM])


def test_times_are_those_of_the_read_that_completed_an_event():
    stream = EventStream()
    body = event("x") + b"\n\n" + event("y") + b"\n\n"
    stream.feed(body[:10], 1)
    stream.feed(body[10:-1], 2)
    stream.feed(body[-1:], 3)
    assert list(stream.times_ns) == [2, 3]


def test_chat_counts_neither_the_role_nor_the_end_as_a_token():
    times, last, usage, _, outcome = record([b"\n\n".join(CHAT) + b"\n\n"])
    assert (len(times), last, usage, outcome.ok) == (2, 7, (5, 2, None), True)


def test_a_single_token_without_text_is_still_the_first():
    last = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}'
    times, *_ = record([b"\n\n".join([last, usage_event(3, 1), b"data: [DONE]", b""])])
    assert times == [7]


def test_usage_in_the_last_event_with_a_choice():
    last = event("z", usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}})
    _, _, usage, _, outcome = record([event() + b"\n\n" + last + b"\n\ndata: [DONE]\n\n"])
    assert usage == (9, 2, 4)
    assert outcome.ok


def test_done_without_a_blank_line_is_done():
    assert record([event() + b"\n\ndata: [DONE]"])[3]


@pytest.mark.parametrize(
    "tail",
    [
        b'data: {"choices":[{"te\n\n',
        b'data: {"choices":[{"te',
        b'data: {"choices":[{"text":"\xff\xfe"}]}\n\n',
        b"data: 7\n\n",
        b"data: nonsense\n\n",
    ],
)
def test_what_is_no_event_is_malformed(tail: bytes):
    outcome = record([event() + b"\n\n" + tail])[-1]
    assert outcome.kind is OutcomeKind.MALFORMED
    assert outcome.message


def test_an_error_in_the_stream_is_told_in_the_servers_words():
    body = json.dumps({"error": {"message": "engine  died", "code": 500}}).encode()
    outcome = record([event() + b"\n\ndata: " + body + b"\n\n"])[-1]
    assert (outcome.kind, outcome.message) == (OutcomeKind.SERVER_ERROR, "engine died")


def test_a_stream_without_tokens_is_malformed():
    assert record([b"data: [DONE]\n\n"])[-1].kind is OutcomeKind.MALFORMED


def test_a_very_long_event_is_taken_in_pieces():
    long = event("x" * 3_000_000) + b"\n\n"
    assert len(record([long[i : i + 65536] for i in range(0, len(long), 65536)])[0]) == 1
