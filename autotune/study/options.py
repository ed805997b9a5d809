"""The options of ``autotune run`` and ``autotune simulate`` as they were typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``autotune run`` as they were typed.

    Attributes:
        model, hardware: empty where a bundle tells them.
        given: the options that were typed, also those with their default value.
    """

    model: str = ""
    hardware: str = ""
    gpus: int | None = None
    engines: Sequence[str] = ()
    workloads: Sequence[str] = ()
    speedup: float | None = None
    objective: str | None = None
    weights: str | None = None
    pareto: str | None = None
    slos: Sequence[str] = ()
    goodput: Sequence[str] = ()
    ladder: str | None = None
    gpu_hour_price: float | None = None
    find_load: Literal["concurrency", "rate"] | None = None
    baseline: str | None = None
    pins: Sequence[str] = ()
    min_context: int | None = None
    allow: Sequence[str] = ()
    accuracy: str | None = None
    engine_args: Sequence[str] = ()
    engine_bins: Sequence[str] = ()
    launches: int = 30
    hours: float | None = None
    on: str = "auto"
    images: Sequence[str] = ()
    fetch: bool = False
    api_key_env: str | None = None
    api_key_file: str | None = None
    hf_token_file: str | None = None
    executor: str = "local"
    sampler: str = "gp"
    sources: Sequence[str] = ()
    space: Path | None = None
    calibration: Path | None = None
    model_id: str | None = None
    study: str | None = None
    seed: int = 0
    noise: float | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    given: frozenset[str] = frozenset()

    def says(self, name: str) -> bool:
        """Whether an option was typed, or has another value than its default."""
        own = next(one for one in fields(self) if one.name == name)
        return name in self.given or getattr(self, name) not in (own.default, ())


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of ``autotune verify`` as they were typed.

    Attributes:
        on: None: this machine, where it has the study's hardware.
        top: commands beside the baseline.
        launches: None: each command once, and the finals.
    """

    study: str
    on: str | None = None
    top: int = 3
    launches: int | None = None
    engine_bins: Sequence[str] = ()
    images: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The options of ``autotune simulate`` as they were typed."""

    hardware: str
    engine_command: Sequence[str]
    gpus: int | None = None
    engine_version: str | None = None
    model_id: str | None = None
    workload: str = "sharegpt"
    concurrency: int | None = None
    replicas: int = 1
    gpu_hour_price: float | None = None
    seed: int = 0
    calibration: Path | None = None
    versus: str | None = None
    versus_version: str | None = None
