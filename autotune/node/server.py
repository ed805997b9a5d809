"""Server of the simulated node: its knobs, and the engine's values of unset ones."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from autotune.engines import Knobs, Library, Scalar
from autotune.engines.cards import state_in_tokens
from autotune.engines.entry import first_for
from autotune.engines.expression import evaluate, names
from autotune.engines.layers import BF16, cached_type
from autotune.load.requests import Requests

from .calibration import ServerSetup, coefficients_of
from .coefficients import Coefficients

UNFORCED = 1.15
"""Tokens per step of a server that drafts on random tokens without forced acceptance.

DeepSeek-V4-Flash kept 0.21 of two drafted tokens
(https://github.com/vllm-project/vllm/pull/41044, April 2026); others differ widely."""

_LEAST_WHOLE_BUDGET = 2048
"""Least budget of a step that takes whole prompts up to the context (vLLM 0.7: config.py,
SchedulerConfig)."""


@cache
def _planned_share(engine: str, version: str) -> str | None:
    """Return the expression in an engine's card for the share of weights and KV; None without
    one."""
    # An engine of another package may have no card here, or no such knob.
    card = Library().engines.get(engine)
    knob = card.knobs.get("memory_fraction") if card else None
    way = first_for(knob.becomes, version) if knob else None
    return way.value if way else None


@dataclass(eq=False)
class RecordedKnobs(Mapping[str, Scalar]):
    """Knobs that record which of them are read, in `names`."""

    _knobs: Knobs
    _names: set[str]

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
        coefficients: replace those of the setup, for a test of one of them.

    Attributes:
        tensor_parallel: GPUs that share one attention replica.
        data_parallel: attention replicas, each with its own KV pool and batch.
        joined_replicas: replicas that meet at the experts; those of a model without experts are
            servers of their own.
        stage_gpus: GPUs of one pipeline stage: those that share a layer.
        replicas: servers side by side, each described by the other attributes; only `gpus` counts
            those of all.
        expert_parallel: ranks that the experts are spread over; each expert is cut into `stage_gpus
            / expert_parallel` shards.
        tokens_per_step: expected tokens that a running sequence gains per decode step, where its
            prompt is random.
        text_tokens_per_step: the same where the prompt is text as people write it.
        graph_batch: largest batch per rank that a CUDA graph holds, in tokens (vLLM) or sequences;
            0 = none.
        kv_type: as of `cached_type`, with ``auto`` resolved.
        bandwidth: bytes per second that decode kernels achieve on one GPU.
    """

    def __init__(self, setup: ServerSetup, coefficients: Coefficients | None = None) -> None:
        self.setup = setup
        self.model = setup.model
        self.hardware = setup.hardware
        self.architecture = setup.model.architecture
        self.coefficients = c = coefficients or coefficients_of(setup)
        self.tensor_parallel = self._degree("tensor_parallel")
        self.data_parallel = self._degree("data_parallel")
        self.pipeline_parallel = self._degree("pipeline_parallel")
        self.context_parallel = self._degree("decode_context_parallel")
        self.joined_replicas = self.data_parallel if self.architecture.experts else 1
        self.stage_gpus = self.tensor_parallel * self.joined_replicas
        self.replicas = self._degree("replicas")
        self.gpus = (
            self.replicas * self.tensor_parallel * self.data_parallel * self.pipeline_parallel
        )
        self.expert_parallel = min(self._degree("expert_parallel"), self.stage_gpus)
        self.speculative_tokens = max(0, self._count("speculative_tokens", 0))
        self.text_tokens_per_step = self.model.acceptance.length(
            self.speculative_tokens, c.draft_acceptance
        )
        on_random = setup.on_random or self.text_tokens_per_step
        self.tokens_per_step = min(1.0 + self.speculative_tokens, on_random)
        achieved = self.hardware.bandwidth_tb_s * 1e12 * self.hardware.achieved_bandwidth
        self.bandwidth = achieved * c.bandwidth_share
        kv_type = str(setup.knobs.get("kv_cache_dtype") or "auto")
        if kv_type == "auto":
            kv_type = c.kv_sparse if self.model.sparse_attention else c.kv_dense
        self.kv_type = cached_type(kv_type)
        self.graph_batch = 0
        if not (setup.knobs.get("enforce_eager") or setup.knobs.get("disable_cuda_graph")):
            self.graph_batch = self._count("cuda_graph_max_batch", c.cuda_graph_max_batch)
        if c.forced_on_text:
            self.text_tokens_per_step = self.tokens_per_step

    def shares_of(self, requests: Requests) -> list[Requests]:
        """Return each server's share of a load; one without a stream of a light load stays idle."""
        parts = min(self.replicas, requests.concurrency)
        return [requests.part(number, parts) for number in range(parts)]

    def share_of(self, count: int) -> int:
        """Return the most requests of a load that one of the servers gets."""
        return math.ceil(count / self.replicas)

    def _degree(self, knob: str) -> int:
        """Return a degree of parallelism."""
        return max(1, self._count(knob, 1))

    def _count(self, knob: str, default: int) -> int:
        value = self.setup.knobs.get(knob)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return default
        return int(value)

    # Computed on demand: `autotune.node.steady` shares the results of setups with equal
    # values of the knobs that it read.

    @cached_property
    def pace(self) -> float:
        """Return a factor on the duration of a step, drawn for the engine's layout."""
        if not self.coefficients.layout_spread:
            return 1.0
        layout = f"{self.setup.engine} {self.tensor_parallel} {self.data_parallel} {self.expert_parallel}"
        draws = np.random.default_rng(list(layout.encode()))
        return math.exp(self.coefficients.layout_spread * float(draws.standard_normal()))

    @cached_property
    def context_length(self) -> int:
        return self._count("context_length", 0) or self.architecture.context_limit

    @property
    def fits_context(self) -> bool:
        """Return whether the context is cut to what the KV cache holds, e.g. by
        ``--max-model-len auto``."""
        return self.setup.knobs.get("context_length") == "auto"

    @property
    def front_ends(self) -> int:
        """Count the parallel API servers."""
        default = self.data_parallel if self.coefficients.front_end_per == "rank" else 1
        return max(1, self._count("api_server_count", default))

    @property
    def readers(self) -> int:
        """Count the parallel processes that read requests and make tokens of them."""
        return self.front_ends * self._degree("tokenizer_worker_num")

    @cached_property
    def output_token_s(self) -> float:
        """Return the seconds per generated token until it is sent, by all front ends together.

        The first token of an answer is sent at once, the others in pieces.
        """
        c = self.coefficients
        seconds = c.output_token_us * 1e-6
        if c.output_piece_us:
            seconds += c.output_piece_us * 1e-6 / self._degree("stream_interval")
        return seconds / self.front_ends / self._degree("detokenizer_worker_num")

    @property
    def schedules_ahead(self) -> bool:
        """Return whether a step is put together when the one before it begins, not when it ends."""
        return self.coefficients.host_overlap > 0

    @property
    def receive_interval(self) -> int:
        """Return the decode steps after which the engine looks for new requests."""
        return self._degree("scheduler_recv_interval")

    @cached_property
    def _whole_budget(self) -> int:
        budget = self._count("max_batched_tokens", 0) or self.coefficients.max_batched_tokens
        return budget or max(self.context_length, _LEAST_WHOLE_BUDGET)

    @cached_property
    def token_budget(self) -> int:
        """Return the most tokens that one rank computes in one step."""
        budget = self._whole_budget
        per = self.coefficients.token_budget_per
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
        limit = self._count("max_running_requests", 0)
        if limit and self.coefficients.running_limit_per == "node":
            return max(1, limit // self.joined_replicas)
        return limit or self.coefficients.max_running_requests

    @cached_property
    def block_tokens(self) -> int:
        """Return the tokens per block of the KV pool; ranks that share a context split it."""
        c = self.coefficients
        tokens = self._count("block_size", 0) or self._count("tokens_per_block", 0)
        tokens = tokens or c.block_tokens
        if unit := c.state_block_unit:
            rank = self.tensor_parallel, c.state_element_bytes
            least = state_in_tokens(self.architecture, self.kv_type, *rank)
            unit = max(tokens, unit * self.setup.model.latent_attention)
            tokens = max(tokens, math.ceil(least / unit) * unit)
        return tokens * self.context_parallel

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
            scope = {
                **self.setup.scope,
                "tensor_parallel": self.tensor_parallel,
                "data_parallel": self.data_parallel,
                "pipeline_parallel": self.pipeline_parallel,
                "max_batched_tokens": self._whole_budget,
                "cuda_graph_max_batch": self.graph_batch,
            }
            for name in names(planned) - scope.keys():
                scope[name] = self.setup.knobs.get(name)
            value = evaluate(planned, scope)
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

    def matrix_flops_of(self, weight_bytes: float, *, experts: bool = False) -> float:
        """Return the FLOP/s of matrix kernels with this number of bytes per weight on one GPU."""
        c = self.coefficients
        kind = self.architecture.multiplied_in(weight_bytes)
        reached = self.hardware.reached_flops(kind)
        if weight_bytes >= BF16:
            return reached
        if kind == "bf16" or self.hardware.tflops(kind) <= self.hardware.bf16_tflops:
            return reached * (c.moe_unpack_share if experts else c.unpack_share)
        if kind == "fp4":
            return reached * c.fp4_share
        return reached * (c.fp8_block_share if self.architecture.weight_block else c.fp8_share)
