"""How many weights a model has, and how many of them one GPU holds and reads.

Counts follow from ``config.json`` (DeepSeek-V3 technical report, arXiv:2412.19437, section 2.1 and table of
hyper-parameters; sparse attention and its indexer: DeepSeek-V3.2 report).
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.space.cards import Architecture

BF16 = 2.0


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights (elements) of one layer's parts.

    Attributes:
        attention_sharded: cut by heads over the tensor-parallel ranks.
        attention_replicated: the same on every rank: latent down-projections and the indexer.
        expert: one routed expert.
        shared: the shared experts together.
        dense: the feed-forward part of a layer without experts.
    """

    attention_sharded: float
    attention_replicated: float
    expert: float
    shared: float
    dense: float


def layer_weights(a: Architecture) -> LayerWeights:
    """Elements per layer of a decoder with latent or grouped-query attention."""
    h = a.hidden_size
    if a.kv_lora_rank:
        up = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
        query = (a.q_lora_rank or h) * a.heads * a.head_dim
        sharded = query + up + a.heads * a.v_head_dim * h
        replicated = h * a.q_lora_rank + h * (a.kv_lora_rank + a.qk_rope_head_dim)
    else:
        sharded = h * a.head_dim * (2 * a.heads + 2 * a.kv_heads)
        replicated = 0
    if a.indexer is not None:
        replicated += (a.q_lora_rank or h) * a.indexer.heads * a.indexer.head_dim
        replicated += h * (a.indexer.head_dim + a.indexer.heads)
    return LayerWeights(
        attention_sharded=float(sharded),
        attention_replicated=float(replicated),
        expert=3.0 * h * a.expert_intermediate_size,
        shared=3.0 * h * a.expert_intermediate_size * a.shared_experts,
        dense=3.0 * h * a.intermediate_size,
    )


def dense_layers(a: Architecture) -> int:
    """Layers without experts: all of them in a dense model."""
    return a.dense_layers if a.experts else a.layers


def expert_layers(a: Architecture) -> int:
    """Layers with experts."""
    return a.layers - dense_layers(a)


def rank_layer_elements(a: Architecture, tensor_parallel: int) -> float:
    """Elements of all layers, routed experts left out, that each rank holds, reads and multiplies by."""
    w = layer_weights(a)
    attention = w.attention_sharded / tensor_parallel + w.attention_replicated
    feed_forward = w.dense * dense_layers(a) + w.shared * expert_layers(a)
    return attention * a.layers + feed_forward / tensor_parallel


def weight_bytes_per_gpu(a: Architecture, tensor_parallel: int, stage_gpus: int, pipeline: int, mtp: bool) -> float:
    """Bytes of weights on one GPU: experts spread over the stage, the rest over the attention replica.

    Embedding and output head are bf16 and cut by the vocabulary. A multi-token-prediction layer counts as
    one more layer with experts.
    """
    w = layer_weights(a)
    experts = a.experts * w.expert * expert_layers(a) / stage_gpus
    layers = (rank_layer_elements(a, tensor_parallel) + experts) * a.weight_bytes
    vocabulary = 2 * a.vocab_size * a.hidden_size * BF16 / tensor_parallel
    extra = (a.experts * w.expert / stage_gpus + w.attention_sharded / tensor_parallel) * a.weight_bytes if mtp else 0.0
    return (layers + vocabulary) / pipeline + extra


def kv_bytes_per_token_layer(a: Architecture, kv_type: str, tensor_parallel: int) -> float:
    """KV cache of one token in one layer on one rank.

    Latent attention keeps kv-lora + rope values, the same on every tensor-parallel rank; ``fp8_ds_mla`` keeps
    the 512 latent values in fp8 with scales and the rope part in bf16 (656 bytes, vLLM and FlashMLA). Grouped-query
    heads are cut over the ranks. A sparse model adds the indexer's keys.
    """
    if a.kv_lora_rank:
        width = a.kv_lora_rank + a.qk_rope_head_dim
        if kv_type == "fp8_ds_mla":
            size = a.kv_lora_rank * (1 + 4 / 128) + a.qk_rope_head_dim * BF16
        else:
            size = width * (1.0 if kv_type == "fp8" else BF16)
    else:
        size = 2 * a.kv_heads * a.head_dim * (1.0 if kv_type == "fp8" else BF16) / min(tensor_parallel, a.kv_heads)
    return size + (a.indexer.bytes_per_token_layer if a.indexer else 0)
