"""Seconds of one step: a roofline per component, communication, kernel latencies and host time.

Every component takes the longer of its memory traffic and its arithmetic. Ranks of a data-parallel group meet at
every layer's experts, so a step lasts as long as its slowest rank. Formulas and their sources: ``docs/simulator.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.node.weights import (
    BF16,
    expert_layers,
    indexer_bytes_per_token_layer,
    indexer_layers,
    kv_bytes_per_token_layer,
    layer_weights,
    rank_layers,
)


@dataclass(frozen=True, slots=True)
class RankBatch:
    """What one attention replica computes in a step.

    Attributes:
        sequences: running sequences that decode.
        context: their cached tokens, summed.
        attended: the same with each sequence's tokens cut to what sparse attention or a sliding window keeps.
        entries: what the kernels work through of these, padding included.
        prefill_tokens: prompt tokens computed.
        prefill_pairs: pairs of a prompt token and a token before it, summed, that dense kernels compute.
        prefill_scored: such pairs that the indexer of sparse attention scores.
        prefill_attended: what sparse kernels compute of these; without sparse attention, pairs within the window.
        new_requests: requests whose prefill ends in this step.
        prompts: requests of which this step computes prompt tokens.
        padding: tokens that a CUDA graph adds: projected, sent and given to experts like any other.
    """

    sequences: int = 0
    context: float = 0.0
    attended: float = 0.0
    entries: float = 0.0
    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    prefill_scored: float = 0.0
    prefill_attended: float = 0.0
    new_requests: int = 0
    prompts: int = 0
    padding: int = 0


class StepTime:
    """The step time of one server."""

    def __init__(self, server: SimulatedServer) -> None:
        a, c, hw = server.architecture, server.coefficients, server.hardware
        self._server, self._a, self._c = server, a, c
        self._layers = a.layers
        self._expert_layers = expert_layers(a)
        self._decode_tokens = 1 + server.speculative_tokens
        tp = server.tensor_parallel
        parts = rank_layers(a, tp)
        self._layer_bytes = sum(part.bytes for part in parts)
        self._token_seconds = sum(
            2 * part.elements / (server.matrix_flops_of(part.weight_bytes) * c.gemm_share) for part in parts
        )
        self._head_elements = a.vocab_size * a.hidden_size / tp
        self._kv_layer = kv_bytes_per_token_layer(a, server.kv_type, tp) / server.context_parallel
        self._bf16 = hw.bf16_tflops * 1e12
        self._fp8 = hw.fp8_tflops * 1e12
        self._head_flops = self._bf16 * hw.achieved_flops * c.gemm_share
        local_heads = a.heads / tp
        self._dense_heads = local_heads
        self._heads = max(local_heads, c.sparse_head_tile) if a.indexer else local_heads
        latent = a.kv_lora_rank > 0
        # Absorbed latent attention multiplies by the cached width; prefill without absorption by the heads' own.
        self._decode_width = 2 * a.kv_lora_rank + a.qk_rope_head_dim if latent else 2 * a.head_dim
        v = a.v_head_dim or a.head_dim
        self._prefill_width = a.head_dim + v
        self._dense_flops = self._bf16 * c.attention_share
        self._attention_flops = self._bf16 * (c.sparse_attention_share if a.indexer else c.attention_share)
        self._indexer_flops = self._fp8 * c.indexer_share
        self._indexer_layers = indexer_layers(a)
        self._indexer_keys = indexer_bytes_per_token_layer(a)
        self._cut_layers = 1.0 if a.indexer else a.sliding_layers / a.layers
        self._prepare_experts(server)
        self._link = hw.link_gb_s * 1e9 / 2 * c.link_share

    def _prepare_experts(self, server: SimulatedServer) -> None:
        a, c = self._a, self._c
        ep = server.expert_parallel
        shards = server.stage_gpus / ep
        width = a.expert_intermediate_size / shards
        self._expert_elements = layer_weights(a).expert / shards
        self._local_experts = a.experts / ep
        # Tensor sharding leaves each expert a narrow matrix: kernels lose tiles.
        narrow = width / (width + c.moe_narrow_width) if a.experts else 1.0
        full = a.expert_intermediate_size
        of_full = narrow * (full + c.moe_narrow_width) / full if full else 1.0
        self._moe_flops = server.matrix_flops_of(a.weight_bytes) * c.moe_share * of_full
        self._imbalance = 1.0 + c.expert_imbalance * (1.0 - 1.0 / ep)

    def seconds(self, batches: Sequence[RankBatch], graph: bool) -> float:
        """Duration of a step over all ranks.

        Args:
            batches: one per data-parallel rank.
            graph: whether a CUDA graph holds the step, so that the host launches one thing.
        """
        c = self._c
        # A round of a pipeline: each of its micro-batches passes every stage, all stages at work. One request is in one
        # micro-batch: of fewer requests than stages some stages idle.
        requests = max(b.sequences + b.prompts for b in batches)
        part = 1.0 / max(1, min(self._server.pipeline_parallel, requests))
        rank = max(self._rank_seconds(b, part) for b in batches)
        computed = [b.prefill_tokens + b.sequences * self._decode_tokens + b.padding for b in batches]
        tokens, fullest = sum(computed), max(computed)
        device = rank + self._experts_seconds(tokens * part)
        device += self._communication_seconds(fullest * part, tokens * part)
        device += self._layers * c.layer_us * 1e-6
        sequences = max(b.sequences for b in batches)
        host = c.step_ms * 1e-3 + sequences * c.sequence_us * 1e-6
        if self._decode_tokens > 1 and sequences:
            drafted = self._decode_tokens - 1
            device *= 1.0 + drafted / self._layers
            host += drafted * (c.mtp_step_ms * 1e-3 + sequences * c.mtp_sequence_us * 1e-6)
        if not graph:
            launching = self._layers * c.eager_layer_us * 1e-6
            if self._a.indexer is not None:
                launching += sequences * self._decode_tokens * c.eager_sequence_us * 1e-6
            device = max(device, launching)
        return device + host

    def _rank_seconds(self, b: RankBatch, part: float) -> float:
        """Projections, dense and shared feed-forward parts, head and attention of one rank."""
        bandwidth = self._server.bandwidth
        decode = b.sequences * self._decode_tokens
        tokens = (b.prefill_tokens + decode + b.padding) * part
        projections = max(self._layer_bytes / bandwidth, tokens * self._token_seconds)
        sampled = (decode + b.new_requests) * part
        head = 0.0
        if sampled:
            flops = 2 * sampled * self._head_elements / self._head_flops
            head = max(self._head_elements * BF16 / bandwidth, flops)
        return projections + head + self._decode_attention(b) * part + self._prefill_attention(b) * part

    def _decode_attention(self, b: RankBatch) -> float:
        """Attention over the cache: sequences read their latent values once, all local heads multiply by them."""
        if not b.sequences:
            return 0.0
        layers, queries, indexer, cut = self._layers, self._decode_tokens, self._a.indexer, self._cut_layers
        keys = self._indexer_keys
        attended, entries = (cut * part + (1.0 - cut) * b.context for part in (b.attended, b.entries))
        traffic = attended * (self._kv_layer - keys / self._server.context_parallel) * layers / self._server.bandwidth
        # Ranks that share a context gather each other's queries: fewer entries each, as many times more heads.
        flops = 2 * queries * entries * self._heads * self._decode_width * layers
        seconds = max(traffic, flops / self._attention_flops)
        if indexer:
            scoring = 2 * queries * b.context * indexer.heads * indexer.head_dim * self._indexer_layers
            scoring /= self._indexer_flops
            seconds += max(b.context * keys * layers / self._server.bandwidth, scoring)
        return seconds

    def _prefill_attention(self, b: RankBatch) -> float:
        """Attention among prompt tokens; the indexer scores all pairs on every rank, as it is not sharded."""
        if not b.prefill_tokens:
            return 0.0
        a, layers = self._a, self._layers
        if a.indexer is None:
            pairs = self._cut_layers * b.prefill_attended + (1.0 - self._cut_layers) * b.prefill_pairs
            return 2 * pairs * self._dense_heads * self._prefill_width * layers / self._dense_flops
        seconds = 2 * b.prefill_pairs * self._dense_heads * self._prefill_width * layers / self._dense_flops
        seconds += 2 * b.prefill_attended * self._heads * self._decode_width * layers / self._attention_flops
        scoring = 2 * b.prefill_scored * a.indexer.heads * a.indexer.head_dim * self._indexer_layers
        seconds += scoring / self._indexer_flops
        return seconds

    def _experts_seconds(self, tokens: float) -> float:
        """Routed experts on the fullest GPU: a batch of n tokens touches E (1 - (1 - k/E)^n) of E experts."""
        a = self._a
        if not a.experts or tokens <= 0:
            return 0.0
        missed = float((1.0 - a.experts_per_token / a.experts) ** tokens)
        touched = self._local_experts * (1.0 - missed)
        rows = tokens * a.experts_per_token * self._local_experts / a.experts * self._imbalance
        padded = rows + touched * self._c.moe_tile / 2
        traffic = touched * self._expert_elements * a.weight_bytes / self._server.bandwidth
        arithmetic = 2 * padded * self._expert_elements / self._moe_flops
        return max(traffic, arithmetic) * self._expert_layers

    def _communication_seconds(self, rank_tokens: float, all_tokens: float) -> float:
        """All-reduces of the attention replica, and the exchange with the experts of the other replicas."""
        server, c = self._server, self._c
        tp, stage = server.tensor_parallel, server.stage_gpus
        token = self._a.hidden_size * BF16
        latency = c.collective_us * 1e-6
        seconds = 0.0
        # Replicas of a dense model share nothing: each reduces its own feed-forward parts too.
        own = server.joined_replicas == 1
        reductions = (2 if own else 1) if tp > 1 else 0
        if reductions:
            volume = 2 * (tp - 1) / tp * rank_tokens * token
            seconds += reductions * self._layers * (latency + volume / self._link)
        if server.joined_replicas > 1:
            gather = c.exchange == "gather" or server.expert_parallel < stage
            gathered = 2 * (stage - 1) / stage * all_tokens * token
            volume = gathered
            if not gather:
                # An all-to-all moves, per rank, a token in fp8 to its experts' ranks and in bf16 back.
                missed = float((1.0 - 1.0 / stage) ** self._a.experts_per_token)
                volume = rank_tokens * ((stage - 1) * (1.0 - missed)) * self._a.hidden_size * (1.0 + BF16)
            seconds += self._layers * (2 * latency + volume / self._link)
        return seconds
