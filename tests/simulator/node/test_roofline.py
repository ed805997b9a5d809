"""The crude prior: finite everywhere, quick, and with the big effects."""

import numpy as np
import pytest

from autotune.loadgen.workloads import load_workload
from autotune.simulator.node.roofline import roofline
from autotune.trial import Configuration
from tests.simulator.node.nodes import LIBRARY, R1, V32


def predict(layouts, workload="sharegpt", hw="h200", model=V32, engine="sglang"):
    names = ("tensor_parallel", "data_parallel", "expert_parallel")
    configurations = [
        Configuration(engine, {**dict(zip(names, layout[:3], strict=True)), **layout[3]}) for layout in layouts
    ]
    return roofline(configurations, LIBRARY.model(model), LIBRARY.node(hw), 8, load_workload(workload))


@pytest.mark.parametrize("workload", ["sharegpt", "sharegpt-c4", "very-long", "output-sweep", "ultra-long"])
@pytest.mark.parametrize("hw", ["h200", "mi300x"])
@pytest.mark.parametrize("model", [R1, V32])
def test_it_is_finite_for_any_candidate(workload, hw, model):
    layouts = [
        (tp, dp, ep, {"max_running_requests": limit, "speculative_tokens": drafts, "context_length": context})
        for tp in (1, 2, 8, 16)
        for dp in (1, 4, 8)
        for ep in (1, 8)
        for limit in (None, 1, 48)
        for drafts in (0, 2)
        for context in (None, 4096)
    ]
    assert np.isfinite(predict(layouts, workload, hw, model)).all()


def test_it_knows_the_big_effects():
    tp8, dp8, capped = predict([(8, 1, 1, {}), (1, 8, 8, {}), (8, 1, 1, {"max_running_requests": 48})])
    assert tp8 > capped + 0.5
    assert dp8 > tp8
    few_tp8, few_dp8 = predict([(8, 1, 1, {}), (1, 8, 8, {})], "sharegpt-c4")
    assert few_tp8 > few_dp8
    bf16, fp8 = predict([(8, 1, 1, {}), (8, 1, 1, {"kv_cache_dtype": "fp8"})], "output-sweep")
    assert fp8 > bf16


def test_what_cannot_run_comes_last():
    fits, too_many, too_short = predict([(8, 1, 1, {}), (8, 2, 1, {}), (8, 1, 1, {"context_length": 1024})])
    assert too_many < fits
    assert too_short < fits


def test_the_engine_and_unknown_knobs_do_not_matter():
    assert predict([(8, 1, 1, {"x": 1})], engine="vllm") == predict([(8, 1, 1, {"x": 2})])
