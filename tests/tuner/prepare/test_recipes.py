"""``--baseline recipe[:ENGINE]``: which recipe it is, and where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.options import RunOptions
from tests.tuner.prepare.settings import RUN, V32, prepared, said

R1 = "deepseek-ai/DeepSeek-R1-0528"
ASKED = replace(RUN, baseline="recipe")


def test_the_first_engine_that_has_one_answers() -> None:
    found = prepared(ASKED)
    assert found.spec.recipe == "vllm"
    assert found.command_of(found.candidates.items[0]).argv[:5] == (
        "vllm",
        "serve",
        V32,
        "--tensor-parallel-size",
        "8",
    )
    note = "the baseline is the recipe deepseek-v3.2-hopper of vllm, as published at https://github.com/vllm-project/"
    assert any(said.startswith(note) for said in found.spec.notes)
    assert build_spec(replace(ASKED, engines=["sglang", "vllm"])).recipe == "sglang"
    assert build_spec(replace(ASKED, hardware="mi300x")).recipe == "sglang", (
        "vLLM published none for this node"
    )


def test_an_engine_that_is_named_need_not_be_searched() -> None:
    found = prepared(replace(ASKED, model=R1, engines=["vllm"], baseline="recipe:trtllm"))
    command = found.command_of(found.candidates.items[0])
    assert command.argv[0] == "trtllm-serve"
    assert "num_nextn_predict_layers: 1" in command.files["trtllm-config.yaml"]
    assert found.candidates.items[0].configuration.knobs["data_parallel"] == 8


def test_it_is_the_one_of_the_load_as_often_as_its_servers_fit_the_node() -> None:
    asked = replace(RUN, space=None, model="openai/gpt-oss-120b", hardware="mi355x")
    asked = replace(asked, engines=["vllm"], baseline="recipe:vllm")
    for load, servers in (("sharegpt-c4", 1), ("sharegpt", 8)):
        found = prepare(build_spec(replace(asked, workloads=[load])), Library())
        baseline = found.candidates.baseline_candidate
        assert (baseline.configuration.knobs["replicas"]) == servers
        assert found.command_of(baseline).replicas == servers
        assert found.candidates.recipes[found.candidates.baseline] == "gpt-oss-mi355x"
        (kept,) = [
            one
            for one in (
                found.candidates.items[i].configuration.knobs for i in found.candidates.starts
            )
            if one["prefix_caching"] and one["memory_fraction"] == 0.95
        ]
        assert kept["replicas"] == servers, "a start without what is not allowed"


def test_it_is_the_one_for_the_version_that_is_searched() -> None:
    old = build_spec(replace(ASKED, engines=["vllm==0.13"]))
    assert old.baseline == f"vllm serve {V32} -dp 8 --enable-expert-parallel"


def test_of_a_container_it_is_the_one_for_the_version_of_its_image() -> None:
    asked = replace(ASKED, on="docker", engines=["vllm"])
    old = build_spec(replace(asked, images=["vllm=vllm/vllm-openai:v0.13.0"]))
    assert old.baseline == f"vllm serve {V32} -dp 8 --enable-expert-parallel"
    assert build_spec(asked).baseline != old.baseline, "the newest image's"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            replace(ASKED, hardware="mi300x", baseline="recipe:vllm"),
            [f"{V32} on 8 x mi300x", f"{V32} on h200"],
        ),
        (
            replace(ASKED, model="Qwen/Qwen3-32B"),
            ["no recipe of vllm, sglang is known for Qwen/Qwen3-32B on 8 x h200"],
        ),
        (replace(ASKED, gpus=4), ["on 4 x h200"]),
        (replace(ASKED, baseline="recipe:sglan"), ["did you mean 'sglang'"]),
    ],
)
def test_none_is_refused_with_what_has_one(asked: RunOptions, words: list[str]) -> None:
    message = said(asked)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_an_engine_that_is_not_installed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert f"no recipe of vllm, sglang is known for {V32}" in said(replace(ASKED, on="process"))


def test_recipes_are_good_starts() -> None:
    asked = replace(
        RUN, space=None, engines=["vllm"], pins=["prefix_caching=true", "deep_gemm=true"]
    )
    found = prepare(build_spec(asked), Library())
    starts = [found.candidates.items[i].configuration.knobs for i in found.candidates.starts]
    plain = {"tensor_parallel": 8, "data_parallel": 1, "expert_parallel": 1}
    assert any(all(knobs[name] == value for name, value in plain.items()) for knobs in starts)


@pytest.mark.e2e
def test_a_recipe_that_gives_up_what_is_not_allowed_is_launched_to_compare_with() -> None:
    """SGLang's for R1 switches prefix caching off, with values that are not searched; a pin leaves
    it out."""
    asked = replace(RUN, model=R1, space=None, engines=["sglang"], workloads=["sharegpt"])
    found = prepare(build_spec(asked), Library()).candidates
    (position,) = found.recipes
    assert found.recipes[position] == "deepseek-r1-high-throughput"
    assert found.items[position].configuration.knobs["prefix_caching"] is False
    kinds = [one.kind for one in found.given_up[position]]
    assert kinds == ["no-prefix-caching", "coarse-streaming"]
    others = [item.configuration for i, item in enumerate(found.items) if i != position]
    assert all(one.knobs["prefix_caching"] for one in others)
    mine = found.items[position].configuration
    kept = mine.with_knobs(prefix_caching=True, stream_interval=1)
    assert kept in others, "what it gives up may be kept beside all else"
    pinned = prepare(build_spec(replace(asked, pins=["prefix_caching=true"])), Library())
    assert not pinned.candidates.recipes


@pytest.mark.e2e
def test_candidates_that_are_a_recipe_are_named() -> None:
    found = prepared(ASKED)
    assert found.candidates.recipes == {}, "a space file has its own good starts"
    whole = prepare(
        build_spec(replace(RUN, space=None, engines=["vllm", "sglang"])), Library()
    ).candidates
    assert whole.recipes[whole.baseline] == "deepseek-v3.2-hopper"
    assert {"deepseek-v3.2-dp-attention", "deepseek-v3.2-dp-attention-experts"} < {
        *whole.recipes.values()
    }
