"""Groups of a decoder's layers: what mixes their tokens, and its weights, cache and work.

A group is made of layers that are alike in their mixer: attention, or what takes its place. Layers
may have a mixer alone or a feed-forward part alone. Every figure is of one layer; sums over a
model's groups are in `autotune.engines.cards`.
"""

from collections.abc import Iterator
from functools import cache
from typing import ClassVar, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter

from autotune.base import Json

from .entry import Entry, spaces_file
from .expression import Expression, evaluate

BF16 = 2.0
_CACHED_BYTES = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes of a cached value with its share of a block's scale; other types have 16 bits."""
ALL, KEPT, WINDOW = "all", "kept", "window"
"""Tokens that a query reads: all before it, at most `Architecture.attended_limit` of them, or those
of the group's own window."""


INDEXER_SCALE_BYTES = 4
"""Bytes of the fp32 scale beside an indexer's fp8 key, per token and layer (DeepSeek-V3.2)."""


class Indexer(Entry):
    """DeepSeek sparse attention's indexer (V3.2): scores all tokens, keeps the top ones."""

    heads: int
    head_dim: int
    top_k: int
    bytes_per_token_layer: int
    """Bytes per token and layer of its fp8 key cache, scales included."""
    layers: int | None = None
    """Layers with an indexer of their own; None: all (GLM-5.2 shares)."""


class Projection(NamedTuple):
    """A matrix of a mixer, or several matrices that are always treated alike.

    Attributes:
        name: module in the checkpoint, below the layer.
        elements: of one layer, the mean where some layers have none.
        shards: ranks that it is cut over at most; with more ranks there are copies. 1: each rank
            has it whole.
        stored_bytes: bytes of a weight that no checkpoint's method quantises; 0: by the method.
    """

    name: str
    elements: float
    shards: int = 1
    stored_bytes: float = 0.0

    def on_rank(self, tensor_parallel: int) -> float:
        return self.elements / min(tensor_parallel, self.shards)


class Matrix(Entry):
    """A `Projection` by the figures of its layers."""

    name: str
    elements: Expression
    shards: Expression = "1"
    stored_bytes: float = 0.0
    when: Expression = "True"


class Mixer(Entry):
    """A mixer in ``search_spaces/mixers.yaml``: its matrices, state and operations."""

    matrices: list[Matrix] = []
    state_bytes: Expression = "0"
    prompt_flops: Expression = "0"


@cache
def _mixers() -> dict[str, Mixer]:
    return TypeAdapter(dict[str, Mixer]).validate_python(spaces_file("mixers.yaml"))


def cached_type(knob: object) -> str:
    """Return the type of cached values for a value of `kv_cache_dtype` without ``auto``."""
    text = str(knob)
    if text in {"fp8_ds_mla", "nvfp4"}:
        return text
    return "fp8" if text.startswith("fp8") else "bfloat16"


class LayerGroup(Entry):
    """Layers that are alike; by itself a feed-forward part without a mixer."""

    recurrent: ClassVar[bool] = False
    """Whether it has a recurrent state, all of which each decode step reads and writes."""
    mixer: str
    layers: PositiveInt
    feed_forward: bool = True
    """Whether the layers have a feed-forward part beside the mixer."""

    def projections(self, hidden_size: int) -> Iterator[Projection]:
        """List the matrices of a layer's mixer."""
        scope = self._scope(hidden_size=hidden_size)
        for one in _mixers()[self.mixer].matrices:
            if evaluate(one.when, scope):
                elements = evaluate(one.elements, scope)
                yield Projection(one.name, elements, evaluate(one.shards, scope), one.stored_bytes)

    def kv_bytes(self, kv_type: str, tensor_parallel: int, length: int) -> float:
        """Return the bytes of cache that one token takes on a rank.

        Args:
            length: tokens of the sequence whose mean is asked for, where a window's layers keep no
                more; 0 = they keep all.
        """
        return 0.0

    def state_bytes(self, tensor_parallel: int, element_bytes: float) -> float:
        """Return the bytes that a sequence takes on a rank, however long it is.

        Args:
            element_bytes: of a recurrent state whose type the checkpoint leaves to the engine.
        """
        scope = self._scope(tensor_parallel=tensor_parallel, element_bytes=element_bytes)
        size: float = evaluate(_mixers()[self.mixer].state_bytes, scope)
        return size

    @property
    def residual_width(self) -> int:
        """Return the copies of the hidden state between layers (hyper-connections)."""
        return 1

    @property
    def prompt_flops(self) -> float:
        """Return the operations of a recurrent layer per prompt token, beside its projections."""
        flops: float = evaluate(_mixers()[self.mixer].prompt_flops, self._scope())
        return flops

    def _scope(self, **more: float) -> Json:
        """Return the names that the mixer's expressions see."""
        return {**vars(self), "group": self, **more}


class NoMixer(LayerGroup):
    """A feed-forward part alone (Nemotron-H)."""

    mixer: Literal["none"] = "none"


class AttentionGroup(LayerGroup):
    """Figures that all kinds of attention have."""

    compressed: ClassVar[bool] = False
    """Whether a cached entry may stand for several tokens."""
    heads: PositiveInt
    head_dim: PositiveInt
    """Width of a query's head."""
    v_head_dim: NonNegativeInt = 0
    """Width of a value's head; 0: as `head_dim`."""
    window: NonNegativeInt = 0
    """Tokens that a query sees; 0: all."""
    gated: bool = False
    """A gate on attention's output, as wide as that."""
    indexer: Indexer | None = None

    @property
    def value_width(self) -> int:
        return self.v_head_dim or self.head_dim

    @property
    def latent(self) -> bool:
        """Return whether all heads share the cached values."""
        return False

    @property
    def cached_width(self) -> int:
        """Return the values of one token in a workspace of sparse kernels."""
        return 0

    @property
    def entry_tokens(self) -> int:
        """Return the tokens that a scored entry stands for."""
        return 1

    @property
    def chosen_tokens(self) -> int:
        """Return the tokens that the indexer keeps; 0 without one."""
        return self.indexer.top_k if self.indexer else 0

    @property
    def sparse(self) -> bool:
        """Return whether sparse kernels compute it: they read chosen entries of the KV cache."""
        return self.indexer is not None

    @property
    def decode_width(self) -> int:
        """Return the multiplications of a query's head with a cached token."""
        return self.prefill_width

    @property
    def prefill_width(self) -> int:
        """Return the same among the tokens of a prompt: a key's width and a value's."""
        return self.head_dim + self.value_width

    @property
    def passed_width(self) -> int:
        """Return the elements of queries, keys and values, in and out."""
        return 4 * self.heads * self.value_width

    @property
    def own_indexers(self) -> int:
        """Count the layers with their own indexer; the others reuse the previous layer's choice."""
        if not self.indexer:
            return 0
        return self.layers if self.indexer.layers is None else self.indexer.layers

    @property
    def index_bytes(self) -> float:
        """Return the bytes of the indexer's keys of one token, the mean over the layers."""
        if not self.indexer:
            return 0.0
        return self.indexer.bytes_per_token_layer * self.own_indexers / self.layers

    @property
    def index_flops(self) -> float:
        """Return the operations that score one token for a query, in all layers."""
        if not self.indexer:
            return 0
        return 2 * self.indexer.heads * self.indexer.head_dim * self.own_indexers

    def reads(self, attended_limit: int) -> Iterator[tuple[str, float]]:
        """List what a query reads, and how many cached entries each of these tokens is."""
        if self.indexer:
            yield KEPT, 1.0
        elif self.window:
            yield KEPT if self.window == attended_limit else WINDOW, 1.0
        else:
            yield ALL, 1.0

    def entry_bytes(self, kv_type: str, tensor_parallel: int) -> float:
        """Return the bytes of one cached entry on a rank, without the indexer's."""
        raise NotImplementedError

    def kv_bytes(self, kv_type: str, tensor_parallel: int, length: int) -> float:
        size = self.entry_bytes(kv_type, tensor_parallel)
        if length > self.window > 0:
            size *= self.window / length
        return size + self.index_bytes


class GroupedQuery(AttentionGroup):
    """Attention with a key and a value of each KV head, full or with a window."""

    mixer: Literal["attention"] = "attention"
    kv_heads: PositiveInt
    keys_are_values: bool = False
    """One projection for both, which are cached both (Gemma 4)."""

    @property
    def passed_width(self) -> int:
        return (2 * self.heads + 2 * self.kv_heads) * self.value_width

    def entry_bytes(self, kv_type: str, tensor_parallel: int) -> float:
        value_bytes = _CACHED_BYTES.get(kv_type, BF16)
        return (
            self.kv_heads * self.prefill_width * value_bytes / min(tensor_parallel, self.kv_heads)
        )


class LatentAttention(AttentionGroup):
    """DeepSeek's latent attention: one cached vector for all heads, the same on every rank."""

    mixer: Literal["latent"] = "latent"
    q_lora_rank: NonNegativeInt = 0
    kv_lora_rank: PositiveInt
    qk_rope_head_dim: NonNegativeInt
    qk_nope_head_dim: PositiveInt
    caches_heads: bool = False
    """Cached are each head's key and a value padded to its width."""

    @property
    def latent(self) -> bool:
        return not self.caches_heads

    @property
    def cached_width(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def decode_width(self) -> int:
        if self.caches_heads:
            return 2 * self.head_dim
        # Absorbed, heads multiply by the cached width; prefill has the heads' own.
        return 2 * self.kv_lora_rank + self.qk_rope_head_dim

    def entry_bytes(self, kv_type: str, tensor_parallel: int) -> float:
        """Return the bytes of kv-lora + rope values; ``fp8_ds_mla`` keeps the latent values in fp8
        with scales and the rope part in bf16 (656 bytes, vLLM and FlashMLA)."""
        value_bytes = _CACHED_BYTES.get(kv_type, BF16)
        if self.caches_heads:
            return 2 * self.heads * self.head_dim * value_bytes / min(tensor_parallel, self.heads)
        if kv_type == "fp8_ds_mla":
            return self.kv_lora_rank * (1 + 4 / 128) + self.qk_rope_head_dim * BF16
        return self.cached_width * value_bytes
