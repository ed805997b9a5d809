"""A crude prediction, the search's prior where the evidence is the simulator itself.

On purpose another model than the simulator: peak rates of the data sheet, mean lengths, no batching loop, no fitted
figure, no engine. It knows what a layout makes a GPU read, multiply and send, and how many sequences fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.load.workloads import Workload
from autotune.simulate.weights import (
    BF16,
    expert_layers,
    kv_bytes_per_token_layer,
    layer_weights,
    rank_layer_elements,
    weight_bytes_per_gpu,
)
from autotune.space.cards import HardwareCard, ModelCard
from autotune.trial import Configuration, Scalar

_UNLIMITED = 1024
_HOPELESS = 1.0
"""Tokens per second of what cannot hold one request: the lowest value, so that logarithms stay finite."""

Key = tuple[int, int, int, int, str, int, int]


def roofline(
    configurations: Sequence[Configuration], model: ModelCard, hardware: HardwareCard, gpus: int, workload: Workload
) -> NDArray[np.float64]:
    """The logarithm of the predicted total tokens per second of each configuration, shape (n,); always finite.

    Configurations that differ only in knobs which the arithmetic does not know get the same value.
    """
    load = _mean_load(workload)
    known: dict[Key, float] = {}
    values = np.empty(len(configurations))
    for i, configuration in enumerate(configurations):
        key = _key(configuration.knobs, model.context_limit)
        if key not in known:
            known[key] = float(np.log(max(_HOPELESS, _tokens_per_s(key, model, hardware, gpus, load))))
        values[i] = known[key]
    return values


def _key(knobs: dict[str, Scalar] | object, context_limit: int) -> Key:
    get = knobs.get  # type: ignore[attr-defined]
    layout = (get("tensor_parallel") or 1, get("data_parallel") or 1, get("pipeline_parallel") or 1)
    rest = (get("max_running_requests") or _UNLIMITED, get("speculative_tokens") or 0)
    kv = "fp8" if str(get("kv_cache_dtype")).startswith("fp8") else "bfloat16"
    del context_limit
    return (*layout, get("expert_parallel") or 1, kv, *rest)


def _mean_load(workload: Workload) -> tuple[float, float, float]:
    """Mean input tokens, mean output tokens and requests in flight of the last, heaviest load point."""
    requests = workload.draw(len(workload.points) - 1, 0)
    return float(requests.input_tokens.mean()), float(requests.output_tokens.mean()), float(requests.concurrency)


def _tokens_per_s(
    key: Key, model: ModelCard, hardware: HardwareCard, gpus: int, load: tuple[float, float, float]
) -> float:
    tp, dp, pp, ep, kv, limit, drafts = key
    a, (read, written, in_flight) = model.architecture, load
    stage = tp * dp
    room = hardware.memory_gb * 1e9 - weight_bytes_per_gpu(a, tp, stage, pp, drafts > 0)
    kv_token = kv_bytes_per_token_layer(a, kv, tp) * a.layers / pp
    batch = min(in_flight / dp, float(limit), room / kv_token / (read + written / 2))
    if batch < 1 / dp or stage * pp > gpus:
        return _HOPELESS
    bandwidth, flops = hardware.bandwidth_tb_s * 1e12, hardware.fp8_tflops * 1e12 / (1 if a.weight_bytes <= 1 else 2)
    elements = rank_layer_elements(a, tp)
    experts = layer_weights(a).expert * a.experts * expert_layers(a) / stage
    active = experts * a.experts_per_token / max(1, a.experts) * dp
    link = 4 * a.layers * a.hidden_size * BF16 * (dp if dp > 1 else min(1, tp - 1)) / (hardware.link_gb_s * 5e8)
    compute_token = 2 * (elements + active) / flops + link
    tokens = batch * (1 + drafts)
    touched = 1 - (1 - a.experts_per_token / a.experts) ** (tokens * dp) if a.experts else 0.0
    weights = (elements + experts * touched) * a.weight_bytes
    step = max((weights + batch * kv_token * pp * (read + written / 2)) / bandwidth, tokens * compute_token)
    # Half of the drafted tokens are taken to be kept.
    seconds = read * compute_token * batch + written / (1 + drafts / 2) * step
    return batch * dp * (read + written) / seconds
