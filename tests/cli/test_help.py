"""`autotune run --help`: every option in a group, examples that are understood; completion."""

from __future__ import annotations

import shlex

from click.shell_completion import BashComplete

from autotune.cli.main import cli
from autotune.cli.shared import EXAMPLES
from autotune.tuner.study.options import GROUPS

run = cli.commands["run"]


def test_every_option_stands_in_one_group() -> None:
    shown = run.get_help(run.make_context("run", ["--model", "m", "--hw", "h200"]))
    headings = [line.rstrip(":") for line in shown.splitlines() if line.rstrip(":") in GROUPS]
    assert headings == list(GROUPS)
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  --")]
    assert sorted(listed) == sorted([*(option.opts[0] for option in run.params), "--help"])
    assert "Examples:" in shown


def test_the_examples_are_command_lines() -> None:
    examples = [
        shlex.split(line) for line in EXAMPLES.splitlines() if line.strip().startswith("autotune ")
    ]
    assert len(examples) >= 3
    for words in examples:
        assert words[:2] == ["autotune", "run"]
        assert run.make_context("run", words[2:]).params["model"]


def test_names_of_options_complete() -> None:
    complete = BashComplete(cli, {}, "autotune", "_AUTOTUNE_COMPLETE")
    assert "--slo" in [item.value for item in complete.get_completions(["run"], "--sl")]
