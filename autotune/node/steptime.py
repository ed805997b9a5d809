"""Seconds of one step: a roofline per component, communication, kernel latencies and host time.

Every component takes the longer of its memory traffic and its arithmetic. Ranks of a data-parallel
group meet at every layer's experts, so a step lasts as long as its slowest rank. Formulas, sources:
``docs/simulator-fit.md``.

A figure may be an array of draws, shape (draws,). Seconds of several steps, and of such draws, are
arrays.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from autotune.base import FloatDict
from autotune.base.arrays import Floats
from autotune.engines.cards import (
    Architecture,
    draft_layer,
    expert_layers,
    expert_width,
    feed_forward_elements,
    feed_forward_layers,
    mixer_layers,
    rank_layers,
    state_bytes,
    whole_layers,
)
from autotune.engines.layers import ALL, BF16, KEPT, WINDOW, AttentionGroup, LayerGroup

from .server import SimulatedServer

_CANDIDATE_BYTES = 8
_LEAST_TILE = 16
_NONE = 1e-12
"""Experts touched by a step without tokens: above zero because it is a divisor."""
_EVEN = 1.5
"""Shape of the gamma distribution of an expert's frequency; infinite = all equal."""
_OWN_ROUTES = 0.55
"""Share of experts of a further token of one sequence that earlier tokens of the step do not use.

Four tokens in a row touched 31 % fewer experts than as many of other sequences would, some 20 of
128 with 8 each:
https://cohere.com/blog/mixture-of-experts-models-get-more-from-speculative-decoding (April 2026).
"""
Seconds = float | Floats
"""Value of one prediction, or of several draws of the figures, shape (draws,)."""
Amount = float | Floats
"""Value of one step, or of several steps, shape (steps, 1), of each of their replicas (replicas,
steps, 1)."""


def longer(one: Seconds, other: Seconds) -> Seconds:
    """Return the maximum of two times, elementwise over draws if there are any."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        longest: Floats = np.maximum(one, other)
        return longest
    return max(one, other)


def _shorter(one: Seconds, other: Seconds) -> Seconds:
    return -longer(-one, -other)


class RankBatch(NamedTuple):
    """The batch of one attention replica in a step; of several steps' replicas arrays, shape
    (replicas, steps, 1).

    Attributes:
        context: their cached tokens, summed.
        attended: the same with each sequence's tokens cut to what sparse attention or a sliding
            window keeps.
        entries: what the kernels work through of these, padding included.
        prefill_pairs: pairs of a prompt token and a token before it, summed, that dense kernels
            compute.
        prefill_scored: such pairs that the indexer of sparse attention scores.
        prefill_attended: what sparse kernels compute of these; without sparse attention, pairs
            within the window.
        new_requests: requests whose prefill ends in this step.
        padding: tokens that a CUDA graph adds: projected, sent and given to experts like any other.
    """

    sequences: Amount = 0
    context: Amount = 0
    attended: Amount = 0
    entries: Amount = 0
    prefill_tokens: Amount = 0
    prefill_pairs: Amount = 0
    prefill_scored: Amount = 0
    prefill_attended: Amount = 0
    new_requests: Amount = 0
    prompts: Amount = 0
    padding: Amount = 0


Ranks = Sequence[RankBatch]
Step = tuple[Ranks, bool]
"""Batches of a step's ranks, and whether a graph covers them."""


class StepTime:
    """Step time of one server: of its model, or with `drafting` of the repeated draft layer."""

    def __init__(self, server: SimulatedServer, drafting: bool = False) -> None:
        a = server.architecture
        c = server.coefficients
        hw = server.hardware
        self._draft: StepTime | None = None
        if drafting:
            a = _draft_layer(a, of_its_own=server.setup.knobs.get("draft_model") is not None)
        elif server.speculative_tokens:
            self._draft = StepTime(server, drafting=True)
        self._server = server
        self._a = a
        self._c = c
        self._bandwidth = server.bandwidth
        self._expert_layers = expert_layers(a)
        self._decode_tokens = 1 + server.speculative_tokens
        tp = server.tensor_parallel
        parts = rank_layers(a, tp)
        in_fp4 = sum(p.bytes for p in parts if a.multiplied_in(p.weight_bytes) == "fp4")
        # Their scales are read too, and small matrices fill a GPU less.
        self._layer_bytes = sum(p.bytes for p in parts) + in_fp4 * (1 / c.fp4_read_share - 1)
        self._token_seconds = sum(
            2 * part.elements / (server.matrix_flops_of(part.weight_bytes) * c.gemm_share)
            for part in parts
        )
        self._head_elements = a.vocab_size * a.hidden_size / tp
        self._head_flops = hw.reached_flops("bf16") * c.gemm_share
        self._kv_bandwidth = server.bandwidth * c.kv_share
        if server.kv_type == "fp8" and not server.model.latent_attention:
            self._kv_bandwidth = self._kv_bandwidth * c.kv_fp8_share
        self._prepare_attention()
        # Recurrent layers.
        self._state_bytes = 2 * state_bytes(a, tp, c.state_element_bytes, recurrent=True)
        self._prompt_flops = sum(group.layers * group.prompt_flops for group in a.groups)
        self._linear_flops = hw.reached_flops("bf16") * c.linear_share * tp
        self._link = hw.link_gb_s * 1e9 / 2 * c.link_share
        # Hidden states that the kernels between matrix products read and write, bytes per token
        # over all layers: norms and residuals, queries, keys and values, gate and up projection.
        self._feed_forwards = feed_forward_layers(a)
        self._mixers = mixer_layers(a)
        layers = whole_layers(a)
        plain_parts = self._feed_forwards - self._expert_layers
        mixers = sum(g.layers * _passed_width(a, g) for g in a.groups) / tp
        dense = 3 * plain_parts * a.intermediate_size / tp
        residual = layers * 2 * (1 + a.residual_width) * a.hidden_size
        self._passed_bytes = 2 * BF16 * (residual + mixers + dense)
        # A plain layer is some ten kernels; experts, latent attention and an indexer are ten more
        # each.
        latent = sum(g.layers * g.latent + g.own_indexers for g in a.attention_groups)
        self._launches = layers + latent + self._expert_layers
        further = latent * c.latent_us + self._expert_layers * c.experts_us
        plain = c.layer_us + c.layer_extra_us + (c.quantise_us if in_fp4 else 0.0)
        self._latency = (layers * plain + further) * 1e-6
        # A collective's latency grows with the ranks that meet; the figure is that of eight.
        self._collective_s = c.collective_us * 1e-6 * (server.stage_gpus / 8) ** 0.5
        self._prepare_experts()

    def _prepare_attention(self) -> None:
        server = self._server
        c = self._c
        hw = self._server.hardware
        cost = self._attention = _attention_cost(server, self._a)
        self._sparse = cost.sparse
        self._dense_flops = hw.reached_flops("bf16") * c.attention_share
        sparse = hw.bf16_tflops * 1e12 * c.sparse_attention_share
        self._attention_flops = sparse if cost.sparse else self._dense_flops
        self._sparse_prefill_flops = sparse * c.sparse_prefill_gain
        # Ranks that share a context score their own tokens.
        shared = server.context_parallel
        self._indexer_flops = hw.fp8_tflops * 1e12 * c.indexer_share * shared

    def _prepare_experts(self) -> None:
        server = self._server
        a = self._a
        c = self._c
        ep = server.expert_parallel
        shards = server.stage_gpus / ep
        full = a.expert_intermediate_size
        width = full / shards
        self._expert_elements = feed_forward_elements(a)[0] / shards
        self._local_experts = a.experts / ep
        # The largest of so many normal values, in the mean (Blom).
        self._fullest = NormalDist().inv_cdf((ep - 0.375) / (ep + 0.25))
        # Tensor sharding leaves each expert a narrow matrix: kernels lose tiles.
        narrow = width / (width + c.moe_narrow_width) if a.experts else 1.0
        of_full = narrow * (full + c.moe_narrow_width) / full if full else 1.0
        self._moe_flops = (
            server.matrix_flops_of(a.weight_bytes, experts=True) * c.moe_share * of_full
        )
        self._imbalance = 1.0 + c.expert_imbalance * (1.0 - 1.0 / ep)
        # Hidden states of a row that an expert computes: both projections, and its output until
        # the sum.
        self._row_bytes = 2 * BF16 * (expert_width(a) + 3 * width)

    def seconds(self, batches: Ranks, graph: bool) -> float:
        """Return the duration of a step over all data-parallel ranks; in a CUDA graph the host
        launches one thing."""
        return float(self._seconds(batches, float(not graph)))

    def seconds_of(self, steps: Sequence[Step]) -> Floats:
        """Return the durations of several steps at once, shape (steps,), of draws of the figures
        (steps, draws)."""
        # An array of shape (steps, replicas, fields).
        ranks = np.array([batches for batches, _ in steps], dtype=np.float64)
        eager = np.array([[not graph] for _, graph in steps], dtype=np.float64)
        batch = RankBatch(*ranks.transpose(2, 1, 0)[..., None])
        seconds = np.asarray(self._seconds([batch], eager))
        return seconds if seconds.shape[1] > 1 else seconds[:, 0]

    def _seconds(self, batches: Ranks, eager: Amount) -> Seconds:
        c = self._c
        sequences = _most([b.sequences for b in batches])
        # In a round of a pipeline, each micro-batch passes every stage, all stages at work. One
        # request is in one micro-batch: with fewer requests than stages some stages idle.
        part: Amount = 1.0
        if self._server.pipeline_parallel > 1:
            requests = _most([b.sequences + b.prompts for b in batches])
            part = 1.0 / longer(1.0, _shorter(self._server.pipeline_parallel, requests))
        queries = self._decode_tokens
        device = self._device_seconds(batches, part, queries, queries)
        host = c.step_ms * 1e-3 + sequences * c.sequence_us * 1e-6
        if self._draft is not None and _any(sequences):
            further = queries - 2
            drafts = _positive(sequences)
            # The first pass is over all tokens of the step, each further one over the token that
            # was drafted last.
            device = device + drafts * self._draft._device_seconds(batches, part, queries, 1)
            if further:
                last = [RankBatch(b.sequences, b.context, b.attended, b.entries) for b in batches]
                device = device + drafts * (further * self._draft._device_seconds(last, part, 1, 1))
            host = host + drafts * (c.mtp_step_ms * 1e-3) + sequences * c.mtp_sequence_us * 1e-6
        launching: Amount = self._launches * c.eager_layer_us * 1e-6
        if self._sparse:
            launching = launching + sequences * queries * c.eager_sequence_us * 1e-6
        device = longer(device, launching * eager)
        return longer(device + host * (1.0 - c.host_overlap), host) * self._server.pace

    def _device_seconds(self, batches: Ranks, part: Amount, queries: int, sampled: int) -> Seconds:
        """Compute the GPUs' time for a micro-batch's pass through all layers; `sampled` tokens go
        through the head."""
        distinct = batches if len(batches) == 1 else list(dict.fromkeys(batches))
        rank = _most([self._rank_seconds(batch, part, queries, sampled) for batch in distinct])
        computed = [b.prefill_tokens + b.sequences * queries + b.padding for b in batches]
        tokens = _total(computed) * part
        fullest = _most(computed)
        sequences = _total([b.sequences for b in batches])
        routed = tokens - (1.0 - _OWN_ROUTES) * (queries - 1) * part * sequences
        passed = fullest * part * self._passed_bytes / self._bandwidth
        device = rank + self._experts_seconds(tokens, routed) + passed
        device = device + self._latency + self._communication_seconds(fullest * part, tokens)
        return device + self._context_seconds(batches, fullest, queries) * part

    def _rank_seconds(self, b: RankBatch, part: Amount, queries: int, sampled_each: int) -> Seconds:
        bandwidth = self._bandwidth
        tile = self._c.gemm_tile / 2
        decode = b.sequences * queries
        tokens = (b.prefill_tokens + decode + b.padding) * part
        projections = longer(self._layer_bytes / bandwidth, (tokens + tile) * self._token_seconds)
        sampled = (b.sequences * sampled_each + b.new_requests) * part
        flops = 2 * (sampled + tile) * self._head_elements / self._head_flops
        head = longer(self._head_elements * BF16 / bandwidth, flops) * _positive(sampled)
        attention = (
            self._decode_attention(b, queries)
            + self._prefill_attention(b)
            + self._linear_attention(b, queries)
        )
        return projections + head + attention * part

    def _decode_attention(self, b: RankBatch, queries: int) -> Seconds:
        """Read the latent values of each sequence once; all local heads multiply by them."""
        cost = self._attention
        traffic = cost.bytes[ALL] * b.context + cost.bytes[KEPT] * b.attended
        flops = cost.decode[ALL] * b.context + cost.decode[KEPT] * b.entries
        if cost.window:
            seen = _shorter(b.context, b.sequences * cost.window)
            traffic = traffic + cost.bytes[WINDOW] * seen
            flops = flops + cost.decode[WINDOW] * seen
        seconds = longer(traffic / self._kv_bandwidth, queries * flops / self._attention_flops)
        if not cost.index_flops:
            return seconds
        scoring = queries * b.context * cost.index_flops / self._indexer_flops
        return seconds + longer(b.context * cost.index_bytes / self._bandwidth, scoring)

    def _prefill_attention(self, b: RankBatch) -> Seconds:
        """Attend among prompt tokens; the indexer scores all pairs on every rank, as it is not
        sharded."""
        if not _any(b.prefill_tokens):
            return 0.0
        cost = self._attention
        pairs = b.prefill_pairs + b.prefill_scored
        flops = cost.prefill[ALL] * b.prefill_pairs
        seen: Amount = 0.0
        if cost.window:
            seen = _shorter(pairs, b.prefill_tokens * cost.window)
            flops = flops + cost.prefill[WINDOW] * seen
        if not self._sparse:
            return (flops + cost.prefill[KEPT] * b.prefill_attended) / self._dense_flops
        chosen = cost.decode[KEPT] * b.prefill_attended
        if cost.compressed:
            chosen = chosen + cost.decode[ALL] * pairs + cost.decode[WINDOW] * seen
        scoring = cost.index_flops * b.prefill_scored / self._indexer_flops
        return flops / self._dense_flops + chosen / self._sparse_prefill_flops + scoring

    def _linear_attention(self, b: RankBatch, queries: int) -> Seconds:
        """Read and write a state per sequence; chunks of a prompt are multiplied by it.

        Of drafted tokens the state after each is written, as only verification
        tells which is the last that counts.
        """
        if not self._prompt_flops:
            return 0.0
        states = (b.sequences * (1 + queries) / 2 + b.prompts) * self._state_bytes
        linear = b.prefill_tokens * self._prompt_flops / self._linear_flops
        return states / self._kv_bandwidth + linear

    def _experts_seconds(self, tokens: Amount, routed: Amount) -> Seconds:
        """Take the fullest GPU: n tokens `routed` independently touch E (1 - (1 + nk / sE)^-s) of E
        experts."""
        a = self._a
        if not a.experts or not _any(tokens):
            return 0.0
        local = self._local_experts
        chosen = a.experts_per_token / a.experts
        missed = (1.0 + routed * chosen / _EVEN) ** -_EVEN
        # One of several ranks has more touched experts than the others, by chance.
        root = np.sqrt if isinstance(missed, np.ndarray) else math.sqrt
        by_chance = self._fullest * root(local * missed * (1.0 - missed))
        touched = _shorter(local, longer(_NONE, local * (1.0 - missed) + by_chance))
        rows = tokens * chosen * local * self._imbalance
        # Kernels choose a tile near the rows that an expert has: 16 at least (vLLM: fused_moe.py
        # get_default_config).
        tile = _shorter(
            self._c.moe_tile, longer(_LEAST_TILE, 2 * tokens * chosen * local / touched)
        )
        padded = rows + touched * tile / 2
        bandwidth = self._bandwidth * self._c.moe_read_share
        traffic = touched * self._expert_elements * a.weight_bytes / bandwidth
        arithmetic = 2 * padded * self._expert_elements / self._moe_flops
        passed = rows * self._row_bytes / self._bandwidth
        return (longer(traffic, arithmetic) + passed) * self._expert_layers

    def _context_seconds(self, batches: Ranks, computed: Amount, queries: int) -> Seconds:
        """Compute the time of decode context parallelism's collectives, of `computed` tokens on the
        fullest replica.

        Per layer they gather queries and sums of the softmax, and reduce and scatter outputs (vLLM
        0.33: v1/attention/ops/dcp.py cp_lse_ag_out_rs). Indexers gather each rank's best positions
        with their scores, 8 bytes each (model_executor/layers/sparse_attn_indexer.py
        _merge_dcp_topk_global). Sparse attention does so for prompts too; dense attention of
        prompts gathers the context before a chunk, which is left out.
        """
        cost = self._attention
        others = self._server.context_parallel - 1
        if not others:
            return 0.0
        tokens = computed if self._sparse else _most([b.sequences for b in batches]) * queries
        latency = self._c.collective_us * 1e-6 * ((others + 1) / 8) ** 0.5
        moved = tokens * others * cost.gathered_width * BF16
        seconds: Seconds = cost.layers * 3 * latency + moved / self._link
        if cost.indexers:
            chosen = tokens * others * cost.top_k * _CANDIDATE_BYTES
            seconds = seconds + cost.indexers * (latency + chosen / self._link)
        return seconds

    def _communication_seconds(self, rank_tokens: Amount, all_tokens: Amount) -> Seconds:
        """Sum the all-reduces of the attention replica and the exchange with the experts of the
        others."""
        server = self._server
        tp = server.tensor_parallel
        stage = server.stage_gpus
        token = self._a.hidden_size * BF16
        latency = self._collective_s
        seconds: Seconds = 0.0
        if tp > 1:
            # Replicas of a dense model share nothing: each reduces its own feed-forward parts too.
            reductions = self._mixers + self._feed_forwards * (server.joined_replicas == 1)
            volume = 2 * (tp - 1) / tp * rank_tokens * token
            seconds = seconds + reductions * (latency + volume / self._link)
        if server.joined_replicas > 1:
            width = expert_width(self._a)
            if self._c.exchange == "gather" or server.expert_parallel < stage:
                volume = 2 * (stage - 1) / stage * all_tokens * width * BF16
            else:
                # An all-to-all moves, per rank, a token in fp8 to its experts' ranks and in bf16
                # back.
                missed = float((1.0 - 1.0 / stage) ** self._a.experts_per_token)
                moved = (stage - 1) * (1.0 - missed)
                volume = rank_tokens * moved * width * (1.0 + BF16)
            seconds = seconds + self._feed_forwards * (2 * latency + volume / self._link)
        return seconds


def _positive(value: Amount) -> Amount:
    """Return 1 for a positive amount, else 0."""
    if isinstance(value, np.ndarray):
        return np.asarray(value > 0, dtype=np.float64)
    return float(value > 0)


def _any(value: Amount) -> bool:
    return bool(value.any()) if isinstance(value, np.ndarray) else value > 0


def _most(values: Sequence[Amount]) -> Amount:
    """Return the largest value of all replicas: one each, or one array with all replicas, shape
    (replicas, …)."""
    if isinstance(values[0], np.ndarray):
        return np.asarray(values[0].max(axis=0))
    return max(values)


def _total(values: Sequence[Amount]) -> Amount:
    return np.asarray(values[0].sum(axis=0)) if isinstance(values[0], np.ndarray) else sum(values)


class _AttentionCost(NamedTuple):
    """Traffic and work of all attention layers on a rank, by what a query reads.

    Attributes:
        bytes: cache of one token; decode, prefill: operations of a query with it, by kernels over
            cached entries and by dense kernels of prompts.
        window: tokens of `WINDOW`; 0 if no group reads such.
        index_bytes, index_flops: of a token for the indexers.
        gathered_width: elements of a token's queries.
    """

    layers: int
    bytes: FloatDict
    decode: FloatDict
    prefill: FloatDict
    window: int
    sparse: bool
    compressed: bool
    index_bytes: float
    index_flops: float
    indexers: int
    top_k: int
    gathered_width: float


def _attention_cost(server: SimulatedServer, a: Architecture) -> _AttentionCost:
    tp = server.tensor_parallel
    shared = server.context_parallel
    limit = a.attended_limit
    sizes, decode, prefill = (dict.fromkeys((ALL, KEPT, WINDOW), 0.0) for _ in range(3))
    groups = list(a.attention_groups)
    window = 0
    for group in groups:
        # Ranks that share a context gather each other's queries. Dense kernels read a rank's own
        # entries; sparse ones run over all chosen ones and mask those of other ranks.
        dense_heads = heads = group.heads / tp
        if group.sparse:
            heads = max(dense_heads * shared, server.coefficients.sparse_head_tile)
        for kind, entries in group.reads(limit):
            each = group.layers * entries
            sizes[kind] += each * group.entry_bytes(server.kv_type, tp) / shared
            decode[kind] += 2 * each * heads * group.decode_width
            window = group.window if kind == WINDOW else window
            if not group.sparse:
                prefill[kind] += 2 * each * dense_heads * group.prefill_width
        if group.indexer and not group.compressed:
            prefill[ALL] += 2 * group.layers * dense_heads * group.prefill_width
    return _AttentionCost(
        layers=sum(group.layers for group in groups),
        bytes=sizes,
        decode=decode,
        prefill=prefill,
        window=window,
        sparse=any(group.sparse for group in groups),
        compressed=any(group.compressed for group in groups),
        index_bytes=sum(group.layers * group.index_bytes for group in groups) / shared,
        index_flops=sum(group.index_flops for group in groups),
        indexers=sum(group.own_indexers for group in groups),
        top_k=max((group.indexer.top_k for group in groups if group.indexer), default=0),
        gathered_width=sum(g.layers * g.heads / tp * g.decode_width for g in groups),
    )


def _passed_width(a: Architecture, group: LayerGroup) -> float:
    """Return the elements of queries, keys and values of a layer, in and out; of recurrent layers
    as many as attention has."""
    if isinstance(group, AttentionGroup):
        return group.passed_width
    return (2 * a.heads + 2 * a.kv_heads) * (a.v_head_dim or a.head_dim) * group.recurrent


@lru_cache
def _draft_layer(a: Architecture, *, of_its_own: bool) -> Architecture:
    """Return the draft layer, as one of the model's layers with full attention.

    A checkpoint may have its weights in bf16 where those of the other layers are of 4 or 8 bits. A
    draft model of its own (EAGLE-3) chooses among the most frequent words alone.
    """
    weights = {} if a.mtp_weight_bytes is None else dict.fromkeys(_WEIGHTS, a.mtp_weight_bytes)
    words = min(a.vocab_size, _DRAFT_WORDS) if of_its_own else a.vocab_size
    return draft_layer(a).model_copy(update={"vocab_size": words, **weights})


_WEIGHTS = ("weight_bytes", "attention_weight_bytes", "dense_weight_bytes")
_DRAFT_WORDS = 32_000
"""`draft_vocab_size` of https://huggingface.co/Tengyunw/qwen3_8b_eagle3 and of others that
SpecForge trains."""
