"""Memory and time of models whose layers keep a state, by what the engines' code and logs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.engines import Library
from autotune.engines.cards import ModelCard
from autotune.load.workloads import load_workload
from autotune.node.calibration import ServerSetup
from autotune.node.memory import most_running, plan_memory, sequence_tokens
from autotune.node.server import SimulatedServer
from autotune.node.simulate import simulate
from autotune.node.steptime import RankBatch, StepTime
from tests.engines.space.published_recurrent import KIMI_K3, NEMOTRON_NANO, QWEN3_NEXT

LIBRARY = Library()


def card(folder: Path, config: dict[str, Any]) -> ModelCard:
    (folder / "config.json").write_text(json.dumps(config))
    return LIBRARY.model(str(folder))


def server(
    engine: str, version: str, model: ModelCard, node: str, gpus: int, **knobs: Any
) -> SimulatedServer:
    setup = ServerSetup(
        engine, version, {"tensor_parallel": gpus, **knobs}, model, LIBRARY.node(node), gpus
    )
    return SimulatedServer(setup)


@pytest.mark.parametrize(
    ("model", "node", "requests"),
    [
        # The limits in SGLang's logs of these servers on one GPU.
        ("Qwen/Qwen3.5-35B-A3B", "h200", 142),
        ("Qwen/Qwen3.5-9B", "h100", 167),
    ],
)
def test_states_limit_what_sglang_runs(model: str, node: str, requests: int) -> None:
    one = server("sglang", "0.5.9", LIBRARY.model(model), node, 1)
    assert most_running(one, plan_memory(one).capacity_tokens) == pytest.approx(requests, rel=0.15)


@pytest.mark.parametrize(
    ("config", "ranks", "kv", "block"),
    [
        # platforms/interface.py of vLLM 0.33: a layer's state in whole kernel blocks (of 16 tokens,
        # latent attention: 128) of an attention layer's cache.
        (NEMOTRON_NANO, 1, "bfloat16", 2096),  # 2,134,016 bytes of 1,024 a token
        (NEMOTRON_NANO, 1, "fp8", 4176),
        (NEMOTRON_NANO, 8, "bfloat16", 528),  # 266,752 of 512
        (QWEN3_NEXT, 1, "bfloat16", 544),  # 1,097,728 of 2,048
        (KIMI_K3, 8, "bfloat16", 768),  # 814,080 of 1,152
    ],
)
def test_a_block_of_vllm_holds_the_state_of_a_layer(
    tmp_path: Path, config: dict[str, Any], ranks: int, kv: str, block: int
) -> None:
    one = server("vllm", "0.33.0", card(tmp_path, config), "b300", ranks, kv_cache_dtype=kv)
    assert one.block_tokens == block


def test_running_sequences_take_their_states_from_the_pool(tmp_path: Path) -> None:
    """Of Kimi-K3 a sequence has 56 MB on each of eight ranks, as much as 2,032 tokens."""
    one = server("vllm", "0.33.0", card(tmp_path, KIMI_K3), "b300", 8)
    assert sequence_tokens(one) == pytest.approx(69 * 814_080 / (24 * 1152))
    plan = plan_memory(one)
    held = plan.capacity_tokens / (sequence_tokens(one) + one.block_tokens)
    load = load_workload("random:128:512:1500")
    fits, waits = (
        simulate(one.setup, load.with_concurrency(int(share * held)), 0).metrics["p90_ttft_ms"]
        for share in (0.9, 1.5)
    )
    assert waits > 5 * fits
    pool = server("sglang", "0.5.23", card(tmp_path, KIMI_K3), "b300", 8)
    assert sequence_tokens(pool) == 0


def test_decoding_reads_and_writes_the_states_whatever_the_context(tmp_path: Path) -> None:
    """Nemotron-3-Nano moves 2 x 49 MB a sequence and step beside 6 kB a token of context."""
    one = server("vllm", "0.33.0", card(tmp_path, NEMOTRON_NANO), "h200", 1)
    time = StepTime(one)
    few, many = (
        time.seconds([RankBatch(n, n * 1e3, n * 1e3, n * 1e3)], graph=True) for n in (256, 512)
    )
    bandwidth = one.bandwidth * one.coefficients.kv_share
    states = 256 * 2 * 49_082_368 / bandwidth
    assert states < many - few < 2 * states
    short, long = (
        time.seconds([RankBatch(256, t, t, t)], graph=True) for t in (256 * 1e3, 256 * 5e3)
    )
    assert long - short == pytest.approx(256 * 4e3 * 6144 / bandwidth, rel=0.1)


def test_a_prompt_costs_a_state_space_model_no_more_by_token_the_longer_it_is(
    tmp_path: Path,
) -> None:
    """Six of 29 mixers see all tokens before: eight times the prompt, less than nine times the
    time."""
    time = StepTime(server("vllm", "0.33.0", card(tmp_path, NEMOTRON_NANO), "h200", 1))

    def prompt(tokens: int) -> float:
        pairs = tokens**2 / 2
        batch = RankBatch(
            prefill_tokens=tokens, prefill_pairs=pairs, prefill_attended=pairs, prompts=1
        )
        return time.seconds([batch], graph=True)

    assert prompt(32_768) < 9.5 * prompt(4_096)
