"""Turns published measurements into a table that ``autotune calibrate --data`` reads.

    python scripts/calibration_table.py seed_measurements.json -o lab.jsonl
    python scripts/calibration_table.py online_results.csv -o sweep.jsonl

Two layouts are known, by their content:

- GPUStack's performance lab as JSON: a list of objects, one per serving command, with ``model, command, engine_version,
  hardware`` (``8xH200``), ``workload`` (``dataset`` sharegpt or random, ``input_len, output_len, num_prompts,
  max_concurrency``) and the figures that ``vllm bench serve`` prints, or ``failure``; a row is labelled by its place;
- the online results of dstackai/benchmarks as CSV: a closed-loop load per row, labelled ``MI300X vllm c64``.

Nothing is checked here: ``autotune calibrate`` refuses what cannot be right, with the line.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SAME = (
    *("model", "engine_version", "command", "failure", "completed", "request_throughput", "output_throughput"),
    *(f"{statistic}_{kind}_ms" for kind in ("ttft", "tpot", "itl") for statistic in ("mean", "median", "p99")),
)
_LAB = {
    "duration_s": "duration",
    "input_tokens": "total_input_tokens",
    "output_tokens": "total_output_tokens",
    "total_throughput": "total_token_throughput",
    "peak_output_throughput": "max_output_tokens_per_s",
    "peak_concurrency": "max_concurrent_requests",
    "hardware": "hardware",
}
_DSTACK = {
    "duration_s": "duration",
    "output_tok_s": "output_throughput",
    "total_tok_s": "total_token_throughput",
    "mean_e2e_ms": "mean_e2el_ms",
    "gpu_type": "hardware",
    "gpu_count": "gpus",
    **{name: name for name in ("env", "input_len", "output_len", "num_prompts", "max_concurrency")},
}
_SHAREGPT = {(1000, None): "sharegpt", (100, 4): "sharegpt-c4"}
"""Prompts and requests in flight of the packaged workloads with ShareGPT's lengths."""


def converted(path: Path) -> list[dict[str, Any]]:
    """The rows of a published file under the columns of ``docs/calibration.md``; empty ones are left out."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        return [_lab_row(str(place), entry) for place, entry in enumerate(json.loads(text))]
    return [_dstack_row(row) for row in csv.DictReader(text.splitlines())]


def _lab_row(label: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"label": label, **_renamed(entry, _LAB), **_lab_load(label, entry["workload"])}


def _lab_load(label: str, workload: Mapping[str, Any]) -> dict[str, Any]:
    if workload["dataset"] == "random":
        names = ("input_len", "output_len", "num_prompts", "max_concurrency", "request_rate")
        return {name: workload[name] for name in names if workload.get(name)}
    load = workload["num_prompts"], workload.get("max_concurrency")
    if workload["dataset"] != "sharegpt" or load not in _SHAREGPT:
        raise SystemExit(f"row {label}: no packaged workload is {workload}")
    return {"workload": _SHAREGPT[load]}


def _dstack_row(row: Mapping[str, str]) -> dict[str, Any]:
    label = f"{row['gpu_type']} {row['engine']} c{row['max_concurrency']}"
    return {"label": label, **_renamed(row, _DSTACK)}


def _renamed(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = {name: row.get(name) for name in _SAME} | {ours: row.get(theirs) for theirs, ours in names.items()}
    return {name: value for name, value in found.items() if value not in (None, "")}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the table, one JSON object per line")
    asked = parser.parse_args()
    rows = converted(asked.file)
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {asked.output}, {len(rows)} rows")


if __name__ == "__main__":
    main()
