"""Where a GPU's memory goes, and whether anything is left for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.simulate.server import Server
from autotune.simulate.weights import BF16, kv_bytes_per_token_layer, weight_bytes_per_gpu
from autotune.trial import Failure, FailureKind

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one GPU.

    Attributes:
        total: what the GPU has.
        weights: model weights.
        activations: the largest step's tensors, growing with its tokens and, for sparse attention, with the context.
        runtime: context, communicators, graphs.
        kv_cache: what is left for the cache under the engine's fraction; negative = does not fit.
        kv_token: bytes of one token over the layers of one pipeline stage.
        capacity_tokens: tokens that one attention replica can keep.
        needed_tokens: tokens that the engine insists on at start (vLLM: one sequence of full length).
    """

    total: float
    weights: float
    activations: float
    runtime: float
    kv_cache: float
    kv_token: float
    capacity_tokens: int
    needed_tokens: int

    @property
    def margin_bytes(self) -> float:
        """How much is left after the least cache that lets the server start; negative = out of memory."""
        return self.kv_cache - self.needed_tokens * self.kv_token

    def to_json(self) -> dict[str, float]:
        """GB (10^9 bytes) per GPU, and the capacity in tokens."""
        return {
            "total_gb": self.total / 1e9,
            "weights_gb": self.weights / 1e9,
            "activations_gb": self.activations / 1e9,
            "runtime_gb": self.runtime / 1e9,
            "kv_cache_gb": self.kv_cache / 1e9,
            "margin_gb": self.margin_bytes / 1e9,
            "capacity_tokens": float(self.capacity_tokens),
        }


def _activation_bytes(server: Server) -> float:
    """The largest step's tensors.

    Hidden states: every rank of a data-parallel group sees the tokens of all ranks at the experts. Sparse attention
    adds what grows with the context: the prefill indexer's float32 scores (tokens of a step x context, DeepGEMM's
    ``fp8_mqa_logits``), the decode indexer's scores (sequences x context) and a workspace of whole latent sequences
    (vLLM's FlashMLA-sparse backend: 5 x max_model_len x 576 x 2 bytes).
    """
    a, c = server.architecture, server.coefficients
    tokens = server.token_budget * server.data_parallel
    hidden = tokens * a.hidden_size * BF16 * c.activation_copies
    if a.indexer is None:
        return hidden
    context = server.context_length
    scores = server.token_budget * context * 4.0 if c.indexer_logits else 0.0
    decode_scores = min(server.running_limit, server.graph_batch) * context * 4.0 if c.indexer_logits else 0.0
    workspace = c.workspace_contexts * context * (a.kv_lora_rank + a.qk_rope_head_dim) * BF16
    return hidden + scores + decode_scores + workspace


def plan_memory(server: Server) -> MemoryPlan:
    """The memory plan of one GPU; all GPUs of a server are alike."""
    a, c = server.architecture, server.coefficients
    total = server.hardware.memory_gb * 1e9
    mtp = server.speculative_tokens > 0
    weights = weight_bytes_per_gpu(a, server.tensor_parallel, server.stage_gpus, server.pipeline_parallel, mtp)
    activations, runtime = _activation_bytes(server), c.runtime_gb * 1e9
    rest = total - weights - activations - runtime
    if c.fraction_of == "free":
        kv_cache = rest * server.memory_fraction if rest > 0 else rest
    elif c.needs_full_context:
        # vLLM profiles a step and takes what it used out of its share.
        kv_cache = total * server.memory_fraction - weights - activations - runtime
    else:
        # SGLang's share holds weights and cache only; a step's tensors must fit beside it.
        share = total * server.memory_fraction - weights
        kv_cache = share if rest >= share else min(rest - share, -1.0)
    # Where a layer's cache is its window, short sequences take more of the pool per token than this mean.
    length = server.context_length if c.sliding_cache == "window" else 0
    per_token = kv_bytes_per_token_layer(a, server.kv_type, server.tensor_parallel, length)
    per_token *= a.layers / server.pipeline_parallel
    capacity = int(max(0.0, kv_cache) / per_token * server.context_parallel)
    needed = server.context_length // server.context_parallel if c.needs_full_context else 1
    return MemoryPlan(total, weights, activations, runtime, kv_cache, per_token, capacity, needed)


def memory_failure(server: Server, plan: MemoryPlan) -> Failure | None:
    """Why the server would not start, as the engine says it; None when it starts."""
    if plan.margin_bytes >= 0:
        return None
    short = f"{-plan.margin_bytes / 1e9:.1f} GB per GPU are missing"
    facts = (
        f"weights {plan.weights / 1e9:.1f} GB, a step's tensors {plan.activations / 1e9:.1f} GB, runtime "
        f"{plan.runtime / 1e9:.1f} GB of {plan.total / 1e9:.1f} GB"
    )
    if plan.kv_cache > 0:
        need, have = plan.needed_tokens * plan.kv_token / GIB, plan.kv_cache / GIB
        excerpt = (
            f"To serve at least one request with the model's max seq len ({server.context_length}), ({need:.2f} GiB KV "
            f"cache is needed, which is larger than the available KV cache memory ({have:.2f} GiB)."
        )
        advice = "shorten context_length, raise memory_fraction or shard attention over more GPUs"
    else:
        brand = "HIP" if server.hardware.vendor == "amd" else "CUDA"
        excerpt = f"torch.OutOfMemoryError: {brand} out of memory."
        advice = "shard over more GPUs, compute fewer tokens per step or shorten context_length"
    return Failure(FailureKind.OUT_OF_MEMORY, f"Out of GPU memory: {short} ({facts}); {advice}.", excerpt)


def startup_s(server: Server, plan: MemoryPlan) -> float:
    """Seconds from launch to ready: weights from disk, then compilation and graph capture."""
    c = server.coefficients
    return c.start_s + plan.weights * server.gpus / 1e9 / c.load_gb_s
