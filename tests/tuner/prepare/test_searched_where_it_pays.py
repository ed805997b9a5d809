"""vLLM's knobs are searched on the loads where the simulated node gains by them, and left out on
others."""

from __future__ import annotations

from functools import cache

import pytest

from autotune.engines.command import Configuration, Scalar
from autotune.engines.library import Library
from autotune.node import predict
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import prepare
from autotune.tuner.study.options import RunOptions

V32, R1 = "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-R1"
LONG_ANSWERS = "random:8000:4000:250"
FEW = "random:64:64:12"


@cache
def candidates(model: str, workload: str) -> tuple[Configuration, ...]:
    asked = RunOptions(model, "h200", workloads=[workload], engines=("vllm",), on="simulator")
    return tuple(
        one.configuration for one in prepare(build_spec(asked), Library()).candidates.items
    )


def searched(model: str, workload: str, knob: str, **fixed: Scalar) -> set[Scalar]:
    """Return the knob's values among the candidates that have the others so."""
    kept = (one.knobs for one in candidates(model, workload) if fixed.items() <= one.knobs.items())
    return {knobs[knob] for knobs in kept}


def throughput(model: str, workload: str, options: str) -> float:
    """Return the simulated total token throughput."""
    found = predict(f"vllm serve {model} {options}", workload, hardware="h200", version="0.33.0")
    assert found["failure"] is None
    return float(found["total_token_throughput"])


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("model", "cache", "tried", "best", "gain"),
    [(V32, "fp8_ds_mla", {1, 4}, 4, 1.2), (R1, "bfloat16", {1, 4, 8}, 8, 1.5)],
)
def test_a_context_is_shared_where_the_load_has_more_tokens_than_one_copy_of_the_cache(
    model: str, cache: str, tried: set[Scalar], best: int, gain: float
) -> None:
    shared = {"tensor_parallel": 8, "kv_cache_dtype": cache}
    assert searched(model, LONG_ANSWERS, "decode_context_parallel", **shared) == tried
    assert searched(model, "sharegpt", "decode_context_parallel") == {1}
    alone = f"-tp 8 --kv-cache-dtype {cache}"
    paying = throughput(model, LONG_ANSWERS, f"{alone} -dcp {best}") / throughput(
        model, LONG_ANSWERS, alone
    )
    assert paying > gain
    assert throughput(model, "sharegpt", f"{alone} -dcp {best}") < throughput(
        model, "sharegpt", alone
    )


def test_no_context_is_shared_where_nothing_is_kept_twice() -> None:
    assert searched(V32, LONG_ANSWERS, "decode_context_parallel", tensor_parallel=1) == {1}
    assert searched(R1, LONG_ANSWERS, "decode_context_parallel", tensor_parallel=2) == {1, 2}


def test_graphs_of_more_tokens_are_searched_where_a_rank_has_a_batch_between() -> None:
    alone = {"tensor_parallel": 8, "speculative_tokens": 0, "max_running_requests": 1024}
    assert searched(V32, "sharegpt", "cuda_graph_max_batch", **alone) == {512, 1024}
    assert searched(V32, "sharegpt", "cuda_graph_max_batch", data_parallel=8) == {512}
    assert searched(V32, "sharegpt-c4", "cuda_graph_max_batch") == {512}
    wide = "--max-cudagraph-capture-size 1024"
    assert throughput(V32, "sharegpt", f"-tp 8 {wide}") > 1.01 * throughput(
        V32, "sharegpt", "-tp 8"
    )
    eight = "-dp 8 -ep --max-model-len 81920"
    assert throughput(V32, "sharegpt", f"{eight} {wide}") <= throughput(V32, "sharegpt", eight)


def test_finer_graphs_are_searched_where_few_requests_are_in_flight() -> None:
    assert searched(V32, FEW, "performance_mode", data_parallel=1) == {"balanced", "interactivity"}
    assert searched(V32, FEW, "performance_mode", data_parallel=8) == {"balanced"}
    assert searched(V32, "sharegpt", "performance_mode") == {"balanced"}
    fine = "-tp 8 --performance-mode interactivity"
    assert throughput(V32, FEW, fine) > throughput(V32, FEW, "-tp 8")
    # Its drain has small batches too, for a short time.
    assert throughput(V32, "sharegpt", fine) < 1.02 * throughput(V32, "sharegpt", "-tp 8")


def test_a_limit_that_no_rank_reaches_is_tried_once() -> None:
    assert searched(V32, "sharegpt", "max_running_requests", data_parallel=8) == {256, 1024}
    assert searched(V32, "sharegpt", "max_running_requests", data_parallel=1) == {256, 512, 1024}
