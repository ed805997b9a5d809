"""The fast prediction of the simulator: the order of the full one, and nothing that its knobs do
not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from autotune.engines.command import Configuration, Scalar
from autotune.engines.enumeration import Candidate
from autotune.engines.library import Library
from autotune.load.metrics.formulas import Slo
from autotune.load.workloads import load_workload
from autotune.load.workloads.arrivals import arrival_of
from autotune.node.calibration import (
    ServerSetup,
    drawn_factors,
    groups_of,
    nothing_learned,
    packaged_calibration,
)
from autotune.node.simulate import simulate
from autotune.node.steady import Limits, SteadyNode

LIBRARY = Library()
V32, R1 = LIBRARY.model("deepseek-ai/DeepSeek-V3.2"), LIBRARY.model("deepseek-ai/DeepSeek-R1")
NODE = LIBRARY.node("h200")
WORKLOAD = load_workload("random:1000:200:200")
VERSIONS = {name: LIBRARY.engine(name).newest for name in ("vllm", "sglang", "tensorrt_llm")}

TP8: dict[str, Scalar] = {"tensor_parallel": 8}
DP8: dict[str, Scalar] = {
    "tensor_parallel": 1,
    "data_parallel": 8,
    "expert_parallel": 8,
    "context_length": 16384,
}
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
        assert together.predict("sglang", "0.5.23", knobs) == alone.predict(
            "sglang", "0.5.23", knobs
        )
    shared, plain = (together.predict("sglang", "0.5.23", knobs) for knobs in (cases[-1], TP8))
    assert shared == plain
    assert shared.metrics is plain.metrics, "it was computed twice"


def test_odds_of_starting_follow_the_memory_plan_and_the_requests():
    node = SteadyNode(V32, NODE, 8, WORKLOAD)

    def odds(**knobs: Scalar) -> float:
        return node.predict("vllm", "0.13.0", {**TP8, **knobs}).starts

    assert odds() > 0.9
    assert odds(tensor_parallel=1, data_parallel=8) < odds(
        tensor_parallel=1, data_parallel=8, context_length=16384
    )
    assert odds(memory_fraction=0.3) < 0.1  # the weights alone need more
    assert odds(context_length=1024) < 0.1  # the workload's requests are longer
    assert odds(data_parallel=2) < 0.1  # 16 GPUs
    assert not node.predict("vllm", "0.13.0", {**TP8, "data_parallel": 2}).metrics


def test_a_cap_on_requests_costs_throughput_and_waiting():
    node = SteadyNode(V32, NODE, 8, WORKLOAD)
    free, capped = (
        node.predict("sglang", "0.5.23", {**TP8, "max_running_requests": cap}).metrics
        for cap in (None, 8)
    )
    assert capped["total_token_throughput"] < free["total_token_throughput"]
    assert capped["mean_ttft_ms"] > free["mean_ttft_ms"]
    assert capped["mean_tpot_ms"] < free["mean_tpot_ms"]


@pytest.mark.parametrize("rate", [0.5, 500.0])
def test_arrivals_over_time_bound_the_throughput(rate):
    """A server that keeps up serves what arrives; one that does not, what it can."""
    workload = WORKLOAD.with_arrival(arrival_of(request_rate=rate))
    served = (
        SteadyNode(R1, NODE, 8, workload)
        .predict("vllm", "0.13.0", TP8)
        .metrics["request_throughput"]
    )
    most = (
        SteadyNode(R1, NODE, 8, WORKLOAD)
        .predict("vllm", "0.13.0", TP8)
        .metrics["request_throughput"]
    )
    assert served == pytest.approx(min(rate, most), rel=0.25)


def test_what_a_closed_loop_does_not_foresee_is_not_said():
    workload = WORKLOAD.with_concurrencies([4, 32])
    metrics = SteadyNode(R1, NODE, 8, workload).predict("vllm", "0.13.0", TP8).metrics
    assert "mean_ttft_ms" not in metrics
    assert metrics["mean_tpot_ms"] > 0


GOOD = tuple(
    Slo(metric=name, sense="<=", limit=limit)
    for name, limit in (("ttft_ms", 8000), ("tpot_ms", 40))
)


def goodput(workload, knobs, *limits: Slo) -> float | None:
    node = SteadyNode(R1, NODE, 8, workload, limits=Limits(request=limits))
    return node.predict("vllm", "0.13.0", knobs).metrics.get("request_goodput")


def test_goodput_ranks_configurations_as_the_full_simulation_does():
    full, fast = [], []
    for knobs in CASES:
        outcome = simulate(ServerSetup("vllm", "0.13.0", knobs, R1, NODE, 8), WORKLOAD, 0, GOOD)
        full.append(outcome.metrics["request_goodput"])
        fast.append(goodput(WORKLOAD, knobs, *GOOD))
    assert max(full) > 5 * min(full)
    assert spearmanr(full, fast)[0] > 0.85


def test_of_goodput_is_said_what_the_limits_leave_of_the_throughput():
    served = (
        SteadyNode(R1, NODE, 8, WORKLOAD)
        .predict("vllm", "0.13.0", TP8)
        .metrics["request_throughput"]
    )
    assert goodput(WORKLOAD, TP8) == pytest.approx(served)  # every request is good
    limits = [Slo(metric="e2el_ms", sense="<=", limit=limit) for limit in (1, 16000, 19000, 10**6)]
    within = [goodput(WORKLOAD, TP8, limit) for limit in limits]
    assert within[0] < within[1] < within[2] < within[3]
    # Of none that is good it says half of one, to have a logarithm.
    assert (within[0], within[-1]) == (pytest.approx(served / 400), pytest.approx(served))


def test_goodput_is_not_said_where_waits_are_not_foreseen():
    workload = WORKLOAD.with_concurrencies([4, 32])
    assert goodput(workload, TP8, *GOOD) is None
    assert goodput(workload, TP8, GOOD[1]) > 0


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
    found = SteadyNode(V32, NODE, 8, load_workload("random:50:20:30")).predict(
        engine, VERSIONS[engine], knobs
    )
    assert all(math.isfinite(value) and value >= 0 for value in found.metrics.values())
    assert found.metrics["total_token_throughput"] > 0
    assert 0 < found.starts < 1
    assert found.startup_s > 0


def candidates(*cases: dict[str, Scalar], engine: str = "vllm") -> list[Candidate]:
    return [Candidate(Configuration(engine, knobs), VERSIONS[engine]) for knobs in cases]


def drawn(calibration, draws, *engines):
    groups = [
        groups_of(ServerSetup(engine, VERSIONS[engine], {}, V32, NODE, 8)) for engine in engines
    ]
    return drawn_factors(calibration, groups, draws, 0)


def logs_of(moved, *items):
    """ln of metrics of candidates, shape (draws, candidates)."""
    node = SteadyNode(V32, NODE, 8, WORKLOAD, moved=moved)
    drawn = [
        node.predict(one.configuration.engine, one.engine_version, one.configuration.knobs).drawn
        for one in items
    ]
    return {name: np.array([one[name] for one in drawn]).T for name in drawn[0]}


def test_draws_without_a_spread_are_the_prediction_itself():
    """One computation: the figures are numbers in one, arrays in the other."""
    still = {
        which: 0.0 * values for which, values in drawn(packaged_calibration(), 3, "vllm").items()
    }
    together, alone = (
        SteadyNode(V32, NODE, 8, WORKLOAD, moved=still),
        SteadyNode(V32, NODE, 8, WORKLOAD),
    )
    for knobs in CASES:
        one, plain = (node.predict("vllm", VERSIONS["vllm"], knobs) for node in (together, alone))
        assert one.drawn
        assert not plain.drawn
        assert one.metrics == pytest.approx(plain.metrics)
        for name, values in one.drawn.items():
            assert values == pytest.approx([math.log(one.metrics[name])] * 3), name


def test_the_prediction_is_that_of_the_figures_as_they_are_whatever_is_drawn():
    moved, alone = (
        drawn(nothing_learned(), 5, "vllm"),
        SteadyNode(V32, NODE, 8, WORKLOAD, nothing_learned()),
    )
    node = SteadyNode(V32, NODE, 8, WORKLOAD, nothing_learned(), moved)
    for knobs in CASES:
        one, plain = (each.predict("vllm", VERSIONS["vllm"], knobs) for each in (node, alone))
        assert one.metrics == pytest.approx(plain.metrics)
        assert (one.starts, one.doubt, one.startup_s) == (
            plain.starts,
            plain.doubt,
            plain.startup_s,
        )


def test_draws_move_engines_together_where_the_figures_are_shared():
    items = [*candidates(TP8, DP8), *candidates(TP8, engine="sglang")]
    moved = drawn(packaged_calibration(), 64, "vllm", "sglang")
    logs = logs_of(moved, *items)["total_token_throughput"]
    assert logs.shape == (64, 3)
    assert (logs.std(axis=0) > 0.02).all()
    between = np.corrcoef(logs.T)
    assert between[0, 1] > between[0, 2] > 0
    assert drawn(packaged_calibration(), 64, "vllm", "sglang").keys() == moved.keys()


def test_a_draw_is_the_prediction_of_its_figures():
    """Of the leading axis nothing else is asked: each draw by itself gives the same."""
    items = candidates(TP8, DP8, {**TP8, "speculative_tokens": 1})
    moved = drawn(nothing_learned(), 5, "vllm")
    together = logs_of(moved, *items)
    assert "total_token_throughput" in together
    for k in range(5):
        alone = logs_of({which: values[k : k + 1] for which, values in moved.items()}, *items)
        for name, values in together.items():
            assert values[k] == pytest.approx(alone[name][0], rel=1e-3), name


def test_what_does_not_fit_is_drawn_as_if_it_did():
    """Its odds of starting are said apart."""
    node = SteadyNode(V32, NODE, 8, WORKLOAD)
    cases = [{**TP8, "memory_fraction": share} for share in (0.6, 0.9)]
    small, large = (node.predict("vllm", VERSIONS["vllm"], knobs).starts for knobs in cases)
    assert small < 0.5 < large
    logs = logs_of(drawn(packaged_calibration(), 2, "vllm"), *candidates(*cases))[
        "total_token_throughput"
    ]
    assert np.abs(logs[:, 0] - logs[:, 1]).max() < 0.2


@pytest.mark.parametrize("interval", [1, 10, 30])
def test_it_foresees_what_waiting_for_a_look_at_new_requests_costs(interval: int):
    """Prompts that wait are computed together: answers are delayed, and stalled less often."""
    load = load_workload("random:819-1024:819-1024:320").with_concurrency(32)
    knobs = {**TP8, "scheduler_recv_interval": interval}
    version = VERSIONS["sglang"]
    full = simulate(ServerSetup("sglang", version, knobs, R1, NODE, 8), load, 0).metrics
    fast = SteadyNode(R1, NODE, 8, load).predict("sglang", version, knobs).metrics
    for name in ("total_token_throughput", "mean_tpot_ms", "mean_e2el_ms"):
        assert fast[name] == pytest.approx(full[name], rel=0.08)
