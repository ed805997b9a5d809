"""docs/cluster.md: every command of autotune and Ray in it is one that their parsers take."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from autotune.cli.main import cli
from tests.documents.cluster_files import EXAMPLES, PAGE, ROOT, asked, parsed
from tests.documents.sbatch_options import SBATCH_OPTIONS

TEXT = PAGE.read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.S)
SPANS = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.S))
LINES = [
    line for language, block in BLOCKS if language == "bash" for line in block.splitlines() if line
]
OTHERS = {"--help"}


def test_every_autotune_command_parses() -> None:
    commands = [shlex.split(line, comments=True) for line in LINES if line.startswith("autotune ")]
    assert len(commands) >= 3
    for words in commands:
        assert words[1] == "run"
        spec = asked(words[1:])
        assert spec.executor.partition(":")[0] == "ray"
    for span in SPANS:
        words = span.split()
        if words[0] == "autotune" and len(words) > 1:
            assert words[1] in cli.commands
    assert parsed(["resume", "STUDY"])["study"] == "STUDY"


def ray_options() -> dict[str, list[str]]:
    """Ray's commands and their options, as its own parser has them; skips where Ray is not
    installed."""
    pytest.importorskip("ray", reason="Ray is not installed")
    script = (
        "import json, ray.scripts.scripts as s\n"
        "print(json.dumps({n: [o for p in c.params for o in p.opts] for n, c in s.cli.commands.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_command_and_option_of_ray_exists() -> None:
    known = ray_options()
    scripts = [line.strip() for line in (EXAMPLES / "slurm.sbatch").read_text().splitlines()]
    used = [line for line in (*LINES, *scripts, *SPANS) if line.startswith("ray ")]
    assert len(used) >= 8
    for line in used:
        words = shlex.split(
            line.partition(" &")[0].partition(" >")[0].replace("\\", ""), comments=True
        )
        assert words[1] in known, line
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= set(known[words[1]]), line
    # What the page and the Kubernetes file name without the command in front.
    ours = {
        option for command in cli.commands.values() for p in command.params for option in p.opts
    }
    named = {
        word.partition("=")[0] for span in SPANS for word in span.split() if word.startswith("--")
    }
    slurm = {f"--{name}" for name in SBATCH_OPTIONS}
    assert (
        named
        <= ours | {option for options in known.values() for option in options} | slurm | OTHERS
    )
    (job,) = [
        d
        for d in yaml.safe_load_all((EXAMPLES / "kuberay.yaml").read_text())
        if d["kind"] == "RayJob"
    ]
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert {f"--{name}" for name in group["rayStartParams"]} <= set(known["start"])


def test_links_within_the_repository_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert targets
    for target in targets:
        assert (PAGE.parent / target.partition("#")[0]).exists(), target
    assert "cluster.md" in (ROOT / "README.md").read_text()
