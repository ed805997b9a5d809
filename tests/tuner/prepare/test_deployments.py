"""Deployments are read as their tools read them, and changed by place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from autotune.tuner.prepare.deployments import Deployment, read
from autotune.tuner.prepare.deployments.changes import knob_variables

MANIFESTS = Path(__file__).parents[2] / "outputs" / "manifests"
FILES = [
    MANIFESTS / row["file"] for row in yaml.safe_load((MANIFESTS / "sources.yaml").read_text())
]
OTHER = {
    "vllm": ["--max-num-seqs", "200", "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'],
    "sglang": ["--max-running-requests", "200", "--mem-fraction-static", "0.91"],
    "tensorrt_llm": ["--max_batch_size", "200", "--max_num_tokens", "8000"],
}  # fmt: skip
CHANGED = {word for words in OTHER.values() for word in words if word.startswith("-")}


def deployment_of(text: str | Path) -> Deployment:
    found = read(str(text))
    assert found is not None
    return found


def rest_of(argv: Sequence[str]) -> list[str]:
    """The words of the other options."""
    kept = list[str]()
    words = iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in CHANGED:
            kept.append(word)
        elif not equals:
            next(words)
    return kept


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_own_command_changes_no_byte(path: Path) -> None:
    found = deployment_of(path)
    assert found.rewritten(found.command.argv, found.command.env, found.gpus, 1) == found.text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_another_command_changes_its_knobs_alone(path: Path, tmp_path: Path) -> None:
    found = deployment_of(path)
    variable = min(knob_variables(found.kind, found.kind.version(found.version)))
    argv = [*rest_of(found.command.argv), *OTHER[found.kind.name]]
    copy = tmp_path / path.name
    copy.write_text(found.rewritten(argv, {**found.command.env, variable: "1"}))
    changed = deployment_of(copy)
    assert changed.container.env == {**found.container.env, variable: "1"}
    assert changed.container.folders.keys() == found.container.folders.keys()
    assert rest_of(changed.command.argv) == rest_of(found.command.argv)
    for word in OTHER[found.kind.name][1::2]:
        assert any(one.endswith(word) for one in changed.command.argv)
    # And back: what was added goes, with its line.
    copy.write_text(changed.rewritten(found.command.argv, found.command.env))
    assert deployment_of(copy).command.env == found.command.env
    lines = copy.read_text().splitlines()
    assert [line for line in lines if line.lstrip().startswith("#")] == [
        line for line in found.text.splitlines() if line.lstrip().startswith("#")
    ]
