"""Files of requests as other tools write them: what is read, what is not sent, which form is right.

The rows are those of the tools' own documentation and loaders, as listed with their versions in
``request_keys.yaml``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.load.prompts import PromptKey, Prompts
from autotune.load.workloads import Workload, load_workload, with_options

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How tall?"}]
TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLED = [
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "none"},
]
PICTURE = [
    {"type": "text", "text": "What is it?"},
    {"type": "image_url", "image_url": {"url": "data:,"}},
]


@pytest.fixture
def of(tmp_path: Path) -> Callable[..., Workload]:
    """Make a workload of a form from rows (objects, or the lines of a table)."""

    def made(form: str, *rows: Any, output_len: int | None = None) -> Workload:
        path = tmp_path / "rows"
        path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
        return load_workload(*with_options([f"{form}:{path}"], None, output_len))

    return made


OfForm = Callable[..., Workload]


def lengths(workload: Workload) -> list[tuple[int, int]]:
    drawn = workload.draw(0, 1)
    return list(zip(drawn.input_tokens.tolist(), drawn.output_tokens.tolist(), strict=True))


@pytest.mark.parametrize(
    ("row", "read", "written"),
    [
        ({"prompt": "abcdefgh", "output_tokens": 5}, 2, 5),
        ({"text": "abcdefgh", "output_length": 5}, 2, 5),
        ({"texts": ["abc", "defg"], "output_length": 5}, 2, 5),
        ({"texts": [{"name": "q", "contents": ["abc", "defg"]}], "output_length": 5}, 2, 5),
        (
            {
                "custom_id": "1",
                "url": "/v1/completions",
                "body": {"prompt": "abcd", "max_tokens": 5},
            },
            1,
            5,
        ),
        (
            {
                "custom_id": "1",
                "url": "/v1/responses",
                "body": {"input": "abcd", "max_output_tokens": 5},
            },
            1,
            5,
        ),
        ({"custom_id": "1", "body": {"messages": CHAT, "max_completion_tokens": 5}}, 6, 5),
        ({"messages": CHAT, "max_tokens": 5, "user": "end-user-7"}, 6, 5),
        ({"messages": [*CHAT, {"role": "assistant", "content": "abcdefgh"}]}, 6, 2),
        ({"instruction": "abcdefgh", "input": "", "output": "abcd"}, 2, 1),
        ({"prompt": "x" * 99, "prompt_tokens_count": 10, "output_tokens_count": 5}, 10, 5),
        ({"messages": CALLED, "output_tokens": 5}, 2 + 1 + -(-len(json.dumps([CALL])) // 4), 5),
        ({"prompt": "abcd"}, 1, 44),
        ({"messages": CHAT}, 6, 44),
    ],
)
def test_requests_that_stand_alone(of: OfForm, row: object, read: int, written: int):
    workload = of("jsonl", row, output_len=44)
    assert lengths(workload) == [(read, written)]
    assert workload.notes == []


def test_requests_in_a_list_a_table_and_saved_bodies(of: OfForm):
    rows = [{"prompt": "abcd", "output_tokens": 3}] * 2
    assert lengths(of("jsonl", json.dumps(rows, indent=1))) == [(1, 3)] * 2
    table = of("jsonl", "prompt,output_tokens_count", '"a, b\nc",7', "abcdefgh,8")
    assert lengths(table) == [(2, 7), (2, 8)]
    bodies = [{"messages": CHAT, "max_tokens": tokens} for tokens in (4, 5)]
    saved = {"data": [{"session_id": "a", "payloads": bodies}]}
    assert lengths(of("jsonl", json.dumps(saved, indent=1))) == [(6, 4), (6, 5)]


def test_a_body_carries_the_tools_and_messages_of_its_row(of: OfForm):
    workload = of("jsonl", {"messages": CALLED, "tools": TOOLS, "max_tokens": 5})
    chat = Prompts("m", "/v1/chat/completions")
    (body,) = map(json.loads, chat.bodies(workload.draw(0, 1), PromptKey("w", 0, 1)))
    assert (body["messages"], body["tools"], body["max_tokens"]) == (CALLED, TOOLS, 5)
    ((read, _),) = lengths(workload)
    assert read > lengths(of("jsonl", {"messages": CALLED, "max_tokens": 5}))[0][0]


@pytest.mark.parametrize(
    ("form", "rows", "sent", "said"),
    [
        ("jsonl", [{"messages": [{"role": "user", "content": PICTURE}]}], 1, ["1 image parts"]),
        (
            "jsonl",
            [{"text": "a"}, {"image": "/a.png"}],
            1,
            ["1 image parts", "1 requests without text"],
        ),
        ("jsonl", [{"text": "a", "audios": ["a", "b"]}], 1, ["2 audio parts"]),
        ("jsonl", [{"prompt": "a", "output_tokens": 0}], 1, ["1 answers of 0 tokens that count"]),
        ("sessions", [{"turns": [{"text": "a", "image": "/a.png"}]}], 1, ["1 image parts"]),
        ("sessions", [{"turns": [{"text": "a", "timestamp": 5}]}], 1, ["1 turns whose time"]),
        (
            "sharegpt",
            [{"images": ["a", "b"], "conversations": [5 * "what is this ", 5 * "a lock "]}],
            1,
            ["2 image parts"],
        ),
        ("trace", [{"timestamp": 0, "input_length": 9, "output_length": 0}], 1, ["1 answers of 0"]),
        (
            "trace",
            ["Timestamp,Model,Request tokens,Response tokens", "5,GPT-4,9,9", "6,GPT-4,9,0"],
            1,
            ["1 failed calls"],
        ),
    ],
)
def test_what_is_not_sent_is_said(
    of: OfForm, form: str, rows: list[Any], sent: int, said: list[str]
):
    workload = of(form, *rows, output_len=7)
    assert len(workload.draw(0, 1)) == sent
    (note,) = workload.notes
    assert all(words in note and words in workload.lengths_source() for words in said)


QUESTION = "How does a lock lift a boat?"
ANSWER = "Water flows into the chamber until both levels are equal."


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]},
        {
            "conversations": [
                {"role": "user", "content": QUESTION},
                {"role": "assistant", "content": ANSWER},
            ]
        },
        {"conversations": [{"content": QUESTION}, {"content": ANSWER}]},
        {
            "conversation": [
                {"content": QUESTION, "role": "user"},
                {"content": ANSWER, "role": "assistant"},
            ]
        },
        {
            "messages": [
                {"content": QUESTION, "role": "user"},
                {"content": ANSWER, "role": "assistant"},
            ]
        },
        {"id": "0", "data": [QUESTION, ANSWER]},
        {
            "conversations": [
                {"from": "system", "value": "Be kind."},
                {"from": "human", "value": QUESTION},
                {"from": "gpt", "value": ANSWER},
            ]
        },
    ],
)
def test_conversations(of: OfForm, row: object):
    workload = of("sharegpt", row)
    assert lengths(workload) == [(len(QUESTION) / 4, -(-len(ANSWER) // 4))]
    assert ("system turns left out, which vLLM" in str(workload.notes)) == ("Be kind" in str(row))


def test_a_conversation_without_an_answer_is_sent_where_its_length_is_given(of: OfForm):
    rows = [
        {"conversations": [{"value": QUESTION}]},
        {"conversations": [{"value": QUESTION}, {"value": ANSWER}]},
    ]
    assert len(of("sharegpt", *rows).draw(0, 1)) == 1
    assert sorted(lengths(of("sharegpt", *rows, output_len=99))) == [(7, 15), (7, 99)]


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (["Timestamp,Request tokens,Response tokens", "5,9,4", "45,9,4"], 40),
        (["Timestamp,Session ID,Request tokens,Response tokens", "5,a,9,4", "45,b,9,4"], 40),
        (
            [
                {"chat_id": i, "timestamp": 60 + i, "input_length": 9, "output_length": 4}
                for i in (0, 2)
            ],
            2,
        ),
        ([{"timestamp": t, "text_input": "abcd", "output_length": 4} for t in (0, 5000)], 5),
        ([{"timestamp": t, "messages": CHAT, "output_length": 4} for t in (0, 5000)], 5),
        ([{"timestamp": t, "input_length": 9, "output_length": 4} for t in (0, 1500.5)], 1.5005),
        ([{"timestamp": t, "input_length": 9, "output_length": 4} for t in (61.114, 62.5)], 1.386),
        ([{"relative_timestamp": t, "prompt_tokens": 9, "output_tokens": 4} for t in (0, 2)], 2),
    ],
)
def test_times_of_traces(of: OfForm, rows: list[Any], seconds: float):
    drawn = of("trace", *rows).draw(0, 1)
    assert drawn.send_s.tolist() == pytest.approx([0, seconds])
    assert (drawn.output_tokens == 4).all()


def test_times_that_could_be_either_are_asked_for(of: OfForm, tmp_path: Path):
    rows = [{"timestamp": t, "input_length": 9, "output_length": 4} for t in (0, 1, 2)]
    with pytest.raises(
        BadInput, match=r"1e\+03 requests a second in milliseconds, 1 in seconds.*:ms"
    ):
        of("trace", *rows)
    for unit, last in (("s", 2), ("ms", 2e-3)):
        workload = load_workload(f"trace:{tmp_path / 'rows'}:{unit}")
        assert workload.draw(0, 1).send_s[-1] == pytest.approx(last)


@pytest.mark.parametrize(
    ("tokens", "size"),
    [((521, 33), 16), ((6955, 14), 512), ((8, 1), 512), ((100, 2), 64), ((1200, 12), 100)],
)
def test_the_size_of_blocks_is_read_from_their_number(
    of: OfForm, tokens: tuple[int, int], size: int
):
    length, count = tokens
    row = {"timestamp": 0, "input_length": length, "output_length": 4, "hash_ids": [*range(count)]}
    assert of("trace", row, {**row, "timestamp": 100}).draw(0, 1).block_tokens == size


def test_rows_of_one_session_wait_for_each_other(of: OfForm):
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 300, "output_length": 40},
        {"session_id": "b", "text_input": "abcd", "output_length": 5},
        {"session_id": "a", "delay": 1500, "input_length": 150, "output_length": 20},
    ]
    for form in ("trace", "sessions"):
        drawn = of(form, *rows).draw(0, 1)
        assert drawn.turns is not None
        assert drawn.input_tokens.tolist() == [300, 300 + 40 + 150, 1]
        assert drawn.turns.think_s.tolist() == [0, 1.5, 0]


def test_a_leading_system_turn_is_the_session_s_system_prompt(of: OfForm):
    turns = [{"role": "system", "text": "Be kind."}, {"texts": ["a", "b"]}, "More"]
    drawn = of("sessions", {"session_id": "a", "turns": turns}, output_len=9).draw(0, 1)
    assert drawn.turns is not None
    assert list(drawn.contents) == ["a\nb", "More"]
    assert drawn.turns.systems[0][0] == "Be kind."


@pytest.mark.parametrize(
    ("form", "row", "right"),
    [
        (
            "jsonl",
            {"timestamp": 0, "input_length": 9, "output_length": 4, "hash_ids": [1]},
            "trace",
        ),
        ("jsonl", {"conversation": [{"role": "user", "content": "a"}]}, "sharegpt"),
        ("jsonl", {"turns": [{"text": "a", "output_length": 3}]}, "sessions"),
        ("trace", {"custom_id": "1", "body": {"messages": CHAT, "max_tokens": 4}}, "jsonl"),
        ("trace", {"turns": [{"text": "a", "output_length": 3}]}, "sessions"),
        ("sharegpt", {"prompt": "a", "output_tokens": 3}, "jsonl"),
        ("sessions", {"conversations": [{"from": "human", "value": "a"}]}, "sharegpt"),
    ],
)
def test_a_file_of_another_form_is_told_its_form(of: OfForm, form: str, row: object, right: str):
    with pytest.raises(BadInput, match=f"such rows are read as {right}:"):
        of(form, row)


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("jsonl", {"prompt": "a"}),
        ("trace", {"timestamp": 0, "input_length": 9}),
        ("sessions", {"turns": [{"text": "a"}]}),
    ],
)
def test_without_an_answer_s_length_the_option_is_named(of: OfForm, form: str, row: object):
    with pytest.raises(
        BadInput, match=r"rows:1: .*the length of its answer is missing.*--output-len N"
    ):
        of(form, row)
    assert lengths(of(form, row, output_len=31))[0][1] == 31


def test_embeddings_are_refused(of: OfForm):
    row = {"custom_id": "1", "url": "/v1/embeddings", "body": {"input": "a", "model": "m"}}
    with pytest.raises(BadInput, match="rows:1: /v1/embeddings does not answer with text"):
        of("jsonl", row, output_len=3)


def test_a_length_of_answers_is_for_a_file():
    for names, words in ((["short"], "is for a file"), (["jsonl:f:o3"], "already has one")):
        with pytest.raises(BadInput, match=words):
            with_options(names, None, 5)
    assert with_options(["trace:f"], 2, 5) == ("trace:f:x2:o5",)


KINDS = st.sampled_from(
    [
        {"prompt": "a", "output_tokens": 3},
        {"prompt": "a"},
        {"prompt": "a", "output_tokens": 0},
        {"prompt": "", "output_tokens": 3},
        {"text": "a", "image": "i"},
        {"image": "i"},
        {"messages": [{"role": "user", "content": PICTURE}]},
        {"messages": [{"role": "user", "content": PICTURE[1:]}]},
        {"messages": [{"role": "assistant", "content": "no question"}]},
        {"body": {"messages": CHAT, "max_tokens": 3}},
        {"input_tokens": 5, "output_tokens": 3},
    ]
)


@given(st.lists(KINDS, min_size=1, max_size=20))
def test_no_row_is_lost_or_doubled(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]):
    path = tmp_path_factory.getbasetemp() / "any-requests"
    path.write_text("\n".join(map(json.dumps, rows)))
    try:
        workload = load_workload(f"jsonl:{path}:o9")
    except BadInput as error:
        assert "holds no request" in str(error)  # noqa: PT017  of rows that are all left out
        return
    sent = len(workload.draw(0, 1))
    said = workload.points[0].lengths.read.said["requests without text not sent"]
    assert sent + said == len(rows)


@given(st.lists(st.sampled_from("hash"), max_size=12))
def test_no_call_of_burstgpt_is_lost(tmp_path_factory: pytest.TempPathFactory, kinds: list[str]):
    cells = {"h": "9,9", "a": "0,9", "s": "9,0", "h2": ""}
    rows = [f"{at},{cells.get(kind, '7,7')}" for at, kind in enumerate(kinds)]
    path = tmp_path_factory.getbasetemp() / "any-calls"
    path.write_text("\n".join(["Timestamp,Request tokens,Response tokens", "0,1,1", *rows]))
    workload = load_workload(f"trace:{path}")
    said = workload.points[0].lengths.read.said
    assert len(workload.draw(0, 1)) + said["failed calls (0 tokens) not sent"] == len(rows) + 1
