"""A crude prediction, with which `priors.py` compares the simulator's.

On purpose another model than the simulator: peak rates of the data sheet, mean lengths, no batching
loop, no fitted figure, no engine. It knows what a layout makes a GPU read, multiply and send, and
how many sequences fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from autotune.base.arrays import Floats
from autotune.engines.cards import (
    BF16,
    HardwareCard,
    ModelCard,
    expert_layers,
    feed_forward_elements,
    kv_bytes_per_token,
    rank_layers,
    weight_bytes_per_gpu,
)
from autotune.engines.command import Configuration, Scalar
from autotune.load.requests import Requests
from autotune.load.workloads import Workload

_UNLIMITED = 1024
HOPELESS = 1.0
"""Tokens per second of what cannot hold one request: the lowest value, so that logarithms stay
finite."""


class _Layout(NamedTuple):
    """What the arithmetic sees of a configuration."""

    tp: int
    dp: int
    pp: int
    ep: int
    kv_type: str
    running: int
    drafts: int
    context: int


def roofline(
    configurations: Sequence[Configuration],
    model: ModelCard,
    hardware: HardwareCard,
    gpus: int,
    workload: Workload,
) -> Floats:
    """The logarithm of the predicted total tokens per second of each configuration, shape (n,);
    always finite.

    Configurations that differ only in knobs which the arithmetic does not know get the same value.
    """
    requests = workload.draw(len(workload.points) - 1, 0)
    rate = cache(
        lambda layout: _tokens_per_s(
            layout, model, hardware, gpus, workload.longest_request, requests
        )
    )
    rates = (rate(_layout(configuration.knobs, model)) for configuration in configurations)
    return np.array([np.log(max(HOPELESS, tokens_per_s)) for tokens_per_s in rates])


def _layout(knobs: Mapping[str, Scalar], model: ModelCard) -> _Layout:
    def count(knob: str, default: int) -> int:
        value = knobs.get(knob)
        # A replayed table may hold anything.
        return int(value) if isinstance(value, int | float) and value >= 1 else default

    return _Layout(
        tp=count("tensor_parallel", 1),
        dp=count("data_parallel", 1),
        pp=count("pipeline_parallel", 1),
        ep=count("expert_parallel", 1),
        kv_type="fp8" if str(knobs.get("kv_cache_dtype")).startswith("fp8") else "bfloat16",
        running=count("max_running_requests", _UNLIMITED),
        drafts=count("speculative_tokens", 0),
        context=count("context_length", model.architecture.context_limit),
    )


def _tokens_per_s(
    c: _Layout,
    model: ModelCard,
    hardware: HardwareCard,
    gpus: int,
    longest: int,
    requests: Requests,
) -> float:
    """Total tokens per second: mean lengths and requests in flight of one load point."""
    a, read, written = (
        model.architecture,
        float(requests.input_tokens.mean()),
        float(requests.output_tokens.mean()),
    )
    stage = c.tp * c.dp
    room = hardware.memory_gb * 1e9 - weight_bytes_per_gpu(a, c.tp, stage, c.pp, c.drafts > 0)
    kv_token = kv_bytes_per_token(a, c.kv_type, c.tp) / c.pp
    batch = min(
        float(requests.concurrency) / c.dp, float(c.running), room / kv_token / (read + written / 2)
    )
    if stage * c.pp > gpus or room < kv_token * longest or c.context < longest:
        return HOPELESS
    bandwidth, flops = (
        hardware.bandwidth_tb_s * 1e12,
        hardware.tflops(a.multiplied_in(a.weight_bytes)) * 1e12,
    )
    parts = rank_layers(a, c.tp)
    experts = feed_forward_elements(a)[0] * a.experts * expert_layers(a) / stage
    active = experts * a.experts_per_token / max(1, a.experts) * c.dp
    joined = c.dp > 1 and a.experts > 0  # replicas of a dense model send each other nothing
    # Gathering and scattering every rank's tokens; sharded experts need all of them, spread ones
    # their own share.
    gathered = c.dp if c.ep < stage else min(c.dp, a.experts_per_token)
    link = (
        4
        * a.layers
        * a.hidden_size
        * BF16
        * (gathered if joined else min(1, c.tp - 1))
        / hardware.link_gb_s
        / 5e8
    )
    compute_token = 2 * (sum(part.elements for part in parts) + active) / flops + link
    tokens = batch * (1 + c.drafts)
    touched = 1 - (1 - a.experts_per_token / a.experts) ** (tokens * c.dp) if a.experts else 0.0
    weights = sum(part.bytes for part in parts) + experts * touched * a.weight_bytes
    traffic = weights + batch * kv_token * c.pp * (read + written / 2)
    step = max(traffic / bandwidth, tokens * compute_token)
    # Half of the drafted tokens are taken to be kept.
    seconds = read * compute_token * batch + written / (1 + c.drafts / 2) * step
    return batch * c.dp * (read + written) / seconds
