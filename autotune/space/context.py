"""The context of an evaluation (model, node, version, load), and what a knob's default and values are in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.space.cards import HardwareCard, ModelCard
from autotune.space.entry import in_range
from autotune.space.expression import Namespace, evaluate, fill_value
from autotune.space.schema import Case, Knob, Values
from autotune.trial import Configuration, Scalar

RANKS = ("replicas", "tensor_parallel", "data_parallel", "pipeline_parallel")
"""The knobs whose product is the GPUs of a configuration."""
_OF_THE_LOAD = ("longest_request", "concurrency", "tokens_in_flight", "shares_prefixes")
DEVICES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
"""Vendor to the environment variable that chooses among a machine's GPUs."""


@dataclass(frozen=True, slots=True)
class Context:
    """The fixed names of the engines' expressions.

    Attributes:
        gpus: GPUs that the study uses, at most the node's.
        longest_request: input + output tokens of the longest request of the workloads; 0 = unknown.
        concurrency: most requests in flight; infinite = unknown, or sent whatever the server does.
        tokens_in_flight: their tokens, prompts and answers, in the mean; infinite = unknown.
        version: the engine's version.
        lacking: Python modules that the engine's installation was asked for and does not have.
        shares_prefixes: whether prompts of a workload may begin alike.
    """

    model: ModelCard
    hardware: HardwareCard
    gpus: int
    version: str
    longest_request: int = 0
    lacking: tuple[str, ...] = ()
    concurrency: float = math.inf
    tokens_in_flight: float = math.inf
    shares_prefixes: bool = False

    def scope(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names that an expression sees: the knobs and ``model, hardware, gpus, workload``."""
        load = {name: getattr(self, name) for name in _OF_THE_LOAD}
        fixed = {"model": self.model, "hardware": self.hardware, "gpus": self.gpus}
        return {**knobs, **fixed, "workload": Namespace(load)}


def default_of(knob: Knob, scope: Mapping[str, Any], version: str) -> Scalar:
    """Return the knob's default; of several cases the first that holds. None when no case holds."""
    if not isinstance(knob.default, list):
        return knob.default
    return next((fill_value(case.value, scope) for case in knob.default if _holds(case, scope, version)), None)


def search_values(knob: Knob, scope: Mapping[str, Any], version: str) -> tuple[Scalar, ...]:
    """List the values to try; of several cases the first that holds, the default alone when none does."""
    plain: list[Scalar] = []
    for entry in knob.search if knob.exists_in(version) else ():
        if not isinstance(entry, Values):
            plain.append(entry)
        elif _holds(entry, scope, version):
            return tuple(entry.values)
    return tuple(plain) if plain else (default_of(knob, scope, version),)


def _holds(case: Case | Values, scope: Mapping[str, Any], version: str) -> bool:
    return in_range(version, case.versions) and bool(evaluate(case.when, scope))


def gpus_of(configuration: Configuration, most: int) -> int:
    """Count the GPUs of a configuration's servers: the product of its parallel sizes, at most ``most``.

    One that names no size, as of a replayed table, takes all.
    """
    sizes = _sizes(configuration.knobs)
    return min(most, math.prod(sizes)) if sizes else most


def _sizes(knobs: Mapping[str, Any]) -> list[int]:
    return [size for name in RANKS if isinstance(size := knobs.get(name), int) and size > 0]


def replicas_of(knobs: Mapping[str, Any]) -> int:
    """Count the servers of a configuration: one of an engine that has no such knob."""
    return int(knobs.get("replicas") or 1)


def servers_of(knobs: Mapping[str, Any], vendor: str) -> tuple[dict[str, str], ...]:
    """Return the settings of each server of a configuration: the GPUs that are its own; empty of a single server."""
    count = replicas_of(knobs)
    each, variable = math.prod(_sizes(knobs)) // count, DEVICES.get(vendor)
    ranges = [range(i * each, (i + 1) * each) for i in range(count)] if count > 1 else []
    return tuple({variable: ",".join(map(str, own))} if variable else {} for own in ranges)
