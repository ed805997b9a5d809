"""Cards of a model and of a node, in the form of the YAML files: `ModelCard` and `HardwareCard`.

Expressions in the engines' files see them as ``model`` and ``hardware``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from .architecture import Architecture, MatrixType, weight_bytes_per_gpu
from .entry import Entry
from .schema import Addition

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
    """Rates by position, given that the ones before were kept; positions beyond have the last one."""
    source: str = "assumed: no figure of this model is published; of others 0.79 to 0.93 of the first tokens are kept"

    def length(self, drafted: int, share: float = 1.0) -> float:
        """Return the gain in tokens per sequence and step, 1 + a + a * b …; `share` is a factor on
        each rate."""
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
    acceptance: Acceptance = Acceptance()
    engines: dict[str, EngineExtras] = {}
    source: str

    @property
    def keeps_long_drafts(self) -> bool:
        """Return whether a fifth of the fifth drafted tokens is accepted: then five may pay off."""
        return self.acceptance.length(5) - self.acceptance.length(4) >= 0.2

    @property
    def sparse_attention(self) -> bool:
        return self.architecture.indexer is not None

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
        given = self.achieved_flops
        if not all(
            0 < share <= 1 for share in (given.values() if isinstance(given, dict) else [given])
        ):
            raise ValueError("achieved_flops must be above 0 and at most 1")
        if isinstance(given, dict) and "bf16" not in given:
            raise ValueError("achieved_flops needs bf16")
        return self

    def reached_flops(self, kind: MatrixType) -> float:
        """Return the FLOP/s of one GPU in large matrix products of a type."""
        given = self.achieved_flops
        native = kind == "bf16" or self.tflops(kind) > self.bf16_tflops
        share = (
            given.get(kind if native else "bf16", given["bf16"])
            if isinstance(given, dict)
            else given
        )
        return self.tflops(kind) * 1e12 * share

    def tflops(self, kind: MatrixType) -> float:
        """Return the dense peak of one GPU for matrices of a type."""
        return {
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "fp4": self.fp4_tflops or self.bf16_tflops,
        }[kind]
