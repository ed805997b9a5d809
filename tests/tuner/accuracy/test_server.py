"""Answers of a running server: bench --accuracy against emulated engines, right and wrong ones, and
its bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.load.client.target import Target
from autotune.tuner.accuracy.asking import NoAnswers, ask
from tests.load.server import Call, Server
from tests.product.cli import autotune, new_home
from tests.product.processes import PROGRAM
from tests.product.server import COMMAND, emulated
from tests.product.terminal import Terminal

FAST = ("--speed", "20")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_home(tmp_path_factory.mktemp("accuracy"))


def test_builtin_passes_a_fresh_launch_and_fails_a_wrong_one(home: Path, tmp_path: Path) -> None:
    kept = [tmp_path / "first.json", tmp_path / "second.json"]
    for path in kept:
        with emulated(*FAST, command=COMMAND) as url:
            done = autotune(
                "bench",
                "--url",
                url,
                "--accuracy",
                "builtin",
                "--save-result",
                str(path),
                home=home,
            )
            assert done.code == 0, done.err
    references = [word for path in kept for word in ("--reference", str(path))]
    told = ["bench", "--accuracy", "builtin", *references, "--json"]
    with emulated(*FAST, command=COMMAND) as url:
        same = autotune(*told, "--url", url, home=home)
    assert same.code == 0, same.err
    assert (same.json["kind"], same.json["passed"], same.json["evidence"]) == (
        "builtin",
        True,
        "emulated",
    )
    with emulated(
        *FAST, "--answers", "wrong:0.05,when:tensor_parallel == 8", command=COMMAND
    ) as url:
        wrong = autotune(*told, "--url", url, home=home)
    assert wrong.code == 4
    assert wrong.json["score"] < wrong.json["threshold"] < wrong.json["baseline"]
    assert len(wrong.json["examples"]) == 3
    assert "the answers do not pass: " in wrong.err
    counts = [
        int(line.split()[0])
        for line in wrong.err.splitlines()
        if line.endswith(" of 161 prompts answered")
    ]
    assert counts == [1, 2, 4, 8, 16, 32, 64, 128, 161]
    # Long contexts were sent, and none was refused.
    answers = json.loads(kept[0].read_text())["answers"]
    assert all(answers.values())
    assert kept[0].stat().st_mode & 0o777 == 0o600


def test_the_verdict_comes_first_and_a_terminal_shows_how_far_it_is(
    home: Path, tmp_path: Path
) -> None:
    rows = [
        {"prompt": f"Line {i}:", "answer": "e", "match": "contains", "max_tokens": 8}
        for i in range(200)
    ]
    tasks, first = tmp_path / "tasks.jsonl", tmp_path / "first.json"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("bench", "--accuracy", str(tasks))
    with emulated(*FAST, command=COMMAND) as url:
        done = autotune(*words, "--url", url, "--save-result", str(first), home=home)
        assert done.code == 0, done.err
        program = [*PROGRAM, *words, "--url", url, "--reference", str(first)]
        with Terminal(program, 80, AUTOTUNE_HOME=str(home)) as terminal:
            terminal.watch()
            assert terminal.process.wait() == 0
    # One line, which is gone in the end.
    assert b" of 200 prompts answered" in terminal.bytes_
    assert not [line for line in terminal.lines if "prompts answered" in line]
    assert terminal.lines[0] == "passes"
    assert terminal.lines[1].startswith("tasks: score ")


def test_tasks_and_commands_print_a_score(home: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    with emulated(*FAST, "--answers", "no-logprobs,noise:0", command=COMMAND) as url:
        rows = [
            {"prompt": f"Line {i}:", "answer": "e", "match": "contains", "max_tokens": 8}
            for i in range(20)
        ]
        rows += [
            {
                "messages": [{"role": "user", "content": "7?"}],
                "answer": "7",
                "match": "number",
                "max_tokens": 8,
            }
        ] * 5
        tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = autotune("bench", "--url", url, "--accuracy", str(tasks), "--json", home=home)
        assert done.code == 0, done.err
        assert (done.json["kind"], done.json["score"]) == ("tasks", 80.0)
        assert done.json["ci95"][0] < 80 < done.json["ci95"][1]
        printing = f"{sys.executable} -c 'print(0.75)' {{url}} {{model}}"
        done = autotune("bench", "--url", url, "--accuracy", printing, home=home)
        assert (done.code, done.out.splitlines()[0]) == (0, "command: score 0.750")
        failing = autotune(
            "bench", "--url", url, "--accuracy", f"{sys.executable} -c 1/0 {{url}}", home=home
        )
        assert failing.code == 2
        assert "ended with exit code 1" in failing.err
        alone = autotune("bench", "--url", url, "--accuracy", "builtin", home=home)
        assert alone.code == 2
        assert "add --reference FILE" in alone.err


def test_what_is_asked_of_an_answer_is_told_before_anything_is_launched(
    home: Path, tmp_path: Path
) -> None:
    study = ["run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--workload", "short"]
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "1 + 1 =", "answer": 2}\n')
    for more, problem in (
        (("--on", "simulator", "--accuracy", "builtin"), "use --on emulator"),
        (("--on", "emulator", "--accuracy", str(broken)), f"{broken}:1: match: Field required"),
        (("--on", "emulator", "--accuracy", "no-such-program {url}"), "program"),
        (
            ("--on", "external:http://127.0.0.1:9", "--accuracy", "builtin"),
            "use autotune bench --accuracy",
        ),
    ):
        done = autotune(*study, *more, home=home)
        assert (done.code, problem in done.err) == (2, True), done.err
        assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [("wrong:2", "'2' is no value"), ("mumble", "did you mean"), ("after:x", "no value")],
)
def test_settings_of_emulated_answers_are_checked(home: Path, settings: str, problem: str) -> None:
    done = autotune(
        "emulate", "--hw", "h200", "--port", "0", "--answers", settings, "--", *COMMAND, home=home
    )
    assert done.code == 2
    assert problem in done.err or "unknown setting of answers" in done.err


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_prompt_that_a_server_cannot_take_has_no_answer_and_any_other_refusal_is_an_error(
    status: int, logprobs: bool
) -> None:
    """Of a 400 that is about log-probabilities the prompt is not the cause."""

    async def refuse(call: Call) -> None:
        await call.answer(
            status,
            {"error": "top_logprobs is not supported" if logprobs else "the prompt is too long"},
        )

    with Server(refuse) as server:
        asked = (Target.parse(server.url), "m", [{"prompt": "x"}], 1)
        if status == 500 or (logprobs and status == 400):
            with pytest.raises(NoAnswers, match=f"HTTP {status}"):
                ask(*asked, logprobs=logprobs)
        else:
            assert ask(*asked, logprobs=logprobs) == [None]
