"""Turns published measurements into a table that ``autotune calibrate --data`` reads.

    python scripts/calibration_table.py seed_measurements.json -o lab.jsonl
    python scripts/calibration_table.py online_results.csv -o sweep.jsonl
    python scripts/calibration_table.py more_measurements.csv -o more.jsonl
    python scripts/calibration_table.py newer_rows.csv -o newer.jsonl
    python scripts/calibration_table.py kit/study.bundle disk/study.bundle -o gpu_study.jsonl

Five layouts are known, by their content:

- GPUStack's performance lab as JSON: a list of objects, one per serving command, with ``model,
  command, engine_version, hardware`` (``8xH200``), ``workload`` (``dataset`` sharegpt or random,
  ``input_len, output_len, num_prompts, max_concurrency``) and the figures that ``vllm bench serve``
  prints, or ``failure``; a row is labelled by its place;
- the online results of dstackai/benchmarks as CSV: a closed-loop load per row, labelled ``MI300X
  vllm c64``;
- rows of both as one CSV with ``source``, ``dataset`` and ``bench_tool``; a row is labelled by its
  line. dstackai's offline batches name a script instead of a server: they get the command of the
  online rows of the same engine and GPU, and are left out where that ran another engine. guidellm's
  TPOT counts the time to the first token and is left out; its throughput is that of its fullest
  stretch, and is replaced by tokens over duration;
- published means of closed loops as CSV with ``origin`` and ``input_output`` (1024/8192): ten
  requests per client of lengths that the origin's client draws (`_LEAST`); a row is labelled by its
  line. Option files lie beside the table.

Nothing is checked here: ``autotune calibrate`` refuses what cannot be right, with the line.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import json
import random
import re
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_SAME = (
    *(
        "model",
        "engine_version",
        "command",
        "failure",
        "completed",
        "request_throughput",
        "output_throughput",
    ),
    *(
        f"{statistic}_{kind}_ms"
        for kind in ("ttft", "tpot", "itl")
        for statistic in ("mean", "median", "p99")
    ),
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
_MORE = {
    "duration_s": "duration",
    **{name: name for name in ("hardware", "gpus", "env", "total_token_throughput")},
    **{name: name for name in ("total_input_tokens", "total_output_tokens")},
}
_LOOPS = {
    "version": "engine_version",
    "gpu": "hardware",
    "ttft_ms": "mean_ttft_ms",
    "tpot_ms": "mean_tpot_ms",
    **{name: name for name in ("gpus", "env", "total_token_throughput")},
}
_LEAST = {"inferencex": 0.8, "sgl-cookbook": 0.0}
"""Shares of the asked lengths from which each origin's client draws them uniformly.

InferenceX: ``--random-range-ratio 0.8`` (.github/workflows/benchmark-tmpl.yml, October 2025 to April
2026) of its benchmark_serving.py. Cookbook: SGLang's bench_serving without that option.
"""
_R1 = "deepseek-ai/DeepSeek-R1"
_OFFLINE = {
    (
        "vllm",
        "h200",
    ): f"vllm serve {_R1} --trust-remote-code --tensor-parallel-size 8 --max-model-len 32768",
    (
        "vllm",
        "mi300x",
    ): f"vllm serve {_R1} --trust-remote-code --tensor-parallel-size 8 --max-model-len 32768",
    (
        "sglang",
        "h200",
    ): f"python3 -m sglang.launch_server --model {_R1} --tp 8 --enable-dp-attention",
    ("sglang", "mi300x"): f"python3 -m sglang.launch_server --model-path {_R1} --tp 8",
}
"""Serving commands of dstackai's online rows; TensorRT-LLM's batches ran a built engine of a
branch."""
_NOMINAL = (4, 100, 200, 800, 1600, 3200, 128, 2000, 4000, 32000)
_AS_ASKED = 0.02
"""Tokens of an answer this near to a nominal length were asked for; answers that ended early have
their own mean."""
_OPEN_LOOP = 100.0
"""Requests per second up to which a rate is one; guidellm's 1000 means: as many as the concurrency
allows."""


def converted(path: Path, output: Path) -> list[dict[str, Any]]:
    """The rows of a published file under the columns of ``docs/calibration.md``; empty ones are
    left out."""
    if zipfile.is_zipfile(path):
        return list(_launches(path, output.with_suffix(".yaml")))
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        return [_lab_row(str(place), entry) for place, entry in enumerate(json.loads(text))]
    rows = list(csv.DictReader(text.splitlines()))
    if rows and "bench_tool" in rows[0]:
        return [_more_row(str(line), row) for line, row in enumerate(rows, start=2) if _served(row)]
    if rows and "input_output" in rows[0]:
        return [_loop_row(str(line), row, path.parent) for line, row in enumerate(rows, start=2)]
    return [_dstack_row(row) for row in rows]


def _launches(path: Path, card: Path) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(path) as bundle:
        study = yaml.safe_load(bundle.read("study.yaml"))
        rows = list(map(json.loads, bundle.read("results.jsonl").splitlines()))
    model = {**study["model"], "id": card.stem, "aliases": []}
    card.write_text(yaml.safe_dump(model, sort_keys=False), encoding="utf-8")
    for row in rows:
        for workload, metrics in row["metrics"].items() if row["state"] == "complete" else ():
            yield {
                **_renamed({**row, **metrics}, {name: name for name in (*_LAB.values(), "gpus")}),
                "label": f"{study['study']} {row['number']}",
                "command": shlex.join(row["argv"]),
                "hardware": study["hardware"]["name"],
                "model": str(card),
                "workload": workload,
            }


def _loop_row(label: str, row: Mapping[str, str], folder: Path) -> dict[str, Any]:
    read, written = map(int, row["input_output"].split("/"))
    clients = int(row["concurrency"])
    # Uneven lengths are the means of what was drawn.
    means = read % 1000 and read % 1024
    most = [2 * each if means else each for each in (read, written)]
    least = [max(1, int(_LEAST[row["origin"]] * each)) for each in most]
    ranges = [f"{low}-{high}" for low, high in zip(least, most, strict=True)]
    load = {
        "workload": ":".join(["random", *ranges, str(10 * clients)]),
        "max_concurrency": clients,
    }
    if row["origin"] == "inferencex":
        load["total_token_throughput"] = _of_means(row, clients, least, most)
    command = re.sub(
        r"(--extra_llm_api_options )(\S+)", lambda m: f"{m[1]}{folder / m[2]}", row["command"]
    )
    return {**_renamed(row, _LOOPS), "label": label, "command": command, **load}


def _of_means(
    row: Mapping[str, str], clients: int, least: Sequence[int], most: Sequence[int]
) -> float:
    """Return the tokens per second of a run from the means of its latencies, its end included.

    The table has clients x tokens / latency of the longest request: more, as clients without a next
    request are idle at the end.
    """
    draws = random.Random(0)
    ends_s = [0.0] * clients
    tokens = 0
    for _ in range(10 * clients):
        read, written = map(draws.randint, least, most)
        latency_ms = float(row["ttft_ms"]) + float(row["tpot_ms"]) * (written - 1)
        heapq.heapreplace(ends_s, ends_s[0] + latency_ms / 1e3)
        tokens += read + written
    return round(tokens / max(ends_s), 2)


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


def _served(row: Mapping[str, str]) -> bool:
    """Whether it is known which server ran."""
    return (
        not row["bench_tool"].startswith("offline") or (row["engine"], row["hardware"]) in _OFFLINE
    )


def _more_row(label: str, row: Mapping[str, str]) -> dict[str, Any]:
    found = {"label": label, **_renamed(row, _MORE), **_more_load(row)}
    # A path or a sibling's name may stand in the model's column: the command says what was served.
    found.pop("model", None)
    found["engine_version"] = row["engine_version"].split()[0]
    # Published as the shell's arguments, their quotes lost.
    found["command"] = re.sub(r"(--[\w-]+=\{.*?\})", r"'\1'", row["command"])
    if "guidellm" in row["bench_tool"]:
        found = {
            name: value for name, value in found.items() if "_tpot_" not in name and value != "0.00"
        }
        tokens = float(row["total_input_tokens"]) + float(row["total_output_tokens"])
        found["total_token_throughput"] = round(tokens / float(row["duration_s"]), 2)
    if row["bench_tool"].startswith("offline"):
        found["command"] = _OFFLINE[row["engine"], row["hardware"]]
    return found


def _more_load(row: Mapping[str, str]) -> dict[str, Any]:
    prompts = int(row["num_prompts"])
    guided, rate = "guidellm" in row["bench_tool"], float(row["request_rate"] or "inf")
    if row["dataset"] == "sharegpt":
        most = int(row["max_concurrency"]) if row["max_concurrency"] else None
        name = "sharegpt" if prompts == 1000 else "sharegpt-c4"
        return (
            {"workload": name}
            if (prompts, most) in _SHAREGPT
            else {"workload": name, "max_concurrency": most}
        )
    if guided and row["dataset"] == "ShareGPT" and rate > _OPEN_LOOP:
        # Its lengths are longer by a third than those of the packaged workload; their long tail
        # counts for more.
        return {"workload": "sharegpt", "max_concurrency": int(row["max_concurrency"])}
    answered = float(row["completed"] or prompts)
    lengths = [float(row[f"total_{kind}_tokens"] or 0) / answered for kind in ("input", "output")]
    names = {
        "input_len": _asked(lengths[0]),
        "output_len": _asked(lengths[1]),
        "num_prompts": prompts,
    }
    if guided and rate <= _OPEN_LOOP:
        return {**names, "request_rate": rate}
    return {**names, "max_concurrency": int(row["max_concurrency"])} if guided else names


def _asked(tokens: float) -> int:
    nearest = min(_NOMINAL, key=lambda length: abs(length - tokens))
    return (
        nearest if abs(nearest - tokens) <= max(0.5, _AS_ASKED * nearest) else max(1, round(tokens))
    )


def _renamed(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = {name: row.get(name) for name in _SAME} | {
        ours: row.get(theirs) for theirs, ours in names.items()
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="+", help="several bundles, or one file")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="the table, one JSON object per line"
    )
    asked = parser.parse_args()
    rows = [row for file in asked.file for row in converted(file, asked.output)]
    asked.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {asked.output}, {len(rows)} rows")


if __name__ == "__main__":
    main()
