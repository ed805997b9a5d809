"""Failure texts of the engines as they are today: each has its kind, and where that is told its
phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.failure import Failure
from autotune.engines.library import Library
from autotune.engines.registry import names
from autotune.node.emulator.launch import emulation_card
from autotune.servers.logs import known_failure, patterns_of, unknown_exit

TEXTS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "failure_texts.yaml").read_text()
)
UNSEEN: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "failure_texts_unseen.yaml").read_text()
)
LIBRARY = Library()
HARMLESS = [
    "INFO 11-23 12:59:01 [pynccl.py:103] vLLM is using nccl==2.27.3; NCCL_DEBUG=INFO tells more of an NCCL error",
    "WARNING 11-23 12:59:02 [system_utils.py:175] fd limit errors like `OSError: [Errno 24] Too many open files`.",
    "[2026-11-23 12:59:03] WARNING server_args.py:1383: DP attention is enabled. The chunked prefill size is adjusted.",
    "[2026-11-23 12:59:03 TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes. ",
    "[11/23/2026-12:59:04] [TRT-LLM] [W] No module named 'deep_ep', falling back to another exchange of tokens",
    "[2025-04-15 12:43:15 TP0] Ignore import error when loading sglang.srt.models.mllama4. cannot import name 'Llama4Config'",
    "Ignore import error when loading sglang.srt.models.qwen2_5_vl. No module named 'transformers.models.qwen2_5_vl'",
    "Failed to import deepgemm, disable _ENABLE_JIT_DEEPGEMM.",
    "[2026-02-12 14:28:58 TP0] Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.4100 -> 0.9000",
    "[2026-02-12 14:28:58 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3",
    "[2026-02-12 14:28:58 TP0] FlashInfer is not supported on this device with compute capability 7.5; triton is used",
    "(VllmWorker rank=1 pid=236) WARNING 05-03 17:42:23 [fused_moe.py:668] Using default MoE config. Config file not found",
    "[aiter] shape is M:64, N:7168, K:2048, not found tuned config in /tmp/bf16_tuned_gemm.csv, will use default config!",
    "(APIServer pid=1) WARNING 05-03 17:42:23 [envs.py:1] Unknown vLLM environment variable detected: VLLM_PORTT",
    '(APIServer pid=1) INFO:     127.0.0.1:40178 - "POST /v1/completions HTTP/1.1" 503 Service Unavailable',
    "(Worker pid=9) INFO 05-03 17:42:23 [cuda.py:1] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.",
    "[W1121 14:28:21.083000 911603 ProcessGroupNCCL.cpp:5023] [PG ID 0] using GPU 0; this can cause a hang and a timeout",
    "Xet Storage is enabled for this repo, but the 'hf_xet' package is not installed. Falling back to regular HTTP download.",
    '{"timestamp":"2025-06-12T04:06:15.875985Z","level":"WARN","fields":{"message":"Status Code: 429. Retrying..."}}',
    "/x/torch/cuda/__init__.py:61: FutureWarning: The pynvml package is deprecated. Please install nvidia-ml-py instead.",
    "The following generation flags are not valid and may be ignored: ['temperature', 'top_p'].",
    "Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.",
]
"""Lines that name errors which did not happen."""


def explained(text: dict[str, Any], folder: Path) -> Failure:
    """Explain a failure text as a launch explains its log."""
    log, card = folder / "server.log", LIBRARY.engine(text["engine"])
    log.write_text(text["log"])
    known = known_failure(log, patterns_of(card), served=text.get("served", False))
    return known or unknown_exit(log, text["exit_code"], card.title)


def is_right(text: dict[str, Any], failure: Failure) -> bool:
    """Tell whether a failure has one of a text's kinds, with the phase where that is told."""
    return not {str(failure.kind), f"{failure.kind}/{failure.phase}"}.isdisjoint(text["expected"])


def among_others(text: dict[str, Any]) -> dict[str, Any]:
    """Return a failure text between the lines that its engine prints before and after: warnings,
    and its shutdown."""
    shutdown = emulation_card(text["engine"]).crash[-1].after
    return {**text, "log": "\n".join([*HARMLESS, text["log"], *shutdown])}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text['engine']}: {text['about']}")
def test_a_failure_text_has_its_kind_and_phase(text: dict[str, Any], tmp_path: Path) -> None:
    for printed in (text, among_others(text)):
        failure = explained(printed, tmp_path)
        assert is_right(text, failure), failure.message


def test_texts_that_no_pattern_was_written_from_have_their_kinds(tmp_path: Path) -> None:
    wrong = [
        text["about"]
        for text in UNSEEN
        for failure in (explained(text, tmp_path), explained(among_others(text), tmp_path))
        if failure.unexplained == text["explained"] or not is_right(text, failure)
    ]
    assert (len(UNSEEN), wrong) == (30, [])


@pytest.mark.parametrize("engine", names())
def test_what_a_server_that_runs_prints_is_no_cause(tmp_path: Path, engine: str) -> None:
    """Neither is an error from which a server recovers that gets ready."""
    error, ready = (
        "OSError: [Errno 11] Resource temporarily unavailable",
        "Application startup complete",
    )
    got_over, late = [*HARMLESS, error, ready], [ready, error]
    for lines, unexplained in ((HARMLESS, True), (got_over, True), (late, False)):
        log = "\n".join([*lines, "KeyError: 'cmpl-0'"])
        text = {"engine": engine, "exit_code": 1, "log": log}
        assert explained(text, tmp_path).unexplained == unexplained


def test_no_fault_of_the_node_is_laid_to_the_configuration(tmp_path: Path) -> None:
    node = [text for text in TEXTS if set(text["expected"]) <= {"infrastructure", "port"}]
    assert [
        text["about"] for text in node if explained(text, tmp_path).blames_the_configuration
    ] == []
    told_apart = {(text["engine"], text["about"]) for text in TEXTS}
    assert (len(TEXTS), len(told_apart), len(node)) == (145, 145, 51), (
        "texts, each once, and faults of the node"
    )
