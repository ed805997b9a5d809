"""Seconds of computing per simulated run: ``python benchmarks/node/simulator.py [--repeat 5] [--peer
PYTHON]``.

Targets: one ShareGPT run of 1000 prompts 0.2 s; 500 requests of 3200 in and 6400 out at concurrency
128, 2 s. A figure is the median of the repeats, each with other prompts; layouts take turns within
a repeat.

``--peer`` sets it beside aiconfigurator-core, which predicts a steady state for mean lengths and no
whole run. It is no dependency of ours; make it an environment of its own and name that
environment's interpreter::

    python3.11 -m venv peer && peer/bin/pip install aiconfigurator-core==0.12.0
    python benchmarks/node/simulator.py --peer peer/bin/python

Its seconds are those of one prediction after its tables are read (`read`: once per process and
engine). What both say of DeepSeek-R1 on 8 x H200, TP8, 3200 in and 800 out: total tokens per
second, ours of the steady state (that is what theirs can be laid beside) and of the whole run of
500 prompts; the engines' versions are each side's newest, which are not the same, and no
measurement of them is at hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from autotune.engines.command import Scalar
from autotune.engines.library import Library
from autotune.load.workloads import LoadPoint, Workload, load_workload
from autotune.load.workloads.arrivals import Arrival
from autotune.load.workloads.lengths import FixedLengths
from autotune.node.calibration import ServerSetup
from autotune.node.simulate import SimulatedOutcome, simulate

LIBRARY = Library()
V32, R1 = LIBRARY.model("deepseek-ai/DeepSeek-V3.2"), LIBRARY.model("deepseek-ai/DeepSeek-R1")
NODE = LIBRARY.node("h200")

_TP8: dict[str, Scalar] = {"tensor_parallel": 8}
_DP8: dict[str, Scalar] = {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": 8}
_LAYOUTS: tuple[tuple[str, str, dict[str, Scalar]], ...] = (
    ("vllm", "TP8", _TP8),
    ("sglang", "TP8", _TP8),
    ("sglang", "DP8 EP8", _DP8),
    (
        "tensorrt_llm",
        "TP8",
        {**_TP8, "enable_chunked_prefill": True},
    ),  # prompts longer than a step are refused else
)
_PEERS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}
_READ, _WRITTEN, _CONCURRENCY = 3200, 800, (4, 16, 64, 128)
_DRIVER = Path(__file__).with_name("peer_steady.py")


def _closed_loop(read: int, written: int, concurrency: int) -> Workload:
    arrival = Arrival(kind="closed_loop", concurrency=concurrency)
    point = LoadPoint(
        prompts=500, arrival=arrival, lengths=FixedLengths(input_tokens=read, output_tokens=written)
    )
    return Workload(
        name=f"{read}-{written} c{concurrency}", description="", origin="", points=[point]
    )


def _timed(
    engine: str, knobs: dict[str, Scalar], workload: Workload, seed: int
) -> tuple[float, SimulatedOutcome]:
    """Seconds, and what came out; on R1 where its figures are compared, else on V3.2, which takes
    more arithmetic."""
    model = R1 if workload.name.startswith(f"{_READ}-{_WRITTEN} ") else V32
    setup = ServerSetup(engine, LIBRARY.engine(engine).newest, knobs, model, NODE, 8)
    begin = perf_counter()
    outcome = simulate(setup, workload, seed)
    seconds = perf_counter() - begin
    if outcome.failure is not None:
        raise SystemExit(f"{engine} {knobs}: {outcome.failure.message}")
    return seconds, outcome


def _runs(repeats: int) -> None:
    """Seconds per simulated run."""
    workloads = {
        "sharegpt x1000": load_workload("sharegpt"),
        "32000-100 x100": load_workload("very-long"),
        "3200-6400 x500 c128": _closed_loop(3200, 6400, 128),
    }
    cases = list(product(_LAYOUTS, workloads))
    seconds: dict[int, list[float]] = {number: [] for number in range(len(cases))}
    for seed in range(repeats):
        for number, ((engine, _, knobs), name) in enumerate(cases):
            seconds[number].append(_timed(engine, knobs, workloads[name], seed)[0])
    for number, ((engine, layout, _), name) in enumerate(cases):
        print(f"{engine:13s} {layout:8s} {name:20s} {median(seconds[number]):7.3f} s")


def _peer(interpreter: Path, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """What the other predictor says, by engine; every repeat in a process of its own."""
    asked = {
        "model": R1.id,
        "system": "h200_sxm",
        "backends": list(_PEERS.values()),
        "gpus": 8,
        "input_tokens": _READ,
        "output_tokens": _WRITTEN,
        "context_tokens": 8192,
        "concurrency": _CONCURRENCY,
    }
    told: dict[str, list[dict[str, Any]]] = {engine: [] for engine in _PEERS}
    for _ in range(repeats):
        done = subprocess.run(
            [interpreter, _DRIVER],
            input=json.dumps(asked),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for engine, line in zip(_PEERS, done.stdout.splitlines(), strict=True):
            told[engine].append(json.loads(line))
    return told


def _compare(engine: str, told: Sequence[dict[str, Any]], repeats: int) -> None:
    """One engine's rows beside the other predictor's."""
    failed = next((one["error"] for one in told if "error" in one), None)
    version = LIBRARY.engine(engine).newest
    beside = (
        failed
        if failed
        else f"{told[0]['version']}, read {median(one['load_s'] for one in told):.1f} s"
    )
    print(f"{engine} {version}; peer: {beside}")
    for position, concurrency in enumerate(_CONCURRENCY):
        runs = [
            _timed(engine, _TP8, _closed_loop(_READ, _WRITTEN, concurrency), seed)
            for seed in range(repeats)
        ]
        ours_s, metrics = median(seconds for seconds, _ in runs), runs[0][1].metrics
        steady, whole = metrics["steady_total_token_throughput"], metrics["total_token_throughput"]
        line = (
            f"  c{concurrency:<4d} ours {steady:7.0f} steady {whole:7.0f} whole run {ours_s:8.4f} s"
        )
        if not failed:
            points = [one["points"][position] for one in told]
            total = points[0]["output_tokens_per_s"] * (_READ + _WRITTEN) / _WRITTEN
            seconds = median(point["seconds"] for point in points)
            line += (
                f"   peer {total:7.0f} steady {seconds:8.4f} s   {ours_s / seconds:6.1f} x its time"
            )
        print(line, flush=True)


def main() -> None:
    """Print one line per case, then the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="interpreter with aiconfigurator-core 0.12.0")
    asked = parser.parse_args()
    _runs(asked.repeat)
    if asked.peer is None:
        print(
            "aiconfigurator-core: not compared; give --peer PYTHON, see the beginning of this script"
        )
        return
    print(
        f"\nDeepSeek-R1 on 8 x H200, TP8, {_READ} in, {_WRITTEN} out: total tokens/s; peer: aiconfigurator-core"
    )
    for engine, told in _peer(asked.peer, asked.repeat).items():
        _compare(engine, told, asked.repeat)


if __name__ == "__main__":
    main()
