"""Layers that keep a state of fixed size per sequence instead of a cache.

Each head's state is a matrix of its key's width by its value's; beside it are the last inputs of a
short convolution. Sources: vLLM 0.33, model_executor/layers/mamba/mamba_utils.py
(`MambaStateShapeCalculator`, `MambaStateDtypeCalculator`), mamba_mixer2.py and
models/kimi_k3/nvidia/kda.py.
"""

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from .layers import LayerGroup


class RecurrentGroup(LayerGroup):
    """Figures of all layers with a state."""

    recurrent = True
    key_heads: PositiveInt
    """Heads of queries and keys; state-space layers: groups of heads that share B and C."""
    value_heads: PositiveInt
    """Heads with a state."""
    head_dim: PositiveInt
    """Width of a value's head."""
    key_dim: NonNegativeInt = 0
    """Width of a key's head, a state-space layer's ``d_state``; 0: as `head_dim`."""
    convolution: NonNegativeInt = 4
    """Tokens that the short convolution sees, the newest included."""
    state_element_bytes: PositiveFloat | None = None
    """Bytes of a state's element; None: the engine's default."""
    chunk: PositiveInt = 64
    """Tokens of a prompt that are multiplied together."""

    @property
    def key_width(self) -> int:
        return self.key_dim or self.head_dim

    @property
    def cut_heads(self) -> tuple[int, int]:
        """Return the numbers of heads that tensor parallelism has to divide."""
        return self.key_heads, self.value_heads


class DeltaNet(RecurrentGroup):
    """Gated DeltaNet (Qwen3-Next, Qwen3.5; arXiv:2412.06464)."""

    mixer: Literal["delta"] = "delta"


class KimiDelta(RecurrentGroup):
    """Kimi Delta Attention: a decay of its own for each channel of a key (arXiv:2510.26692)."""

    mixer: Literal["kimi_delta"] = "kimi_delta"
    state_element_bytes: PositiveFloat | None = 4.0
    full_rank_gate: bool = False
    """Whether the output's gate is one matrix (Kimi-K3), not two of a head's width."""


class StateSpace(RecurrentGroup):
    """Mamba-2 (arXiv:2405.21060)."""

    mixer: Literal["state_space"] = "state_space"

    @property
    def cut_heads(self) -> tuple[int, int]:
        # One group is copied to all ranks.
        return 0 if self.key_heads == 1 else self.key_heads, self.value_heads


class SelectiveScan(LayerGroup):
    """Mamba (arXiv:2312.00752) as Jamba has it: each channel has a state of its own, and no method
    quantises the matrices (vLLM 0.33, models/jamba.py)."""

    recurrent = True
    mixer: Literal["selective_scan"] = "selective_scan"
    width: PositiveInt
    """Channels."""
    state: PositiveInt
    """Elements of a channel's state."""
    time_step_rank: PositiveInt
    convolution: PositiveInt = 4


class ShortConvolution(LayerGroup):
    """A gated short convolution, whose state is its last inputs (LFM2)."""

    recurrent = True
    mixer: Literal["convolution"] = "convolution"
    width: PositiveInt
    convolution: PositiveInt = 3
