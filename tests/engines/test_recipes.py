"""Vendors' recipes: each parses in the versions that it names, gives knobs and breaks no rule."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from autotune.base.errors import MalformedFile
from autotune.engines.command import gpus_of
from autotune.engines.entry import spaces_root
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.node.calibration import ServerSetup, coefficients_of
from autotune.node.memory import plan_memory
from autotune.node.server import SimulatedServer
from autotune.tuner.prepare.recipes import (
    LOADS,
    check_recipes,
    known_recipes,
    published,
    read_recipe,
    recipes_of,
)
from tests.engines.settings import LIBRARY, OURS, R1, V32, context

FP4, OSS, M25 = "nvidia/DeepSeek-R1-0528-FP4-v2", "openai/gpt-oss-120b", "MiniMaxAI/MiniMax-M2.5"
VLLM_CARD = spaces_root() / "vllm" / "engine.yaml"


@pytest.mark.parametrize("name", OURS)
def test_every_packaged_recipe_is_read_and_breaks_no_rule(name: str) -> None:
    check_recipes(spaces_root() / name / "engine.yaml", LIBRARY)


@pytest.mark.parametrize("name", OURS)
def test_a_recipe_stands_on_all_gpus_where_it_applies_and_its_memory_is_planned(name: str) -> None:
    """Of each the first place under a few loads and one that is not known; its fewest requests."""
    kind, placed = engine(name), set[str]()
    for model, node, most in product(LIBRARY.models, LIBRARY.hardware, LOADS):
        here = replace(context(kind.version(), model, node), concurrency=most)
        for recipe in recipes_of(kind.card, here):
            if recipe.name not in placed:
                placed.add(recipe.name)
                read = read_recipe(kind, recipe, here)
                assert gpus_of(read, 99) == here.gpus, recipe.name
                setup = ServerSetup(
                    name, here.version, read.knobs, here.model, here.hardware, here.gpus
                )
                plan = plan_memory(SimulatedServer(setup, coefficients_of(setup)))
                assert plan.starts > 0.5, (recipe.name, model, node, most, plan)
    assert placed == {recipe.name for recipe in kind.card.recipes}, "one applies nowhere"
    assert all(recipe.source.startswith("https://") for recipe in kind.card.recipes)


@pytest.mark.parametrize(
    ("name", "model", "node", "concurrency", "knobs"),
    [
        # InferenceX 843c6254f: attention DP from 64 requests in flight on; MTP 3 without, 1 with it.
        (
            "tensorrt_llm",
            R1,
            "h200",
            32,
            {"tensor_parallel": 8, "data_parallel": 1, "speculative_tokens": 3, "memory_fraction": 0.75},
        ),
        ("tensorrt_llm", R1, "h200", 64, {"data_parallel": 8, "speculative_tokens": 1}),
        ("tensorrt_llm", R1, "b200", 128, {"moe_backend": "TRTLLM", "data_parallel": 1}),
        ("tensorrt_llm", R1, "b200", 256, {"moe_backend": "DEEPGEMM", "data_parallel": 8}),
        ("tensorrt_llm", FP4, "b200", 16, {"replicas": 2, "tensor_parallel": 4, "speculative_tokens": 3}),
        ("tensorrt_llm", FP4, "b200", 64, {"moe_backend": "CUTLASS", "data_parallel": 8}),
        ("sglang", R1, "mi355x", 32, {"tensor_parallel": 8, "cuda_graph_max_batch": 32}),
        ("sglang", R1, "mi355x", 64, {"replicas": 2, "tensor_parallel": 4, "cuda_graph_max_batch": 32}),
        ("sglang", R1, "mi300x", 64, {"cuda_graph_max_batch": 128}),
        ("sglang", R1, "mi300x", math.inf, {"cuda_graph_max_batch": 512}),
        ("vllm", OSS, "mi355x", 16, {"replicas": 1, "tensor_parallel": 8, "block_size": 64}),
        ("vllm", OSS, "mi355x", 1024, {"replicas": 8, "tensor_parallel": 1, "block_size": 64}),
        ("vllm", M25, "mi325x", 512, {"tensor_parallel": 8, "expert_parallel": 8}),
        ("vllm", M25, "mi355x", 64, {"replicas": 4, "kv_cache_dtype": "fp8", "block_size": 32}),
    ],
)  # fmt: skip
def test_the_first_recipe_is_the_one_of_the_load(
    name: str, model: str, node: str, concurrency: float, knobs: dict[str, object]
) -> None:
    kind = engine(name)
    here = replace(context(kind.version(), model, node), concurrency=concurrency)
    read = read_recipe(kind, recipes_of(kind.card, here)[0], here)
    assert {knob: read.knobs[knob] for knob in knobs} == knobs


@pytest.mark.parametrize(
    ("name", "model", "node", "knobs"),
    [
        ("vllm", V32, "h200", {"tensor_parallel": 8, "data_parallel": 1, "expert_parallel": 1}),
        ("vllm", R1, "h200", {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8}),
        (
            "vllm",
            R1,
            "mi300x",
            {"tensor_parallel": 8, "expert_parallel": 8, "attention_backend": "ROCM_AITER_MLA"},
        ),
        ("sglang", V32, "h200", {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 1}),
        (
            "sglang",
            V32,
            "mi300x",
            {"prefill_attention_backend": "tilelang", "cuda_graph_max_batch": 64},
        ),
        (
            "sglang",
            R1,
            "h200",
            {"max_running_requests": 512, "memory_fraction": 0.82, "prefix_caching": False},
        ),
        ("sglang", R1, "mi300x", {"attention_backend": "aiter", "kv_cache_dtype": "fp8_e4m3"}),
        (
            "tensorrt_llm",
            R1,
            "h200",
            {"data_parallel": 8, "speculative_tokens": 1, "max_batched_tokens": 3200},
        ),
    ],
)
def test_the_first_recipe_sets_what_a_person_reads_in_it(
    name: str, model: str, node: str, knobs: dict[str, object]
) -> None:
    kind = engine(name)
    here = context(kind.version(), model, node)
    read = read_recipe(kind, recipes_of(kind.card, here)[0], here)
    assert {knob: read.knobs[knob] for knob in knobs} == knobs
    assert read in known_recipes(kind, here).values()


@pytest.mark.parametrize(
    ("name", "model", "node"), [("vllm", V32, "mi300x"), ("tensorrt_llm", V32, "h200")]
)
def test_where_no_vendor_published_one_there_is_none(name: str, model: str, node: str) -> None:
    kind = engine(name)
    assert recipes_of(kind.card, context(kind.version(), model, node)) == []


def test_a_recipe_is_written_with_the_names_of_the_version() -> None:
    kind = engine("sglang")
    for version, flag in (
        ("0.5.23", "--cuda-graph-max-bs-decode"),
        ("0.5.8", "--cuda-graph-max-bs"),
    ):
        here = context(version, V32, "mi300x")
        assert flag in published(kind, recipes_of(kind.card, here)[0], here).argv


def test_a_recipe_that_its_engine_refuses_is_named_with_its_line(tmp_path: Path) -> None:
    for right, wrong, word in (
        ("-dp 8 --enable-expert", "-dp 8 --enable-expertise", "--enable-expertise"),
        ("vllm serve {model} -dp 8", "vllm serve {model} -dp 16", "layout-needs-more-gpus"),
    ):
        card = tmp_path / f"{word.strip('-')}.yaml"
        card.write_text(VLLM_CARD.read_text().replace(right, wrong))
        line = 1 + next(
            i
            for i, text in enumerate(card.read_text().splitlines())
            if "v3.2-expert-parallel" in text
        )
        with pytest.raises(
            MalformedFile, match=rf"\.yaml:{line}: deepseek-v3\.2-expert-parallel.*{word}"
        ):
            check_recipes(card, Library(files=(card,)))
