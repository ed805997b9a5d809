"""Every serving command of the performance-lab documents and of the concurrency sweep is read as a
person reads it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.command import Configuration
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import engine, recognise, split_command
from tests.data import LAB, SWEEP, rows
from tests.engines.settings import failing_rules, set_by

V32 = "deepseek-ai/DeepSeek-V3.2"
MEANING = yaml.safe_load(Path(__file__).with_name("meaning.yaml").read_text())


def meaning(command: str, name: str) -> dict[str, Any]:
    """The union of what a command's parts say."""
    said = [knobs for part, knobs in MEANING[name].items() if part in command]
    return {knob: value for knobs in said for knob, value in knobs.items()}


def test_every_documented_command_gives_the_knobs_that_a_person_reads_in_it() -> None:
    assert len(rows(LAB)) == 49
    for row in rows(LAB):
        kind = recognise(split_command(row["command"]).argv)
        expected = meaning(row["command"], kind.name)
        assert set_by(row["command"], row["engine_version"], row["model"]) == expected, row[
            "command"
        ]


def test_the_documented_start_failures_break_a_rule_and_no_other_command_does() -> None:
    found = rows(LAB)
    assert any(row["failure"] for row in found)
    for row in found:
        rules = failing_rules(row["command"], row["engine_version"], row["model"])
        assert bool(rules) == bool(row["failure"]), (row["command"], rules)


def test_the_sweep_s_commands_parse_where_the_version_is_known() -> None:
    read = {}
    for row in rows(SWEEP):
        command = f"{row['env']} {row['command']}".strip()
        if row["engine_version"] in recognise(split_command(command).argv).card.versions:
            read[command] = set_by(
                command, row["engine_version"], row["model"], row["hardware"].lower()
            )
    # In 0.4.3 dp attention is as wide as tensor parallelism, whatever --dp-size says.
    assert read == {
        "python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-R1 --tp 8 --trust-remote-code "
        "--enable-dp-attention": {"tensor_parallel": 1, "data_parallel": 8}
    }


@pytest.mark.parametrize("text", ["/workspace/DeepSeek-v3.2", "deepseek-ai/DeepSeek-V3.2"])
def test_a_model_is_kept_as_it_was_written(text: str) -> None:
    for command in (
        f"vllm serve {text} -tp 8",
        f"trtllm-serve {text}",
        f"sglang serve --model {text}",
    ):
        split = split_command(command)
        kind = recognise(split.argv)
        assert kind.parse(split, kind.card.newest).model == text
        assert shlex.join(split.argv) == command


def test_engines_are_known_by_their_aliases() -> None:
    assert engine("trtllm") is engine("tensorrt_llm")


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("0.5.6", "--tp-size 8 --dp-size 4 --enable-dp-attention"),
        ("0.5.21", "--tp-size 8 --dp-size 4 --enable-dp-attention"),
        ("0.5.22", "--tp-size 8 --attn-dp-size 4"),
        ("0.5.23", "--tp-size 8 --attn-dp-size 4"),
    ],
)
def test_sglang_s_attention_replicas_are_asked_for_as_the_version_knows_them(
    version: str, options: str
) -> None:
    """``--attn-dp-size`` is in the wheel of 0.5.22 and not in that of 0.5.21."""
    library, kind = Library(), engine("sglang")
    context = Context(library.model(V32), library.node("h200"), 8, version)
    knobs = kind.default_knobs(context, {"tensor_parallel": 2, "data_parallel": 4})
    typed = kind.command(Configuration("sglang", knobs), context).shell()
    assert f"{V32} {options} --reasoning-parser" in typed
