"""The gate in a study on emulated engines: processes, HTTP, answers, and a finalist that falls."""

from __future__ import annotations

import json
from pathlib import Path

from autotune.simulator.emulator.answers import AnswerSettings, GreedyAnswer
from autotune.simulator.emulator.requests import text_tokens
from tests.product.cli import autotune, new_home

BASELINE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --gpu-memory-utilization 0.5"
QUESTION = [
    *("--model", "Qwen/Qwen3-8B", "--hw", "h200", "--gpus", "1", "--on", "emulator", "--engine", "vllm"),
    *("--workload", "random:256:16:32", "--executor", "local:1", "--launches", "6", "--study", "gate"),
    *("--set", "kv_cache_dtype=fp8", "--set", "context_length=8192", "--baseline", BASELINE),
]
SPACE = "narrow:\n  vllm:\n    search:\n      memory_fraction: [0.5, 0.6]\n"
TOKENS = 4


def right_answer(prompt: str) -> str:
    """What an emulated engine without noise says."""
    answer = GreedyAnswer(AnswerSettings(noise=0.0, seed=0), text_tokens(prompt))
    return "".join(answer.next(0).word for _ in range(TOKENS))


def test_a_finalist_that_answers_wrongly_falls_on_the_real_path(tmp_path: Path) -> None:
    home, space, tasks = new_home(tmp_path), tmp_path / "space.yaml", tmp_path / "tasks.jsonl"
    space.write_text(SPACE)
    prompts = [f"The {number}. line of the poem begins with" for number in range(40)]
    asked = ({"prompt": p, "answer": right_answer(p), "match": "exact", "max_tokens": TOKENS} for p in prompts)
    tasks.write_text("".join(json.dumps(row) + "\n" for row in asked))
    more = ["--space", str(space), "--accuracy", str(tasks), "--json"]
    wrong = "noise:0,wrong:0.5,when:kv_cache_dtype == 'fp8'"
    done = autotune("run", *QUESTION, *more, home=home, AUTOTUNE_EMULATE_ANSWERS=wrong)
    assert done.code == 0, done.err
    # Every candidate has the wrong cache: nothing but the baseline is left.
    assert done.json["config"]["kv_cache_dtype"] == "bfloat16"
    assert done.json["failures"]["accuracy"] >= 1
    check = done.json["accuracy"]
    assert (check["kind"], check["baseline"], check["recommended"], check["passed"]) == ("tasks", 100.0, 100.0, True)
    folder = home / "studies" / "gate"
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    fell = next(row for row in rows if row["failure"] and row["failure"]["kind"] == "accuracy")
    assert (fell["role"], fell["state"], fell["metrics"]) == ("final", "failed", {})
    assert fell["accuracy"]["score"] < 50
    assert len(fell["accuracy"]["examples"]) == 3
    report = (folder / "report.md").read_text()
    assert "## Are the answers still right?" in report
    assert f"### Launch {fell['number']} answers otherwise" in report
    assert "It answers worse than the baseline: " in report
    assert (folder / "accuracy" / "0000.json").stat().st_mode & 0o777 == 0o600
    assert "line of the poem" not in (folder / "study.yaml").read_text()
