"""The figures of a decoder that its arithmetic needs: `Architecture`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from autotune.space.entry import Entry


class Indexer(Entry):
    """DeepSeek sparse attention's indexer (V3.2): scores all tokens, keeps the top ones."""

    heads: int
    head_dim: int
    top_k: int
    bytes_per_token_layer: int = Field(description="its fp8 key cache with scales, bytes per token and layer")
    layers: int | None = Field(default=None, description="with an indexer of their own; None: all (GLM-5.2 shares)")


MatrixType = Literal["bf16", "fp8", "fp4"]
"""What matrix kernels multiply in; their peaks stand in the hardware's card."""


class Architecture(Entry):
    """The figures of a decoder's ``config.json`` that its arithmetic needs; sizes in elements."""

    layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0, description="grouped-query heads; for latent attention equal to `heads`")
    head_dim: int = Field(gt=0, description="of the query; for latent attention nope + rope")
    intermediate_size: int = Field(description="width of a dense feed-forward layer")
    dense_layers: int = Field(default=0, ge=0, description="layers without experts, of a model that has experts")
    experts: int = Field(default=0, ge=0, description="routed experts per layer; 0 = a dense model")
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = Field(
        default=0, description="width of the shared experts together; 0 = `shared_experts` of the routed ones' width"
    )
    feed_forward_matrices: int = Field(default=3, description="of one feed-forward part: 3 gated, 2 plain")
    q_lora_rank: int = 0
    kv_lora_rank: int = Field(default=0, description="latent attention's cached width; 0 = ordinary attention")
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    indexer: Indexer | None = None
    sliding_window: int = Field(default=0, description="tokens that `sliding_layers` attend to")
    sliding_layers: int = Field(default=0, description="layers that attend to the last `sliding_window` tokens only")
    linear_layers: int = Field(default=0, description="layers with linear attention: a state, no KV cache")
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_head_dim: int = 0
    gated_attention: bool = Field(default=False, description="a gate as wide as the query on attention's output")
    mtp_layers: int = Field(default=0, description="multi-token-prediction layers in the checkpoint")
    context_limit: int
    tied_embeddings: bool = Field(default=False, description="the output head is the embedding")
    weight_bytes: float = Field(
        default=2.0, gt=0, description="bytes per weight of the large matrices (experts; else feed-forward), scales too"
    )
    attention_weight_bytes: float | None = Field(default=None, gt=0, description="None: as `weight_bytes`")
    dense_weight_bytes: float | None = Field(
        default=None, gt=0, description="of shared experts and layers without experts; None: as `weight_bytes`"
    )
    mtp_weight_bytes: float | None = Field(default=None, gt=0, description="None: as `weight_bytes`")
    weight_block: int = Field(default=0, description="rows of one quantisation block; shards must be multiples of it")
    matrices_in: MatrixType | None = Field(
        default=None, description="type in which quantised matrices are multiplied; None: fp8 up to 1 byte, else bf16"
    )

    @model_validator(mode="after")
    def _layers_add_up(self) -> Architecture:
        for part in ("dense_layers", "sliding_layers", "linear_layers"):
            if getattr(self, part) > self.layers:
                raise ValueError(f"{part}={getattr(self, part)} are more than the {self.layers} layers")
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} is not 1 to {self.experts}")
        return self

    @property
    def attended_limit(self) -> int:
        """Return the tokens that an attention layer looks at where they are not all; 0 = every layer sees all."""
        return self.indexer.top_k if self.indexer else self.sliding_window

    def multiplied_in(self, weight_bytes: float) -> MatrixType:
        """Return the type in which matrices of so many bytes per weight are multiplied."""
        if weight_bytes >= 2.0:
            return "bf16"
        kind = self.matrices_in or ("fp8" if weight_bytes <= 1.0 else "bf16")
        return "fp8" if kind == "fp4" and weight_bytes >= 1.0 else kind
