"""Sessions: the file's form, bad lines told with their number, and histories of what was really
answered."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.load import load_workload, measure
from autotune.load.client.stream import AnswerStream
from autotune.load.measuring import LoadOptions, Measurement
from autotune.load.prefix_cache import expected_hit_rate
from autotune.load.requests import prompt_segments
from autotune.load.workloads.arrivals import arrival_of
from autotune.load.workloads.prompt_files import read_sessions
from tests.load.server import END, STREAM_HEAD, Call, Server, chunked, good

TOOLS = [{"type": "function", "function": {"name": "price"}}]
SHARED = {"system": "Be brief, and polite.", "tools": TOOLS}
ASKED = [
    {"user": "What does a spade cost?", "output_tokens": 3},
    {"text": "And a rake?", "output_length": 2, "delay": 150},
]
RANDOM = [
    {"input_tokens": 40, "output_tokens": 5},
    {"input_tokens": 10, "output_tokens": 4, "think_s": 0.1},
]
ROWS = [
    SHARED,
    {"session_id": "a", "turns": ASKED},
    {"turns": RANDOM, "system": "", "tools": []},
    {"turns": ASKED[:1]},
]


def sessions(folder: Path, *rows: object) -> Path:
    path = folder / "sessions.jsonl"
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows or ROWS)
    )
    return path


def test_the_form(tmp_path: Path):
    path = sessions(tmp_path)
    read = read_sessions(path).rows
    assert [len(session.turns) for session in read] == [2, 2, 1]
    assert [session.system for session in read] == [SHARED["system"], "", SHARED["system"]]
    assert [turn.think_s for turn in read[0].turns] == [0, 0.15]
    workload = load_workload(f"sessions:{path}")
    requests = workload.draw(0, 1)
    turns = requests.turns
    assert turns is not None
    begin = turns.system_tokens[0]
    assert requests.input_tokens.tolist() == [
        begin + 6,
        begin + 6 + 3 + 3,
        40,
        40 + 5 + 10,
        begin + 6,
    ]
    assert turns.after.tolist() == [-1, 0, -1, 2, -1]
    assert turns.session.tolist() == [0, 0, 1, 1, 2]
    assert requests.concurrency == 3
    assert workload.with_concurrency(2).draw(0, 1).concurrency == 2
    assert workload.longest_request == max(begin + 6 + 3 + 3 + 2, 59)
    assert workload.has_text
    # A second turn finds the first one's prompt and answer; a later session the system prompt.
    shared = (begin + 6 + 3) + (40 + 5) + begin
    assert expected_hit_rate(requests) == pytest.approx(shared / requests.input_tokens.sum())
    assert [
        sum(part.tokens for part in parts) for parts in prompt_segments(requests)
    ] == requests.input_tokens.tolist()


async def answer(call: Call) -> None:
    """So many words, which tell how long the history was, cut anywhere."""
    if call.method == "GET":
        await good(call)
        return
    chat = "messages" in call.body
    history = len(call.body["messages"]) if chat else call.body["prompt"].count("\n\n")
    text = f" {history}é"
    words = [{"choices": [{"delta": {"content": text}} if chat else {"text": text}]}] * call.body[
        "max_tokens"
    ]
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": call.body["max_tokens"]},
    }
    events = [json.dumps(event, ensure_ascii=False) for event in (*words, usage)]
    data = "".join(f"data: {event}\r\n\r\n" for event in (*events, "[DONE]")).encode()
    await call.write(STREAM_HEAD)
    for start in range(0, len(data), 7):
        await call.write(chunked(data[start : start + 7]))
    await call.write(END)


def prompts(server: Server) -> list[list[tuple[str, str]]]:
    """The histories that were sent, the shortest first."""
    calls = [
        [(one["role"], one["content"]) for one in call.body["messages"]] for call in server.posts
    ]
    return sorted(calls, key=len)


def sent(url: str, path: Path, sessions_at_once: int = 3, **options: Any) -> Measurement:
    workload = load_workload(f"sessions:{path}").with_concurrency(sessions_at_once)
    options = {"endpoint": "/v1/chat/completions", "warm_up": False, **options}
    return measure(url, "m", workload, 1, LoadOptions(**options))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_turn_holds_everything_that_was_said_before_it(tmp_path: Path, workers: int):
    with Server(answer) as server:
        result = sent(server.url, sessions(tmp_path), workers=workers)
    assert not result.failure
    log = result.points[0].log
    assert log.expected_tokens.tolist() == [3, 2, 5, 4, 3]
    assert log.records.output_tokens.tolist() == [3, 2, 5, 4, 3]
    system, first, other = (
        ("system", SHARED["system"]),
        ("user", ASKED[0]["user"]),
        ("user", ASKED[1]["text"]),
    )
    answered = ("assistant", " 2é 2é 2é")
    assert [system, first, answered, other] in prompts(server)
    assert prompts(server).count([system, first]) == 2
    (third,) = [history for history in prompts(server) if len(history) == 3]
    assert third[1] == ("assistant", " 1é" * 5)
    assert len(third[0][1].split()) == 40
    with_tools = [call.body.get("tools") for call in server.posts]
    assert with_tools.count(TOOLS) == 3
    assert with_tools.count(None) == 2


def test_a_turn_waits_for_the_answer_and_for_its_user(tmp_path: Path):
    with Server(answer) as server:
        records = sent(server.url, sessions(tmp_path), sessions_at_once=1).points[0].log.records
        assert server.most_at_once == 1
    gaps = records.sent_s[1:] - records.finished_s[:-1]
    assert (gaps >= [0.15, 0, 0.1, 0]).all()
    assert (gaps <= np.array([0.15, 0, 0.1, 0]) + 0.1).all()


def test_without_a_chat_template_the_history_is_one_text(tmp_path: Path):
    with Server(answer) as server:
        assert not sent(server.url, sessions(tmp_path), endpoint="/v1/completions").failure
    begin = f"{json.dumps(TOOLS)}\n\n{SHARED['system']}\n\n{ASKED[0]['user']}"
    assert f"{begin} 2é 2é 2é\n\n{ASKED[1]['text']}" in [
        call.body["prompt"] for call in server.posts
    ]


def test_after_a_turn_that_failed_its_session_is_not_gone_on_with(tmp_path: Path):
    async def refuse(call: Call) -> None:
        await (
            call.answer(500, {"error": "no"}) if "rake" in json.dumps(call.body) else answer(call)
        )

    with Server(refuse) as server:
        result = sent(
            server.url, sessions(tmp_path, {"turns": [*ASKED, *RANDOM]}, {"turns": RANDOM})
        )
        assert len(server.posts) == 4
    assert [outcome.name for outcome in result.outcomes] == ["ok", *["http_500"] * 3, "ok", "ok"]
    assert "not sent because turn 2 of its session failed" in result.outcomes[2].message


def test_an_answer_s_text_is_that_of_its_events():
    stream = AnswerStream()
    stream.feed(b'data: {"choices": [{"text": " a"}]}\r\n\r\n: ping\n\ndata: {"choi', 1)
    stream.feed(
        b'ces": [{"delta": {"reasoning_content": "hm", "content": null}}]}\n\ndata: [DONE]\n\n', 2
    )
    assert stream.text() == " a"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"turns": []}, ":2: turns: .*at least 1 item"),
        ({"turns": [{"user": "a"}]}, ":2: turns.1: the length of its answer .*--output-len N"),
        ({"turns": [*ASKED, {"output_tokens": 3}]}, ":2: turns.3: neither text nor input_tokens"),
        ({"turns": [{"user": 5, "output_tokens": 3}]}, ":2: turns.1.user: .*string"),
        (
            {"turns": [{"user": "a", "output_tokens": 3, "think_s": -1}]},
            ":2: turns.1.think_s: .*0; write",
        ),
        (
            {"turns": [{"user": "a", "output_tokens": 3, "delay": "soon"}]},
            ":2: turns.1.delay: .*number",
        ),
        ({"turns": [7]}, ":2: turns.1: .*object"),
        ({"turns": ASKED, "system": 5}, ":2: system: .*string"),
        ({"more": []}, ":2: no session; write"),
        ({"messages": []}, ":2: no session; such rows are read as jsonl:"),
        ("{", ":2: not JSON; write"),
    ],
)
def test_a_broken_line_is_told_with_its_number(tmp_path: Path, row: object, words: str):
    with pytest.raises(BadInput, match=words):
        load_workload(f"sessions:{sessions(tmp_path, {'turns': ASKED}, row)}")


def test_what_else_is_refused(tmp_path: Path):
    path = sessions(tmp_path)
    workload = load_workload(f"sessions:{path}")
    workload.check_fits(workload.longest_request)
    with pytest.raises(BadInput, match=r"sessions\.jsonl:3: 59 tokens .* context of 58"):
        workload.check_fits(58)
    with pytest.raises(BadInput, match="no rate"):
        workload.with_arrival(arrival_of(request_rate=2))
    for name in ("sessions:", "sessions:nowhere.jsonl", f"sessions:{sessions(tmp_path, SHARED)}"):
        with pytest.raises(BadInput):
            load_workload(name)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANY = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.sampled_from(["user", "turns"]), SCALARS, max_size=2)
)
TURNS = st.dictionaries(
    st.sampled_from(
        ["user", "text", "input_tokens", "output_tokens", "output_length", "think_s", "delay"]
    ),
    ANY,
)
SESSIONS = st.fixed_dictionaries(
    {"turns": st.lists(TURNS, max_size=3) | ANY}, optional={"system": ANY, "tools": ANY}
)


@settings(max_examples=150, deadline=None)
@given(st.lists((SESSIONS | ANY).map(json.dumps) | st.text(max_size=20), max_size=3))
def test_no_file_makes_a_traceback(tmp_path_factory: pytest.TempPathFactory, lines: list[str]):
    path = tmp_path_factory.getbasetemp() / "any-sessions"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        read = read_sessions(path).rows
    except BadInput as error:
        assert str(path) in str(error)  # noqa: PT017  either of the two is right
    else:
        assert all(turn.output_tokens > 0 for session in read for turn in session.turns)
        assert (load_workload(f"sessions:{path}").draw(0, 0).input_tokens > 0).all()
