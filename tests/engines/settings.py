"""What the engine tests share: contexts of the packaged models and nodes, and the road from a
command to its knobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.command import Configuration, Scalar
from autotune.engines.context import Context, broken_rules, effective
from autotune.engines.failure import FailureKind
from autotune.engines.library import Library
from autotune.engines.registry import engine, recognise, split_command
from tests.data import BESIDE

LIBRARY = Library()
V32, R1 = "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-R1-0528"
MODELS, NODES = (V32, R1), ("h200", "mi300x")
OURS = ("sglang", "tensorrt_llm", "vllm")
"""Also where packages of others bring more engines."""
VERSIONS = [(name, version) for name in OURS for version in engine(name).card.versions]


def context(
    version: str, model: str = V32, node: str = "h200", longest_request: int = 0, gpus: int = 8
) -> Context:
    return Context(LIBRARY.model(model), LIBRARY.node(node), gpus, version, longest_request)


def shared(file: str) -> Path:
    """A file of the data folder beside the repository; skips where it is absent."""
    path = BESIDE / file
    if not path.is_file():
        pytest.skip(f"{path} is not here: the data folder beside the repository is absent")
    return path


def read(command: str, version: str, model: str = V32, node: str = "h200") -> Configuration:
    """The raw knobs of a command line."""
    split = split_command(command)
    kind = recognise(split.argv)
    known = kind.version(version)
    return kind.knobs(kind.parse(split, known), context(known, model, node))


def set_by(command: str, version: str, model: str = V32, node: str = "h200") -> dict[str, Scalar]:
    """The knobs in which a command line differs from the engine's defaults on all GPUs."""
    configuration = read(command, version, model, node)
    kind = engine(configuration.engine)
    base = kind.default_knobs(context(kind.version(version), model, node))
    return {name: value for name, value in configuration.knobs.items() if value != base[name]}


def failing_rules(
    command: str, version: str, model: str = V32, node: str = "h200", longest_request: int = 0
) -> list[str]:
    """The names of the rules by which a command would really fail (not merely be pointless)."""
    configuration = read(command, version, model, node)
    card = engine(configuration.engine).card
    known = engine(configuration.engine).version(version)
    judged = context(known, model, node, longest_request)
    made = effective(card, configuration, judged)
    return [
        rule.name for rule in broken_rules(card, made, judged) if rule.kind is not FailureKind.RULE
    ]
