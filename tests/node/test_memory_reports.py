"""The memory plan against what users' servers said at start, in public logs; the table is in
docs/simulator-fit.md."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from autotune.engines.cards import Architecture, ModelCard
from autotune.engines.command import Scalar
from autotune.node.calibration import ServerSetup
from autotune.node.memory import MemoryPlan, MemoryVerdict, plan_memory
from autotune.node.server import SimulatedServer
from tests.node.nodes import LIBRARY

GIB = 2**30
H200 = LIBRARY.node("h200")
H100 = H200.model_copy(
    update={"name": "h100", "memory_gb": 80, "driver_memory_gb": 79.18 * GIB / 1e9}
)
LLMD = "llm-d/llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md"


def model(name: str, *figures: int, weight_bytes: float = 2.0, **others: int) -> ModelCard:
    """A model by layers, hidden size, vocabulary, heads, key heads, head size and width
    (config.json)."""
    names = (
        "layers",
        "hidden_size",
        "vocab_size",
        "heads",
        "kv_heads",
        "head_dim",
        "intermediate_size",
    )
    values = dict(zip(names, figures, strict=True))
    architecture = Architecture(**values, **others, context_limit=40960, weight_bytes=weight_bytes)
    return ModelCard(id=name, family=name, architecture=architecture, source="config.json")


LLAMA_8B = model("Llama-3.1-8B", 32, 4096, 128256, 32, 8, 128, 14336)
LLAMA_70B = model("Llama-3.3-70B-FP8", 80, 8192, 128256, 64, 8, 128, 28672, weight_bytes=1.0)
QWEN_32B = model("Qwen3-32B", 64, 5120, 151936, 64, 8, 128, 25600)
EXPERTS = {"experts": 128, "experts_per_token": 8, "expert_intermediate_size": 1536}
QWEN_235B = model(
    "Qwen3-235B-A22B-FP8", 94, 4096, 151936, 64, 4, 128, 12288, weight_bytes=1.0, **EXPERTS
)
R1, V32 = LIBRARY.model("deepseek-ai/DeepSeek-R1"), LIBRARY.model("deepseek-ai/DeepSeek-V3.2")


@dataclass(frozen=True)
class Report:
    """What one server's log says of a GPU, in GiB; None: the log does not say."""

    engine: str
    version: str
    model: ModelCard
    tp: int
    kv: float
    weights: float | None
    source: str
    tokens: int | None = None
    hardware: str = "h100"
    knobs: dict[str, Scalar] = field(default_factory=dict)

    @property
    def plan(self) -> MemoryPlan:
        knobs = {"tensor_parallel": self.tp, **self.knobs}
        node = {"h100": H100, "h200": H200}[self.hardware]
        return plan_memory(
            SimulatedServer(ServerSetup(self.engine, self.version, knobs, self.model, node, 8))
        )


LONG = {"context_length": 16000}
V0 = {"memory_fraction": 0.85, "context_length": 128000}
FP8_60 = {"memory_fraction": 0.6, "kv_cache_dtype": "fp8_e4m3"}
FP8_70 = {"memory_fraction": 0.7, "kv_cache_dtype": "fp8_e4m3"}
LOOP6 = "sgl-project/sglang, development/loop6"
PLANNED = 708 * 61 / GIB
"""GiB that SGLang plans per token of DeepSeek-V3.2 in fp8; its log shows the pool, which has 788 x
61 bytes a token."""
REPORTS = [
    Report("vllm", "0.10.2", LLAMA_8B, 1, 51.38, 14.99, LLMD, knobs=LONG),
    Report("vllm", "0.10.2", LLAMA_70B, 1, -1.44, 67.72, LLMD, knobs=LONG),
    Report("vllm", "0.10.2", LLAMA_70B, 2, 32.0, 33.88, LLMD, knobs=LONG),
    Report("vllm", "0.10.2", QWEN_32B, 1, 4.45, 61.03, LLMD, knobs=LONG),
    Report("vllm", "0.10.2", QWEN_32B, 2, 34.49, 30.59, LLMD, knobs=LONG),
    Report("vllm", "0.9.2", QWEN_235B, 4, 8.11, None, "vllm#21348", 178_880),
    Report("vllm", "0.7.3", R1, 8, 21.43, 83.88, "startup log", 18_418 * 16, "h200", V0),
    Report(
        "sglang",
        "0.4.9",
        QWEN_235B,
        4,
        16.46,
        None,
        "vllm#21348",
        367_404,
        knobs={"memory_fraction": 0.93},
    ),
    Report("sglang", "0.5.6", V32, 8, 53_056 * PLANNED, 80.63, LOOP6, 53_056, "h200", FP8_60),
    Report("sglang", "0.5.6", V32, 8, 396_096 * PLANNED, 80.63, LOOP6, 396_096, "h200", FP8_70),
]
NAMES = [f"{r.engine}-{r.model.id.split('/')[-1]}-tp{r.tp}-{r.kv:.0f}" for r in REPORTS]


@pytest.mark.parametrize("report", REPORTS, ids=NAMES)
def test_the_cache_is_within_two_standard_deviations_of_the_reported(report: Report) -> None:
    plan = report.plan
    assert abs(plan.kv_cache - report.kv * GIB) <= 2 * plan.cache_sigma


@pytest.mark.parametrize("report", [r for r in REPORTS if r.weights], ids=lambda r: r.model.id)
def test_weights_are_within_one_percent_of_the_reported(report: Report) -> None:
    assert report.plan.weights / GIB == pytest.approx(report.weights, rel=0.01)


@pytest.mark.parametrize(
    "report", [r for r in REPORTS if r.tokens and r.kv > 4], ids=lambda r: r.source
)
def test_tokens_are_within_a_tenth_of_the_reported(report: Report) -> None:
    assert report.plan.capacity_tokens == pytest.approx(report.tokens, rel=0.10)


def test_what_did_not_start_is_predicted_and_what_did_is_not() -> None:
    for report in REPORTS:
        assert (report.plan.margin_bytes > 0) == (report.kv > 0), report.source
    assert REPORTS[1].plan.verdict is MemoryVerdict.DOES_NOT_FIT


def test_the_stated_spread_is_that_of_the_reports() -> None:
    """Standardised errors have a spread of about 1: neither boastful nor timid, where it can be
    checked."""
    standardised = [(r.plan.kv_cache - r.kv * GIB) / r.plan.cache_sigma for r in REPORTS]
    assert 0.15 <= float(np.sqrt(np.mean(np.square(standardised)))) <= 1.0
