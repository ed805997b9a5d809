"""What the simulated node does not read is neither searched nor recommended; on real servers
nothing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.command import Scalar
from autotune.engines.library import Library
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.search.history import History
from autotune.tuner.study.options import RunOptions
from tests.tuner.prepare.settings import prepared

R1 = RunOptions(
    "deepseek-ai/DeepSeek-R1-0528",
    "mi300x",
    workloads=["random:1000:100:64"],
    on="simulator",
    study="s",
    engines=["vllm"],
)
AITER, TRITON = "ROCM_AITER_MLA", "TRITON_MLA"
OTHERS = {TRITON, "ROCM_AITER_TRITON_MLA"}
"""Kernels of vLLM on this node: its own choice, and those below it (vLLM 0.33,
platforms/rocm.py)."""
TOLD = "vLLM 0.33.0: not searched, as the simulator does not read them: attention_backend"


def kernels(found: Prepared) -> set[Scalar]:
    return {one.configuration.knobs["attention_backend"] for one in found.candidates.items}


@pytest.mark.parametrize("on", ["simulator", "emulator"])
def test_a_knob_without_a_model_keeps_the_engine_s_default_and_is_named(on: str) -> None:
    found = prepared(replace(R1, on=on))
    assert kernels(found) == {AITER}
    assert TOLD in found.spec.notes
    varied = {
        n
        for one in found.candidates.items
        for n, v in one.configuration.knobs.items()
        if v != AITER
    }
    assert {"block_size", "max_running_requests", "speculative_tokens"} <= varied, (
        "what it reads is searched"
    )


def test_with_real_servers_every_kernel_is_searched() -> None:
    found = prepared(replace(R1, on="docker"))
    assert kernels(found) == {AITER, *OTHERS}
    assert not any("not searched" in note for note in found.spec.notes)
    assert not found.candidates.unseen


@pytest.mark.e2e
def test_a_pin_and_the_user_s_own_baseline_have_the_last_word() -> None:
    pinned = prepared(replace(R1, pins=[f"attention_backend={TRITON}"]))
    command = f"vllm serve {R1.model} --tensor-parallel-size 8 --attention-backend {TRITON}"
    running = prepared(replace(R1, baseline=command))
    assert kernels(pinned) == {TRITON}
    assert not pinned.candidates.unseen
    others = [
        i
        for i, one in enumerate(running.candidates.items)
        if one.configuration.knobs["attention_backend"] == AITER
    ]
    assert running.candidates.unseen == set(others) <= running.candidates.recipes.keys(), (
        "launched to compare with"
    )
    passed = prepared(replace(R1, engine_args=[f"vllm=--attention-backend {TRITON}"]))
    assert kernels(passed) == {TRITON}
    other = prepared(
        replace(
            R1, baseline="python3 -m sglang.launch_server --model-path " + R1.model + " --tp-size 8"
        )
    )
    assert {AITER} == {
        one.configuration.knobs["attention_backend"]
        for one in other.candidates.items
        if one.configuration.engine == "vllm"
    }, "another engine's command says nothing of it"


def narrowing(folder: Path, values: list[str]) -> Path:
    file = folder / "space.yaml"
    file.write_text(
        f"narrow:\n  vllm:\n    search:\n      attention_backend: [{', '.join(values)}]\n      block_size: [16, 1]\n"
    )
    return file


def test_a_space_file_with_one_value_is_a_choice_and_with_two_a_search(tmp_path: Path) -> None:
    chosen = prepared(replace(R1, space=narrowing(tmp_path, [TRITON])))
    others = chosen.candidates.items[1:]
    assert {one.configuration.knobs["attention_backend"] for one in others} == {TRITON}, (
        "all but the baseline"
    )
    searched = prepared(replace(R1, space=narrowing(tmp_path, [TRITON, AITER])))
    assert kernels(searched) == {AITER}
    assert TOLD in searched.spec.notes


@pytest.mark.e2e
def test_an_earlier_study_keeps_its_candidates_and_recommends_none_with_such_a_setting() -> None:
    spec = build_spec(R1).model_copy(update={"keeps_unread": False})
    found = prepare(type(spec).from_yaml(spec.to_yaml()), Library())
    items, unseen = found.candidates.items, found.candidates.unseen
    assert kernels(found) == {AITER, *OTHERS}
    assert {
        i for i, one in enumerate(items) if one.configuration.knobs["attention_backend"] in OTHERS
    } == unseen
    assert unseen <= History.from_launches(spec, found.candidates, []).ineligible


def test_a_recipe_is_launched_as_published_and_recommended_without_what_nothing_shows(
    tmp_path: Path,
) -> None:
    recipe = "vllm serve {model} --tensor-parallel-size 8 --attention-backend TRITON_MLA --max-num-seqs 96"
    card = Path("search_spaces/vllm/engine.yaml").read_text()
    entry = f"""  - name: own
    when: hardware.name == "mi300x"
    command: {recipe}
    source: this test
"""
    head, _, rest = card.partition("\nrecipes:\n")
    (tmp_path / "engine.yaml").write_text(f"{head}\nrecipes:\n{entry}{rest}")
    found = prepared(replace(R1, space=tmp_path / "engine.yaml"))
    (own,) = [i for i, name in found.candidates.recipes.items() if name == "own"]
    assert found.candidates.unseen == {own}
    shown = found.candidates.items[own].configuration.with_knobs(attention_backend=AITER)
    assert shown.fingerprint in found.candidates
    assert own in History.from_launches(found.spec, found.candidates, []).ineligible
