"""Coefficients of an engine for the arithmetic: its documented behaviour, and the fitted figures.

The arithmetic is the same for every engine. Its behaviour stands in
``search_spaces/<engine>/simulator.yaml``, written by hand; the figures are composed in
`autotune.node.calibration`.
"""

import math
import re
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from autotune.base import FloatDict, Json, UnknownName
from autotune.engines import Entry, ModelCard
from autotune.engines.entry import VersionRange, spaces_root
from autotune.engines.expression import Expression, Scope, evaluate
from autotune.engines.library import documents, load, packaged
from autotune.engines.schema import Conditional, holding

Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]


class Behaviour(Entry):
    """Behaviour of an engine, from its sources and documentation: scheduling, memory, constants of
    its kernels.

    Nothing here is fitted. ``*_share`` multiplies a rate; 1 would be the hardware's peak.
    """

    # Defaults of the engine
    max_running_requests: PositiveInt
    max_batched_tokens: int | None
    """Default of the knob; None: as many as the context is long."""
    memory_fraction: Expression
    """Default of the knob, over `chunk, graph, drafts, dp, gpus, memory_mb`."""
    cuda_graph_max_batch: NonNegativeInt
    cuda_graph_steps: tuple[tuple[int, int, int], ...]
    """Captured sizes: first, last, step."""
    cuda_graph_counts: Literal["tokens", "sequences"]
    """Unit of a captured size, per rank."""
    cuda_graph_prompts: bool
    """Whether a step with prompt tokens may run in a (piecewise) graph."""
    cuda_graph_idle: bool = True
    """Whether ranks run a graph while one of them idles."""
    cuda_graph_padding: bool
    """Whether a batch is padded to a captured size, or needs its very own."""
    prefix_caching: bool
    block_tokens: PositiveInt
    """Tokens per block or page of the KV pool, where no knob says."""
    kv_dense: str
    """KV type that `auto` means for latent attention."""
    kv_sparse: str
    """KV type that `auto` means for sparse attention."""

    # Scheduling
    prefill: Literal["mixed", "separate"]
    prefill_idles_ranks: bool
    """Whether no rank decodes while another one computes prompts alone."""
    chunked_prefill: bool
    """False: only whole prompts that fit what is left of a step's budget."""
    block_chunks: Literal["tokens", "cut", "count"]
    """End of a chunk: anywhere; at a block's end; there, with prompts counted in whole blocks."""
    max_prefill_tokens: int | None
    """Prompt tokens after which a step admits no further request."""
    queue: Literal["first_come", "longest_prefix"]
    reserve_share: NonNegativeFloat
    """Share of the running requests' remaining output that is reserved; 1 = all, never evicts."""
    reserve_new: Share
    """The same share of a request that is being admitted."""
    reserve_clip: int | None
    """Most output tokens of one request that are counted for the reservation."""
    reserve_least: Share
    """Share of `reserve_share` to which it falls."""
    reserve_steps: PositiveInt
    """Decode steps in which it falls."""
    reserve_dp_factor: PositiveFloat
    """Factor on `reserve_share` with several attention replicas."""
    watermark: Annotated[float, Field(ge=0, lt=1)]
    """Share of the pool that admission leaves free."""
    victim: Literal["latest", "fewest_tokens"]
    """The sequence that a full pool preempts."""
    requeue: Literal["front", "back"]
    """The end of the queue where it waits then."""
    retract_steps: PositiveInt
    """Decode steps for which a preemption makes room."""
    dispatch: Literal["round_robin", "waiting_weighted", "kv_pressure", "even"]
    running_limit_per: Literal["rank", "node"]
    token_budget_per: Literal["rank", "node", "half"]
    """Unit of the token budget; half: of the given one, with replicas."""

    # Memory
    fraction_of: Literal["total", "static", "free"]
    """Base and content of the memory fraction.

    total: of the GPU, for weights, communicators, a profiled step and the cache (vLLM);
    static: of the memory free at start, for weights and cache alone (SGLang);
    free: of what weights and a profiled step leave, for the cache (TensorRT-LLM).
    """
    full_context_option: str = ""
    """Option that shortens the context, of an engine that starts only if one sequence of full
    length fits (vLLM)."""
    full_context_pool: PositiveFloat = math.inf
    """Tokens of a KV pool from which on it is open whether a launcher shortened a context that no
    option names; infinite: it never is."""
    context_gb: NonNegativeFloat
    """The driver's context and libraries, allocated before the engine measures free memory."""
    communicator_gb: NonNegativeFloat
    """Buffers of collectives, for each further rank of a stage."""
    exchange_buffer_gb: NonNegativeFloat = 0
    """Buffers of an all-to-all between expert ranks."""
    graph_mb_per_layer: NonNegativeFloat
    """Memory of a CUDA graph, for each captured batch size and layer."""
    graphs_in_share: bool
    """Whether the share of `fraction_of: total` holds the graphs too."""
    activation_copies: PositiveFloat
    """Live copies of a step's hidden states."""
    sampler_copies: NonNegativeFloat
    """Live float32 copies of the logits when the profiled step samples for all running
    sequences."""
    indexer_logits_gb: NonNegativeFloat = 0
    """Most scores of tokens x context in float32 that the profiled step makes of prompts; with them
    it makes those of decoding."""
    sliding_cache: Literal["window", "all"] = "all"
    """Cache of a layer with a sliding window: its window, or every token."""
    state_element_bytes: PositiveFloat = 2
    """Bytes of a recurrent state's element, where the checkpoint leaves its type to the engine."""
    window_further_rows: NonNegativeInt = 0
    """Tokens that compressed attention keeps uncompressed per running sequence beyond its window
    and a block; the states that go with them in the same unit."""
    window_rows_of_prompts: NonNegativeFloat = 0
    """The same for each prompt token of a step, until it is compressed."""
    state_block_unit: NonNegativeInt = 0
    """Tokens of latent attention of which blocks are multiples, in an engine whose blocks hold a
    recurrent layer's state too; 0: states are kept elsewhere."""
    state_slots: PositiveInt = 1
    """Recurrent states that a running sequence has, with those kept for the prefix cache."""
    state_share: Annotated[float, Field(ge=0, lt=1)] = 0
    """Share of the cache's memory that is the states' own; 0: they take places of tokens."""
    workspace_contexts: NonNegativeFloat
    """Full-length latent sequences kept as workspace."""
    latent_products: bool = False
    """Whether products of latent up-projections with their neighbours are kept (vLLM 0.7)."""
    latent_cache_alignment: PositiveInt = 1
    """Bytes to which the cache of a token and layer is padded."""
    memory_sigma_gb: PositiveFloat
    """Standard deviation of the memory that no part explains, per GPU."""
    sampler_sigma_share: NonNegativeFloat = 0
    """Standard deviation of `sampler_copies`, as a share."""
    memory_sigma_share: NonNegativeFloat
    """Standard deviation of layers' tensors, communicators and graphs, as a share."""

    # Kernels
    layer_extra_us: NonNegativeFloat = 0
    """Latencies of kernels that only some settings need."""
    gemm_tile: NonNegativeInt = 128
    """Rows of a matrix kernel's tile: half of one is idle."""
    host_overlap: Share = 0
    """Share of host time that the GPU's work hides."""
    moe_tile: PositiveInt
    """Rows to which an expert's batch is padded."""
    sparse_head_tile: PositiveInt
    """Heads to which sparse kernels pad."""
    sparse_padding: Literal["none", "prefill", "both"]
    """Steps whose sparse kernels process `top_k` entries per query even if there are fewer."""
    sparse_prefill_gain: PositiveFloat = 1
    """Factor on `sparse_attention_share` in prefill."""
    dense_prompts: bool
    """Whether prompts that fit `top_k` are computed by dense kernels, without scores."""
    exchange: Literal["gather", "dispatch"] = "gather"
    """Exchange with experts of other replicas: all-gather and reduce-scatter, or all-to-all."""

    # Front end and speculation
    front_end_per: Literal["server", "rank"]
    """Unit with a front end of its own, where no knob says."""
    latency_ms: NonNegativeFloat = 0
    """Time from client to engine and back beyond that, which delays no other request."""
    prompt_token_us: NonNegativeFloat
    """Time of the tokeniser per prompt token, in addition to `request_ms`."""
    output_token_us: NonNegativeFloat
    """Time of the detokeniser per generated token, one after the other."""
    output_piece_us: NonNegativeFloat = 0
    """Time of detokeniser and HTTP per piece of an answer: `stream_interval` tokens."""
    draft_acceptance: PositiveShare = 1.0
    """Factor on the model's acceptance."""
    forced_on_text: bool = False
    """Whether drafts are right where they are forced to be, whatever the prompt."""
    layout_spread: NonNegativeFloat = 0.0
    """Sigma of ln(duration of a step), by layout: an unexplained effect."""

    # Start
    load_gb_s: PositiveFloat
    """Rate at which the whole node loads weights."""
    start_s: NonNegativeFloat
    """Time of a start without loading weights."""


class Figures(Entry):
    """Speed of an engine: the fitted figures, each with its range in ``physics.yaml``.

    ``*_share`` multiplies a rate; 1 would be the hardware's achieved (or, for links and sparse
    attention, peak) rate. Where a prediction is made for several draws of the figures at once, a
    figure is an array, shape (draws,).
    """

    gemm_share: PositiveFloat
    """Dense matrix kernels, of `achieved_flops`."""
    fp8_share: PositiveFloat
    """The same in fp8 with a scale per tensor or channel, of `gemm_share`."""
    fp8_block_share: PositiveFloat
    """The same in fp8 with a scale per block of weights, of `gemm_share`; of experts' kernels."""
    fp4_share: PositiveFloat
    """The same in fp4, of `gemm_share`; of experts' kernels."""
    fp4_read_share: PositiveFloat
    """Dense fp4 weights in decode, of the bandwidth."""
    quantise_us: NonNegativeFloat
    """Latencies of a layer's kernels that quantise activations to fp4."""
    unpack_share: PositiveFloat
    """The same with weights unpacked to bf16 before use, of `gemm_share`."""
    moe_share: PositiveFloat
    """Expert kernels of full width, of `achieved_flops`."""
    moe_unpack_share: PositiveFloat
    """The same with weights unpacked to bf16 before use, of `moe_share`."""
    moe_read_share: PositiveFloat
    """Experts with few rows each, of the bandwidth of decode kernels."""
    moe_narrow_width: NonNegativeFloat
    """Expert width at which tensor-sharded experts run at half rate."""
    expert_imbalance: NonNegativeFloat
    """Extra load of the fullest of infinitely many expert ranks."""
    bandwidth_share: PositiveFloat
    """Weights and KV in decode, of `achieved_bandwidth`."""
    kv_share: PositiveFloat
    """KV cache that decode attention reads, of `bandwidth_share`."""
    kv_fp8_share: PositiveFloat
    """The same in fp8 with heads of keys and values, of `kv_share`: converted on the way."""
    attention_share: PositiveFloat
    """Dense attention kernels, of `achieved_flops` in bf16."""
    linear_share: PositiveFloat
    """Chunks of linear attention in prefill, of `achieved_flops` in bf16."""
    sparse_attention_share: PositiveFloat
    """Sparse attention kernels, of the bf16 peak."""
    indexer_share: PositiveFloat
    """Indexer of sparse attention, of the fp8 peak."""
    link_share: PositiveShare
    """Collectives, of the one-way link bandwidth."""
    collective_us: NonNegativeFloat
    """Latency of one collective."""
    layer_us: NonNegativeFloat
    """Kernel latencies of a layer of a plain dense decoder."""
    experts_us: NonNegativeFloat
    """Further latencies of a layer with experts: routing and grouped products."""
    latent_us: NonNegativeFloat
    """Further latencies of latent attention's products; an indexer has as much."""
    step_ms: NonNegativeFloat
    """Host time per step."""
    sequence_us: NonNegativeFloat
    """Host time per running sequence and step."""
    eager_layer_us: NonNegativeFloat
    """Host time of ten kernels when no CUDA graph holds the batch."""
    eager_sequence_us: NonNegativeFloat
    """Further host time per sequence then, with sparse attention only."""
    request_ms: NonNegativeFloat
    """Time of the front end per request, one after the other."""
    mtp_step_ms: NonNegativeFloat
    """Host time per step that drafts, however many tokens."""
    mtp_sequence_us: NonNegativeFloat
    """Host time per running sequence then: kept and drafted tokens."""


class Coefficients(Behaviour, Figures):
    """Behaviour and fitted figures of an engine for one configuration."""


class Adjustment(Conditional):
    """Difference under a condition over ``knobs, model, hardware, gpus``; all that hold apply, in
    order."""

    where: Expression = "True"
    """Condition over ``model, hardware, gpus``; elsewhere the knobs in `when` are not read."""
    set: Json = {}
    multiply: FloatDict = {}
    add: FloatDict = {}
    reason: str

    def holds(self, scope: Scope, version: str) -> bool:
        return bool(evaluate(self.where, scope)) and super().holds(scope, version)


class Era(Conditional):
    """Versions with software of one period. Engines share an era's name: they became faster
    together.

    The condition is over `model`: the models measured at that time.
    """

    name: str
    versions: VersionRange


class SpeedCard(Entry):
    """A document of ``search_spaces/<engine>/simulator.yaml``."""

    engine: str
    eras: list[Era] = []
    base: Behaviour
    adjustments: list[Adjustment] = []
    source: str

    def era(self, version: str, model: ModelCard) -> str | None:
        held = holding(self.eras, {"model": model}, version)
        return held[0].name if held else None


@cache
def speed_card(engine: str) -> SpeedCard:
    """Return the packaged card of an engine; raises `UnknownName` when there is none."""
    path = packaged("simulation", engine)
    if not path.is_file():
        hint = f"Its figures would stand in {path}; a real server is measured with --on process or autotune bench."
        raise UnknownName(
            "engine for simulation", engine, dict(documents(spaces_root(), "simulation")), hint
        )
    return load(path, SpeedCard)


def conditional_knobs(card: SpeedCard, version: str, scope: Scope) -> frozenset[str]:
    """List the knobs in the adjustments' conditions of a version, model and node."""
    return frozenset(
        name
        for adjustment in card.adjustments
        if adjustment.is_for(version) and evaluate(adjustment.where, scope)
        for name in re.findall(r"\bknobs\.(\w+)", adjustment.when)
    )
