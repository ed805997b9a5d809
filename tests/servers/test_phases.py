"""Out of memory is told apart by what the server was doing; warnings are no reason for an end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.engines.failure import Failure, FailureKind, Phase
from autotune.engines.library import Library
from autotune.engines.registry import names
from autotune.servers.logs import known_failure, patterns_of
from autotune.tuner.study.results import launch_of, row_of
from autotune.tuner.trial import Role
from tests import small_study

LIBRARY = Library()
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

VLLM = {
    Phase.LOAD: "(EngineCore pid=7) INFO 11-21 15:36:59 [gpu_model_runner.py:5040] Starting to load model m...\n"
    "Loading safetensors checkpoint shards:  50% Completed | 81/163 [00:10<00:10,  8.1it/s]",
    Phase.KV_CACHE: "INFO 11-21 15:37:20 [gpu_model_runner.py:5150] Model loading took 78.2 GiB memory",
    Phase.GRAPH_CAPTURE: "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  12%|#   | 8/67",
    Phase.SERVING: "(APIServer pid=1) INFO:     Application startup complete.",
}
SGLANG = {
    Phase.LOAD: "[2025-11-04 05:27:13 TP0] Load weight begin. avail mem=138.90 GB",
    Phase.KV_CACHE: "[2025-11-04 05:29:13 TP0] Load weight end. type=DeepseekV3ForCausalLM, avail mem=50.1 GB",
    Phase.GRAPH_CAPTURE: "[2025-11-04 05:30:13 TP0] Capture cuda graph begin. This can take up to several minutes.",
    Phase.SERVING: "[2025-11-04 05:33:13] The server is fired up and ready to roll!",
}
TENSORRT_LLM = {
    Phase.LOAD: "[11/21/2025-09:38:53] [TRT-LLM] [I] Prefetching 641.30GB checkpoint files.",
    Phase.KV_CACHE: "[TensorRT-LLM][INFO] Allocated 26.91 GiB for max tokens in paged KV cache (220480).",
    Phase.GRAPH_CAPTURE: "[TRT-LLM] [I] Run generation-only CUDA graph warmup for batch size=128, draft_len=0",
    Phase.SERVING: "INFO:     Application startup complete.",
}
MARKS = {"vllm": VLLM, "sglang": SGLANG, "tensorrt_llm": TENSORRT_LLM}


def told(tmp_path: Path, engine: str, *lines: str, served: bool = False) -> Failure:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    failure = known_failure(path, patterns_of(LIBRARY.engine(engine)), served=served)
    assert failure is not None
    return failure


@pytest.mark.parametrize("engine", names())
def test_the_progress_before_a_bare_line_tells_the_phase(tmp_path: Path, engine: str) -> None:
    """Each phase has its way out, and what came before does not count."""
    said, ways = [], set()
    for phase, mark in MARKS[engine].items():
        said.append(mark)
        failure = told(
            tmp_path, engine, *said, CUDA_OOM, "see root cause above", *MARKS[engine].values()
        )
        assert (failure.kind, failure.phase, failure.log_excerpt) == (
            FailureKind.OUT_OF_MEMORY,
            phase,
            CUDA_OOM,
        )
        ways.add(failure.message.partition(CUDA_OOM)[2])
    assert len(ways) == 4


@pytest.mark.parametrize("engine", names())
def test_without_progress_the_phase_is_open_and_having_served_settles_it(
    tmp_path: Path, engine: str
) -> None:
    assert told(tmp_path, engine, CUDA_OOM).phase is None
    assert (
        told(tmp_path, engine, *MARKS[engine].values(), CUDA_OOM, served=True).phase
        is Phase.SERVING
    )


@pytest.mark.parametrize(
    ("engine", "line", "phase"),
    [
        ("vllm", "ValueError: No available memory for the cache blocks.", Phase.KV_CACHE),
        ("vllm", "ValueError: Free memory on device (100.2/140.1 GiB) on startup is less than desired GPU memory "
         "utilization (0.9, 126.1 GiB).", Phase.LOAD),
        ("vllm", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
         Phase.GRAPH_CAPTURE),
        ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", Phase.KV_CACHE),
        ("sglang", "Exception: Capture cuda graph failed: CUDA out of memory.", Phase.GRAPH_CAPTURE),
    ],
)  # fmt: skip
def test_lines_that_tell_their_phase(tmp_path: Path, engine: str, line: str, phase: Phase) -> None:
    assert told(tmp_path, engine, MARKS[engine][Phase.SERVING], line).phase is phase


@pytest.mark.parametrize(
    ("component", "phase"),
    [("Model", Phase.LOAD), ("KV cache", Phase.KV_CACHE), ("Sampler", Phase.GRAPH_CAPTURE)],
)
def test_tensorrt_llm_names_the_component_behind_the_failure(
    tmp_path: Path, component: str, phase: Phase
) -> None:
    before = [TENSORRT_LLM[Phase.LOAD], TENSORRT_LLM[Phase.GRAPH_CAPTURE]]
    behind = [
        "RuntimeError: Executor creation failed",
        f"The following component could not be created: {component}",
    ]
    assert told(tmp_path, "tensorrt_llm", *before, CUDA_OOM, *behind).phase is phase


@pytest.mark.parametrize(
    ("engine", "warning"),
    [
        # vLLM 0.32 prints this at every start on a machine with a low limit.
        ("vllm", "(APIServer pid=23329) WARNING 11-21 15:36:38 [system_utils.py:255] Found ulimit of 20000 and failed "
         "to automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors "
         "like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n"),
        ("tensorrt_llm", "[11/21/2025-09:38:53] [TRT-LLM] [W] No space left on device for the cache, going on"),
    ],
)  # fmt: skip
def test_a_warning_of_a_server_that_runs_is_no_cause(
    tmp_path: Path, engine: str, warning: str
) -> None:
    """Though it quotes a line that is one: a pattern counts from the level of an error on."""
    patterns, path = patterns_of(LIBRARY.engine(engine)), tmp_path / "server.log"
    path.write_text(f"{warning}\n")
    assert known_failure(path, patterns) is None
    path.write_text(f"{warning.replace('WARNING', 'ERROR').replace('[W]', '[E]')}\n")
    assert known_failure(path, patterns) is not None
    assert told(tmp_path, engine, warning, CUDA_OOM).log_excerpt == CUDA_OOM


def test_a_failure_survives_its_row() -> None:
    for failure in (
        Failure(FailureKind.OUT_OF_MEMORY, "m", "l", Phase.KV_CACHE),
        Failure(FailureKind.INFRASTRUCTURE, "m", lasting=True),
        Failure(FailureKind.PORT, "m"),
    ):
        row = row_of(small_study.launch(0, Role.SEARCH, small_study.WINNER, failure))
        assert launch_of(json.loads(json.dumps(row))).result.failure == failure
    assert set(Failure(FailureKind.PORT, "m").to_json()) == {"kind", "message", "log_excerpt"}
