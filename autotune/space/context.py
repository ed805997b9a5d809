"""The context of an evaluation: the model, the node, the version and the load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.expression import Namespace


@dataclass(frozen=True, slots=True)
class Context:
    """The fixed names of the engines' expressions.

    Attributes:
        gpus: GPUs that the study uses, at most the node's.
        longest_request: input + output tokens of the longest request of the workloads; 0 = unknown.
        version: the engine's version.
    """

    model: ModelCard
    hardware: HardwareCard
    gpus: int
    version: str
    longest_request: int = 0

    def scope(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """The names that an expression sees: the knobs and ``model, hardware, gpus, workload``."""
        return {
            **knobs,
            "model": self.model,
            "hardware": self.hardware,
            "gpus": self.gpus,
            "workload": Namespace({"longest_request": self.longest_request}),
        }
