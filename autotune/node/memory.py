"""Memory plan of a GPU: its parts, the space for the KV cache, and the uncertainty."""

import math
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

from autotune.base import beside
from autotune.base.templates import write
from autotune.engines import Failure, FailureKind
from autotune.engines.cards import (
    expert_layers,
    kv_bytes_per_token,
    state_bytes,
    vocabulary_elements,
    weight_bytes_per_gpu,
    whole_layers,
    window_row_bytes,
)
from autotune.engines.entry import parse_yaml
from autotune.engines.layers import BF16, LatentAttention

from .server import SimulatedServer

_TEXTS = parse_yaml(beside(__file__, "memory.yaml"))
_FLOAT32 = 4.0
_NORMAL = NormalDist()
_STATES = 256
"""Sequences whose states, other than recurrent ones, are set aside."""
TOO_CLOSE = 0.1
"""Odds below which (9 to 1 either way) the plan is too close to call: the simulated server starts, with
a warning."""
_CLOSE_SIGMAS = -_NORMAL.inv_cdf(TOO_CLOSE)
_SHORTENED = 0.5
"""Odds that a launcher shortened a context that no option names, of a pool of `full_context_pool`
tokens: one such server ran (GPUStack's lab), another was refused."""

MEMORY_KEYS = (
    *("memory_verdict", "memory_margin_gb", "memory_margin_sigma_gb", "memory_fit_probability"),
    *("kv_cache_tokens", "longest_request_tokens", "kv_cache_gb", "weights_gb"),
)


class MemoryVerdict(StrEnum):
    """The margin against its uncertainty, in words."""

    FITS = "fits"
    DOES_NOT_FIT = "does_not_fit"
    TOO_CLOSE = "too_close_to_call"


class MemoryPlan(NamedTuple):
    """Bytes on one GPU.

    Attributes:
        weights: model weights, with the copies that the engine makes of them.
        activations: the largest step's tensors, growing with its tokens and, for sparse attention,
            with the context.
        runtime: the driver's context and the buffers of communication.
        kv_cache: what is left for the cache under the engine's fraction; negative = does not fit.
        kv_token: bytes that a replica's token takes, over the layers of one pipeline stage.
        capacity_tokens: tokens that one attention replica can keep, in whole blocks; where it is too
            close to call, what a start would prove.
        needed_tokens: tokens that the engine insists on at start (vLLM: one sequence of full
            length).
        shortened: odds that it insists on less, as something else shortened the context.
        spare: what is left beside the engine's share, where graphs and whatever is not in the share
            must fit.
        cache_sigma, spare_sigma: standard deviations of `kv_cache` and `spare`.
    """

    total: float
    weights: float
    activations: float
    runtime: float
    graphs: float
    kv_cache: float
    kv_token: float
    capacity_tokens: int
    longest_request_tokens: int
    needed_tokens: int
    shortened: float
    spare: float
    cache_sigma: float
    spare_sigma: float

    @property
    def cache_margin_bytes(self) -> float:
        """Return the bytes left after the least cache with which the server starts."""
        return self.kv_cache - self.needed_tokens * self.kv_token

    @property
    def margin_bytes(self) -> float:
        """Return the free bytes at the tightest place, in the engine's share or beside it; negative
        = out of memory."""
        return min(self.cache_margin_bytes, self.spare)

    @property
    def sigma_bytes(self) -> float:
        return self.spare_sigma if self.spare < self.cache_margin_bytes else self.cache_sigma

    @property
    def fit_probability(self) -> float:
        """Return the odds that it starts: that the engine's required cache exists."""
        needed = self.holds(self.needed_tokens)
        return needed + self.shortened * (self.holds(1) - needed)

    def holds(self, tokens: float) -> float:
        """Return the odds that a replica's cache holds this number of tokens: margin over
        deviation, assumed normal."""
        cache = _NORMAL.cdf((self.kv_cache - tokens * self.kv_token) / self.cache_sigma)
        return min(cache, _NORMAL.cdf(self.spare / self.spare_sigma))

    @property
    def starts(self) -> bool:
        """Return whether the simulated server starts: with odds of at least `TOO_CLOSE`."""
        return self.fit_probability >= TOO_CLOSE

    @property
    def verdict(self) -> MemoryVerdict:
        """Describe the odds in words."""
        if min(self.fit_probability, 1 - self.fit_probability) >= TOO_CLOSE:
            return MemoryVerdict.TOO_CLOSE
        return MemoryVerdict.FITS if self.fit_probability > 0.5 else MemoryVerdict.DOES_NOT_FIT

    def to_json(self) -> dict[str, float | str]:
        """Return the flat keys of ``autotune simulate``: GB are 10^9 bytes per GPU, tokens those of
        one replica."""
        values = (
            self.verdict.value,
            self.margin_bytes / 1e9,
            self.sigma_bytes / 1e9,
            self.fit_probability,
            self.capacity_tokens,
            self.longest_request_tokens,
            max(0.0, self.kv_cache) / 1e9,
            self.weights / 1e9,
        )
        return dict(zip(MEMORY_KEYS, values, strict=True))


def _weight_bytes(server: SimulatedServer) -> float:
    """Sum the checkpoint's weights, the router in bf16, the additions of latent attention, and what
    options add.

    Latent attention keeps a bf16 copy of the up-projections of keys and values for decoding (vLLM's
    ``process_weights_after_loading``, SGLang's ``w_kc`` and ``w_vc``); vLLM 0.7 kept their products
    with the query's up-projection and with the output projection instead.
    """
    a = server.architecture
    tp = server.tensor_parallel
    stages = server.pipeline_parallel
    mtp = server.speculative_tokens > 0
    gpus = server.stage_gpus
    spread = server.expert_parallel
    checkpoint = weight_bytes_per_gpu(a, tp, gpus, stages, mtp, spread)
    router = a.experts * a.hidden_size * BF16 * expert_layers(a)
    copies = 0.0
    for group in a.groups:
        if isinstance(group, LatentAttention) and group.latent:
            width = group.qk_nope_head_dim + group.v_head_dim
            element = BF16
            if server.coefficients.latent_products:
                width = group.q_lora_rank + a.hidden_size
                element = a.weight_bytes
            copies += group.heads / tp * group.kv_lora_rank * width * element * group.layers
    weights = checkpoint + (router + copies) / stages + a.extra_gb * 1e9
    # Layers may be moved to the host's memory, the vocabulary may not.
    return max(weights, vocabulary_elements(a) * BF16 / tp / stages)


def _activation_bytes(server: SimulatedServer) -> tuple[float, float]:
    """Return the largest step's tensors, those of its layers or of sampling after it, and their
    standard deviation.

    Hidden states: every rank of a data-parallel group sees the tokens of all ranks at the experts.
    Sampling, where the engine profiles it, sorts the logits of all running sequences in float32.
    Sparse attention adds what grows with the context: the indexer's float32 scores of prompts
    (tokens of a step x context, DeepGEMM's ``fp8_mqa_logits``) and of decoding (sequences x
    context), where the engine profiles them, and a workspace of whole latent sequences (vLLM's
    FlashMLA-sparse backend: 5 x max_model_len x 576 x 2 bytes).
    """
    a = server.architecture
    c = server.coefficients
    copy = server.token_budget * a.hidden_size * BF16
    layers = copy * (server.joined_replicas * c.activation_copies + 2 * (a.residual_width - 1))
    for group in a.attention_groups:
        if not group.indexer:
            continue
        context = server.context_length / group.entry_tokens
        if c.indexer_logits_gb:
            sequences = min(server.running_limit, server.graph_batch)
            prompts = min(server.token_budget * context * _FLOAT32, c.indexer_logits_gb * 1e9)
            layers += prompts + sequences * context * _FLOAT32
        layers += c.workspace_contexts * context * group.cached_width * BF16
    logits = c.sampler_copies * server.running_limit * a.vocab_size * _FLOAT32
    sampling = logits + copy
    if layers > sampling:
        return layers, layers * c.memory_sigma_share
    return sampling, logits * c.sampler_sigma_share


def _graph_bytes(server: SimulatedServer) -> float:
    """Sum CUDA graphs by how many batch sizes are captured: 1, 2, 4, every 8th up to 256 and every
    16th beyond.

    vLLM and SGLang both step so. Nodes grow with the layers; that all of it does is a
    simplification.
    """
    batch = server.graph_batch
    if not batch:
        return 0.0
    sizes = 3 + min(batch, 256) // 8 + max(0, batch - 256) // 16
    layers = whole_layers(server.architecture) / server.pipeline_parallel
    return sizes * layers * server.coefficients.graph_mb_per_layer * 1e6


def _kv_token_bytes(server: SimulatedServer) -> float:
    a = server.architecture
    c = server.coefficients
    # Sequences shorter than a window take more of the pool per token than this mean.
    length = server.context_length if c.sliding_cache == "window" else 0
    per_token = kv_bytes_per_token(
        a, server.kv_type, server.tensor_parallel, length, c.latent_cache_alignment
    )
    return per_token / server.pipeline_parallel / server.context_parallel


def _recurrent_bytes(server: SimulatedServer) -> float:
    """Return the bytes of a running sequence's recurrent states, in each of the engine's slots and
    once more per drafted token."""
    rank = server.tensor_parallel, server.coefficients.state_element_bytes
    slots = server.coefficients.state_slots + server.speculative_tokens
    recurrent = state_bytes(server.architecture, *rank, recurrent=True)
    return slots * recurrent / server.pipeline_parallel


def _window_bytes(server: SimulatedServer) -> float:
    """Return the bytes of a running sequence's uncompressed tokens."""
    a = server.architecture
    c = server.coefficients
    row = window_row_bytes(a)
    if not row:
        return 0.0
    rank = server.tensor_parallel, c.state_element_bytes
    window = state_bytes(a, *rank) - state_bytes(a, *rank, recurrent=True)
    return (window + c.window_further_rows * row) / server.pipeline_parallel


def sequence_tokens(server: SimulatedServer) -> float:
    """Return the tokens of the pool whose place a running sequence's states take."""
    c = server.coefficients
    taken = 0.0 if c.state_share else _recurrent_bytes(server)
    if c.state_block_unit:
        taken += _window_bytes(server)
    return taken / _kv_token_bytes(server)


def most_running(server: SimulatedServer, capacity: float) -> int:
    """Return the most sequences of a replica: the engine's limit, or those that have a place in the
    states' own pool, beside one of this capacity for tokens."""
    share = server.coefficients.state_share
    recurrent = _recurrent_bytes(server)
    if not share or not recurrent:
        return server.running_limit
    states = capacity * _kv_token_bytes(server) * share / (1 - share)
    return max(1, min(server.running_limit, int(states / recurrent)))


def plan_memory(server: SimulatedServer) -> MemoryPlan:
    """Plan the memory of one GPU; all GPUs of a server are alike."""
    a = server.architecture
    c = server.coefficients
    hardware = server.hardware
    total = (hardware.driver_memory_gb or hardware.memory_gb) * 1e9
    weights = _weight_bytes(server)
    graphs = _graph_bytes(server)
    activations, activation_sigma = _activation_bytes(server)
    # Each further rank of a pipeline stage has buffers of collectives; an all-to-all adds its own.
    exchange = c.exchange_buffer_gb if server.stage_gpus > 1 else 0.0
    context = c.context_gb * 1e9
    communication = ((server.stage_gpus - 1) * c.communicator_gb + exchange) * 1e9
    fraction = server.memory_fraction
    share = c.memory_sigma_share
    # Deviations count the guessed parts of the cache and of the spare memory.
    if c.fraction_of == "total":
        inside = graphs if c.graphs_in_share else 0.0
        kv_cache = total * fraction - weights - activations - communication - inside
        spare = total * (1 - fraction) - context - (graphs - inside)
        cache_sigma = activation_sigma + share * (communication + inside)
        spare_sigma = share * (graphs - inside)
    elif c.fraction_of == "static":
        free = total - context - communication
        kv_cache = free * fraction - weights
        spare = free * (1 - fraction) - activations - graphs
        cache_sigma = share * communication
        spare_sigma = activation_sigma + share * graphs
    else:
        spare = total - context - communication - weights - activations - graphs
        kv_cache = spare * fraction
        cache_sigma = spare_sigma = activation_sigma + share * (communication + graphs)
    if kv_cache > 0:
        # Recurrent states have a share of their own, or one sequence at least has its own. Windows
        # are set aside for the running sequences where they have no place among the tokens.
        recurrent = _recurrent_bytes(server)
        taken = c.state_share * kv_cache if c.state_share and recurrent else recurrent
        sequences = 1 if c.state_block_unit else min(server.running_limit, _STATES)
        taken += sequences * _window_bytes(server)
        prompts = c.window_rows_of_prompts * min(server.token_budget, server.context_length)
        taken += prompts * window_row_bytes(a) / server.pipeline_parallel
        kv_cache -= min(kv_cache / 2, taken)
    base = c.memory_sigma_gb * 1e9
    cache_sigma = math.hypot(base, cache_sigma)
    kv_token = _kv_token_bytes(server)
    block = server.block_tokens
    capacity = int(max(0.0, kv_cache) / kv_token) // block * block
    fitted = server.fits_context
    whole = bool(c.full_context_option) and not fitted
    untold = whole and server.setup.knobs.get("context_length") is None
    shortened = untold and capacity >= c.full_context_pool
    needed = server.context_length if whole else 1
    if needed * kv_token <= kv_cache + _CLOSE_SIGMAS * cache_sigma:
        # A server that starts has what it needs, whatever was planned.
        capacity = max(capacity, -(-needed // block) * block)
    # One block is left free for sequences that hold none.
    longest = min(server.context_length, capacity - fitted * block)
    return MemoryPlan(
        total=total,
        weights=weights,
        activations=activations,
        runtime=context + communication,
        graphs=graphs,
        kv_cache=kv_cache,
        kv_token=kv_token,
        capacity_tokens=capacity,
        longest_request_tokens=max(0, longest),
        needed_tokens=needed,
        shortened=shortened * _SHORTENED,
        spare=spare,
        cache_sigma=cache_sigma,
        spare_sigma=math.hypot(base, spare_sigma),
    )


def start_failure(server: SimulatedServer, plan: MemoryPlan) -> Failure | None:
    """Return the failure of the start in the engine's words; None if it starts."""
    if server.gpus > server.setup.gpus:
        message = f"The layout needs {server.gpus} GPUs, there are {server.setup.gpus}; lower tensor or data parallelism."
        return Failure(FailureKind.BAD_ARGUMENT, message, "")
    if plan.starts:
        return None
    message = _said("failure", server, plan)
    return Failure(FailureKind.OUT_OF_MEMORY, message, _said("excerpt", server, plan))


def start_warning(server: SimulatedServer, plan: MemoryPlan) -> str | None:
    """Return what speaks against a start that is too close to call, and the remedy; None if
    nothing does."""
    too_close = plan.verdict is MemoryVerdict.TOO_CLOSE
    return _said("warning", server, plan) if too_close else None


def _said(name: str, server: SimulatedServer, plan: MemoryPlan) -> str:
    room = plan.kv_cache - _CLOSE_SIGMAS * plan.cache_sigma
    blocks = int(room / plan.kv_token) // server.block_tokens
    return write(
        _TEXTS[name],
        plan=plan,
        server=server,
        c=server.coefficients,
        fitting=blocks * server.block_tokens,
        said=lambda other: _said(other, server, plan),
    )


def startup_s(server: SimulatedServer, plan: MemoryPlan) -> float:
    """Return the seconds until a server is ready: weights, if it reads them, and everything
    else."""
    c = server.coefficients
    return c.start_s + plan.weights * server.gpus / 1e9 / c.load_gb_s
