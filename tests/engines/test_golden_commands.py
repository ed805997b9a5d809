"""What a command looks like beyond the golden ones, which `test_conformance` compares."""

from __future__ import annotations

from autotune.engines.command import Configuration
from autotune.engines.registry import engine, split_command
from tests.engines.settings import V32, context


def test_the_default_vllm_command_of_v32_is_what_a_person_would_write() -> None:
    kind = engine("vllm")
    judged = context("0.32.0")
    command = kind.command(Configuration("vllm", kind.default_knobs(judged)), judged).shell()
    assert command.startswith(
        f"vllm serve {V32} --tensor-parallel-size 8 --tokenizer-mode deepseek_v32 --reasoning-parser deepseek_v3"
    )
    assert command.endswith("--host 127.0.0.1")


def test_what_is_passed_through_stands_last() -> None:
    kind = engine("sglang")
    judged = context("0.5.23")
    configuration = Configuration("sglang", kind.default_knobs(judged))
    command = kind.command(
        configuration, judged, ["--trust-remote-code", "--max-running-requests", "7"]
    )
    assert command.argv[-3:] == ("--trust-remote-code", "--max-running-requests", "7")
    assert (
        kind.knobs(kind.parse(split_command(command.shell()), "0.5.23"), judged).knobs[
            "max_running_requests"
        ]
        == 7
    )
