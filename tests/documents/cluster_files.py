"""What the tests of docs/cluster.md and examples/cluster/ share: the files, our parser, programs
that stand in."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.cli.main import cli
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.study.options import RunOptions
from autotune.tuner.study.spec import StudySpec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "cluster"
PAGE = ROOT / "docs" / "cluster.md"


def parsed(words: list[str]) -> dict[str, Any]:
    """What our own parser makes of a command's words, its name in front; raises
    ``click.UsageError``."""
    command = cli.commands[words[0]]
    with command.make_context(words[0], list(words[1:])) as context:
        return dict(context.params)


def asked(words: list[str]) -> StudySpec:
    """The question of an ``autotune run``; simulated, as no engine is installed here. Raises
    `BadInput`."""
    options = parsed(words)
    for name in ("home", "as_json", "dry_run"):
        options.pop(name)
    return build_spec(replace(RunOptions(**options), on="simulator"))


def stand_in(folder: Path, name: str, script: str) -> None:
    """A program of this name, which writes the words that it is given to ``calls`` beside it
    first."""
    path = folder / name
    path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)


def calls(folder: Path, name: str) -> list[list[str]]:
    """The words of each call of a stand-in; none has a space in it."""
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[1:] for line in lines if line.split()[0] == name]


def checked(script: str) -> None:
    """Fail on a script that is no bash."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def on_path(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which stand-ins are found first."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))
    }
    return {**environment, "PATH": f"{folder}:{os.environ['PATH']}", **more}
