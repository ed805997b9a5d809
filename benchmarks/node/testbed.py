"""The simulator beside seven others, on the experiments of a public test bed.

    git clone https://github.com/inference-sim/sim-to-real-accuracy-validation
    python benchmarks/node/testbed.py sim-to-real-accuracy-validation [--rows] [--markdown]

The test bed measured vLLM 0.15.1 on H100, A100 and L40S with inference-perf and set simulators beside
it. Its measured files are not public; per experiment its records have what was measured and what
each simulator predicted. They are read from two commits: most simulators' were deleted after
8 May 2026, LLMServingSim's (the first 300 requests of each experiment) came in June.

The loads are those of its design and of the golden data of BLIS (``testdata`` of
``inference-sim/inference-sim``): stages of ten or twenty minutes, prompts whose system prompt is
shared. inference-perf's constant rate has exponentially distributed gaps of an exact mean. Errors
are the test bed's own: ``|predicted - measured| / measured`` of the means over all requests of an
experiment; ITL is ``(E2E - TTFT) / (answer - 1)``.

Printed for each simulator: experiments, the median of their errors (in brackets the mean), and the
same of autotune's on the same experiments, whole ones. Nothing was fitted to any of them.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, median

from autotune.base.errors import BadInput
from autotune.engines import Context, Library, split_command
from autotune.load.workloads import Workload
from autotune.node.resolve_command import resolve_command

_RECORDS = (
    ("7f3b27022dcd", "results_iter36/error_records.csv"),
    ("dcec3fd4711c", "results/llmservingsim_error_records_matched.csv"),
)
_METRICS = {"e2e_mean": "mean_e2el_ms", "ttft_mean": "mean_ttft_ms", "itl_mean": "mean_tpot_ms"}
_NODES = {"H100": "h100", "A100-80GB": "a100", "L40S": "l40s"}
_LOADS = {
    "general": ((8.0, 20.0), 600, 9, 100, 447, 248),
    "general-lite": ((2.5, 6.0), 600, 9, 100, 447, 248),
    "codegen": ((5.0, 10.0), 600, 11, 100, 466, 247),
    "roleplay": ((6.0,), 1200, 10, 150, 600, 251),
    "reasoning": ((4.0,), 1200, 23, 100, 934, 1448),
    "reasoning-lite": ((1.0,), 1200, 23, 100, 934, 1448),
}
"""Requests per second of each stage, its seconds, system prompts, tokens of a system prompt, of a
question, of an answer."""
_OURS = "autotune"
Record = Mapping[str, str]


def records(checkout: Path) -> list[Record]:
    """The records of whole experiments."""
    rows: list[Record] = []
    for commit, name in _RECORDS:
        show = ["git", "-C", str(checkout), "show", f"{commit}:{name}"]
        shown = subprocess.run(show, capture_output=True, text=True, check=False)
        if shown.returncode:
            raise SystemExit(f"{checkout}: no {name} of {commit}: {shown.stderr.strip()}")
        rows += csv.DictReader(shown.stdout.splitlines())
    return [row for row in rows if row["stage_index"] == "-1" and row["metric_name"] in _METRICS]


def _workload(name: str) -> Workload:
    rates, seconds, groups, system, question, answer = _LOADS[name]
    points = [
        {
            "label": f"stage {number}",
            "prompts": round(rate * seconds),
            "arrival": {"kind": "poisson", "request_rate": rate},
            "lengths": {
                "kind": "fixed",
                "input_tokens": system + question,
                "output_tokens": answer,
            },
        }
        for number, rate in enumerate(rates)
    ]
    prefix = {"tokens": system, "groups": groups}
    document = {"name": name, "description": name, "origin": "test bed", "points": points}
    return Workload.model_validate({**document, "prefix": prefix})


def command_of(record: Record) -> str:
    """The command of an experiment; 8 GiB of host memory keep evicted blocks where it says so."""
    offload = "--kv-offloading-size 8 " if record["cpu_offload"] == "True" else ""
    return (
        f"vllm serve {record['model']} --tensor-parallel-size {float(record['tp']):.0f} "
        f"--max-num-batched-tokens {float(record['max_num_batched_tokens']):.0f} "
        f"--gpu-memory-utilization {record['gpu_mem_util']} {offload}"
        "--max-model-len 4096 --max-num-seqs 128"
    )


@cache
def _predicted(command: str, node: str, gpus: int, load: str) -> Mapping[str, float]:
    library, workload = Library(), _workload(load)
    parsed = split_command(command)
    model = library.model(parsed.argv[2])
    context = Context(model, library.node(node), gpus, "", workload.longest_request)
    outcome = resolve_command(parsed, library, context, "0.15.1").simulate(workload, 0)
    if outcome.failure is not None:
        raise BadInput(f"{command}: {outcome.failure.message}")
    return outcome.metrics


def ours(record: Record) -> float:
    """The predicted mean of a record's metric, ms."""
    node, gpus = _NODES[record["hardware"]], int(float(record["tp"]))
    found = _predicted(command_of(record), node, gpus, record["workload"])
    return found[_METRICS[record["metric_name"]]]


def _error(predicted: float, record: Record) -> float:
    return abs(predicted / float(record["actual"]) - 1)


def _key(record: Record) -> tuple[float, str]:
    return float(record["exp_id"]), record["metric_name"]


def told(rows: Sequence[Record], markdown: bool) -> Iterator[str]:
    """One line for each simulator."""
    line = "| {} | {} |" + " {} | {} |" * 3 if markdown else "{:26s}{:>5}" + "{:>16}{:>16}" * 3
    names = [name for metric in ("E2E", "TTFT", "ITL") for name in (metric, _OURS)]
    yield line.format("simulator", "n", *names)
    if markdown:
        yield "|---" + "|--:" * 7 + "|"
    whole = {_key(row): row for row in reversed(rows)}
    for simulator in dict.fromkeys(row["simulator"] for row in rows):
        cells: list[str] = []
        for metric in _METRICS:
            some = [r for r in rows if (r["simulator"], r["metric_name"]) == (simulator, metric)]
            for errors in (
                [_error(float(row["predicted"]), row) for row in some],
                [_error(ours(whole[_key(row)]), whole[_key(row)]) for row in some],
            ):
                cells.append(f"{median(errors):.1%} ({mean(errors):.0%})")
        yield line.format(simulator, len(some), *cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a clone of the test bed, with its history")
    parser.add_argument("--rows", action="store_true", help="print each experiment's ratios")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    rows = records(asked.checkout)
    if asked.rows:
        whole = [row for row in rows if row["simulator"] == rows[0]["simulator"]]
        for number in dict.fromkeys(row["exp_id"] for row in whole):
            some = [row for row in whole if row["exp_id"] == number]
            ratios = {r["metric_name"]: round(ours(r) / float(r["actual"]), 3) for r in some}
            print(number, some[0]["hardware"], some[0]["workload"], ratios, command_of(some[0]))
    print("\n".join(told(rows, asked.markdown)))


if __name__ == "__main__":
    main()
