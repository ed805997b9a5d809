"""What values of knobs give up, as the engines' files mark it, and what is not enumerated unless it
is allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput, MalformedFile
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.library import check
from autotune.engines.registry import engine as engine_of
from autotune.load.workloads import load_workload
from autotune.node.memory import MemoryPlan
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.prepare.predicted_memory import MemoryPlans
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from tests.engines.settings import R1, context

LONG = "random:8000:1000"
"""Requests so long that the length of the context is searched."""


def prepared(engine: str, pins: tuple[str, ...] = (), **options: Any) -> Prepared:
    """The candidates of one layout: what a value gives up, it gives up in any."""
    asked = {
        "model": "deepseek-ai/DeepSeek-V3.2",
        "hardware": "h200",
        "engines": (engine,),
        "on": "simulator",
    }
    spec = build_spec(RunOptions(pins=("tensor_parallel=8", *pins), **{**asked, **options}))
    return prepare(spec, library_of(spec))


def values(one: Prepared, knob: str) -> set[Any]:
    return {item.configuration.knobs[knob] for item in one.candidates.items}


def kinds(one: Prepared) -> dict[str, set[Any]]:
    """Kind to the values that give it up."""
    found: dict[str, set[Any]] = {}
    for rows in one.candidates.given_up.values():
        for row in rows:
            found.setdefault(row.kind, set()).add(row.to)
    return found


@pytest.mark.parametrize(
    ("engine", "lossy", "memory"),
    [
        ("vllm", {"fp8_ds_mla"}, {0.95}),
        ("sglang", {"fp8_e4m3", "flashmla_sparse_q8"}, set()),
        ("tensorrt_llm", set(), set()),
    ],
)
def test_every_engine_marks_what_its_values_give_up(
    engine: str, lossy: set[str], memory: set[float]
) -> None:
    one = prepared(engine, workloads=(LONG,))
    found = kinds(one)
    assert found.get("lossy", set()) == lossy
    assert found.get("no-memory-reserve", set()) == memory
    contexts = {81920, 32768, 16384} if engine == "vllm" else set()
    assert found.get("shorter-context", set()) >= contexts
    # Beside the option the KV cache decides: SGLang starts with one that holds less.
    pools = found.get("shorter-context", set()) - contexts
    assert bool(pools) == (engine == "sglang")
    assert all(isinstance(tokens, int) and 0 < tokens < 163840 for tokens in pools)


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm", "vllm"])
def test_a_context_below_the_baselines_is_given_up_in_every_engine(
    engine: str, tmp_path: Path
) -> None:
    narrow = tmp_path / "space.yaml"
    narrow.write_text(
        f"narrow:\n  {engine}:\n    search: {{context_length: [null, 81920, 32768, 16384]}}\n"
    )
    one = prepared(engine, space=narrow)
    assert kinds(one)["shorter-context"] == {81920, 32768, 16384}
    for position, item in enumerate(one.candidates.items):
        context = item.configuration.knobs["context_length"]
        given = [
            row
            for row in one.candidates.given_up.get(position, ())
            if row.kind == "shorter-context"
        ]
        assert bool(given) == (context is not None)
        for row in given:
            assert row.from_ == 163840
            assert f"more than {row.to} tokens" in row.what


def test_prefix_caching_is_switched_off_only_where_that_is_allowed_or_pinned() -> None:
    alike = {"workloads": ("shared-prefix",)}
    assert values(prepared("sglang", **alike), "prefix_caching") == {True}
    allowed = prepared("sglang", allow=("no-prefix-caching",), **alike)
    assert values(allowed, "prefix_caching") == {True, False}
    assert kinds(allowed)["no-prefix-caching"] == {False}
    pinned = prepared("sglang", pins=("prefix_caching=false",))
    assert values(pinned, "prefix_caching") == {False}
    assert "no-prefix-caching" not in kinds(pinned), "what the user chose is not given up for speed"


def test_text_comes_in_pieces_only_where_that_is_allowed_and_many_requests_run() -> None:
    allow = {"allow": ("coarse-streaming",)}
    many, few = ({"workloads": (f"random:500:500:{count}",)} for count in (512, 64))
    usual = prepared("vllm", **many)
    assert (
        values(usual, "stream_interval")
        == values(prepared("vllm", **few, **allow), "stream_interval")
        == {1}
    )
    allowed = prepared("vllm", **many, **allow)
    assert values(allowed, "stream_interval") == {1, 10}
    assert len(allowed.candidates) == 2 * len(usual.candidates)
    assert kinds(allowed)["coarse-streaming"] == {10}
    for engine in ("sglang", "tensorrt_llm"):
        assert values(prepared(engine, **many, **allow), "stream_interval") == {1}, (
            "no figure is published"
        )
    own = prepared(
        "vllm", baseline="vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --stream-interval 20", **many
    )
    assert "coarse-streaming" not in kinds(own), "the baseline's users see pieces already"


def test_a_limit_on_a_measured_time_between_tokens_judges_text_in_pieces() -> None:
    """The simulator predicts the time between tokens, however many are sent together."""
    asked = {
        "slos": ("p99_itl_ms<=200",),
        "workloads": ("random:500:500:512",),
        "model": "Qwen/Qwen3-8B",
    }
    simulated, measured = prepared("vllm", **asked), prepared("vllm", on="emulator", **asked)
    assert values(simulated, "stream_interval") == {1}
    assert values(measured, "stream_interval") == {1, 10}
    given_up = measured.candidates.giving_up
    judged = {*given_up(frozenset())} - {*given_up(frozenset(measured.spec.allowed))}
    items = measured.candidates.items
    assert {items[one].configuration.knobs["stream_interval"] for one in judged} == {10}
    assert measured.spec.allow == ()
    prepared("vllm", on="emulator", allow=("coarse-streaming",), **asked)
    with pytest.raises(BadInput, match="--slo mean_tpot_ms: with --allow coarse-streaming"):
        prepared("vllm", on="emulator", slos=("mean_tpot_ms<=50",), allow=("coarse-streaming",))


@pytest.mark.parametrize("metric", ["p99_itl_ms", "mean_tpot_ms"])
def test_no_limit_on_the_time_between_tokens_goes_with_coarse_streaming(metric: str) -> None:
    with pytest.raises(BadInput, match=f"--slo {metric}: with --allow coarse-streaming"):
        prepared("vllm", slos=(f"{metric}<=50",), allow=("coarse-streaming",))
    with pytest.raises(BadInput, match="--goodput tpot: with --allow coarse-streaming"):
        prepared("vllm", goodput=("ttft:2000 tpot:50",), allow=("coarse-streaming",))


@pytest.mark.parametrize("engine", ["sglang", "tensorrt_llm", "vllm"])
@pytest.mark.parametrize(
    ("workload", "contexts", "caching"),
    [
        ("random:1000:1000", {None}, {True}),
        (LONG, {None, 81920, 32768, 16384}, {True}),
        ("shared-prefix", {None}, {True, False}),
        ("random:20000:100", {None, 81920, 32768}, {True}),
    ],
)
def test_a_knob_without_effect_on_the_workload_is_not_searched(
    engine: str, workload: str, contexts: set[int | None], caching: set[bool]
) -> None:
    kind = engine_of(engine)
    load = load_workload(workload)
    judged = replace(
        context(kind.card.newest, R1, longest_request=load.longest_request),
        prefix_tokens=load.prefix_tokens,
    )
    found = enumerate_engine(
        kind.card, judged, {"tensor_parallel": 8, "max_batched_tokens": 32768}
    ).configurations
    # Only vLLM's cache depends on the context.
    assert {one.knobs["context_length"] for one in found} == (
        contexts if engine == "vllm" else {None}
    )
    assert {one.knobs["prefix_caching"] for one in found} == caching


def test_a_context_that_a_small_or_sparse_server_may_need_to_start_is_searched_whatever_the_workload() -> (
    None
):
    card = engine_of("vllm").card
    sparse = context(card.newest, longest_request=2000)
    tight = context(card.newest, "meta-llama/Llama-3.3-70B-Instruct", "h100", 2000, gpus=2)
    for judged, contexts in ((sparse, {None, 81920}), (tight, {None, 81920, 32768, 16384})):
        found = enumerate_engine(card, judged, {"tensor_parallel": judged.gpus}).configurations
        assert {one.knobs["context_length"] for one in found} == contexts


def test_the_context_to_be_kept_is_what_the_baseline_serves_and_min_context_is_a_floor() -> None:
    typed = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 --max-model-len 81920"
    shorter = prepared("vllm", baseline=typed, workloads=(LONG,))
    assert kinds(shorter)["shorter-context"] == {32768, 16384}
    long = prepared("vllm", min_context=32768, workloads=(LONG,))
    assert values(long, "context_length") == {None, 81920, 32768}
    with pytest.raises(
        BadInput, match=r"--min-context 200000: deepseek-ai/DeepSeek-V3\.2 takes at most 163840"
    ):
        prepared("vllm", min_context=200_000)
    with pytest.raises(BadInput, match="less context than --min-context"):
        prepared("vllm", min_context=32768, pins=("context_length=16384",))


def test_a_mark_may_name_the_knobs_its_default_and_the_baseline(tmp_path: Any) -> None:
    text = """engine: toy
title: Toy
program: [toy]
versions: ["1"]
options: [{flags: [--fast]}]
on_node: {}
knobs:
  fast:
    help: h
    search: [0, 1]
    read: args.fast
    gives_up: [{kind: lossy, when: NAME, what: w}]
"""
    path = tmp_path / "toy" / "engine.yaml"
    path.parent.mkdir()
    for names in ("fast != default", "fast and baseline.fast"):
        path.write_text(text.replace("NAME", names))
        assert check(path) == [path]
    path.write_text(text.replace("NAME", "slow"))
    with pytest.raises(MalformedFile, match="unknown name 'slow'"):
        check(path)


def test_the_kv_cache_keeps_the_longest_request_of_the_baseline_and_of_min_context() -> None:
    asked = {
        "model": "deepseek-ai/DeepSeek-V3.2",
        "hardware": "h200",
        "engines": ("vllm", "sglang"),
    }
    eight = ("tensor_parallel=1", "data_parallel=8", "speculative_tokens=3", "context_length=auto")

    def of(
        *pins: str, on: str = "simulator", **options: Any
    ) -> tuple[Prepared, dict[int, MemoryPlan]]:
        spec = build_spec(RunOptions(pins=(*eight, *pins), **{**asked, **options}, on=on))
        one, plans = prepare(spec, library_of(spec)), MemoryPlans(spec, library_of(spec))
        planned = (
            (i, plans.plan_of(c.configuration, c.engine_version))
            for i, c in enumerate(one.candidates.items)
        )
        return one, {i: plan for i, plan in planned if plan is not None and i}

    one, plans = of()
    assert len(plans) == len(one.candidates) - 1
    short = {i for i, plan in plans.items() if plan.capacity_tokens < 163840}
    assert 0 < len(short) < len(plans)
    told = {
        i
        for i, rows in one.candidates.given_up.items()
        if any(row.kind == "shorter-context" for row in rows)
    }
    assert told == short
    # The simulator's plan is the evidence: what it does not let start is no candidate, where a
    # server may be wrong.
    defaults = {one.candidates.baseline, *one.candidates.defaults}
    assert all(plan.fit_probability >= 0.9 for i, plan in plans.items() if i not in defaults)
    emulated, more = of(on="emulator")
    assert {one.configuration for one in emulated.candidates.items} > {
        c.configuration for c in one.candidates.items
    }
    assert min(plan.fit_probability for plan in more.values()) < 0.1
    _, held = of(min_context=163840)
    assert held
    assert all(plan.capacity_tokens >= 163840 for plan in held.values())
    with pytest.raises(
        BadInput, match="no KV cache holds the 163840 tokens of --min-context; the largest holds 9"
    ):
        of(
            "memory_fraction=0.76",
            "kv_cache_dtype=bfloat16",
            min_context=163840,
            engines=("sglang",),
        )


def test_a_prompt_that_no_step_of_tensorrt_llm_takes_is_given_up() -> None:
    baseline = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8"
    one = prepared("tensorrt_llm", baseline=baseline)
    given_up = [row for given in one.candidates.given_up.values() for row in given]
    rows = {row.to: row for row in given_up if row.knob == "max_batched_tokens"}
    assert set(rows) == {8192, 16384}
    assert rows[8192].what.startswith("prompts of more than 8192 tokens are refused")
    cut = {
        item.configuration.knobs["enable_chunked_prefill"]
        for i, item in enumerate(one.candidates.items)
        if any(row.knob == "max_batched_tokens" for row in one.candidates.given_up.get(i, ()))
    }
    assert cut == {False}
    own = prepared("tensorrt_llm").candidates
    assert not any(
        row.knob == "max_batched_tokens" for given in own.given_up.values() for row in given
    )
