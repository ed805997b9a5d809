"""Cards of a model and of a node, as in the YAML files, and the weights that one GPU holds.

Expressions in the engines' files see the cards as ``model`` and ``hardware``. Figures of a decoder
for its arithmetic, `Architecture`, follow from ``config.json`` (DeepSeek-V3 technical report,
arXiv:2412.19437, section 2.1 and table of hyper-parameters; sparse attention and its indexer:
DeepSeek-V3.2 report). Norms, biases and routers, under 0.5 % of any model that is served, are left
out; so is the vision part of a model that has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from autotune.base import BadInput

from .entry import Entry
from .schema import Addition


class Indexer(Entry):
    """DeepSeek sparse attention's indexer (V3.2): scores all tokens, keeps the top ones."""

    heads: int
    head_dim: int
    top_k: int
    bytes_per_token_layer: int
    """Bytes per token and layer of its fp8 key cache, scales included."""
    layers: int | None = None
    """Layers with an indexer of their own; None: all (GLM-5.2 shares)."""


MatrixType = Literal["bf16", "fp8", "fp4"]
"""Types of matrix multiplication; their peaks are in the hardware's card."""


class Architecture(Entry):
    """Figures of a decoder's ``config.json`` for its arithmetic; sizes in elements."""

    layers: PositiveInt
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    """Grouped-query heads; for latent attention equal to `heads`."""
    head_dim: PositiveInt
    """Width of a query's head; for latent attention nope + rope."""
    intermediate_size: int
    """Width of a dense feed-forward layer."""
    dense_layers: NonNegativeInt = 0
    """Layers without experts, of a model that has experts."""
    experts: NonNegativeInt = 0
    """Routed experts per layer; 0 = a dense model."""
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    """Width of the shared experts together; 0 = `shared_experts` of the routed ones' width."""
    feed_forward_matrices: int = 3
    """Matrices of one feed-forward part: 3 gated, 2 plain."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    """Latent attention's cached width; 0 = ordinary attention."""
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    indexer: Indexer | None = None
    sliding_window: int = 0
    """Tokens that `sliding_layers` attend to."""
    sliding_layers: int = 0
    """Layers that attend to the last `sliding_window` tokens only."""
    linear_layers: int = 0
    """Layers with linear attention: a state, no KV cache."""
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_head_dim: int = 0
    gated_attention: bool = False
    """A gate as wide as the query on attention's output."""
    mtp_layers: int = 0
    """Multi-token-prediction layers in the checkpoint."""
    context_limit: int
    tied_embeddings: bool = False
    """The output head is the embedding."""
    weight_bytes: PositiveFloat = 2.0
    """Bytes per weight of the large matrices (experts; else feed-forward), scales too."""
    attention_weight_bytes: PositiveFloat | None = None
    """Bytes per weight of the attention; None: as `weight_bytes`."""
    dense_weight_bytes: PositiveFloat | None = None
    """Bytes per weight of shared experts and layers without experts; None: as `weight_bytes`."""
    mtp_weight_bytes: PositiveFloat | None = None
    """Bytes per weight of the prediction layers; None: as `weight_bytes`."""
    weight_block: int = 0
    """Rows of one quantisation block; shards must be multiples of it."""
    matrices_in: MatrixType | None = None
    """Type in which quantised matrices are multiplied; None: fp8 up to 1 byte, else bf16."""

    extra_gb: float = 0.0
    """GB (10^9 bytes) of each GPU beside the weights; below 0: that part of them lies elsewhere."""
    quant_method: str | None = None
    """Quantisation of the checkpoint, as its config.json says; None: plain, or not known."""
    checkpoint_gb: float = 0.0
    """GB (10^9 bytes) of the checkpoint's files, where these figures do not tell its weights."""

    @model_validator(mode="after")
    def _layers_add_up(self) -> Architecture:
        for part in ("dense_layers", "sliding_layers", "linear_layers"):
            if getattr(self, part) > self.layers:
                raise ValueError(
                    f"{part}={getattr(self, part)} are more than the {self.layers} layers"
                )
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} is not 1 to {self.experts}"
            )
        return self

    @property
    def attended_limit(self) -> int:
        """Return the tokens visible to an attention layer if limited; 0 = every layer sees all."""
        return self.indexer.top_k if self.indexer else self.sliding_window

    def multiplied_in(self, weight_bytes: float) -> MatrixType:
        """Return the type in which matrices of this number of bytes per weight are multiplied."""
        if weight_bytes >= 2.0:
            return "bf16"
        kind = self.matrices_in or ("fp8" if weight_bytes <= 1.0 else "bf16")
        return "fp8" if kind == "fp4" and weight_bytes >= 1.0 else kind


BF16 = 2.0


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights (elements) of one layer's parts, the mean over different layers.

    Attributes:
        attention_sharded: cut by heads over the tensor-parallel ranks.
        attention_kv: keys' and values' projections, cut by KV heads: a rank has at least one.
        attention_replicated: the same on every rank: latent down-projections and the indexer.
        expert: one routed expert.
        shared: the shared experts together.
        dense: the feed-forward part of a layer without experts.
    """

    attention_sharded: float
    attention_kv: float
    attention_replicated: float
    expert: float
    shared: float
    dense: float


def layer_weights(a: Architecture) -> LayerWeights:
    """Count the elements per layer of a decoder with latent or grouped-query attention."""
    h = a.hidden_size
    if a.kv_lora_rank:
        up = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
        query = (a.q_lora_rank or h) * a.heads * a.head_dim
        sharded = query + up + a.heads * a.v_head_dim * h
        kv = 0
        replicated = float(h * a.q_lora_rank + h * (a.kv_lora_rank + a.qk_rope_head_dim))
    else:
        sharded = (2 + a.gated_attention) * h * a.head_dim * a.heads
        kv = 2 * h * a.head_dim * a.kv_heads
        replicated = 0.0
        if a.linear_layers:
            # Queries and keys, values, their gate and the output; two figures per head beside them.
            heads = 2 * a.linear_key_heads + 3 * a.linear_value_heads
            linear = h * (heads * a.linear_head_dim + 2 * a.linear_value_heads)
            share = a.linear_layers / a.layers
            sharded = round((1 - share) * sharded + share * linear)
            kv = round((1 - share) * kv)
    if a.indexer:
        indexer = (a.q_lora_rank or h) * a.indexer.heads * a.indexer.head_dim
        indexer += h * (a.indexer.head_dim + a.indexer.heads)
        replicated += indexer * indexer_layers(a) / a.layers
    width = a.feed_forward_matrices * h
    return LayerWeights(
        attention_sharded=float(sharded),
        attention_kv=float(kv),
        attention_replicated=replicated,
        expert=float(width * a.expert_intermediate_size),
        shared=float(
            width * (a.shared_intermediate_size or a.expert_intermediate_size * a.shared_experts)
        ),
        dense=float(width * a.intermediate_size),
    )


def expert_layers(a: Architecture) -> int:
    return a.layers - a.dense_layers if a.experts else 0


def indexer_layers(a: Architecture) -> int:
    """Count the layers with their own indexer; the others reuse the previous layer's choice."""
    if not a.indexer:
        return 0
    return a.layers if a.indexer.layers is None else a.indexer.layers


@dataclass(frozen=True, slots=True)
class Matrices:
    """Weights of one precision: their number, and bytes of each."""

    elements: float
    weight_bytes: float

    @property
    def bytes(self) -> float:
        return self.elements * self.weight_bytes


def rank_layers(a: Architecture, tensor_parallel: int) -> tuple[Matrices, Matrices]:
    """Return a rank's attention and feed-forward parts of all layers, without routed experts."""
    w = layer_weights(a)
    attention = _attention(a, tensor_parallel)
    feed_forward = (
        w.dense * (a.layers - expert_layers(a)) + w.shared * expert_layers(a)
    ) / tensor_parallel
    return (
        Matrices(attention * a.layers, a.attention_weight_bytes or a.weight_bytes),
        Matrices(feed_forward, a.dense_weight_bytes or a.weight_bytes),
    )


def _attention(a: Architecture, tensor_parallel: int) -> float:
    """Count the elements of one layer's attention on a rank."""
    w = layer_weights(a)
    attention = w.attention_sharded / tensor_parallel + w.attention_replicated
    return attention + w.attention_kv / min(tensor_parallel, a.kv_heads)


def vocabulary_elements(a: Architecture) -> int:
    """Count the elements of the embedding and, if it is separate, the output head."""
    return (1 if a.tied_embeddings else 2) * a.vocab_size * a.hidden_size


def total_parameters(a: Architecture) -> float:
    """Count the parameters of the model without multi-token prediction, as model cards do."""
    return _layer_parameters(a, a.experts) + vocabulary_elements(a)


def active_parameters(a: Architecture) -> float:
    """Count the parameters that multiply one token: its experts and the output head, not the
    embedding."""
    return _layer_parameters(a, a.experts_per_token) + a.vocab_size * a.hidden_size


def _layer_parameters(a: Architecture, experts: int) -> float:
    """Count the parameters of all layers with some of each layer's experts."""
    routed = experts * layer_weights(a).expert * expert_layers(a)
    return sum(part.elements for part in rank_layers(a, 1)) + routed


@lru_cache  # tens of thousands of candidates have a few dozen layouts
def weight_bytes_per_gpu(
    a: Architecture, tensor_parallel: int, stage_gpus: int, pipeline: int, mtp: bool
) -> float:
    """Return the bytes of weights on one GPU: experts spread over the stage, the rest over the
    attention replica.

    Embedding and output head are bf16 and cut by the vocabulary. Weights that only their files tell
    are shared evenly: the least that a GPU holds.
    """
    if a.checkpoint_gb:
        return a.checkpoint_gb * 1e9 / stage_gpus / pipeline
    w = layer_weights(a)
    experts = a.experts * w.expert * expert_layers(a) / stage_gpus
    layers = sum(part.bytes for part in rank_layers(a, tensor_parallel)) + experts * a.weight_bytes
    weights = (layers + vocabulary_elements(a) * BF16 / tensor_parallel) / pipeline
    if not mtp:
        return weights
    # One more layer (with experts), and the projection of two hidden states to one.
    feed_forward = (w.shared if a.experts else w.dense) / tensor_parallel
    feed_forward += a.experts * w.expert / stage_gpus
    elements = _attention(a, tensor_parallel) + feed_forward + 2 * a.hidden_size**2
    return weights + elements * (a.mtp_weight_bytes or a.weight_bytes)


def kv_bytes_per_token_layer(
    a: Architecture, kv_type: str, tensor_parallel: int, length: int = 0
) -> float:
    """Return the bytes of KV cache of one token in one layer on one rank, the mean over the layers.

    Latent attention keeps kv-lora + rope values, the same on every tensor-parallel rank;
    ``fp8_ds_mla`` keeps the 512 latent values in fp8 with scales and the rope part in bf16 (656
    bytes, vLLM and FlashMLA). Grouped-query heads are cut over the ranks. A sparse model adds the
    indexer's keys.

    Args:
        length: tokens of the sequence whose mean is asked for, where layers with a sliding window
            keep only their window; 0 = every layer keeps all tokens.
    """
    value_bytes = 1.0 if kv_type == "fp8" else BF16
    if a.kv_lora_rank:
        size = (a.kv_lora_rank + a.qk_rope_head_dim) * value_bytes
        if kv_type == "fp8_ds_mla":
            size = a.kv_lora_rank * (1 + 4 / 128) + a.qk_rope_head_dim * BF16
    else:
        size = 2 * a.kv_heads * a.head_dim * value_bytes / min(tensor_parallel, a.kv_heads)
    if length > a.sliding_window > 0:
        size *= 1 - a.sliding_layers / a.layers * (1 - a.sliding_window / length)
    size *= 1 - a.linear_layers / a.layers
    return size + indexer_bytes_per_token_layer(a)


def indexer_bytes_per_token_layer(a: Architecture) -> float:
    """Return the bytes of the indexer's keys of one token, the mean over the layers; 0 without
    one."""
    return a.indexer.bytes_per_token_layer * indexer_layers(a) / a.layers if a.indexer else 0.0


def linear_state_bytes(a: Architecture) -> float:
    """Return the bytes of a sequence's states in all layers with linear attention, in float32
    (Qwen3.5's type)."""
    return 4.0 * a.linear_layers * a.linear_value_heads * a.linear_head_dim**2


Share = Annotated[float, Field(gt=0, le=1)]
_FIGURES = frozenset(Architecture.model_fields)


class EngineExtras(Entry):
    """Additions that one engine needs or prefers for this model: parsers, templates, tokenizer
    modes."""

    always: list[Addition] = []


class Acceptance(Entry):
    """Acceptance rate of drafted tokens on text; the default is for models without a published
    rate."""

    rates: list[Share] = Field(
        default=[round(0.8 * 0.9**position, 3) for position in range(8)], min_length=1
    )
    """Rates by position, given that the ones before were kept; later positions have the last one."""
    source: str = (
        "assumed: no figure of this model is published; of others 0.79 to 0.93 of the first tokens "
        "are kept"
    )

    def length(self, drafted: int, share: float = 1.0) -> float:
        """Return the gain in tokens per sequence and step, 1 + a + a * b …

        `share` is a factor on each rate.
        """
        length = kept = 1.0
        for position in range(drafted):
            kept *= self.rates[min(position, len(self.rates) - 1)] * share
            length += kept
        return length


class ModelCard(Entry):
    """Content of ``search_spaces/models/<name>.yaml``."""

    id: str
    """The Hugging Face id."""
    aliases: list[str] = []
    family: str
    """Name that rules refer to, e.g. ``deepseek_v3``."""
    architectures: list[str] = []
    """The classes that its config.json names."""
    architecture: Architecture
    unpredicted: str = ""
    """Why its memory and its speed are unknown; its figures are then those of a plain decoder."""
    acceptance: Acceptance = Acceptance()
    engines: dict[str, EngineExtras] = {}
    source: str

    def check_predicted(self) -> None:
        """Raise `BadInput` for a model that the simulated node does not know."""
        if self.unpredicted:
            raise BadInput(
                f"{self.id} is not simulated: {self.unpredicted}; measure it on real servers (--on "
                "process or docker), or describe it in a YAML file with the nearest figures "
                "(docs/models.md)"
            )

    @property
    def keeps_long_drafts(self) -> bool:
        """Return whether a fifth of the fifth drafted tokens is accepted: then five may pay off."""
        return self.acceptance.length(5) - self.acceptance.length(4) >= 0.2

    @property
    def sparse_attention(self) -> bool:
        return bool(self.architecture.indexer)

    @property
    def latent_attention(self) -> bool:
        return self.architecture.kv_lora_rank > 0

    @property
    def fp8_weights(self) -> bool:
        """Return whether the checkpoint's large matrices are multiplied in fp8."""
        return self.architecture.multiplied_in(self.architecture.weight_bytes) == "fp8"

    @property
    def weights_gb(self) -> float:
        """Return all weights of the checkpoint, 10^9 bytes, as one GPU would hold them."""
        return (
            weight_bytes_per_gpu(self.architecture, 1, 1, 1, self.architecture.mtp_layers > 0) / 1e9
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a figure of the architecture by its name in the engines' expressions
            (``model.experts``)."""
            return (
                getattr(self.architecture, name) if name in _FIGURES else super().__getattr__(name)
            )


class HardwareCard(Entry):
    """Content of ``search_spaces/hardware/<name>.yaml``: one node. Rates are peaks of one GPU."""

    name: str
    aliases: list[str] = []
    vendor: Literal["nvidia", "amd", "cpu"]
    generation: str
    """``hopper``, ``blackwell``, ``cdna3`` …"""
    gpus: PositiveInt
    """GPUs per node; a machine without one counts as one device."""
    most_gpus: PositiveInt = 8
    """GPUs of the largest node that is built with this GPU; more are several nodes."""
    memory_gb: PositiveFloat
    """10^9 bytes per GPU, as the data sheet gives it."""
    driver_memory_gb: PositiveFloat | None = None
    """10^9 bytes per GPU, as an engine reads it; None: as `memory_gb`."""
    bandwidth_tb_s: PositiveFloat
    """Memory bandwidth per GPU, TB/s."""
    bf16_tflops: PositiveFloat
    """Dense peak per GPU."""
    fp8_tflops: PositiveFloat
    """Dense peak; a GPU without fp8 multiplies in bf16: the same figure."""
    fp4_tflops: PositiveFloat | None = None
    """Dense peak; None: fp4 weights are multiplied in bf16."""
    link_gb_s: PositiveFloat
    """GPU-to-GPU bandwidth per GPU, both directions, GB/s."""
    achieved_bandwidth: Share
    """Share of the peak that decode kernels reach."""
    achieved_flops: float | dict[MatrixType, float]
    """Share of the peak that large matrix products reach, for all types or by type; one that is not
    given is as bf16."""
    source: str

    @model_validator(mode="after")
    def _memory(self) -> HardwareCard:
        # A card that is copied and changed at one of the two would be simulated with the other.
        if self.driver_memory_gb and abs(self.driver_memory_gb / self.memory_gb - 1) > 0.1:
            raise ValueError(
                "driver_memory_gb is over 10 % from memory_gb: correct it, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _shares(self) -> HardwareCard:
        shares = self.achieved_flops
        if not all(
            0 < share <= 1 for share in (shares.values() if isinstance(shares, dict) else [shares])
        ):
            raise ValueError("achieved_flops must be above 0 and at most 1")
        if isinstance(shares, dict) and "bf16" not in shares:
            raise ValueError("achieved_flops needs bf16")
        return self

    def reached_flops(self, kind: MatrixType) -> float:
        """Return the FLOP/s of one GPU in large matrix products of a type."""
        shares = self.achieved_flops
        native = kind == "bf16" or self.tflops(kind) > self.bf16_tflops
        share = (
            shares.get(kind if native else "bf16", shares["bf16"])
            if isinstance(shares, dict)
            else shares
        )
        return self.tflops(kind) * 1e12 * share

    def tflops(self, kind: MatrixType) -> float:
        """Return the dense peak of one GPU for matrices of a type."""
        return {
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "fp4": self.fp4_tflops or self.bf16_tflops,
        }[kind]
