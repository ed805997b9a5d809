"""Processes of the host are tried beside the best where a step is short and many requests run."""

from __future__ import annotations

import pytest

from autotune.engines.context import Context
from autotune.engines.enumeration import Enumeration
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.engines.space import EngineSpace

LIBRARY = Library()
TRIED = {
    "vllm": {"api_server_count": (None, 2, 4), "rust_frontend": (False, True)},
    "sglang": {
        "tokenizer_worker_num": (1, 4, 8),
        "detokenizer_worker_num": (1, 2, 4),
        "batch_notify_size": (16, 128),
        "rust_frontend": (False, True),
    },
    "tensorrt_llm": {"num_postprocess_workers": (0, 4)},
}


def beside(name: str, model: str, at_once: int, *allowed: str) -> dict[str, tuple[object, ...]]:
    kind = engine(name)
    card, node = LIBRARY.model(model), LIBRARY.node("h200")
    loaded = {"concurrency": float(at_once), "allowed": allowed}
    context = Context(card, node, 8, kind.card.newest, **loaded)
    space = EngineSpace(kind, context, Enumeration(), {})
    return space.beside_values(space.effective({"tensor_parallel": 8}))


@pytest.mark.parametrize("name", TRIED)
def test_where_a_step_is_long_or_few_requests_run_nothing_waits_for_the_host(name: str) -> None:
    found = beside(name, "Qwen/Qwen3-8B", 1024)
    assert {knob: found.get(knob) for knob in TRIED[name]} == TRIED[name]
    assert not TRIED[name].keys() & beside(name, "Qwen/Qwen3-8B", 64).keys()
    assert not TRIED[name].keys() & beside(name, "deepseek-ai/DeepSeek-V3.2", 1024).keys()


@pytest.mark.parametrize("name", TRIED)
def test_pieces_are_tried_beside_the_best_where_they_are_allowed(name: str) -> None:
    assert "stream_interval" not in beside(name, "Qwen/Qwen3-8B", 1024)
    assert 4 in beside(name, "Qwen/Qwen3-8B", 1024, "coarse-streaming")["stream_interval"]
