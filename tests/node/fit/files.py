"""Small files of measurements, made in a test; figures that fit each other, so that one can be
spoilt at a time."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

SGLANG = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.2 --tp-size 8"
VLLM = "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8"


def run_row(command: str = SGLANG, **changes: Any) -> dict[str, Any]:
    """A run of 1000 prompts sent at once, 128 tokens in and 4 out, of 10 s."""
    row = {
        "model": "deepseek-ai/DeepSeek-V3.2",
        "command": command,
        "engine_version": "0.13.0" if "vllm" in command else "0.5.6.post2",
        "hardware": "8xH200",
        "input_len": 128,
        "output_len": 4,
        "num_prompts": 1000,
        "completed": 1000.0,
        "duration": 10.0,
        "total_input_tokens": 128000.0,
        "total_output_tokens": 4000.0,
        "output_throughput": 400.0,
        "total_token_throughput": 13200.0,
        "mean_ttft_ms": 5000.0,
        "p99_ttft_ms": 9000.0,
        "mean_tpot_ms": 400.0,
    }
    return {**row, **changes}


def lines_file(folder: Path, *rows: dict[str, Any], name: str = "lab.jsonl") -> Path:
    """A table with a JSON object per line."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sweep_row(**changes: Any) -> dict[str, Any]:
    """A closed loop of 64 on an engine whose version is in no card."""
    row = {
        "model": "deepseek-ai/DeepSeek-R1",
        "engine_version": "0.7.3.dev138+g21f6ca217",
        "hardware": "MI300X",
        "gpus": 8,
        "command": "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8 --max-model-len 32768",
        "env": "VLLM_FP8_PADDING=0 VLLM_USE_TRITON_FLASH_ATTN=0",
        "input_len": 3200,
        "output_len": 800,
        "num_prompts": 500,
        "max_concurrency": 64,
        "completed": 500,
        "duration": 595.38,
        "total_token_throughput": 3359.19,
        "mean_ttft_ms": 12233.7,
        "p99_ttft_ms": 19702.7,
        "mean_tpot_ms": 77.97,
    }
    return {**row, **changes}


def own_row(**changes: Any) -> dict[str, Any]:
    row = {
        "command": VLLM,
        "engine_version": "0.13.0",
        "hardware": "h200",
        "workload": "sharegpt",
        "total_token_throughput": 5700,
        "mean_ttft_ms": 13000,
    }
    return {**row, **changes}


def csv_file(folder: Path, *rows: dict[str, Any], name: str = "table.csv") -> Path:
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
