"""Combinations that fail, that are ignored, and that the engine changes by itself: one row, one command line."""

from __future__ import annotations

import re

import pytest

from autotune.engines import engine, names
from autotune.space.context import Context
from autotune.space.entry import in_range
from autotune.space.enumeration import enumerate_engine
from autotune.space.expression import evaluate, fill_value
from autotune.space.expression import names as names_in
from autotune.space.fingerprint import as_failure, broken_rules, effective
from autotune.space.schema import Reading
from autotune.trial import Configuration, Scalar
from tests.engines.settings import LIBRARY, MODELS, NODES, R1, V32, VERSIONS, context, failing_rules, read, settings_of

VLLM = f"vllm serve {V32} -tp 8"
VLLM_R1 = f"vllm serve {R1} -tp 8"
SGLANG = f"python3 -m sglang.launch_server --model {V32} --tp 8"
SGLANG_R1 = f"python3 -m sglang.launch_server --model {R1} --tp 8"
TRT = f"trtllm-serve {V32} --tp_size 8"
EAGLE = "--speculative-algorithm EAGLE --speculative-num-steps 1"
FP8 = "--kv-cache-dtype fp8_e4m3"
NEW, OLD = "0.5.23", "0.5.6"

FAILS = [
    # command, version, model, node, the rule
    (f"{VLLM} --attention-backend CUTLASS_MLA", "0.32.0", V32, "h200", "sparse-model-dense-backend"),
    (f"{VLLM} --attention-backend FLASHMLA", "0.32.0", V32, "h200", "sparse-model-dense-backend"),
    (f"{VLLM} --attention-backend TRITON_MLA", "0.13", V32, "h200", "sparse-model-dense-backend"),
    (f"{VLLM_R1} --attention-backend FLASHMLA_SPARSE", "0.32.0", R1, "h200", "dense-model-sparse-backend"),
    (f"{VLLM} -dcp 8", "0.13", V32, "h200", "sparse-decode-context-parallel"),
    (f"{VLLM} -dcp 8", "0.32.0", V32, "h200", "sparse-decode-context-parallel-bf16"),
    (f"{VLLM} --kv-cache-dtype fp8_e5m2", "0.32.0", V32, "h200", "sparse-kv-dtype"),
    (f"{VLLM_R1} --kv-cache-dtype fp8_ds_mla", "0.32.0", R1, "h200", "dense-kv-layout"),
    (f"VLLM_ROCM_USE_AITER=1 {VLLM_R1}", "0.11", R1, "mi300x", "aiter-mla-block-size"),
    (f"VLLM_ROCM_USE_AITER=1 {VLLM}", "0.13", V32, "mi300x", "sparse-aiter-block-size"),
    (f"{VLLM} --block-size 1 --kv-cache-dtype fp8", "0.13", V32, "mi300x", "sparse-aiter-fp8-cache"),
    (f"{VLLM_R1.replace('8', '1')} -dp 8 --enable-dbo", "0.32.0", R1, "h200", "dbo-needs-deepep"),
    (f"{VLLM} --max-num-batched-tokens 32 --max-num-seqs 64", "0.32.0", V32, "h200", "batch-smaller-than-sequences"),
    (f"{VLLM} --max-model-len 200000", "0.32.0", V32, "h200", "context-beyond-model"),
    (f"{VLLM} -dp 2", "0.32.0", V32, "h200", "layout-needs-more-gpus"),
    (f"{VLLM_R1} --enable-eplb", "0.32.0", R1, "h200", "eplb-needs-experts"),
    (f"{SGLANG} --dsa-decode-backend flashmla_kv", NEW, V32, "h200", "flashmla-kv-wants-fp8"),
    (f"{SGLANG} {FP8} --dsa-decode-backend fa3", NEW, V32, "h200", "sparse-16-bit-kernels"),
    (f"{SGLANG} {FP8} --dsa-prefill-backend flashmla_sparse", NEW, V32, "h200", "sparse-16-bit-kernels"),
    (f"{SGLANG} --dsa-decode-backend flashmla_auto", NEW, V32, "h200", "flashmla-auto-is-prefill-only"),
    (f"{SGLANG} --dsa-decode-backend triton", NEW, V32, "h200", "sparse-kernels-of-other-vendor"),
    (f"{SGLANG} --dsa-decode-backend fa3", NEW, V32, "mi300x", "sparse-kernels-of-other-vendor"),
    (SGLANG, OLD, V32, "mi300x", "sparse-kernels-of-other-vendor"),
    (f"SGLANG_ENABLE_JIT_DEEPGEMM=0 {SGLANG}", NEW, V32, "h200", "sparse-needs-deep-gemm"),
    (f"{SGLANG} --dp-size 3 --enable-dp-attention", NEW, V32, "h200", "dp-divides-tp"),
    (f"{SGLANG_R1} --dp-size 3 --enable-dp-attention", OLD, R1, "h200", "dp-divides-tp"),
    (f"{SGLANG_R1} --dp-size 8", NEW, R1, "h200", "layout-needs-more-gpus"),
    (f"{SGLANG} {EAGLE}", NEW, V32, "h200", "speculative-incomplete"),
    (f"{SGLANG} --context-length 200k", NEW, V32, "h200", "context-beyond-model"),
    (f"{SGLANG} --kv-cache-dtype fp8_e5m2", NEW, V32, "h200", "sparse-kv-dtype"),
    (f"{SGLANG} --enable-dp-lm-head", NEW, V32, "h200", "dp-lm-head-needs-dp-attention"),
    (f"{SGLANG} --ep-size 3", NEW, V32, "h200", "expert-parallel-divides"),
    (SGLANG, "0.4.3.post2", V32, "h200", "sparse-attention-unknown"),
    (TRT, "1.0", V32, "h200", "sparse-attention-unknown"),
]
RUNS = [
    (VLLM, "0.32.0", V32, "h200"),
    (f"{VLLM} --kv-cache-dtype fp8", "0.32.0", V32, "h200"),
    (f"{VLLM} -dcp 8 --kv-cache-dtype fp8_ds_mla", "0.32.0", V32, "h200"),
    (f"VLLM_ATTENTION_BACKEND=CUTLASS_MLA {VLLM}", "0.32.0", V32, "h200"),
    (f"VLLM_ROCM_USE_AITER=1 {VLLM_R1}", "0.32.0", R1, "mi300x"),
    (VLLM_R1, "0.11", R1, "mi300x"),
    (SGLANG, NEW, V32, "h200"),
    (f"{SGLANG} {FP8}", NEW, V32, "h200"),
    (f"{SGLANG} {FP8}", OLD, V32, "h200"),
    (f"{SGLANG} --nsa-decode-backend flashmla_kv", OLD, V32, "h200"),
    (f"{SGLANG} --dsa-prefill-backend tilelang --dsa-decode-backend tilelang", NEW, V32, "mi300x"),
    (f"{SGLANG_R1} --attention-backend aiter {FP8}", NEW, R1, "mi300x"),
    (f"{SGLANG} --speculative-algorithm EAGLE", NEW, V32, "h200"),
    (TRT, "1.2.0rc5", V32, "h200"),
]


@pytest.mark.parametrize(("command", "version", "model", "node", "rule"), FAILS)
def test_a_combination_fails_by_its_rule(command: str, version: str, model: str, node: str, rule: str) -> None:
    assert rule in failing_rules(command, version, model, node)


@pytest.mark.parametrize(("command", "version", "model", "node"), RUNS)
def test_a_combination_runs(command: str, version: str, model: str, node: str) -> None:
    assert failing_rules(command, version, model, node) == []


@pytest.mark.parametrize("command", [f"{VLLM} --max-model-len 16384", f"{SGLANG} --context-length 16384"])
def test_a_context_below_the_workload_fails_only_where_the_workload_is_longer(command: str) -> None:
    newest = engine("vllm" if "vllm" in command else "sglang").card.newest
    assert failing_rules(command, newest, longest_request=16384) == []
    assert failing_rules(command, newest, longest_request=16385) == ["context-below-workload"]


def made(command: str, version: str, model: str = V32) -> dict[str, object]:
    configuration = read(command, version, model)
    kind = engine(configuration.engine)
    judged = context(kind.version(version), model)
    return dict(effective(kind.card, configuration, judged).configuration.knobs)


TWINS = [
    (f"{SGLANG} --enable-dp-attention", SGLANG, NEW),
    (f"{SGLANG} --dp-size 1 --enable-dp-attention --enable-dp-lm-head", SGLANG, OLD),
    (f"{SGLANG} --attn-dp-size 8", f"{SGLANG} --dp-size 8 --enable-dp-attention", NEW),
    (f"{SGLANG} --chunked-prefill-size 8192 --context-length 163840", SGLANG, NEW),
    (f"{SGLANG} --attention-backend nsa", SGLANG, NEW),
    (f"{SGLANG} --kv-cache-dtype bf16", SGLANG, OLD),
    (f"{SGLANG} --moe-a2a-backend deepep --ep 8", f"{SGLANG} --moe-a2a-backend deepep --ep-size 2", NEW),
    (f"{SGLANG} --deepep-mode normal", SGLANG, NEW),
    (f"{SGLANG} {FP8} --nsa-decode-backend fa3", f"{SGLANG} {FP8}", OLD),
    (f"{VLLM} --max-num-seqs 1024 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.92", VLLM, "0.32.0"),
    (f"{VLLM} --kv-cache-dtype fp8", f"{VLLM} --kv-cache-dtype fp8_ds_mla", "0.32.0"),
    (f"{VLLM} --kv-cache-dtype bfloat16", VLLM, "0.13"),
    (f"{VLLM} --kv-cache-dtype fp8", VLLM, "0.11"),
    (f"{VLLM} --enforce-eager --max-cudagraph-capture-size 64", f"{VLLM} --enforce-eager", "0.32.0"),
    (f"VLLM_ATTENTION_BACKEND=TRITON_MLA {VLLM}", VLLM, "0.32.0"),
    (f"{VLLM} --max-model-len 163840 --enable-prefix-caching", VLLM, "0.32.0"),
]


@pytest.mark.parametrize(("spelling", "other", "version"), TWINS)
def test_two_spellings_are_one_configuration(spelling: str, other: str, version: str) -> None:
    assert made(spelling, version) == made(other, version)


def test_speculation_without_a_request_limit_is_capped_at_48() -> None:
    full = f"{SGLANG} {EAGLE} --speculative-eagle-topk 1 --speculative-num-draft-tokens 2"
    assert made(full, NEW)["max_running_requests"] == 48
    assert made(f"{full} --max-running-requests 512", NEW)["max_running_requests"] == 512
    assert made(SGLANG, NEW)["max_running_requests"] is None


@pytest.mark.parametrize("name", names())
def test_every_expression_can_be_evaluated_everywhere(name: str) -> None:
    """Rules, effects and starts refer to knobs that exist, and give a plain answer in every setting."""
    for kind, judged in settings_of(name):
        card = kind.card
        scope = judged.scope(kind.default_knobs(judged))
        for rule in card.rules:
            assert evaluate(rule.forbid, scope) in (True, False), rule.name
            assert rule.source
            assert as_failure(rule).log_excerpt == rule.message
        for effect in card.effects:
            assert evaluate(effect.when, scope) in (True, False), effect.name
            assert set(effect.set) <= set(card.knobs)
        for start in card.starts:
            assert set(start.set) <= set(card.knobs), start.name
            for value in start.set.values():
                fill_value(value, scope)
    assert len({rule.name for rule in engine(name).card.rules}) == len(engine(name).card.rules)


@pytest.mark.parametrize("name", names())
def test_what_is_read_exists_in_the_engine_s_parser(name: str) -> None:
    """A misspelt ``args.x`` or ``config.x`` would read as "not given" for ever."""
    kind = engine(name)
    for knob, entry in kind.card.knobs.items():
        for reading in [Reading(value=entry.read)] if isinstance(entry.read, str) else entry.read:
            tables = [kind.table(v) for v in kind.card.versions if in_range(v, reading.versions)]
            assert tables, (knob, reading.versions)
            for option in re.findall(r"\bargs\.(\w+)", reading.value):
                assert any(option in table.defaults for table in tables), (knob, option)
            for key in re.findall(r"\bconfig\.([a-z_.]+)", reading.value):
                parent = key.rpartition(".")[0]
                known = tables[-1].config_keys
                open_ended = parent and not any(k.startswith(f"{parent}.") for k in known)
                assert open_ended or key in known, (knob, key)


@pytest.mark.parametrize("name", names())
def test_the_engine_s_own_default_is_among_what_is_searched(name: str) -> None:
    kind = engine(name)
    for judged in (context(kind.card.newest, model, node) for model in MODELS for node in NODES):
        if not all(evaluate(need.expect, judged.scope({})) for need in kind.card.requires):
            continue
        made = effective(kind.card, Configuration(name, kind.default_knobs(judged)), judged).configuration
        found = enumerate_engine(kind.card, judged)
        assert made in found.configurations
        assert 1000 <= len(found.configurations) <= 21000
        used = {rule for rule, removed in found.removed.items() if removed}
        assert {"layout-leaves-gpus-idle"} <= used


@pytest.mark.parametrize("name", names())
def test_a_default_depends_only_on_knobs_that_stand_before_it(name: str) -> None:
    card = engine(name).card
    order = list(card.knobs)
    for position, (knob, entry) in enumerate(card.knobs.items()):
        for case in entry.default if isinstance(entry.default, list) else []:
            assert not names_in(case.when) & set(order[position:]), (knob, case.when)


@pytest.mark.parametrize(("name", "version"), VERSIONS)
@pytest.mark.parametrize("model", [V32, R1])
@pytest.mark.parametrize("node", ["h200", "mi300x"])
def test_good_starts_are_among_what_is_searched_in_the_newest_version(
    name: str, version: str, model: str, node: str
) -> None:
    kind = engine(name)
    judged: Context = context(version, model, node)
    scope = judged.scope({})
    if version != kind.card.newest or not all(evaluate(need.expect, scope) for need in kind.card.requires):
        return
    starts = [s for s in kind.card.starts if evaluate(s.when, judged.scope(kind.default_knobs(judged)))]
    assert starts
    searched = set(enumerate_engine(kind.card, judged).configurations)
    for start in starts:
        knobs = {**kind.default_knobs(judged, start.set)}
        configuration = effective(kind.card, Configuration(name, knobs), judged).configuration
        assert [rule.name for rule in broken_rules(kind.card, configuration, judged)] == [], start.name
        assert configuration in searched, start.name


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"moe_backend": "DEEPGEMM"}, "hopper-moe-backend"),
        ({"moe_backend": "TRTLLM"}, "hopper-moe-backend"),
        (
            {"tensor_parallel": 1, "data_parallel": 8, "speculative_tokens": 1, "relaxed_acceptance": True},
            "relaxed-acceptance-attention-dp",
        ),
        ({"expert_parallel": 3}, "expert-parallel-divides"),
        ({"context_length": 200000}, "context-beyond-model"),
        ({}, None),
    ],
)
def test_tensorrt_llm_s_combinations(settings: dict[str, Scalar], rule: str | None) -> None:
    kind = engine("tensorrt_llm")
    judged = context("1.2.0", R1)
    made = effective(kind.card, Configuration(kind.name, kind.default_knobs(judged, settings)), judged).configuration
    assert [r.name for r in broken_rules(kind.card, made, judged)] == ([rule] if rule else [])


def test_tensorrt_llm_needs_nvidia() -> None:
    card = engine("tensorrt_llm").card
    holds = {
        node: evaluate(card.requires[0].expect, context("1.2.0", node=node).scope({})) for node in LIBRARY.hardware
    }
    assert holds["h200"] is True
    assert holds["mi300x"] is False
    assert "AMD" in card.requires[0].reason
    assert all(in_range(version, "*") for version in card.versions)
