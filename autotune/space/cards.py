"""What the YAML files say of a model and of a node: `ModelCard` and `HardwareCard`.

Expressions in the engines' files see them as ``model`` and ``hardware``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autotune.space.schema import Addition


class Card(BaseModel):
    """A document of ``search_spaces/``: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Indexer(Card):
    """DeepSeek sparse attention's indexer (V3.2): scores all tokens, keeps the top ones."""

    heads: int
    head_dim: int
    top_k: int
    bytes_per_token_layer: int = Field(description="its fp8 key cache with scales, bytes per token and layer")


class Architecture(Card):
    """The figures of a decoder's ``config.json`` that its arithmetic needs; sizes in elements."""

    layers: int
    hidden_size: int
    vocab_size: int
    heads: int
    kv_heads: int = Field(description="grouped-query heads; for latent attention equal to `heads`")
    head_dim: int = Field(description="of the query; for latent attention nope + rope")
    intermediate_size: int = Field(description="width of a dense feed-forward layer")
    dense_layers: int = Field(default=0, description="leading layers without experts")
    experts: int = Field(default=0, description="routed experts per layer; 0 = a dense model")
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_intermediate_size: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = Field(default=0, description="latent attention's cached width; 0 = ordinary attention")
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    indexer: Indexer | None = None
    mtp_layers: int = Field(default=0, description="multi-token-prediction layers in the checkpoint")
    context_limit: int
    weight_bytes: float = Field(default=2.0, description="bytes per weight of the checkpoint's large matrices")


class EngineExtras(Card):
    """What one engine needs, or serves better with, for this model: parsers, templates, tokenizer modes."""

    always: list[Addition] = []


class ModelCard(Card):
    """``search_spaces/models/<name>.yaml``."""

    id: str = Field(description="the Hugging Face id")
    aliases: list[str] = []
    family: str = Field(description="e.g. deepseek_v3; rules refer to it")
    architecture: Architecture
    engines: dict[str, EngineExtras] = {}
    source: str

    @property
    def sparse_attention(self) -> bool:
        return self.architecture.indexer is not None

    @property
    def latent_attention(self) -> bool:
        return self.architecture.kv_lora_rank > 0

    @property
    def experts(self) -> int:
        return self.architecture.experts

    @property
    def heads(self) -> int:
        return self.architecture.heads

    @property
    def kv_heads(self) -> int:
        return self.architecture.kv_heads

    @property
    def layers(self) -> int:
        return self.architecture.layers

    @property
    def mtp_layers(self) -> int:
        return self.architecture.mtp_layers

    @property
    def context_limit(self) -> int:
        return self.architecture.context_limit


class HardwareCard(Card):
    """``search_spaces/hardware/<name>.yaml``: one node. Rates are peaks of one GPU."""

    name: str
    aliases: list[str] = []
    vendor: Literal["nvidia", "amd", "cpu"]
    generation: str = Field(description="hopper, blackwell, cdna3 …")
    gpus: int = Field(gt=0, description="GPUs per node; a machine without one counts as one device")
    memory_gb: float = Field(gt=0, description="per GPU, 10^9 bytes, as the data sheet gives it")
    driver_memory_gb: float | None = Field(
        default=None, gt=0, description="per GPU, 10^9 bytes, as an engine reads it; None: as `memory_gb`"
    )
    bandwidth_tb_s: float = Field(gt=0, description="memory bandwidth per GPU, TB/s")
    bf16_tflops: float = Field(gt=0, description="dense")
    fp8_tflops: float = Field(gt=0, description="dense")
    link_gb_s: float = Field(gt=0, description="GPU-to-GPU bandwidth per GPU, both directions, GB/s")
    achieved_bandwidth: float = Field(gt=0, le=1, description="share of the peak that decode kernels reach")
    achieved_flops: float = Field(gt=0, le=1, description="share of the peak that prefill matrix kernels reach")
    source: str
