"""Cards of a model and of a node, as in the YAML files, and the weights that one GPU holds.

Expressions in the engines' files see the cards as ``model`` and ``hardware``. Figures of a decoder
for its arithmetic, `Architecture`, follow from ``config.json`` (DeepSeek-V3 technical report,
arXiv:2412.19437, section 2.1 and table of hyper-parameters; sparse attention and its indexer:
DeepSeek-V3.2 report). Norms, biases and routers, under 0.5 % of any model that is served, are left
out; so is the vision part of a model that has one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from autotune.base import BadInput, JsonObject, frozen

from .compressed import CompressedAttention
from .entry import Entry
from .layers import (
    BF16,
    AttentionGroup,
    GroupedQuery,
    Indexer,
    LatentAttention,
    LayerGroup,
    NoMixer,
)
from .recurrent import (
    DeltaNet,
    KimiDelta,
    RecurrentGroup,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from .schema import Addition

MatrixType = Literal["bf16", "fp8", "fp4"]
"""Types of matrix multiplication; their peaks are in the hardware's card."""
AnyGroup = Annotated[
    NoMixer
    | GroupedQuery
    | LatentAttention
    | CompressedAttention
    | DeltaNet
    | KimiDelta
    | StateSpace
    | SelectiveScan
    | ShortConvolution,
    Field(discriminator="mixer"),
]
"""A group as cards list it, distinguished by ``mixer``."""


_LINEAR = ("layers", "key_heads", "value_heads", "head_dim")


class Positions(Entry):
    """Length of a context in the words of a ``config.json``."""

    limit: PositiveInt
    """The smallest of several keys; ``model_max_length`` over all."""
    first: PositiveInt
    """The first in SGLang's order."""
    scaling: str
    """Kind of rotary scaling, ``default`` for none."""
    factor: PositiveFloat
    original: NonNegativeInt
    """Positions before the scaling; 0: not said."""


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
    expert_hidden_size: NonNegativeInt = 0
    """Width to which tokens are projected for the routed experts and back; 0 = `hidden_size`."""
    feed_forward_matrices: int = 3
    """Matrices of one feed-forward part: 3 gated, 2 plain."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    """Latent attention's cached width; 0 = ordinary attention."""
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    caches_heads: bool = False
    """An engine caches latent attention's keys and values, those of each head."""
    v_head_dim: int = 0
    indexer: Indexer | None = None
    sliding_window: int = 0
    """Tokens that `sliding_layers` attend to."""
    sliding_layers: int = 0
    """Layers that attend to the last `sliding_window` tokens only."""
    gated_attention: bool = False
    """A gate as wide as the query on attention's output."""
    layer_groups: tuple[AnyGroup, ...] = ()
    """Layers that differ from what the keys of attention above say of the others."""
    mtp_experts: bool = True
    """Whether multi-token-prediction layers have experts, if the others do."""
    mtp_layers: int = 0
    """Multi-token-prediction layers in the checkpoint."""
    context_limit: int
    """Tokens of the longest request without an option; as the checkpoint says it, at most."""
    positions: Positions | None = None
    """Facts of which engines make different limits; None: they make `context_limit` of it."""
    longest_context: int = 0
    """Tokens that an option may ask for; 0 = `context_limit`."""
    tied_embeddings: bool = False
    """The output head is the embedding."""
    weight_bytes: PositiveFloat = 2.0
    """Bytes per weight of the large matrices (experts; else feed-forward), scales too."""
    attention_weight_bytes: PositiveFloat | None = None
    """Bytes per weight of the attention; None: as `weight_bytes`."""
    dense_weight_bytes: PositiveFloat | None = None
    """Bytes per weight of shared experts and layers without experts; None: as `weight_bytes`."""
    head_weight_bytes: PositiveFloat = BF16
    """Bytes per weight of the output head."""
    mtp_weight_bytes: PositiveFloat | None = None
    """Bytes per weight of the prediction layers; None: as `weight_bytes`."""
    weight_block: int = 0
    """Rows of one quantisation block; shards must be multiples of it."""
    expert_tile: NonNegativeInt = 0
    """Multiple to which a rank's width of each expert is padded; 0: none."""
    weight_group: int = 0
    """Inputs of a large integer matrix that share a scale; 0: all of them."""
    vision_heads: NonNegativeInt = 0
    """Attention heads of the vision part, which tensor parallelism cuts too; 0: none."""
    activation_order: bool = False
    """Whether groups follow the activations' order (GPTQ's ``desc_act``)."""
    matrices_in: MatrixType | None = None
    """Type in which quantised matrices are multiplied; None: fp8 up to 1 byte, else bf16."""

    extra_gb: float = 0.0
    """GB (10^9 bytes) of each GPU beside the weights; below 0: that part of them lies elsewhere."""
    quant_method: str | None = None
    """Quantisation of the checkpoint, as its config.json says; None: plain, or not known."""
    checkpoint_gb: float = 0.0
    """GB (10^9 bytes) of the checkpoint's files, where these figures do not tell its weights."""
    kv_cache_scheme: Literal["fp8", "fp8_scaled"] | None = None
    """Type that the checkpoint gives its KV cache; ``fp8_scaled``: with other scales than one per
    tensor, stored. None: that of its activations."""

    @model_validator(mode="before")
    @classmethod
    def _linear_attention(cls, figures: Any) -> Any:
        """Translate the keys of linear attention in cards and studies before layers had groups."""
        if not isinstance(figures, Mapping) or "linear_layers" not in figures:
            return figures
        group = {"mixer": "delta", "state_element_bytes": 4}
        group |= {new: figures.get(f"linear_{new}", 0) for new in _LINEAR}
        kept = {key: value for key, value in figures.items() if not key.startswith("linear_")}
        return {**kept, "layer_groups": [group]} if group["layers"] else kept

    @model_validator(mode="after")
    def _layers_add_up(self) -> Architecture:
        for part in ("dense_layers", "sliding_layers"):
            if getattr(self, part) > self.layers:
                raise ValueError(
                    f"{part}={getattr(self, part)} are more than the {self.layers} layers"
                )
        listed = sum(group.layers for group in self.layer_groups)
        if listed + self.sliding_layers > self.layers:
            raise ValueError(
                f"layer_groups have {listed} layers, more than the {self.layers} of the model "
                "without its sliding_layers"
            )
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} is not 1 to {self.experts}"
            )
        return self

    def model_copy(self, *, update: JsonObject | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        for name in ("groups", "attention_groups", "attended_limit", "hashed"):
            copy.__dict__.pop(name, None)
        return copy

    def __hash__(self) -> int:
        return self.hashed

    # Asked for in each of tens of thousands of memory plans, as the groups are.
    @cached_property
    def hashed(self) -> int:
        return hash(tuple(getattr(self, name) for name in type(self).model_fields))

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Translate the keys of attention to groups; the listed ones follow."""
        full = self.layers - self.sliding_layers - sum(group.layers for group in self.layer_groups)
        plain = ((full, 0), (self.sliding_layers, self.sliding_window))
        groups = (_attention_group(self, layers, window) for layers, window in plain if layers)
        return (*groups, *self.layer_groups)

    @cached_property
    def attention_groups(self) -> tuple[AttentionGroup, ...]:
        return tuple(group for group in self.groups if isinstance(group, AttentionGroup))

    @property
    def residual_width(self) -> int:
        """Return the copies of the hidden state between layers."""
        return max(group.residual_width for group in self.groups)

    @cached_property
    def attended_limit(self) -> int:
        """Return the tokens that an indexer chooses, else those of the first window; 0 without
        either: every layer sees all."""
        groups = self.attention_groups
        limits = [group.chosen_tokens for group in groups if group.chosen_tokens]
        return next(iter(limits or [group.window for group in groups if group.window]), 0)

    def multiplied_in(self, weight_bytes: float) -> MatrixType:
        """Return the type in which matrices of this number of bytes per weight are multiplied."""
        if weight_bytes >= 2.0:
            return "bf16"
        kind = self.matrices_in or ("fp8" if weight_bytes <= 1.0 else "bf16")
        return "fp8" if kind == "fp4" and weight_bytes >= 1.0 else kind


def _attention_group(a: Architecture, layers: int, window: int) -> AttentionGroup:
    common = {
        "layers": layers,
        "heads": a.heads,
        "head_dim": a.head_dim,
        "v_head_dim": a.v_head_dim,
        "window": window,
        "gated": a.gated_attention,
        "indexer": None if window else a.indexer,
    }
    if not a.kv_lora_rank:
        return GroupedQuery(**common, kv_heads=a.kv_heads)
    return LatentAttention(**common, **{name: getattr(a, name) for name in _LATENT})


_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "caches_heads")


def draft_layer(a: Architecture) -> Architecture:
    """Return a model of one layer as it drafts: with full attention if a layer has it, else like
    the last group."""
    plain = {} if a.mtp_experts else {"experts": 0}
    draft = a.model_copy(update={"layers": 1, "dense_layers": 0, "sliding_layers": 0, **plain})
    if sum(group.layers for group in a.layer_groups) == a.layers:
        last = a.layer_groups[-1].model_copy(update={"layers": 1, "feed_forward": True})
        return draft.model_copy(update={"layer_groups": (last,)})
    indexer = a.indexer and a.indexer.model_copy(update={"layers": None})
    return draft.model_copy(update={"layer_groups": (), "indexer": indexer})


def feed_forward_elements(a: Architecture) -> tuple[float, float, float]:
    """Count the elements of a routed expert, of the shared experts together and of a dense part."""
    width = a.feed_forward_matrices * a.hidden_size
    routed = a.feed_forward_matrices * expert_width(a)
    shared = a.shared_intermediate_size or a.expert_intermediate_size * a.shared_experts
    return (
        float(routed * a.expert_intermediate_size),
        float(width * shared),
        float(width * a.intermediate_size),
    )


def expert_width(a: Architecture) -> int:
    """Return the width of the tokens that reach the routed experts."""
    return a.expert_hidden_size or a.hidden_size


@lru_cache
def expert_layers(a: Architecture) -> int:
    return feed_forward_layers(a) - a.dense_layers if a.experts else 0


@lru_cache
def feed_forward_layers(a: Architecture) -> int:
    return sum(group.layers for group in a.groups if group.feed_forward)


def mixer_layers(a: Architecture) -> int:
    return sum(group.layers for group in a.groups if group.mixer != "none")


def whole_layers(a: Architecture) -> float:
    """Count the layers by their parts: one with a mixer or a feed-forward part alone is half of
    one."""
    return (mixer_layers(a) + feed_forward_layers(a)) / 2


@frozen
class Matrices:
    """Weights of one precision: their number, and bytes of each."""

    elements: float
    weight_bytes: float

    @property
    def bytes(self) -> float:
        return self.elements * self.weight_bytes


@lru_cache
def rank_layers(a: Architecture, tensor_parallel: int) -> tuple[Matrices, ...]:
    """Return a rank's mixers, quantised and plain, and feed-forward parts of all layers, without
    routed experts.

    Every rank has the projections to the experts' width, which are never quantised (vLLM 0.33,
    models/nemotron_h.py).
    """
    _, shared, dense = feed_forward_elements(a)
    with_experts = expert_layers(a)
    feed_forward = dense * (feed_forward_layers(a) - with_experts) + shared * with_experts
    latent = 2 * a.hidden_size * a.expert_hidden_size * with_experts
    return (
        *mixer_matrices(a, tensor_parallel),
        Matrices(latent, BF16),
        Matrices(feed_forward / tensor_parallel, a.dense_weight_bytes or a.weight_bytes),
    )


def mixer_matrices(a: Architecture, tensor_parallel: int) -> list[Matrices]:
    """Sum up all mixers on a rank, by bytes of a weight."""
    method = a.attention_weight_bytes or a.weight_bytes
    counted = dict[float, float]()
    for group in a.groups:
        for projection in group.projections(a.hidden_size):
            size = projection.stored_bytes or method
            elements = group.layers * projection.on_rank(tensor_parallel)
            counted[size] = counted.get(size, 0.0) + elements
    return [Matrices(elements, size) for size, elements in counted.items()]


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
    routed = experts * feed_forward_elements(a)[0] * expert_layers(a)
    return sum(part.elements for part in rank_layers(a, 1)) + routed


_LEAST_GROUP = 32
"""Inputs of the finest group that GPTQ's and AWQ's experts are given."""


@lru_cache  # tens of thousands of candidates have a few dozen layouts
def weight_bytes_per_gpu(
    a: Architecture,
    tensor_parallel: int,
    stage_gpus: int,
    pipeline: int,
    mtp: bool,
    expert_parallel: int = 1,
) -> float:
    """Return the bytes of weights on one GPU: experts spread over the stage, the rest over the
    attention replica.

    Embedding and output head are cut by the vocabulary, and bf16 but for a quantised head. Weights that only their files tell
    are shared evenly: the least that a GPU holds.
    """
    if a.checkpoint_gb:
        return a.checkpoint_gb * 1e9 / stage_gpus / pipeline
    expert, shared, dense = feed_forward_elements(a)
    experts = a.experts * expert * expert_layers(a) / stage_gpus
    experts *= _sharded_bytes(a, max(1, stage_gpus // expert_parallel))
    layers = sum(part.bytes for part in rank_layers(a, tensor_parallel)) + experts
    vocabulary = vocabulary_elements(a) * BF16
    if not a.tied_embeddings:
        vocabulary -= a.vocab_size * a.hidden_size * (BF16 - a.head_weight_bytes)
    weights = (layers + vocabulary / tensor_parallel) / pipeline
    if not mtp:
        return weights
    # One more layer, and the projection of two hidden states to one.
    feed_forward = dense / tensor_parallel
    if a.experts and a.mtp_experts:
        feed_forward = shared / tensor_parallel + a.experts * expert / stage_gpus
    mixer = sum(one.elements for one in mixer_matrices(a, tensor_parallel)) / a.layers
    elements = mixer + feed_forward + 2 * a.hidden_size**2
    return weights + elements * (a.mtp_weight_bytes or a.weight_bytes)


def _sharded_bytes(a: Architecture, shards: int) -> float:
    """Return the bytes per weight of experts that are cut into shards: padded to whole tiles, with
    finer groups where a group would be split (vLLM's moe_wna16.py, 0.33)."""
    width = a.expert_intermediate_size // shards
    if a.expert_tile and width:
        return a.weight_bytes * math.ceil(width / a.expert_tile) * a.expert_tile / width
    group = a.weight_group
    while group > _LEAST_GROUP and width % group:
        group //= 2
    if group == a.weight_group:
        return a.weight_bytes
    stored = int(2 * a.weight_bytes) / 2
    return stored + (a.weight_bytes - stored) * a.weight_group / group


def kv_bytes_per_token(
    a: Architecture, kv_type: str, tensor_parallel: int, length: int = 0, alignment: int = 1
) -> float:
    """Return the bytes of KV cache of one token on one rank, in all layers.

    Args:
        length: as of `LayerGroup.kv_bytes`.
        alignment: bytes to which latent attention's cache of a token and layer is padded.
    """
    total = 0.0
    for group in a.groups:
        size = group.kv_bytes(kv_type, tensor_parallel, length)
        if alignment > 1 and isinstance(group, AttentionGroup) and group.latent:
            size = math.ceil(size / alignment) * alignment
        total += size * group.layers
    return total


def window_row_bytes(a: Architecture) -> float:
    """Return the bytes of one uncompressed token in all layers with compressed attention."""
    return sum(
        group.layers * group.entry_bytes("fp8", 1)
        for group in a.attention_groups
        if group.compressed
    )


@lru_cache
def state_bytes(
    a: Architecture, tensor_parallel: int, element_bytes: float, *, recurrent: bool = False
) -> float:
    """Return the bytes on one rank that a sequence takes however long it is, in all layers; of
    `recurrent` ones alone.

    Args:
        element_bytes: as of `LayerGroup.state_bytes`.
    """
    return sum(
        group.layers * group.state_bytes(tensor_parallel, element_bytes)
        for group in a.groups
        if group.recurrent or not recurrent
    )


def state_in_tokens(
    a: Architecture, kv_type: str, tensor_parallel: int, element_bytes: float
) -> float:
    """Return the tokens of an attention layer's KV cache that take as many bytes as the largest
    recurrent state of one layer and sequence."""
    states = [one.state_bytes(tensor_parallel, element_bytes) for one in a.groups if one.recurrent]
    token = max(one.kv_bytes(kv_type, tensor_parallel, 0) for one in a.groups)
    return max(states) / token if states and token else 0.0


Share = Annotated[float, Field(gt=0, le=1)]
Shares = Annotated[
    dict[MatrixType, Share], BeforeValidator(lambda s: s if isinstance(s, dict) else {"bf16": s})
]
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
    drafts: list[str] = []
    """Checkpoints that may draft for it in a study, as ``NAME=WORD``: how their class drafts."""
    architecture: Architecture
    unpredicted: str = ""
    """Why its memory and its speed are unknown; its figures are then those of a plain decoder."""
    untold: str = ""
    """Quantisation that is promised somewhere and described nowhere; in a sentence."""
    acceptance: Acceptance = Acceptance()
    engines: dict[str, EngineExtras] = {}
    source: str

    @property
    def names(self) -> list[str]:
        """Its id, and its aliases after it."""
        return [self.id, *self.aliases]

    def check_predicted(self) -> None:
        """Raise `BadInput` for a model that the simulated node does not know."""
        if self.unpredicted:
            raise BadInput(
                f"{self.id} is not simulated: {self.unpredicted}; measure it on real servers (--on "
                "process or docker), or describe it in a YAML file with the nearest figures "
                "(docs/models.md)"
            )

    @property
    def assumed(self) -> ModelCard:
        """Return a card to guess with: where nothing is predicted, one KV head is the cache."""
        if not self.unpredicted:
            return self
        guessed = self.architecture.model_copy(update={"kv_heads": 1})
        return self.model_copy(update={"unpredicted": "", "architecture": guessed})

    @property
    def keeps_long_drafts(self) -> bool:
        """Return whether a fifth of the fifth drafted tokens is accepted: then five may pay off."""
        return self.acceptance.length(5) - self.acceptance.length(4) >= 0.2

    @property
    def sparse_attention(self) -> bool:
        return bool(self.architecture.indexer)

    @property
    def compressed_attention(self) -> bool:
        return any(group.compressed for group in self.architecture.attention_groups)

    @property
    def latent_attention(self) -> bool:
        return self.architecture.kv_lora_rank > 0 and not self.architecture.caches_heads

    @property
    def recurrent_layers(self) -> int:
        return sum(group.layers for group in self.architecture.groups if group.recurrent)

    @property
    def state_heads(self) -> int:
        """Return the most ranks over which all layers with a state can be cut; 0 without such a
        layer."""
        groups = (one for one in self.architecture.groups if isinstance(one, RecurrentGroup))
        return math.gcd(*(heads for group in groups for heads in group.cut_heads))

    @property
    def copies_groups(self) -> bool:
        """Return whether ranks share one group of a state-space layer's heads."""
        groups = self.architecture.groups
        return any(isinstance(one, StateSpace) and one.key_heads == 1 for one in groups)

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
    pci_ids: list[str] = []
    """PCI device ids, as ``0x74a1``, where a board may not tell its name."""
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
    achieved_flops: Shares
    """Share of the peak that large matrix products reach, for all types or by type; one that is not
    given is as bf16."""
    source: str

    @model_validator(mode="after")
    def _figures(self) -> HardwareCard:
        # A card that is copied and changed at one of the two would be simulated with the other.
        if self.driver_memory_gb and abs(self.driver_memory_gb / self.memory_gb - 1) > 0.1:
            raise ValueError(
                "driver_memory_gb is over 10 % from memory_gb: correct it, or leave it out"
            )
        if "bf16" not in self.achieved_flops:
            raise ValueError("achieved_flops needs bf16")
        return self

    def reached_flops(self, kind: MatrixType) -> float:
        """Return the FLOP/s of one GPU in large matrix products of a type."""
        shares = self.achieved_flops
        native = kind == "bf16" or self.tflops(kind) > self.bf16_tflops
        return self.tflops(kind) * 1e12 * shares.get(kind if native else "bf16", shares["bf16"])

    def tflops(self, kind: MatrixType) -> float:
        """Return the dense peak of one GPU for matrices of a type."""
        return {
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "fp4": self.fp4_tflops or self.bf16_tflops,
        }[kind]
