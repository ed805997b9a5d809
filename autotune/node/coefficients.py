"""Coefficients of an engine for the arithmetic: its documented behaviour, and the fitted figures.

The arithmetic is the same for every engine. Its behaviour stands in
``search_spaces/<engine>/simulator.yaml``, written by hand; the figures are composed in
`autotune.node.calibration`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field

from autotune.base.errors import UnknownName
from autotune.engines.cards import ModelCard
from autotune.engines.command import Scalar
from autotune.engines.entry import Entry, VersionRange, in_range, spaces_root
from autotune.engines.expression import Expression, Namespace, evaluate
from autotune.engines.library import documents, load, packaged


class Behaviour(Entry):
    """Behaviour of an engine, from its sources and documentation: scheduling, memory, constants of
    its kernels.

    Nothing here is fitted. ``*_share`` multiplies a rate; 1 would be the hardware's peak.
    """

    # What the engine decides where a knob is not set
    max_running_requests: int = Field(gt=0)
    max_batched_tokens: int | None = Field(description="None: as many as the context is long")
    memory_fraction: Expression = Field(
        description="of `chunk, graph, drafts, dp, gpus, memory_mb`"
    )
    cuda_graph_max_batch: int = Field(ge=0)
    cuda_graph_steps: tuple[tuple[int, int, int], ...] = Field(
        description="captured sizes: first, last, step"
    )
    cuda_graph_counts: Literal["tokens", "sequences"] = Field(
        description="what a captured size counts, per rank"
    )
    cuda_graph_prompts: bool = Field(
        description="whether a step with prompt tokens may run in a (piecewise) graph"
    )
    cuda_graph_idle: bool = Field(
        default=True, description="whether ranks run a graph while one of them idles"
    )
    cuda_graph_padding: bool = Field(
        description="whether a batch is padded to a captured size, or needs its very own"
    )
    prefix_caching: bool
    block_tokens: int = Field(
        gt=0, description="tokens per block or page of the KV pool, where no knob says"
    )
    kv_dense: str = Field(description="KV type that `auto` means for latent attention")
    kv_sparse: str = Field(description="KV type that `auto` means for sparse attention")

    # Scheduling
    prefill: Literal["mixed", "separate"]
    prefill_idles_ranks: bool = Field(
        description="no rank decodes while another one computes prompts alone"
    )
    chunked_prefill: bool = Field(
        description="False: only whole prompts that fit what is left of a step's budget"
    )
    block_chunks: Literal["tokens", "cut", "count"] = Field(
        description="a chunk ends anywhere; at the end of a block; there, and prompts count in whole blocks"
    )
    max_prefill_tokens: int | None = Field(
        description="prompt tokens after which a step admits no further request"
    )
    queue: Literal["first_come", "longest_prefix"]
    reserve_share: float = Field(
        ge=0, description="of the output still to come of what runs; 1 = all, never evicts"
    )
    reserve_new: float = Field(ge=0, le=1, description="the same of what is being admitted")
    reserve_clip: int | None = Field(description="most output tokens of one request that count")
    reserve_least: float = Field(
        ge=0, le=1, description="share of `reserve_share` to which it falls"
    )
    reserve_steps: int = Field(gt=0, description="decode steps in which it falls")
    reserve_dp_factor: float = Field(
        gt=0, description="on `reserve_share` with several attention replicas"
    )
    watermark: float = Field(ge=0, lt=1, description="share of the pool that admission leaves free")
    victim: Literal["latest", "fewest_tokens"] = Field(description="whom a full pool throws out")
    requeue: Literal["front", "back"] = Field(description="where it waits then")
    retract_steps: int = Field(gt=0, description="decode steps for which throwing out makes room")
    dispatch: Literal["round_robin", "waiting_weighted", "kv_pressure", "even"]
    running_limit_per: Literal["rank", "node"]
    token_budget_per: Literal["rank", "node", "half"] = Field(
        description="half: of the given one, with replicas"
    )

    # Memory
    fraction_of: Literal["total", "static", "free"] = Field(
        description="what the memory fraction is of, and holds: total = of the GPU, for weights, communicators, "
        "a profiled step and the cache (vLLM); static = of what is free at start, for weights and cache alone "
        "(SGLang); free = of what weights and a profiled step leave, for the cache (TensorRT-LLM)"
    )
    full_context_option: str = Field(
        default="",
        description="of an engine that refuses to start unless one sequence of full length fits (vLLM): the option "
        "that shortens it",
    )
    context_gb: float = Field(
        ge=0, description="the driver's context and libraries, taken before the engine looks"
    )
    communicator_gb: float = Field(
        ge=0, description="buffers of collectives, for every further rank of a stage"
    )
    exchange_buffer_gb: float = Field(
        default=0, ge=0, description="buffers of an all-to-all between expert ranks"
    )
    graph_mb_per_layer: float = Field(
        ge=0, description="of a CUDA graph, for every captured batch size and layer"
    )
    graphs_in_share: bool = Field(
        description="whether the share of `fraction_of: total` holds the graphs too"
    )
    activation_copies: float = Field(gt=0, description="live copies of a step's hidden states")
    sampler_copies: float = Field(
        ge=0,
        description="live float32 copies of the logits when the profiled step samples for all running sequences",
    )
    indexer_logits: bool = Field(
        description="whether prefill keeps tokens x context scores in float32"
    )
    indexer_logits_copies: float = Field(
        default=1, ge=1, description="of these scores, while the top ones are chosen"
    )
    indexer_logits_limit_gb: float = Field(
        default=math.inf, gt=0, description="of the scores of a step's prompts"
    )
    sliding_cache: Literal["window", "all"] = Field(
        default="all",
        description="what a layer with a sliding window keeps: its window, or every token",
    )
    workspace_contexts: float = Field(
        ge=0, description="full-length latent sequences kept as workspace"
    )
    latent_products: bool = Field(
        default=False,
        description="keeps the products of latent up-projections with their neighbours (vLLM 0.7)",
    )
    latent_cache_alignment: int = Field(
        default=1, gt=0, description="bytes that a token and layer is padded to"
    )
    memory_sigma_gb: float = Field(
        gt=0, description="standard deviation of what no part explains, per GPU"
    )
    sampler_sigma_share: float = Field(
        default=0, ge=0, description="standard deviation of `sampler_copies`, a share"
    )
    memory_sigma_share: float = Field(
        ge=0, description="and, of layers' tensors, communicators and graphs, a share"
    )

    # Kernels
    layer_extra_us: float = Field(
        default=0, ge=0, description="latencies of kernels that only some settings need"
    )
    gemm_tile: int = Field(
        default=128, ge=0, description="rows of a matrix kernel's tile: half of one is idle"
    )
    host_overlap: float = Field(
        default=0, ge=0, le=1, description="share of host time that the GPU's work hides"
    )
    moe_tile: int = Field(gt=0, description="rows to which an expert's batch is padded")
    sparse_head_tile: int = Field(gt=0, description="heads to which sparse kernels pad")
    sparse_padding: Literal["none", "prefill", "both"] = Field(
        description="where sparse kernels work through `top_k` entries per query, whether or not there are so many"
    )
    sparse_prefill_gain: float = Field(
        default=1, gt=0, description="on `sparse_attention_share`, in prefill"
    )
    dense_prompts: bool = Field(
        description="prompts that fit `top_k` are computed by dense kernels, unscored"
    )
    exchange: Literal["gather", "dispatch"] = Field(
        default="gather",
        description="with experts of other replicas: all-gather and reduce-scatter, or all-to-all",
    )

    # Front end and speculation
    front_end_per: Literal["server", "rank"] = Field(
        description="what has a front end of its own, where no knob says"
    )
    prompt_token_us: float = Field(
        ge=0, description="tokeniser, per prompt token, beside `request_ms`"
    )
    output_token_us: float = Field(
        ge=0, description="per generated token, one after the other: detokeniser and HTTP"
    )
    draft_acceptance: float = Field(
        default=1.0, gt=0, le=1, description="factor on the model's acceptance"
    )

    # Start
    load_gb_s: float = Field(gt=0, description="weights into GPU memory, the whole node")
    random_weights_spread: float = Field(
        default=0.03,
        ge=0,
        description="sigma of ln(speed with random weights / with real ones), by layout: a choice",
    )
    start_s: float = Field(ge=0, description="start without loading weights")


class Figures(Entry):
    """Speed of an engine: the fitted figures, each with its range in ``physics.yaml``.

    ``*_share`` multiplies a rate; 1 would be the hardware's achieved (or, for links and sparse
    attention, peak) rate. Where a prediction is made for several draws of the figures at once, a
    figure is an array, shape (draws,).
    """

    gemm_share: float = Field(gt=0, description="of achieved_flops, dense matrix kernels")
    fp8_share: float = Field(
        gt=0, description="of that in fp8: blocks with scales, activations quantised on the way"
    )
    unpack_share: float = Field(
        gt=0, description="of that, where weights are unpacked to bf16 before they are used"
    )
    moe_share: float = Field(gt=0, description="of achieved_flops, expert kernels of full width")
    moe_read_share: float = Field(
        gt=0, description="of the bandwidth of decode kernels, experts with few rows each"
    )
    moe_narrow_width: float = Field(
        ge=0, description="expert width at which tensor-sharded experts run at half rate"
    )
    expert_imbalance: float = Field(
        ge=0, description="extra load of the fullest of infinitely many expert ranks"
    )
    bandwidth_share: float = Field(
        gt=0, description="of achieved_bandwidth, weights and KV in decode"
    )
    kv_share: float = Field(gt=0, description="of that, the KV cache that decode attention reads")
    attention_share: float = Field(
        gt=0, description="of achieved_flops in bf16, dense attention kernels"
    )
    linear_share: float = Field(
        gt=0, description="of achieved_flops in bf16, chunks of linear attention in prefill"
    )
    sparse_attention_share: float = Field(
        gt=0, description="of the bf16 peak, sparse attention kernels"
    )
    indexer_share: float = Field(gt=0, description="of the fp8 peak")
    link_share: float = Field(gt=0, le=1, description="of the one-way link bandwidth")
    collective_us: float = Field(ge=0, description="latency of one collective")
    layer_us: float = Field(
        ge=0, description="kernel latencies of a layer of a plain dense decoder"
    )
    experts_us: float = Field(
        ge=0, description="and of routing and the grouped products of a layer with experts"
    )
    latent_us: float = Field(
        ge=0, description="and of latent attention's further products; of an indexer as much"
    )
    step_ms: float = Field(ge=0, description="host time per step")
    sequence_us: float = Field(ge=0, description="host time per running sequence and step")
    eager_layer_us: float = Field(
        ge=0, description="host time of ten kernels when no CUDA graph holds the batch"
    )
    eager_sequence_us: float = Field(
        ge=0, description="more host time per sequence then, sparse attention only"
    )
    request_ms: float = Field(ge=0, description="front end per request, one after the other")
    mtp_step_ms: float = Field(
        ge=0, description="host time per step that drafts, however many tokens"
    )
    mtp_sequence_us: float = Field(
        ge=0, description="and per running sequence: kept and drafted tokens"
    )


class Coefficients(Behaviour, Figures):
    """Behaviour and fitted figures of an engine for one configuration."""


class Adjustment(Entry):
    """Difference under a condition over ``knobs, model, hardware, gpus``; all that hold apply, in
    order."""

    when: Expression = "True"
    versions: VersionRange = "*"
    set: dict[str, Any] = {}
    multiply: dict[str, float] = {}
    add: dict[str, float] = {}
    reason: str


class Era(Entry):
    """Versions with software of one period. Engines share an era's name: they became faster
    together."""

    name: str
    versions: VersionRange
    when: Expression = Field(
        default="True", description="over `model`: what was measured of that time"
    )


class SpeedCard(Entry):
    """A document of ``search_spaces/<engine>/simulator.yaml``."""

    engine: str
    eras: list[Era] = []
    base: Behaviour
    adjustments: list[Adjustment] = []
    source: str

    def era(self, version: str, model: ModelCard) -> str | None:
        held = (
            era
            for era in self.eras
            if in_range(version, era.versions) and evaluate(era.when, {"model": model})
        )
        return next((era.name for era in held), None)


@lru_cache(maxsize=64)
def speed_card(engine: str) -> SpeedCard:
    """Return the packaged card of an engine; raises `UnknownName` when there is none."""
    path = packaged("simulation", engine)
    if not path.is_file():
        hint = f"Its figures would stand in {path}; a real server is measured with --on process or autotune bench."
        raise UnknownName(
            "engine for simulation", engine, dict(documents(spaces_root(), "simulation")), hint
        )
    return load(path, SpeedCard)


def holding(
    card: SpeedCard, version: str, knobs: Mapping[str, Scalar], scope: Mapping[str, Any]
) -> Iterator[Adjustment]:
    """List the adjustments that apply to one configuration, in order; `scope` as for `adjusted`."""
    names = {**scope, "knobs": Namespace(knobs)}
    for adjustment in card.adjustments:
        if in_range(version, adjustment.versions) and evaluate(adjustment.when, names):
            yield adjustment


def adjusted(
    card: SpeedCard,
    figures: Mapping[str, Any],
    version: str,
    knobs: Mapping[str, Scalar],
    scope: Mapping[str, Any],
) -> Coefficients:
    """Return the card's behaviour and these figures (or draws of them), adjusted for one
    configuration."""
    values = {**card.base.model_dump(), **figures}
    for adjustment in holding(card, version, knobs, scope):
        values.update(adjustment.set)
        values.update({name: values[name] * factor for name, factor in adjustment.multiply.items()})
        values.update({name: values[name] + more for name, more in adjustment.add.items()})
    drawn = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    checked = Coefficients.model_validate(
        {**values, **{name: float(value[0]) for name, value in drawn.items()}}
    )
    return checked.model_copy(update=drawn) if drawn else checked


def conditional_knobs(card: SpeedCard, version: str) -> frozenset[str]:
    """List the knobs in the adjustments' conditions of a version."""
    held = (
        adjustment.when for adjustment in card.adjustments if in_range(version, adjustment.versions)
    )
    return frozenset(name for when in held for name in re.findall(r"\bknobs\.(\w+)", when))
