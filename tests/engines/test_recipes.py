"""Vendors' recipes: each parses in the versions that it names, gives knobs and breaks no rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.base.errors import MalformedFile
from autotune.engines.entry import in_range, spaces_root
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.engines.schema import Recipe
from autotune.tuner.prepare.recipes import (
    check_recipes,
    known_recipes,
    published,
    read_recipe,
    recipes_of,
)
from tests.engines.settings import LIBRARY, OURS, R1, V32, context

RECIPES = [(name, recipe) for name in OURS for recipe in engine(name).card.recipes]
VLLM_CARD = spaces_root() / "vllm" / "engine.yaml"


@pytest.mark.parametrize("name", OURS)
def test_every_packaged_recipe_is_read_and_breaks_no_rule(name: str) -> None:
    check_recipes(spaces_root() / name / "engine.yaml", LIBRARY)


@pytest.mark.parametrize(
    ("name", "recipe"), RECIPES, ids=[f"{name}-{recipe.name}" for name, recipe in RECIPES]
)
def test_a_recipe_applies_somewhere_and_says_where_it_is_from(name: str, recipe: Recipe) -> None:
    kind = engine(name)
    known = [v for v in kind.card.versions if in_range(v, recipe.versions)]
    places = [context(v, m, n) for v in known for m in LIBRARY.models for n in LIBRARY.hardware]
    assert any(recipe in recipes_of(kind.card, place) for place in places), "it applies nowhere"
    assert recipe.source.startswith("https://")
    assert "{model}" in recipe.command.split()


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
