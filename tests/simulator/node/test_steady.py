"""The fast prediction of the simulator: the order of the full one, and nothing that its knobs do not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from autotune.loadgen.workloads import load_workload
from autotune.loadgen.workloads.arrivals import arrival_of
from autotune.simulator.node import ServerSetup, simulate
from autotune.simulator.node.calibration import factors_of, groups_of, packaged_calibration, packaged_physics
from autotune.simulator.node.coefficients import speed_card
from autotune.simulator.node.steady import SteadyNode
from autotune.space.enumeration import Candidate
from autotune.space.library import Library
from autotune.trial import Configuration, Scalar

LIBRARY = Library()
V32, R1 = LIBRARY.model("deepseek-ai/DeepSeek-V3.2"), LIBRARY.model("deepseek-ai/DeepSeek-R1")
NODE = LIBRARY.node("h200")
WORKLOAD = load_workload("random:1000:200:200")
VERSIONS = {name: LIBRARY.engine(name).newest for name in ("vllm", "sglang", "tensorrt_llm")}

TP8: dict[str, Scalar] = {"tensor_parallel": 8}
DP8: dict[str, Scalar] = {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8, "context_length": 16384}
CASES: tuple[dict[str, Scalar], ...] = (
    TP8,
    {**TP8, "max_running_requests": 16},
    {**TP8, "speculative_tokens": 1, "max_running_requests": 48},
    DP8,
    {**DP8, "max_batched_tokens": 2048},
    {**DP8, "speculative_tokens": 1},
    {"tensor_parallel": 4, "data_parallel": 2, "context_length": 16384, "max_running_requests": 64},
)


@pytest.mark.parametrize("engine", VERSIONS)
def test_it_ranks_configurations_as_the_full_simulation_does(engine):
    node = SteadyNode(R1, NODE, 8, WORKLOAD)
    full, fast = [], []
    for knobs in CASES:
        outcome = simulate(ServerSetup(engine, VERSIONS[engine], knobs, R1, NODE, 8), WORKLOAD, 0)
        assert outcome.failure is None
        full.append(outcome.metrics["total_token_throughput"])
        fast.append(node.predict(engine, VERSIONS[engine], knobs).metrics["total_token_throughput"])
    assert spearmanr(full, fast)[0] > 0.85
    assert max(abs(math.log(f / t)) for f, t in zip(fast, full, strict=True)) < math.log(1.5)


def test_what_was_predicted_before_changes_nothing():
    """Candidates that agree in what the arithmetic reads share a result, and only those."""
    together = SteadyNode(V32, NODE, 8, WORKLOAD)
    cases = [
        *CASES,
        {**TP8, "kv_cache_dtype": "fp8_e4m3", "decode_attention_backend": "flashmla_kv"},
        {**TP8, "decode_attention_backend": "flashmla_kv"},
        {**TP8, "moe_all_to_all": "deepep"},
        {**TP8, "nothing_that_is_known": 1},
    ]
    for knobs in cases:
        alone = SteadyNode(V32, NODE, 8, WORKLOAD)
        assert together.predict("sglang", "0.5.23", knobs) == alone.predict("sglang", "0.5.23", knobs)
    assert together.predict("sglang", "0.5.23", cases[-1]) == together.predict("sglang", "0.5.23", TP8)
    assert together.computed < len(cases)


def test_odds_of_starting_follow_the_memory_plan_and_the_requests():
    node = SteadyNode(V32, NODE, 8, WORKLOAD)

    def odds(**knobs: Scalar) -> float:
        return node.predict("vllm", "0.13.0", {**TP8, **knobs}).starts

    assert odds() > 0.9
    assert odds(tensor_parallel=1, data_parallel=8) < odds(tensor_parallel=1, data_parallel=8, context_length=16384)
    assert odds(memory_fraction=0.3) < 0.1  # the weights alone need more
    assert odds(context_length=1024) < 0.1  # the workload's requests are longer
    assert odds(data_parallel=2) < 0.1  # 16 GPUs
    assert not node.predict("vllm", "0.13.0", {**TP8, "data_parallel": 2}).metrics


def test_a_cap_on_requests_costs_throughput_and_waiting():
    node = SteadyNode(V32, NODE, 8, WORKLOAD)
    free, capped = (node.predict("sglang", "0.5.23", {**TP8, "max_running_requests": cap}).metrics for cap in (None, 8))
    assert capped["total_token_throughput"] < free["total_token_throughput"]
    assert capped["mean_ttft_ms"] > free["mean_ttft_ms"]
    assert capped["mean_tpot_ms"] < free["mean_tpot_ms"]


@pytest.mark.parametrize("rate", [0.5, 500.0])
def test_arrivals_over_time_bound_the_throughput(rate):
    """A server that keeps up serves what arrives; one that does not, what it can."""
    workload = WORKLOAD.with_arrival(arrival_of(request_rate=rate))
    served = SteadyNode(R1, NODE, 8, workload).predict("vllm", "0.13.0", TP8).metrics["request_throughput"]
    most = SteadyNode(R1, NODE, 8, WORKLOAD).predict("vllm", "0.13.0", TP8).metrics["request_throughput"]
    assert served == pytest.approx(min(rate, most), rel=0.25)


def test_what_a_closed_loop_does_not_foresee_is_not_said():
    workload = WORKLOAD.with_concurrencies([4, 32])
    metrics = SteadyNode(R1, NODE, 8, workload).predict("vllm", "0.13.0", TP8).metrics
    assert "mean_ttft_ms" not in metrics
    assert metrics["mean_tpot_ms"] > 0


@settings(max_examples=40, deadline=None)
@given(
    engine=st.sampled_from(sorted(VERSIONS)),
    layout=st.sampled_from([(8, 1), (4, 2), (2, 4), (1, 8), (4, 1), (1, 1)]),
    running=st.sampled_from([None, 1, 7, 512, 10**6]),
    tokens=st.sampled_from([None, 1, 64, 8192, 10**6]),
    fraction=st.sampled_from([None, 0.01, 0.5, 0.99, 5.0]),
    drafts=st.integers(0, 4),
    context=st.sampled_from([None, 1, 2000, 10**7]),
)
def test_every_number_is_finite(engine, layout, running, tokens, fraction, drafts, context):
    knobs: dict[str, Scalar] = {
        "tensor_parallel": layout[0],
        "data_parallel": layout[1],
        "max_running_requests": running,
        "max_batched_tokens": tokens,
        "memory_fraction": fraction,
        "speculative_tokens": drafts,
        "context_length": context,
    }
    found = SteadyNode(V32, NODE, 8, load_workload("random:50:20:30")).predict(engine, VERSIONS[engine], knobs)
    assert all(math.isfinite(value) and value >= 0 for value in found.metrics.values())
    assert found.metrics["total_token_throughput"] > 0
    assert 0 < found.starts < 1
    assert found.startup_s > 0


def candidates(*cases: dict[str, Scalar], engine: str = "vllm") -> list[Candidate]:
    return [Candidate(Configuration(engine, knobs), VERSIONS[engine]) for knobs in cases]


def test_draws_without_a_spread_are_the_prediction_itself():
    """One computation: the figures are numbers in one, arrays in the other."""
    physics, shipped = packaged_physics(), packaged_calibration()
    groups = groups_of(speed_card("vllm"), VERSIONS["vllm"], NODE)
    sure: dict[str, dict[str, dict[str, float]]] = {}
    for which in factors_of(physics, groups):
        sure.setdefault(which.level, {}).setdefault(which.group, {})[which.figure] = 0.0
    node = SteadyNode(V32, NODE, 8, WORKLOAD, shipped.model_copy(update={"deviations": sure}))
    drawn = node.draws(candidates(*CASES), 3, 0)
    for i, knobs in enumerate(CASES):
        one = node.predict("vllm", VERSIONS["vllm"], knobs)
        assert drawn.ln_throughput[:, i] == pytest.approx(math.log(one.metrics["total_token_throughput"]))
        assert drawn.starts[i] == one.starts


def test_draws_move_engines_together_where_the_figures_are_shared():
    node = SteadyNode(V32, NODE, 8, WORKLOAD)
    items = [*candidates(TP8, DP8), *candidates(TP8, engine="sglang")]
    drawn = node.draws(items, 64, 1)
    assert drawn.ln_throughput.shape == (64, 3)
    assert drawn.moved.shape == (64, len(drawn.factors))
    assert drawn.moved.mean(axis=0) == pytest.approx(0, abs=1e-12)
    assert (drawn.ln_throughput.std(axis=0) > 0.02).all()
    between = np.corrcoef(drawn.ln_throughput.T)
    assert between[0, 1] > between[0, 2] > 0
    assert node.draws(items, 64, 1).ln_throughput == pytest.approx(drawn.ln_throughput)


def test_what_does_not_fit_is_drawn_as_if_it_did():
    """Its odds of starting are said apart."""
    small, large = (candidates({**TP8, "memory_fraction": share})[0] for share in (0.6, 0.9))
    drawn = SteadyNode(V32, NODE, 8, WORKLOAD).draws([small, large], 2, 0)
    assert drawn.starts[0] < 0.5 < drawn.starts[1]
    assert np.abs(drawn.ln_throughput[:, 0] - drawn.ln_throughput[:, 1]).max() < 0.2
