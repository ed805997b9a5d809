"""What drafted tokens gain falls with the load, and where published measurements say that they stop
paying."""

from functools import lru_cache

from autotune.engines.cards import ModelCard
from autotune.load.workloads import load_workload
from autotune.node.calibration import ServerSetup
from autotune.node.server import SimulatedServer
from autotune.node.simulate import simulate
from autotune.node.steptime import RankBatch, StepTime
from tests.node.nodes import LIBRARY, V32

_LINEAR = {
    **{"mixer": "delta", "layers": 69, "key_heads": 16, "value_heads": 128, "head_dim": 128},
    "state_element_bytes": 4,
}
_HYBRID = ModelCard.model_validate(
    {
        # Layers, heads, experts, acceptance as the recipe has them; widths as 2.4T weights, 95B of
        # them active, need.
        "id": "Qwen/Qwen3.8-2.4T-A95B",
        "family": "qwen3_5_moe",
        "architecture": {
            **{
                "layers": 92,
                "hidden_size": 8192,
                "vocab_size": 248320,
                "intermediate_size": 0,
            },
            **{
                "heads": 64,
                "kv_heads": 2,
                "head_dim": 256,
                "gated_attention": True,
                "context_limit": 262144,
            },
            **{
                "layer_groups": [_LINEAR],
                "mtp_layers": 1,
            },
            **{"experts": 512, "experts_per_token": 10, "expert_intermediate_size": 2048},
            **{"shared_intermediate_size": 2048, "weight_bytes": 0.5625, "matrices_in": "fp4"},
        },
        "acceptance": {"rates": [0.648], "source": "the recipe"},
        "source": "https://github.com/vllm-project/recipes/blob/main/models/Qwen/Qwen3.8-2.4T-A95B.yaml",
    }
)


@lru_cache
def _rate(model, hw, version, drafted, in_flight, lengths):
    knobs = {"tensor_parallel": 8, "speculative_tokens": drafted, "context_length": 9240}
    card = _HYBRID if model is None else LIBRARY.model(model)
    load = load_workload(f"random:{lengths}:{max(8, 2 * in_flight)}").with_concurrency(in_flight)
    outcome = simulate(ServerSetup("vllm", version, knobs, card, LIBRARY.node(hw), 8), load, 0)
    assert outcome.failure is None, outcome.failure
    return outcome.metrics["output_throughput"]


def _gain(model, hw, version, drafts, in_flight, lengths):
    fewer, more = (_rate(model, hw, version, drafted, in_flight, lengths) for drafted in drafts)
    return more / fewer


def test_of_v32_three_drafts_gain_over_one_at_low_load_and_little_at_high_load():
    # "~1.3x for low concurrency. At higher concurrency not so much" (vllm#31845, March 2026, 8 x
    # H200).
    one, few, many = (_gain(V32, "h200", "0.17.1", (1, 3), n, "1000:1000") for n in (1, 4, 128))
    assert 1.15 < few < one < 1.45
    assert many < 1.1


def test_of_a_hybrid_model_one_draft_gains_a_few_percent_at_one_request_and_loses_at_256():
    # Published: +3.4 % at 1, -9 % at 128, -23 % at 256 (the recipe). The sign at both ends is met,
    # the sizes are not: +13 % and -7 % are predicted.
    one, many = (_gain(None, "b300", "0.33.0", (0, 1), n, "8192:1024") for n in (1, 256))
    assert 1.0 < one < 1.15
    assert many < 0.97


def _step_ms(model, drafted, batch, hw="b300"):
    knobs = {"tensor_parallel": 8, "speculative_tokens": drafted}
    server = SimulatedServer(ServerSetup("vllm", "0.33.0", knobs, model, LIBRARY.node(hw), 8))
    return 1e3 * StepTime(server).seconds([batch], graph=True)


def test_verifying_is_cheap_where_tokens_of_a_sequence_share_experts_and_dear_in_a_full_batch():
    v32, batches = (
        LIBRARY.model(V32),
        [RankBatch(n, n * 1000.0, n * 1000.0, n * 2048.0) for n in (4, 128)],
    )
    few, many = (
        _step_ms(v32, 3, batch, "h200") / _step_ms(v32, 0, batch, "h200") for batch in batches
    )
    assert few < 1.6 < 1.7 < many


def test_a_layer_that_drafts_in_bf16_costs_more_than_one_in_fp4():
    batch = RankBatch(128, 128e3, 128e3, 128e3)
    wide = {"architecture": _HYBRID.architecture.model_copy(update={"mtp_weight_bytes": 2.0})}
    assert _step_ms(_HYBRID.model_copy(update=wide), 1, batch) > 1.01 * _step_ms(_HYBRID, 1, batch)


def test_linear_attention_writes_a_state_after_each_drafted_token():
    batch = RankBatch(256, 256e3, 256e3, 256e3)
    fewer = _HYBRID.architecture.layer_groups[0].model_copy(update={"value_heads": 64})
    none = {"architecture": _HYBRID.architecture.model_copy(update={"layer_groups": (fewer,)})}
    more = [
        _step_ms(_HYBRID, k, batch) - _step_ms(_HYBRID.model_copy(update=none), k, batch)
        for k in (0, 3)
    ]
    assert more[1] > 1.5 * more[0]
