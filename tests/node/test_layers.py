"""What layers that differ within a model cost: by what each of them reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.load.workloads import load_workload
from autotune.node.calibration import ServerSetup
from autotune.node.memory import plan_memory, sequence_tokens
from autotune.node.prediction_intervals import intervals
from autotune.node.scheduling import Batches
from autotune.node.server import SimulatedServer
from tests.engines.space.published_layers import DEEPSEEK_V4_FLASH, GEMMA4_26B, MIMO_V2_FLASH
from tests.node.nodes import LIBRARY

H200 = LIBRARY.node("h200")


ENGINES = {"vllm": "0.33.0", "sglang": "0.5.23"}


def server(
    folder: Path, config: dict[str, Any], engine: str = "vllm", **knobs: Any
) -> SimulatedServer:
    (folder / "config.json").write_text(json.dumps(config))
    model = LIBRARY.model(str(folder))
    knobs = {"tensor_parallel": 8, **knobs}
    return SimulatedServer(ServerSetup(engine, ENGINES[engine], knobs, model, H200, 8))


def decode_ms(one: SimulatedServer, context: float, sequences: int = 64) -> float:
    batches = Batches(one)
    sums = [sequences * context], [sequences * min(context, batches.top_k)]
    return batches.time.seconds(*batches.step([sequences], *sums)) * 1e3


@pytest.mark.parametrize(
    ("config", "less_than"),
    # Bytes that 64 sequences read more in a step, per rank, at 4.2 TB/s and 70 % of it, in ms.
    [(GEMMA4_26B, 64 * 98e3 * 5 * 2048 / 2.9e9), (MIMO_V2_FLASH, 64 * 98e3 * 9 * 640 / 2.9e9)],
    ids=["gemma-4", "MiMo-V2"],
)
def test_only_layers_without_a_window_read_more_of_a_longer_context(
    tmp_path: Path, config: dict[str, Any], less_than: float
) -> None:
    one = server(tmp_path, config)
    more = decode_ms(one, 100e3) - decode_ms(one, 2e3)
    assert 0.5 * less_than < more < 1.5 * less_than


def test_compressed_attention_reads_chosen_entries_and_scores_all(tmp_path: Path) -> None:
    flash = server(tmp_path, DEEPSEEK_V4_FLASH)
    v32 = SimulatedServer(
        ServerSetup(
            *("vllm", "0.33.0", flash.setup.knobs),
            *(LIBRARY.model("deepseek-ai/DeepSeek-V3.2"), H200, 8),
        )
    )
    short, long = decode_ms(flash, 2e3), decode_ms(flash, 128e3)
    assert short < 1.1 * decode_ms(flash, 200)
    # Index keys of a quarter of the tokens in half the layers, and one entry of 128 in the others.
    assert 0 < long - short < 0.4 * (decode_ms(v32, 128e3) - decode_ms(v32, 2e3))


def test_states_of_compressed_attention_take_their_place_as_the_engines_give_it(
    tmp_path: Path,
) -> None:
    """vLLM 0.32's own plan has 39,910 blocks of 256 tokens in 40 GB, of which a sequence holds 6
    for its window and 20 for tokens that are not compressed yet. SGLang 0.5.23 sets aside 84 MB for
    each of 256 requests (`DSV4PoolConfigurator`)."""
    vllm = server(tmp_path, DEEPSEEK_V4_FLASH, max_batched_tokens=8192)
    plan = plan_memory(vllm)
    assert 40e9 / (256 * plan.kv_token) == pytest.approx(39910, rel=1e-4)
    assert sequence_tokens(vllm) == pytest.approx(26 * 256, rel=0.005)
    # Prompts of a step wait in blocks of 64, 4 and 8 tokens.
    more = plan_memory(server(tmp_path, DEEPSEEK_V4_FLASH, max_batched_tokens=16384))
    lost = plan.kv_cache + plan.activations - more.kv_cache - more.activations
    assert lost / 8192 == pytest.approx((2 / 64 + 1 / 4 + 1 / 8) * 256 * 3915, rel=0.01)
    few, many = (
        plan_memory(server(tmp_path, DEEPSEEK_V4_FLASH, "sglang", max_running_requests=number))
        for number in (1, 256)
    )
    assert (few.kv_cache - many.kv_cache) / 255 == pytest.approx(84e6, rel=0.01)


def test_layers_that_nobody_measured_widen_the_interval(tmp_path: Path) -> None:
    load = load_workload("random:1024:1024:8")
    metrics = {"total_token_throughput": 1e3}
    flash, mimo = (
        intervals(server(tmp_path, config).setup, load, metrics)
        for config in (DEEPSEEK_V4_FLASH, MIMO_V2_FLASH)
    )
    assert {*flash["unseen"]} - {*mimo["unseen"]} == {"layers"}
    assert flash["interval90"][0] < 0.9 * mimo["interval90"][0]
