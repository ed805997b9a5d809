"""The command line of a study's report asks the study's question again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from autotune.cli.main import cli
from autotune.engines.registry import settings_in_front
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.study.options import RunOptions, command_line
from tests.tuner.prepare.settings import RUN

ALL = {
    "engines": ["vllm", "sglang"],
    "workloads": ["random:1000:100:64", "random:64:8:32"],
    "objective": "cost_per_million_tokens",
    "weights": "random:1000:100:64=2,random:64:8:32=0.1234567",
    "pareto": "output_tokens_per_s_per_user",
    "slos": ["p99_ttft_ms<=2000.5", "p99_tpot_ms<=50"],
    "goodput": ["ttft:2000 tpot:50"],
    "baseline": "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8",
    "ladder": "1,4",
    "gpu_hour_price": 3.1,
    "pins": ["prefix_caching=true", "context_length=auto"],
    "engine_args": ["vllm=--trust-remote-code"],
    "min_context": 4096,
    "allow": ["lossy"],
    "launches": 9,
    "hours": 2.0,
    "seed": 7,
    "noise": 0.01,
    "sources": ["/a b/results.jsonl"],
    "sampler": "random",
}


def again(line: str) -> RunOptions:
    """What is typed with a command line."""
    context = cli.commands["run"].make_context("run", settings_in_front(shlex.split(line))[1][2:])
    return RunOptions(
        **{name: value for name, value in context.params.items() if name in RunOptions.__slots__}
    )


@pytest.mark.parametrize(
    ("asked", "screened"),
    [
        ({}, True),
        ({"screen": "off"}, False),
        ({"launches": 19}, False),
        ({"slos": ["p99_ttft_ms<=2000"]}, False),
        ({"sampler": "random"}, False),
        ({"model": "Qwen/Qwen3-8B"}, False),
    ],
    ids=["auto", "off", "few launches", "a limit", "another sampler", "a small model"],
)
def test_launches_have_random_weights_where_they_can_pay(
    asked: dict[str, Any], screened: bool
) -> None:
    assert bool(build_spec(replace(RUN, **{"screen": "auto", **asked})).screened) == screened


@pytest.mark.parametrize(
    "asked",
    [
        {},
        ALL,
        {
            "find_load": "rate",
            "slos": ["p99_ttft_ms<=2000"],
            "allow": ["shorter-context", "no-prefix-caching"],
        },
        {"screen": "auto"},
        {"screen": "off", "explain": "measured"},
        {
            "on": "emulator",
            "accuracy": "builtin",
            "baseline": "recipe:sglang",
            "executor": "local:1",
        },
    ],
    ids=["little", "everything", "load search", "random weights", "none of them", "answers"],
)
def test_the_command_line_asks_for_the_same_study(asked: dict[str, Any]) -> None:
    spec = build_spec(replace(RUN, **asked))
    typed = again(command_line(spec).replace(" \\\n", " "))
    assert build_spec(replace(typed, study="s")) == spec
