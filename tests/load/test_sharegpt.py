"""Prompts of a real ShareGPT file: what is taken, what is refused, how a big or broken file is
read."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput, MalformedFile
from autotune.load.tokenizers import Approximate
from autotune.load.workloads import load_workload, prompt_files


def conversation(prompt: str, answer: str, more: int = 0) -> dict[str, Any]:
    said = [prompt, answer, *["and so on"] * more]
    turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(said)]
    return {"id": "abc_0", "conversations": turns}


def text(number: int, tokens: int) -> str:
    """Of so many tokens by the approximation, beginning with a number."""
    return f"{number:04d}".ljust(4 * tokens, "x")


GOOD = [conversation(text(i, 4 + i % 40), text(i, 10 + i % 30), more=i % 3) for i in range(400)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(GOOD))
    return path


@dataclass
class Counting:
    """An approximation that remembers how often it was asked."""

    exact: bool = True
    vocabulary: int | None = None
    words: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)

    def count(self, text: str) -> int:
        self.asked.append(text)
        return Approximate().count(text)

    def describe(self) -> str:
        return "a test's tokenizer"


def test_first_turns_are_sent_and_second_turns_give_the_answers_length(file: Path):
    drawn = load_workload(f"sharegpt:{file}:50").draw(0, seed=1)
    answers = dict(prompt_files.conversations(file).rows)
    assert len(set(map(str, drawn.contents))) == 50
    for prompt, read, written in zip(
        drawn.contents, drawn.input_tokens, drawn.output_tokens, strict=True
    ):
        assert read == len(str(prompt)) / 4
        assert written == len(answers[str(prompt)]) / 4


def test_a_seed_fixes_the_choice_and_another_or_another_point_chooses_anew(file: Path):
    workload = load_workload(f"sharegpt:{file}:50").with_concurrencies([4, 8])
    first, again, other, point = (
        workload.draw(p, s).contents for p, s in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert first == again
    assert (
        set(map(str, first)) != set(map(str, other)) != set(map(str, point)) != set(map(str, first))
    )


def test_no_more_is_tokenized_than_must_be(file: Path):
    tokenizer = Counting()
    workload = load_workload(f"sharegpt:{file}:50")
    assert len(workload.draw(0, 0, tokenizer).contents) == 50
    assert len(tokenizer.asked) == 100
    assert workload.lengths_source(tokenizer) == f"{file}, tokens counted by a test's tokenizer"
    assert workload.lengths_source() == f"{file}, tokens approximated at 4 characters per token"


@pytest.mark.parametrize(
    ("read", "written", "passes"),
    [
        (4, 4, True),
        (3, 50, False),
        (50, 3, False),
        (1024, 1024, True),
        (1025, 10, False),
        (1000, 1049, False),
    ],
)
def test_the_filter_is_vllm_s(tmp_path: Path, read: int, written: int, passes: bool):
    path = tmp_path / "one.json"
    path.write_text(json.dumps([conversation(text(1, read), text(1, written))]))
    workload = load_workload(f"sharegpt:{path}:1")
    if passes:
        drawn = workload.draw(0, 0)
        assert (drawn.input_tokens[0], drawn.output_tokens[0]) == (read, written)
        assert read + written <= workload.longest_request == 2048
    else:
        with pytest.raises(
            BadInput, match="1 prompts are requested, but only 0 of the 1 conversations"
        ):
            workload.draw(0, 0)


def test_too_few_prompts_are_refused_with_the_number_there_is(file: Path):
    workload = load_workload(f"sharegpt:{file}:1000")
    with pytest.raises(
        BadInput, match=r"1000 prompts are requested, but only 400 of the 400.*sharegpt:.*:N"
    ):
        workload.draw(0, 0)


def test_without_a_number_a_file_of_fewer_than_a_thousand_sends_all(file: Path):
    workload = load_workload(f"sharegpt:{file}")
    assert workload.points[0].prompts == len(workload.draw(0, 1).contents) == 400


def test_rows_that_are_no_conversation_are_skipped_and_counted(tmp_path: Path):
    odd = [
        {"id": "x"},
        7,
        None,
        {"conversations": "?"},
        {"conversations": [{"from": "human"}, {"value": "b"}]},
    ]
    short = {"conversations": [{"value": "alone"}]}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps([*odd, short, *GOOD[:5]]))
    held = prompt_files.conversations(path)
    assert len(held.rows) == 5
    assert held.said == {"rows that are no conversation": 5, "rows without an answer": 1}
    assert (
        "(5 rows that are no conversation; 1 rows without an answer)"
        in load_workload(f"sharegpt:{path}:5").lengths_source()
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "none of its 0 rows"),
        ("[]", "none of its 0 rows"),
        ('{"a": 1}', "none of its 1 rows"),
        ("Dear reader", "not JSON"),
        ('[{"conversations": [{"value": "a"}', "not JSON or cut off"),
        (json.dumps(GOOD[:2])[:-1], "not JSON or cut off"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_what_is_no_sharegpt_file_is_named(tmp_path: Path, content: str | bytes, problem: str):
    path = tmp_path / "other.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MalformedFile, match=problem):
        load_workload(f"sharegpt:{path}:1").draw(0, 0)


def test_an_absent_file_is_bad_input_before_anything_runs(tmp_path: Path):
    for name in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            load_workload(f"sharegpt:{name}")
    with pytest.raises(BadInput, match="write sharegpt:FILE"):
        load_workload("sharegpt:")


def test_a_changed_file_is_read_again(file: Path):
    assert len(prompt_files.conversations(file).rows) == 400
    file.write_text(json.dumps(GOOD[:3]))
    assert len(prompt_files.conversations(file).rows) == 3


SIGNS = st.sampled_from(["a", "é", "\u2028", "😀", '"', "\\", "]", "}", ",", "\n", " "])


@given(
    rows=st.lists(st.text(SIGNS, max_size=30), min_size=1, max_size=12),
    form=st.sampled_from(["list", "indented", "lines"]),
    ascii_only=st.booleans(),
)
def test_a_list_is_read_like_lines_whatever_its_texts_hold(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], form: str, ascii_only: bool
):
    said = [conversation(f"{row}?", f"{row}!") for row in rows]
    if form == "lines":
        written = "\n".join(json.dumps(one, ensure_ascii=ascii_only) for one in said)
    else:
        written = json.dumps(
            said, ensure_ascii=ascii_only, indent=2 if form == "indented" else None
        )
    path = tmp_path_factory.mktemp("pieces") / "file.json"
    path.write_text(written, encoding="utf-8")
    assert [row for _, row in prompt_files.Reading(path, "sharegpt").rows()] == said
