"""Main memory for cached prompts is tried where their beginnings exceed a GPU's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engines.context import Context
from autotune.engines.enumeration import Enumeration
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.engines.space import EngineSpace

LIBRARY = Library()


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt_llm"])
def test_it_is_tried_beside_the_best_where_beginnings_exceed_the_gpus(name: str) -> None:
    kind = engine(name)
    node = LIBRARY.model("Qwen/Qwen3-32B"), LIBRARY.node("h100")
    # The published load (llm-d, guides/tiered-prefix-cache): 250 beginnings of 16,000 tokens.
    context = Context(*node, 2, kind.card.newest, prefix_tokens=250 * 16_000)
    space = EngineSpace(kind, context, Enumeration(), {})
    default = space.effective({})
    assert space.beside_values(default)["host_cache_gb"] == (0, 64)
    assert any(one.knobs["host_cache_gb"] == 64 for one in space.beside(default, 1))
    small = replace(space, context=replace(context, prefix_tokens=10 * 2_000))
    assert "host_cache_gb" not in small.beside_values(default)
    blind = replace(space, unread=frozenset({"host_cache_gb"}))
    assert "host_cache_gb" not in blind.beside_values(default)
    without = space.effective({"prefix_caching": False, "host_cache_gb": 64})
    assert without.knobs["host_cache_gb"] == 0


def test_a_size_is_of_each_gpu() -> None:
    node = LIBRARY.model("Qwen/Qwen3-32B"), LIBRARY.node("h100")
    sizes = {"vllm": "--kv-offloading-size 128", "sglang": "--hicache-size 64"}
    for name, option in sizes.items():
        kind = engine(name)
        context = Context(*node, 2, kind.card.newest)
        space = EngineSpace(kind, context, Enumeration(), {})
        tuned = space.effective({"host_cache_gb": 64})
        command = space.passed.command(kind, tuned, context)
        assert option in " ".join(command.argv)
        assert kind.knobs(kind.parse(command, context.version), context) == tuned
