"""Twelve deployments of public projects (``sources.yaml``), and what may change in them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import yaml

HERE = Path(__file__).parent
SOURCES: list[dict[str, Any]] = yaml.safe_load((HERE / "sources.yaml").read_text("utf-8"))
_COMMAND = re.compile(r"command|args|entrypoint|environment|env")
_GPUS = re.compile(r"[a-z]+\.com/gpu|count|device_ids|replicas")


def check_valid(path: Path) -> None:
    """The validators of each form: schemas of Kubernetes, the Compose specification, bash."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sh":
        subprocess.run(["bash", "-n", path], check=True)
    elif "compose" in path.name:
        compose_spec.PyCompose.from_yaml(_resolved(text).replace("~/", "/root/"))
    else:
        for document in yaml.safe_load_all(text):
            kubernetes_validate.validate(document, "1.37", strict=False)


def _resolved(text: str) -> str:
    """Compose fills in variables, and merges, before it checks."""
    filled = re.sub(r"\$\{\w+:?-([^{}]*)\}", r"\1", text).replace("${HOME}", "/root")
    return yaml.safe_dump(yaml.safe_load(filled))


def changed_paths(before: str, after: str) -> list[str]:
    """The keys at which two YAML files differ."""
    documents = [list(yaml.safe_load_all(text)) for text in (before, after)]
    return sorted(set(_paths(*documents)))


def _paths(a: Any, b: Any, path: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            yield from _paths(a.get(key), b.get(key), f"{path} {key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _paths(one, other, f"{path} {i}")
    elif a != b:
        yield path


def check_nothing_else(path: Path, before: str, after: str) -> None:
    """Only command, environment, GPUs and replicas differ; comments, anchors and order are as they
    were."""
    if path.suffix == ".sh":
        assert _around(before) == _around(after)
        return
    for changed in changed_paths(before, after):
        keys = changed.split()
        assert any(_COMMAND.fullmatch(key) or _GPUS.fullmatch(key) for key in keys), changed
    assert _comments(before) == _comments(after)
    assert re.findall(r"[&*][\w-]+", before) == re.findall(r"[&*][\w-]+", after)


def _comments(text: str) -> list[str]:
    return re.findall(r"(?:^|\s)(#.*)", text)


def _around(text: str) -> tuple[list[str], list[str]]:
    """What stands before and behind a script's server command, without its config file."""
    lines = re.sub(
        r"(<<YAML\n).*?(?=^YAML$)", r"\1", text, flags=re.DOTALL | re.MULTILINE
    ).splitlines()
    start = next(i for i, line in enumerate(lines) if "docker run" in line)
    end = start
    while lines[end].rstrip().endswith("\\"):
        end += 1
    return lines[:start], lines[end + 1 :]
