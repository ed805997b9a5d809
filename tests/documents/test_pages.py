"""The pages as a whole: how many command lines they have, which cannot run here and why, and that options exist."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

import click

from autotune.cli.main import cli

from .pages import NEEDS, PAGES, ROOT, all_examples, examples, spans
from .running import Treatment, treatment

OTHERS = {
    *("--cpus-per-task", "--disable-usage-stats", "--num-gpus"),  # Slurm's and Ray's: tests/test_cluster_page.py
    *("--rm", "--shm-size", "--save-detailed", "-e", "-m", "---"),  # docker's, vLLM's bench, pip's, pytest's, YAML's
}
"""What the pages say of other programs' options."""


def test_every_command_line_is_run_or_says_what_it_needs() -> None:
    found = all_examples()
    assert len({example.page for example in found}) > 30
    treated = Counter(treatment(example) for example in found)
    assert treated[Treatment.RUN] >= 75
    needs = Counter(example.needs for example in found if example.needs is not None)
    assert set(needs) <= set(NEEDS)
    # A mark more is a documented command fewer that a test runs: raise a count only for what truly cannot run.
    most = {"GPUs": 0, "Docker": 2, "a cluster": 8, "a network": 9, "an engine": 11, "hours": 5}
    assert {need: count for need, count in needs.items() if count > most[need]} == {}


def test_a_mark_is_for_the_next_block_alone() -> None:
    page = ROOT / "docs" / "containers.md"
    here = [(example.needs, "--dry-run" in example.text) for example in examples(page)]
    assert (None, True) in here
    assert ("Docker", False) in here


def test_every_option_that_a_page_names_exists() -> None:
    known = set(options(cli)) | {"--help", "--version"} | OTHERS
    for path in (ROOT / "search_spaces").glob("*/options/*.json"):
        known |= set(re.findall(r'"(--?[\w.-]+)"', path.read_text()))
    for folder in ("benchmarks", "scripts", "examples", "tests/real_engines"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml") and ".venv" not in path.parts:
                known |= set(re.findall(r"--?[a-z][\w-]*", path.read_text()))
    named = {
        (str(path.relative_to(ROOT)), line, re.split(r"[ =]", text)[0])
        for path in PAGES
        for line, text in spans(path)
        if re.match(r"-\S", text)
    }
    assert len(named) > 200
    assert sorted(one for one in named if one[2] not in known) == []


def options(command: click.Command) -> Iterator[str]:
    """Yield the options of a command and of those below it."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options(below)


def table() -> str:
    """Count the command lines of all pages, as JSON."""
    found = all_examples()
    counted = Counter(treatment(example).value for example in found)
    needs = Counter(example.needs for example in found if example.needs is not None)
    return json.dumps({"command lines": len(found), **counted, "marked for": dict(needs)}, indent=2)


if __name__ == "__main__":
    print(table())
