"""What is tried on a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.engines.cards import HardwareCard, ModelCard
from autotune.engines.context import Context, broken_rules, normalised
from autotune.engines.enumeration import enumerate_engine
from autotune.engines.expression import evaluate
from autotune.engines.registry import engine, split_command
from tests.engines.settings import LIBRARY, R1, V32

CPU = HardwareCard(
    name="local",
    vendor="cpu",
    generation="x86_64",
    gpus=1,
    memory_gb=25.3,
    bandwidth_tb_s=0.02,
    bf16_tflops=0.2,
    fp8_tflops=0.2,
    link_gb_s=20,
    achieved_bandwidth=0.6,
    achieved_flops=0.4,
    source="test",
)
ONLY_FOR_GPUS = (
    "cudagraph",
    "gpu-memory",
    "attention-backend",
    "fp8",
    "deep_gemm",
    "parallel",
    "all2all",
    "expert",
)
CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 40960,
}


@pytest.fixture
def model(tmp_path: Path) -> ModelCard:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return LIBRARY.model(str(tmp_path))


@pytest.mark.parametrize("version", ["0.13.0", "0.32.0"])
def test_every_candidate_of_vllm_parses_and_sets_nothing_that_only_gpus_have(
    version: str, model: ModelCard
) -> None:
    kind, context = engine("vllm"), Context(model, CPU, 1, version)
    found = enumerate_engine(kind.card, context).configurations
    assert len(found) > 20
    for configuration in found:
        command = kind.command(configuration, context)
        assert not [word for word in ONLY_FOR_GPUS if word in command.shell()]
        assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "2"
        assert kind.knobs(kind.parse(command, version), context) == configuration
    tried = {name: {c.knobs[name] for c in found} for name in kind.card.knobs}
    assert len(tried["max_running_requests"]) > 2
    assert tried["prefix_caching"] == {True}, (
        "of no workload it is known that prompts share a prefix"
    )
    assert tried["tensor_parallel"] == tried["data_parallel"] == {1}
    assert tried["attention_backend"] == {None}
    assert tried["kv_cache_dtype"] == {"bfloat16"}


def test_every_candidate_of_sglang_parses_and_sets_nothing_that_only_gpus_have(
    model: ModelCard,
) -> None:
    kind, context = engine("sglang"), Context(model, CPU, 1, "0.5.23")
    found = enumerate_engine(kind.card, context).configurations
    assert len(found) > 5
    for configuration in found:
        command = kind.command(configuration, context)
        assert "--device cpu" in command.shell()
        assert not [word for word in (*ONLY_FOR_GPUS, "cuda", "tp-size") if word in command.shell()]
        assert kind.knobs(kind.parse(command, "0.5.23"), context) == configuration
    tried = {name: {c.knobs[name] for c in found} for name in kind.card.knobs}
    assert tried["prefix_caching"] == {True}
    assert tried["memory_fraction"] == tried["attention_backend"] == {None}


def test_the_default_of_vllm_is_the_bare_command(model: ModelCard) -> None:
    """The defaults are those that vLLM 0.32 has on a CPU, so nothing is spelled out."""
    kind, context = engine("vllm"), Context(model, CPU, 1, "0.32.0")
    knobs = kind.default_knobs(context)
    assert (knobs["max_running_requests"], knobs["max_batched_tokens"], knobs["block_size"]) == (
        128,
        2048,
        128,
    )
    parsed = kind.parse(split_command(f"vllm serve {model.id}"), "0.32.0")
    assert kind.knobs(parsed, context).knobs == knobs


def test_what_a_cpu_ignores_makes_no_other_configuration(model: ModelCard) -> None:
    kind, context = engine("vllm"), Context(model, CPU, 1, "0.32.0")
    given = f"vllm serve {model.id} --gpu-memory-utilization 0.5 --attention-backend FLASH_ATTN --enable-dbo"
    made, effects = normalised(
        kind.card, kind.knobs(kind.parse(split_command(given), "0.32.0"), context), context
    )
    assert made.knobs == kind.default_knobs(context)
    assert {effect.name for effect in effects} == {"cpu-backend", "cpu-no-overlap"}


def test_a_block_size_that_the_kernels_for_a_cpu_cannot_read(model: ModelCard) -> None:
    kind, context = engine("vllm"), Context(model, CPU, 1, "0.32.0")
    parsed = kind.parse(split_command(f"vllm serve {model.id} --block-size 16"), "0.32.0")
    assert [
        rule.name for rule in broken_rules(kind.card, kind.knobs(parsed, context), context)
    ] == ["cpu-block-size"]


@pytest.mark.parametrize(
    ("name", "model_id", "runs"),
    [("vllm", R1, True), ("vllm", V32, False), ("sglang", R1, False), ("tensorrt_llm", R1, False)],
)
def test_who_runs_on_a_cpu(name: str, model_id: str, runs: bool) -> None:
    card = engine(name).card
    scope = Context(LIBRARY.model(model_id), CPU, 1, card.newest).scope({})
    unmet = [need for need in card.requires if not evaluate(need.expect, scope)]
    assert (not unmet) is runs
    assert all("CPU" in need.reason for need in unmet)
