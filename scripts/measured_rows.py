"""The measured rows of ../shared/data as the simulator's inputs. Used by calibration and its test only."""

from __future__ import annotations

import argparse
import csv
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.load.arrivals import Arrival
from autotune.load.datasets import FixedLengths
from autotune.load.workloads import LoadPoint, Workload, load_workload
from autotune.simulate import ServerSetup
from autotune.space.library import Library
from autotune.trial import Scalar

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
_NAMED = {
    (32000, 100): "very-long",
    (4000, 200): "long",
    (2000, 100): "medium",
    (128, 4): "short",
    (1000, 2000): "generation",
}
_VERSIONS = {"0.7.3.dev138+g21f6ca217": "0.7.3", "0.7.4.dev181+gf35f8e22": "0.7.4"}
_WEIGHTS = {9: 0.2, 18: 3.0}
"""In the fit. Row 9's 22 s begin with some 14 s in which the cold server answers nobody (median TTFT 19.0 of at most
21.4 s); row 18 is the only one of vLLM with data parallelism."""


@dataclass(frozen=True)
class Row:
    """One measured benchmark.

    Attributes:
        measured: metrics under the names of `autotune.load.metrics`.
        weight: in the fit.
    """

    label: str
    setup: ServerSetup
    workload: Workload
    measured: Mapping[str, float]
    weight: float = 1.0

    @property
    def layout(self) -> str:
        knobs = self.setup.knobs
        text = f"TP{knobs['tensor_parallel']}"
        for name, short in (("data_parallel", "DP"), ("expert_parallel", "EP"), ("speculative_tokens", "MTP")):
            if int(knobs.get(name) or 0) > (0 if short == "MTP" else 1):
                text += f" {short}{knobs[name]}"
        for name in ("context_length", "kv_cache_dtype", "decode_attention_backend", "deep_gemm"):
            if knobs.get(name) not in (None, True):
                text += f" {name}={knobs[name]}"
        return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument(
        "--tensor-parallel-size", "-tp", "--tp-size", "--tp", "--tp_size", type=int, default=1, dest="tp"
    )
    parser.add_argument("--data-parallel-size", "-dp", "--dp-size", "--dp", type=int, default=1, dest="dp")
    parser.add_argument("--ep-size", "--ep_size", type=int, default=1, dest="ep")
    parser.add_argument("--max-model-len", "--context-length", "--max_seq_len", type=int, dest="context")
    parser.add_argument("--kv-cache-dtype", dest="kv")
    parser.add_argument("--max_batch_size", type=int, dest="running")
    parser.add_argument("--max_num_tokens", type=int, dest="chunk")
    parser.add_argument("--nsa-prefill-backend", dest="prefill_backend")
    parser.add_argument("--nsa-decode-backend", dest="decode_backend")
    parser.add_argument("--speculative-num-steps", type=int, default=0, dest="steps")
    parser.add_argument("--speculative-config", type=json.loads, default={}, dest="speculative")
    for flag in ("--enable-dp-attention", "--enable-expert-parallel", "--enable-torch-compile"):
        parser.add_argument(flag, action="store_true")
    return parser


def knobs_of(engine: str, command: str) -> dict[str, Scalar]:
    """The knobs of one of the documents' commands; flags without an effect on speed are left out."""
    words = shlex.split(command)
    env = dict(
        word.split("=", 1)
        for word in words
        if "=" in word and not word.startswith("-") and word.split("=")[0].isupper()
    )
    a, _ = _parser().parse_known_args(words)
    dp, tp, ep = a.dp, a.tp, a.ep
    if engine == "sglang":
        dp = a.dp if a.enable_dp_attention else 1
        tp = a.tp // dp
    if a.enable_expert_parallel:
        ep = tp * dp
    steps = a.steps or int(a.speculative.get("num_speculative_tokens", 0))
    return {
        "tensor_parallel": tp,
        "data_parallel": dp,
        "expert_parallel": ep,
        "context_length": a.context,
        "kv_cache_dtype": a.kv,
        "max_running_requests": 48 if engine == "sglang" and steps else a.running,
        "max_batched_tokens": a.chunk,
        "prefill_attention_backend": a.prefill_backend,
        "decode_attention_backend": a.decode_backend,
        "speculative_tokens": steps,
        "deep_gemm": "0" not in (env.get("VLLM_USE_DEEP_GEMM"), env.get("TRTLLM_DG_ENABLED")),
    }


def _workload(row: Mapping[str, Any]) -> Workload:
    if row["dataset"] == "sharegpt":
        return load_workload("sharegpt-c4" if row["max_concurrency"] else "sharegpt")
    return load_workload(_NAMED[(row["input_len"], row["output_len"])])


def seed_rows(data: Path) -> list[Row]:
    """The rows of ``seed_measurements.json`` that ran."""
    library, rows = Library(), []
    names = ("mean_ttft_ms", "mean_tpot_ms", "median_itl_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms")
    for number, entry in enumerate(json.loads((data / "seed_measurements.json").read_text())):
        if not entry.get("completed"):
            continue
        engine = _ENGINES[entry["engine"]]
        setup = ServerSetup(
            engine,
            entry["engine_version"],
            knobs_of(engine, entry["command"]),
            library.model(entry["model"]),
            library.node("h200"),
            8,
        )
        measured = {"total_token_throughput": entry["total_throughput"], **{name: entry[name] for name in names}}
        rows.append(Row(str(number), setup, _workload(entry["workload"]), measured, _WEIGHTS.get(number, 1.0)))
    return rows


def sweep_rows(data: Path) -> list[Row]:
    """The rows of the concurrency sweep: engines of early 2025."""
    library, rows = Library(), []
    with (data / "dstack_r1_concurrency_sweep.csv").open(newline="") as file:
        for entry in csv.DictReader(file):
            engine = _ENGINES[entry["engine"]]
            version = _VERSIONS.get(
                entry["engine_version"], entry["engine_version"].split(".dev")[0].split(" ")[0].rstrip(".")
            )
            setup = ServerSetup(
                engine,
                version,
                knobs_of(engine, entry["command"]),
                library.model("deepseek-ai/DeepSeek-R1"),
                library.node(entry["gpu_type"].lower()),
                8,
            )
            arrival = Arrival(kind="closed_loop", concurrency=int(entry["max_concurrency"]))
            lengths = FixedLengths(input_tokens=3200, output_tokens=800)
            point = LoadPoint(prompts=500, arrival=arrival, lengths=lengths)
            workload = Workload(name=f"c{entry['max_concurrency']}", description="", origin="", points=[point])
            measured = {
                "total_token_throughput": float(entry["total_tok_s"]),
                "mean_ttft_ms": float(entry["mean_ttft_ms"]),
                "median_itl_ms": 0.0,
                "mean_tpot_ms": float(entry["mean_tpot_ms"]),
            }
            rows.append(Row(f"{entry['gpu_type']}", setup, workload, measured))
    return rows
