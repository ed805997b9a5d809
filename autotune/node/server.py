"""Server of the simulated node: its knobs, and the engine's values of unset ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from autotune.engines.architecture import BF16
from autotune.engines.cards import HardwareCard, ModelCard
from autotune.engines.command import Scalar
from autotune.engines.entry import in_range
from autotune.engines.expression import evaluate, names
from autotune.engines.library import Library

from .calibration import Calibration, coefficients_of, packaged_calibration
from .coefficients import Coefficients, speed_card

UNFORCED = 1.15
"""Tokens per step of a server that drafts on random tokens and is not forced: next to none is kept.
Of two tokens DeepSeek-V4-Flash kept 0.21 (https://github.com/vllm-project/vllm/pull/41044, April
2026); others differ widely."""

_LEAST_WHOLE_BUDGET = 2048
"""Least budget of a step that takes whole prompts up to the context (vLLM 0.7: config.py,
SchedulerConfig)."""


@lru_cache(maxsize=64)
def _planned_share(engine: str, version: str) -> str | None:
    """Return the expression in an engine's card for the share of weights and KV; None without
    one."""
    card = Library().engines.get(engine)
    knob = card.knobs.get("memory_fraction") if card else None
    return next(
        (each.value for each in (knob.becomes if knob else ()) if in_range(version, each.versions)),
        None,
    )


@dataclass(frozen=True)
class ServerSetup:
    """Settings of a simulated server, by effective knobs; the engine decides those that are None.

    `on_random`: tokens per step of a drafting server on random tokens; None: as on text. Tokens of
    `random_weights` are spread over the experts evenly.
    """

    engine: str
    version: str
    knobs: Mapping[str, Scalar]
    model: ModelCard
    hardware: HardwareCard
    gpus: int
    calibration: Calibration | None = None
    on_random: float | None = None
    random_weights: bool = False

    @property
    def scope(self) -> dict[str, Any]:
        """Return the names in a speed card's conditions in addition to the knobs."""
        return {"model": self.model, "hardware": self.hardware, "gpus": self.gpus}


class RecordedKnobs(Mapping[str, Scalar]):
    """Knobs that record which of them are read, in `names`."""

    def __init__(self, knobs: Mapping[str, Scalar], names: set[str]) -> None:
        self._knobs, self._names = knobs, names

    def __getitem__(self, name: str) -> Scalar:
        self._names.add(name)
        return self._knobs[name]

    def __iter__(self) -> Iterator[str]:
        raise TypeError("what the arithmetic reads it must name")

    def __len__(self) -> int:
        return len(self._knobs)


class SimulatedServer:
    """`ServerSetup` with all values resolved.

    Args:
        coefficients: in place of those that the setup comes to, for a test of one of them.

    Attributes:
        tensor_parallel: GPUs that share one attention replica.
        data_parallel: attention replicas, each with its own KV pool and batch.
        joined_replicas: replicas that meet at the experts; those of a model without experts are
            servers of their own.
        stage_gpus: GPUs of one pipeline stage: those that share a layer.
        replicas: servers side by side, each of which is what the other attributes say; only `gpus`
            is of all of them.
        expert_parallel: ranks that the experts are spread over; each expert is cut into `stage_gpus
            / expert_parallel` shards.
        tokens_per_step: expected tokens that a running sequence gains per decode step, where its
            prompt is random.
        text_tokens_per_step: the same where the prompt is text as people write it.
        graph_batch: largest batch per rank that a CUDA graph holds, in tokens (vLLM) or sequences;
            0 = none.
        kv_type: ``bfloat16``, ``fp8`` or ``fp8_ds_mla``, with ``auto`` resolved.
        bandwidth: bytes per second that decode kernels achieve on one GPU.
        pace: factor on the duration of a step: what random weights change that nothing else here
            explains, by engine and layout.
    """

    def __init__(self, setup: ServerSetup, coefficients: Coefficients | None = None) -> None:
        self.setup = setup
        self.model, self.architecture, self.hardware = (
            setup.model,
            setup.model.architecture,
            setup.hardware,
        )
        self.coefficients = c = coefficients or coefficients_of(
            speed_card(setup.engine),
            setup.calibration or packaged_calibration(),
            setup.version,
            setup.knobs,
            setup.scope,
        )
        self.tensor_parallel = max(1, self._count("tensor_parallel", 1))
        self.data_parallel = max(1, self._count("data_parallel", 1))
        self.pipeline_parallel = max(1, self._count("pipeline_parallel", 1))
        self.context_parallel = max(1, self._count("decode_context_parallel", 1))
        self.joined_replicas = self.data_parallel if self.architecture.experts else 1
        self.stage_gpus = self.tensor_parallel * self.joined_replicas
        self.replicas = max(1, self._count("replicas", 1))
        self.gpus = (
            self.replicas * self.tensor_parallel * self.data_parallel * self.pipeline_parallel
        )
        self.expert_parallel = min(max(1, self._count("expert_parallel", 1)), self.stage_gpus)
        self.speculative_tokens = max(0, self._count("speculative_tokens", 0))
        self.text_tokens_per_step = self.model.acceptance.length(
            self.speculative_tokens, c.draft_acceptance
        )
        on_random = setup.on_random or self.text_tokens_per_step
        self.tokens_per_step = min(1.0 + self.speculative_tokens, on_random)
        if setup.random_weights:
            # Its drafts are right where they are forced to be, whatever the prompt is.
            self.text_tokens_per_step = self.tokens_per_step
        achieved = self.hardware.bandwidth_tb_s * 1e12 * self.hardware.achieved_bandwidth
        self.bandwidth = achieved * c.bandwidth_share
        name = str(setup.knobs.get("kv_cache_dtype") or "auto")
        if name == "auto":
            name = c.kv_sparse if self.model.sparse_attention else c.kv_dense
        self.kv_type = (
            name if name == "fp8_ds_mla" else "fp8" if name.startswith("fp8") else "bfloat16"
        )
        eager = setup.knobs.get("enforce_eager") or setup.knobs.get("disable_cuda_graph")
        self.graph_batch = (
            0 if eager else self._count("cuda_graph_max_batch", c.cuda_graph_max_batch)
        )
        self.pace = self._pace(c.random_weights_spread) if setup.random_weights else 1.0

    def _pace(self, spread: float) -> float:
        layout = f"{self.setup.engine} {self.tensor_parallel} {self.data_parallel} {self.expert_parallel}"
        return math.exp(
            spread * float(np.random.default_rng(list(layout.encode())).standard_normal())
        )

    def _count(self, knob: str, default: int) -> int:
        value = self.setup.knobs.get(knob)
        return (
            int(value)
            if isinstance(value, int | float) and not isinstance(value, bool)
            else default
        )

    # Computed when asked for: `autotune.node.steady` shares results of setups that differ
    # in nothing it read.

    @cached_property
    def context_length(self) -> int:
        return self._count("context_length", 0) or self.architecture.context_limit

    @property
    def front_ends(self) -> int:
        """Count the parallel processes that read requests and send tokens."""
        default = self.data_parallel if self.coefficients.front_end_per == "rank" else 1
        return max(1, self._count("api_server_count", default))

    @cached_property
    def _whole_budget(self) -> int:
        budget = self._count("max_batched_tokens", 0) or self.coefficients.max_batched_tokens
        return budget or max(self.context_length, _LEAST_WHOLE_BUDGET)

    @cached_property
    def token_budget(self) -> int:
        """Return the most tokens that one rank computes in one step."""
        budget, per = self._whole_budget, self.coefficients.token_budget_per
        if self.joined_replicas > 1 and per != "rank":
            budget //= self.joined_replicas if per == "node" else 2
        return max(1, budget)

    @property
    def prompt_limit(self) -> int | None:
        """Return the longest prompt that a step can compute; None with chunked prefill."""
        return None if self.coefficients.chunked_prefill else self.token_budget

    @cached_property
    def running_limit(self) -> int:
        """Return the most sequences of a rank; the engine's own limit is always per rank."""
        given = self._count("max_running_requests", 0)
        if given and self.coefficients.running_limit_per == "node":
            return max(1, given // self.joined_replicas)
        return given or self.coefficients.max_running_requests

    @cached_property
    def block_tokens(self) -> int:
        """Return the tokens per block of the KV pool; ranks that share a context split it."""
        given = self._count("block_size", 0) or self._count("tokens_per_block", 0)
        return (given or self.coefficients.block_tokens) * self.context_parallel

    @cached_property
    def reserve_share(self) -> float:
        """Return the share of the future output that admission reserves for running requests, at a
        load's start."""
        c = self.coefficients
        cautious = self.setup.knobs.get("schedule_conservativeness")
        share = c.reserve_share * (float(cautious) if isinstance(cautious, int | float) else 1.0)
        return min(1.0, share * (c.reserve_dp_factor if self.joined_replicas > 1 else 1.0))

    @cached_property
    def prefix_caching(self) -> bool:
        value = self.setup.knobs.get("prefix_caching")
        return self.coefficients.prefix_caching if value is None else bool(value)

    @cached_property
    def memory_fraction(self) -> float:
        """Return the share of memory for weights and KV (vLLM, SGLang), or of what the weights
        leave (TensorRT-LLM)."""
        value: Any = self.setup.knobs.get("memory_fraction")
        if (planned := _planned_share(self.setup.engine, self.setup.version)) is not None:
            decided = {
                "model": self.model,
                "hardware": self.hardware,
                "gpus": self.setup.gpus,
                "tensor_parallel": self.tensor_parallel,
                "data_parallel": self.data_parallel,
                "pipeline_parallel": self.pipeline_parallel,
                "max_batched_tokens": self._whole_budget,
                "cuda_graph_max_batch": self.graph_batch,
            }
            asked = {name: self.setup.knobs.get(name) for name in names(planned) - decided.keys()}
            value = evaluate(planned, decided | asked)
        if isinstance(value, int | float):
            return float(value)
        scope = {
            "chunk": self._whole_budget,
            "graph": self.graph_batch,
            "drafts": self.speculative_tokens,
            "dp": self.joined_replicas,
            "gpus": self.stage_gpus,
            "memory_mb": self.hardware.memory_gb * 1e3,
        }
        return float(evaluate(self.coefficients.memory_fraction, scope))

    def matrix_flops_of(self, weight_bytes: float) -> float:
        """Return the FLOP/s of matrix kernels with this number of bytes per weight on one GPU."""
        kind = self.architecture.multiplied_in(weight_bytes)
        native = (
            self.hardware.tflops(kind) > self.hardware.bf16_tflops
            if kind != "bf16"
            else weight_bytes >= BF16
        )
        c, reached = self.coefficients, self.hardware.reached_flops(kind)
        if not native:
            return reached * c.unpack_share
        return reached * c.fp8_share if kind == "fp8" else reached
