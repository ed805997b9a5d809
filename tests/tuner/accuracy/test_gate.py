"""The gate in a study on emulated engines: processes, HTTP, answers, and a finalist that falls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.node.emulator.completions import AnswerSettings, GreedyAnswer
from autotune.node.emulator.http import text_tokens
from autotune.tuner.accuracy.builtin import contexts
from autotune.tuner.accuracy.check import Gate
from autotune.tuner.trial import Launch, Role, State
from tests.product.cli import autotune, new_home
from tests.tuner.test_recommend import CANDIDATES, launch, spec

BASELINE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --gpu-memory-utilization 0.5"
QUESTION = [
    *(
        "--model",
        "Qwen/Qwen3-8B",
        "--hw",
        "h200",
        "--gpus",
        "1",
        "--on",
        "emulator",
        "--engine",
        "vllm",
    ),
    *(
        "--workload",
        "random:256:16:32",
        "--executor",
        "local:1",
        "--launches",
        "6",
        "--study",
        "gate",
    ),
    *("--set", "kv_cache_dtype=fp8", "--set", "context_length=8192", "--baseline", BASELINE),
]
SPACE = "narrow:\n  vllm:\n    search:\n      memory_fraction: [0.5, 0.6]\n"
TOKENS = 4


def right_answer(prompt: str) -> str:
    """What an emulated engine without noise says."""
    answer = GreedyAnswer(AnswerSettings(noise=0.0, seed=0), text_tokens(prompt))
    return "".join(answer.next(0).word for _ in range(TOKENS))


@pytest.mark.e2e
def test_a_finalist_that_answers_wrongly_falls_on_the_real_path(tmp_path: Path) -> None:
    home, space, tasks = new_home(tmp_path), tmp_path / "space.yaml", tmp_path / "tasks.jsonl"
    space.write_text(SPACE)
    prompts = [f"The {number}. line of the poem begins with" for number in range(40)]
    asked = (
        {"prompt": p, "answer": right_answer(p), "match": "exact", "max_tokens": TOKENS}
        for p in prompts
    )
    tasks.write_text("".join(json.dumps(row) + "\n" for row in asked))
    more = ["--space", str(space), "--accuracy", str(tasks), "--json"]
    wrong = "noise:0,wrong:0.5,when:kv_cache_dtype == 'fp8'"
    done = autotune("run", *QUESTION, *more, home=home, AUTOTUNE_EMULATE_ANSWERS=wrong)
    assert done.code == 0, done.err
    # Every candidate has the wrong cache: nothing but the baseline is left.
    assert done.json["config"]["kv_cache_dtype"] == "bfloat16"
    assert done.json["failures"]["accuracy"] >= 1
    check = done.json["accuracy"]
    assert (check["kind"], check["baseline"], check["recommended"], check["passed"]) == (
        "tasks",
        100.0,
        100.0,
        True,
    )
    folder = home / "studies" / "gate"
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    fell = next(row for row in rows if row["failure"] and row["failure"]["kind"] == "accuracy")
    assert (fell["role"], fell["state"], fell["metrics"]) == ("final", "failed", {})
    assert fell["accuracy"]["score"] < 50
    assert len(fell["accuracy"]["examples"]) == 3
    report = (folder / "report.md").read_text()
    assert "## Are the answers still correct?" in report
    assert f"### Launch {fell['number']} gives different answers" in report
    assert "It answers worse than the baseline: " in report
    assert (folder / "accuracy" / "0000.json").stat().st_mode & 0o777 == 0o600
    assert "line of the poem" not in (folder / "study.yaml").read_text()


def test_a_finalist_is_not_judged_before_the_baseline_has_answered_twice(tmp_path: Path) -> None:
    gate = Gate(spec(accuracy="builtin"), tmp_path, CANDIDATES.items[0].fingerprint)

    def judged(number: int, position: int, word: str, *before: Launch) -> Launch:
        row = launch(number, Role.FINAL, position, 1000)
        answers = {context.name: [[word]] * 8 for context in contexts()}
        told = {"kind": "builtin", "logprobs": False, "answers": answers, "seconds": 1.0}
        return gate.judge(replace(row, result=replace(row.result, answers=told)), before)

    first = judged(0, 0, " right")
    early, second = judged(1, 2, " wrong", first), judged(2, 0, " right", first)
    late = judged(3, 2, " wrong", first, second)
    passed = [
        row.result.accuracy and row.result.accuracy.passed for row in (first, early, second, late)
    ]
    assert passed == [None, None, None, False]
    assert [row.result.state for row in (early, late)] == [State.COMPLETE, State.FAILED]
