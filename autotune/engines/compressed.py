"""DeepSeek-V4's attention over compressed tokens.

Of each `ratio` tokens one entry is cached, for all heads; with an indexer a query reads the best
ones. Every layer also reads the last tokens, uncompressed. The projection of the output goes
through a low rank, in groups of heads. Sources: DeepSeek-V4's report, sections 2.2 and 2.3; vLLM
0.33, models/deepseek_v4/attention.py and compressor.py, v1/attention/backends/mla/sparse_swa.py;
SGLang 0.5.23, mem_cache/deepseek_v4_memory_pool.py (the same bytes).
"""

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from .layers import ALL, KEPT, WINDOW, AttentionGroup

_BLOCK_TOKENS, _ALIGNMENT = 256, 576
"""Tokens of a block of the KV cache, and the multiple of bytes to which a layer's part of a block is
padded."""
_SCALED = 64
"""Values in fp8 that share a scale of one byte; the last byte of the scales is padding."""


class CompressedAttention(AttentionGroup):
    """Layers with one compression ratio."""

    compressed = True
    mixer: Literal["compressed"] = "compressed"
    window: PositiveInt
    ratio: NonNegativeInt = 0
    """Tokens that one entry of the KV cache is made of; 0: no such entries, only the window."""
    q_lora_rank: PositiveInt
    o_lora_rank: PositiveInt
    """Width of the output's low rank, for each of `o_groups`."""
    o_groups: PositiveInt
    qk_rope_head_dim: PositiveInt
    residual_streams: PositiveInt = 1
    """Hyper-connections: copies of the hidden state between layers, mixed before and after each."""

    @property
    def latent(self) -> bool:
        return True

    @property
    def sparse(self) -> bool:
        return True

    @property
    def passed_width(self) -> int:
        return (2 * self.heads + 2) * self.head_dim

    @property
    def residual_width(self) -> int:
        return self.residual_streams

    @property
    def cached_width(self) -> int:
        return self.head_dim

    @property
    def entry_tokens(self) -> int:
        return max(1, self.ratio)

    @property
    def chosen_tokens(self) -> int:
        return self.indexer.top_k * self.ratio if self.indexer else 0

    @property
    def index_bytes(self) -> float:
        return _padded(super().index_bytes, self.entry_tokens)

    @property
    def index_flops(self) -> float:
        return super().index_flops / self.entry_tokens

    def reads(self, attended_limit: int) -> Iterator[tuple[str, float]]:
        yield WINDOW, 1.0
        if self.ratio:
            yield KEPT if self.indexer else ALL, 1 / self.ratio

    def entry_bytes(self, kv_type: str, tensor_parallel: int) -> float:
        return self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Return the bytes of an entry on every rank: values in fp8 with scales, the rope part in
        bf16."""
        values = self.head_dim - self.qk_rope_head_dim
        return values + 2 * self.qk_rope_head_dim + values // _SCALED + 1

    def kv_bytes(self, kv_type: str, tensor_parallel: int, length: int) -> float:
        entry = _padded(self.row_bytes, self.entry_tokens)
        return (entry if self.ratio else 0.0) + self.index_bytes


def _padded(entry_bytes: float, tokens: int) -> float:
    """Return the bytes of one of the `tokens` that share an entry."""
    rows = _BLOCK_TOKENS / tokens * entry_bytes
    return math.ceil(rows / _ALIGNMENT) * _ALIGNMENT / _BLOCK_TOKENS
