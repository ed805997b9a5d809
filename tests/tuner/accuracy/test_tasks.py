"""Task files and commands: what is refused, what is right, and how a drop is judged."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import BadInput
from autotune.tuner.accuracy.builtin import score
from autotune.tuner.accuracy.check import (
    ScoreCommand,
    Task,
    TaskFile,
    check_of,
    paired_difference,
    read_evidence,
    run_command,
)
from tests.processes import alive, until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "accuracy"
GOOD = {"prompt": "17 + 25 =", "answer": "42", "match": "number"}


def file_of(folder: Path, *rows: Any) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"prompt": "1 + 1 =", ', "not JSON"),
        ("[1]", "an object; write"),
        ("[" * 100_000, "not JSON"),
        ({**GOOD, "answer": ["42"]}, "answer"),
        ({**GOOD, "answer": None}, "answer"),
        ({**GOOD, "answer": "many"}, "holds none"),
        ({**GOOD, "match": "exact", "answer": 42}, "must be a non-empty text"),
        ({**GOOD, "match": "regex"}, "match"),
        ({**GOOD, "mach": "exact"}, "mach"),
        ({"answer": "42", "match": "number"}, "exactly one of prompt and messages"),
        (
            {**GOOD, "messages": [{"role": "user", "content": "hi"}]},
            "exactly one of prompt and messages",
        ),
        (
            {"messages": [{"role": "robot", "content": "hi"}], "answer": "a", "match": "exact"},
            "role",
        ),
    ],
)
def test_a_broken_line_is_named_with_what_would_be_right(
    tmp_path: Path, row: Any, problem: str
) -> None:
    path = file_of(tmp_path, GOOD, row)
    with pytest.raises(BadInput, match=problem) as told:
        check_of(str(path))
    assert f"{path}:2: " in str(told.value)
    assert '"match": "number"' in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_neither_a_file_nor_a_command_is_refused(tmp_path: Path) -> None:
    for text, problem in {
        str(tmp_path / "none.jsonl"): "cannot be read",
        "no-such-program {url}": "program",
        f"{sys.executable} eval.py": r"lacks \{url\}",
        "'": "No closing quotation",
    }.items():
        with pytest.raises(BadInput, match=problem):
            check_of(text)
    with pytest.raises(BadInput, match="holds no task"):
        check_of(str(file_of(tmp_path, "")))


@pytest.mark.parametrize(
    ("match", "answer", "text", "right"),
    [
        ("number", "1,042", "That makes 3 and 4, so 1042.", True),
        ("number", 42, "42 apples of 43", False),
        ("number", "-2.5", "it is -2.50", True),
        ("number", "42", "no idea", False),
        ("exact", "Paris", " Paris\n", True),
        ("exact", "Paris", "Paris, France", False),
        ("contains", "Paris", "It is Paris, I think.", True),
        ("contains", "Paris", "It is paris.", False),
    ],
)
def test_an_answer_is_right_as_its_match_says(
    match: Any, answer: Any, text: str, right: bool
) -> None:
    assert Task(prompt="?", answer=answer, match=match).is_right(text) is right


def test_a_command_s_last_line_is_the_score() -> None:
    def printing(text: str) -> str:
        return f"{sys.executable} -c \"print('noise'); print('{text}')\" {{url}} {{model}}"

    assert run_command(printing("0.853"), "http://h:1", "m") == (0.853, None)
    assert run_command(printing("85.3 0.97"), "http://h:1", "m") == (85.3, 0.97)
    told = f"{sys.executable} -c \"import sys; print(sys.argv[1:] == ['http://h:1', 'm'] and 1)\" {{url}} {{model}}"
    assert run_command(told, "http://h:1", "m") == (1.0, None)
    with pytest.raises(BadInput, match=r"its last line is 'acc: 0\.8'"):
        run_command(printing("acc: 0.8"), "http://h:1", "m")
    with pytest.raises(BadInput, match="its last line is 'nan'"):
        run_command(printing("nan"), "http://h:1", "m")
    with pytest.raises(BadInput, match="exit code 3: no model"):
        run_command(f"sh -c 'echo no model >&2; exit 3' {{url}}", "http://h:1", "m")  # noqa: F541


def test_what_a_command_started_ends_with_it_and_with_us(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    forking = f"import pathlib as p, subprocess as s; p.Path({str(pid)!r}).write_text(str(s.Popen(['sleep', '600']).pid))"
    program = tmp_path / "evaluation.py"
    # The score is there, and a process that was forked away is left, with the evaluation's output
    # open.
    program.write_text(f"{forking}; print(0.5)")
    command = f"{sys.executable} {program} {{url}}"
    assert run_command(command, "http://h:1", "m") == (0.5, None)
    assert not alive(int(pid.read_text()))
    # The evaluation still runs, and its parent is killed.
    pid.unlink()
    program.write_text(f"{forking}; import time; time.sleep(600)")
    ours = f"from autotune.tuner.accuracy.check import run_command as run; run({command!r}, 'http://h:1', 'm')"
    with subprocess.Popen(
        [sys.executable, "-c", ours], env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as parent:
        assert until(lambda: pid.exists() and pid.read_text() != "")
        child = int(pid.read_text())
        assert alive(child)
        parent.kill()
    assert until(lambda: not alive(child))
    assert until(lambda: not list(tmp_path.glob("autotune-*")))
    # The evaluation still runs, and somebody kills the process that watches over it.
    pid.unlink()
    program.write_text(
        f"{forking}; import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)"
    )
    with pytest.raises(BadInput, match="it was killed from outside"):
        run_command(command, "http://h:1", "m")
    assert not alive(int(pid.read_text()))


@pytest.mark.parametrize(
    "content", ["", "[" * 100_000, "[]", '{"kind": "tasks", "seconds": 1}', '{"kind": "command"}']
)
def test_earlier_answers_that_are_spoilt_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "reference.json"
    path.write_text(content)
    with pytest.raises(BadInput, match="holds no answers of this check"):
        read_evidence(path, "tasks")


def of(marks: list[bool]) -> dict[str, Any]:
    return {
        "kind": "tasks",
        "sha256": "x",
        "marks": marks,
        "texts": ["t"] * len(marks),
        "seconds": 1.0,
    }


def test_a_drop_fails_once_its_interval_lies_below_a_point() -> None:
    check = TaskFile([Task(prompt=f"{i}?", answer="t", match="contains") for i in range(200)], "x")
    right = [True] * 180 + [False] * 20
    same = check.judge([of(right)], of(right))
    assert (same.passed, same.score, same.baseline, same.threshold) == (True, 90.0, 90.0, 89.0)
    few = check.judge([of(right)], of([False] * 3 + right[3:]))
    assert few.passed
    many = check.judge([of(right)], of([False] * 12 + right[12:]))
    assert many.passed is False
    assert "84.0 % of 200 answers are right, the baseline's 90.0 %" in many.reasons[0]
    assert [one.prompt for one in many.examples] == ["0?", "1?", "2?"]


def test_a_command_s_drop_is_judged_with_its_standard_errors() -> None:
    def evidence(value: float, error: float | None = None) -> dict[str, Any]:
        return {"kind": "command", "score": value, "error": error, "seconds": 1.0}

    check = ScoreCommand("x {url}")
    assert check.judge([evidence(0.85)], evidence(0.845)).passed
    assert check.judge([evidence(0.85)], evidence(0.83)).passed is False
    assert check.judge([evidence(0.85, 0.01)], evidence(0.83, 0.01)).passed
    assert check.judge([evidence(85.0, 1.0)], evidence(79.0, 1.0)).passed is False


def test_the_interval_of_a_difference_is_agresti_and_min_s() -> None:
    """Half an item more is taken to be lost and won, and two more to be asked."""
    before, after = [True] * 50, [False] * 10 + [True] * 40
    half = 1.96 * math.sqrt(10.5 + 0.5 - 10**2 / 52) / 52
    expected = (100 * (-10 / 52 - half), 100 * (-10 / 52 + half))
    assert paired_difference(before, after) == pytest.approx(expected, rel=1e-3)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=300))
def test_intervals_hold_what_was_seen_and_have_no_side(pairs: list[tuple[bool, bool]]) -> None:
    before, after = [one for one, _ in pairs], [other for _, other in pairs]
    difference = score(after)[0] - score(before)[0]
    low, high = paired_difference(before, after)
    # The half that is added to each count draws the middle towards 0, by less than half the width.
    assert low <= difference * len(pairs) / (len(pairs) + 2) <= high
    assert paired_difference(after, before) == pytest.approx((-high, -low))
    assert score(before)[1][0] <= score(before)[0] <= score(before)[1][1]


LM_EVAL = """#!/bin/sh
# Stands in for lm-eval: writes its results where it is told to.
while [ "$1" != --output_path ]; do shift; done
mkdir -p "$2/model"
echo '{"results": {"gsm8k": {"alias": "gsm8k", "exact_match,strict": 0.81, "exact_match_stderr,strict": 0.02}}}' \\
    > "$2/model/results_2026.json"
echo "a table"
"""


def test_the_example_of_lm_eval_prints_its_score_and_standard_error(tmp_path: Path) -> None:
    program = tmp_path / "lm_eval"
    program.write_text(LM_EVAL)
    program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = f"env PATH={path} {sys.executable} {EXAMPLES / 'lm_eval_score.py'} {{url}} {{model}} --limit 20"
    assert run_command(command, "http://127.0.0.1:9", "m") == (0.81, 0.02)
    assert len(TaskFile.read(EXAMPLES / "tasks.jsonl").tasks) == 3
