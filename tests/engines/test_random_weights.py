"""The switch by which a server starts with random weights, beside what a user passed to load
weights faster."""

import shlex

import pytest

from autotune.engines.command import Command
from autotune.engines.context import Context
from autotune.engines.library import Library
from autotune.engines.registry import engine

LIBRARY = Library()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (
            "sglang",
            "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2 --tp-size 8",
        ),
        ("vllm", "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --load-format fastsafetensors"),
    ],
)
def test_random_weights_take_the_place_of_a_faster_loader(name: str, command: str) -> None:
    """The loader of random weights refuses settings of another one."""
    kind = engine(name, LIBRARY)
    context = Context(
        LIBRARY.model("deepseek-ai/DeepSeek-V3.2"), LIBRARY.node("h200"), 8, kind.version()
    )
    passed = shlex.split(
        f"{command} --model-loader-extra-config '{{\"enable_multithread_load\": true}}'"
    )
    fast, cheap = Command(tuple(passed)), kind.with_random_weights(Command(tuple(passed)), context)
    assert kind.reads_weights(kind.parse(fast, context.version), context)
    parsed = kind.parse(cheap, context.version)
    assert not kind.reads_weights(parsed, context)
    assert parsed.args["model_loader_extra_config"] in ({}, "{}")
