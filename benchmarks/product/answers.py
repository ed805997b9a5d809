"""Tabulates what simulated studies recommend: throughput against copies of a small server, and the
longest request.

    python benchmarks/product/answers.py copies --case h200=Qwen/Qwen3-8B --case mi300x=openai/gpt-oss-120b
    --out ANSWERS python benchmarks/product/answers.py longest --case h200=deepseek-ai/DeepSeek-V3.2
    --launches 30 --seeds 5 --out ANSWERS python benchmarks/product/answers.py longest … --launches 30
    --min-context 163840

Each study is one `autotune run`, one at a time; what is in ``--out`` already is not run again. All
throughputs are of `autotune simulate`, without noise. ``copies`` is the throughput of vLLM's
defaults on the fewest GPUs on which they start, times the copies that fit on the node: each copy
gets its share of the study's prompts. A longest request is served where four prompts that fill it
are simulated without a failure.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("autotune")
ANSWER = 500
"""Output tokens of a request that fills the context."""
GPUS = 8
HEADS = {
    "copies": "node, model, seed, tok/s, copies, ratio, longest request, odds, candidates, first launch (s), command",
    "longest": "node, model, seed, baseline longest, served, longest, served, tok/s, baseline tok/s, command",
}


def study(hardware: str, model: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Run a study, or read it where it is there; adds the candidates and the seconds before its
    first launch."""
    name = f"{hardware}-{model.split('/')[-1]}-{asked.launches}-{asked.min_context or 0}-{seed}".lower()
    kept = asked.out / f"{name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    question = ["--model", model, "--hw", hardware, "--on", "simulator", "--home", str(asked.out)]
    question += ["--min-context", str(asked.min_context)] if asked.min_context else []
    dry = json.loads(output("run", *question, "--dry-run", "--json"))
    options = ["--launches", str(asked.launches), "--seed", str(seed), "--study", name]
    started_s, first_s = time.perf_counter(), None
    with subprocess.Popen(
        [PROGRAM, "run", *question, *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if first_s is None and line.startswith("#0"):
                first_s = time.perf_counter() - started_s
    found = json.loads((asked.out / "studies" / name / "recommendation.json").read_text())
    found |= {"candidates": sum(dry["candidates"].values()), "first_s": first_s}
    kept.write_text(json.dumps(found))
    return dict(found)


def output(*arguments: str) -> str:
    return subprocess.run(
        [PROGRAM, *arguments], stdout=subprocess.PIPE, check=True, text=True
    ).stdout


def throughput(
    hardware: str, command: str, workload: str, gpus: int, replicas: int, folder: str = "."
) -> float | None:
    """Tokens per second, input and output; None where the engine refuses to start or a request
    fails."""
    where = [
        "--hw",
        hardware,
        "--workload",
        workload,
        "--gpus",
        str(gpus),
        "--replicas",
        str(replicas),
        "--json",
    ]
    run = subprocess.run(
        [PROGRAM, "simulate", *where, "--", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if run.returncode:
        print(f"{command}: {run.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    metrics = json.loads(run.stdout)
    return None if metrics["failed"] else float(metrics["total_token_throughput"])


def server(choice: dict[str, Any]) -> str:
    """The command line of one server, whatever the number of replicas."""
    return shlex.join(
        [*(f"{name}={value}" for name, value in choice["env"].items()), *choice["argv"]]
    )


def of_choice(hardware: str, choice: dict[str, Any], workload: str) -> float | None:
    """The throughput of a recommended command or the baseline, all of its replicas together."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in choice["files"].items():
            (Path(folder) / name).write_text(text)
        return throughput(
            hardware, server(choice), workload, GPUS, choice["config"].get("replicas") or 1, folder
        )


def copies(hardware: str, baseline: dict[str, Any], workload: str) -> float:
    """The throughput of the defaults on the fewest GPUs, times the copies that fit."""
    name, prompts = workload.split(":")
    words = shlex.split(server(baseline))
    for gpus in (1, 2, 4, 8):
        fitting = [
            str(gpus) if before == "--tensor-parallel-size" else word
            for before, word in zip(["", *words], words, strict=False)
        ]
        share = f"{name}:{int(prompts) * gpus // GPUS}"
        if found := throughput(hardware, shlex.join(fitting), share, gpus, 1):
            return found * (GPUS // gpus)
    raise ValueError(f"{hardware}: the defaults start on no number of GPUs: {baseline['command']}")


def served(hardware: str, choice: dict[str, Any]) -> str:
    workload = f"random:{choice['longest_request_tokens'] - ANSWER}:{ANSWER}:4"
    return "no" if of_choice(hardware, choice, workload) is None else "yes"


def row(table: str, hardware: str, model: str, seed: int, asked: argparse.Namespace) -> list[str]:
    found = study(hardware, model, seed, asked)
    best, baseline = found, found["baseline"]
    workload = best["objective"]["workload"]
    workload = workload if ":" in workload else f"{workload}:1000"
    value = of_choice(hardware, best, workload)
    tokens = "does not start" if value is None else f"{value:,.0f}"
    replicas = best["config"].get("replicas") or 1
    command = f"`{server(best)}`" + (f" × {replicas}" if replicas > 1 else "")
    start = [hardware, model, str(seed)]
    longest = f"{best['longest_request_tokens']:,}"
    if table == "longest":
        before = of_choice(hardware, baseline, workload)
        checks = [
            f"{baseline['longest_request_tokens']:,}",
            served(hardware, baseline),
            longest,
            served(hardware, best),
        ]
        return [*start, *checks, tokens, f"{before or 0:,.0f}", command]
    # A model whose default does not start fills the node: there are no copies.
    several = copies(hardware, baseline, workload) if baseline else None
    figures = [f"{several:,.0f}", f"{(value or 0) / several:.2f}"] if several else ["–", "–"]
    figures += [longest, f"{best['odds_of_starting']:.2f}"]
    return [
        *start,
        tokens,
        *figures,
        f"{found['candidates']:,}",
        f"{found['first_s'] or 0:.1f}",
        command,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=sorted(HEADS))
    parser.add_argument(
        "--case", action="append", required=True, metavar="HW=MODEL", help="repeatable"
    )
    parser.add_argument("--launches", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=1, help="0 to N-1")
    parser.add_argument("--min-context", type=int)
    parser.add_argument(
        "--out", type=Path, default=Path("answers"), help="studies and what they recommend"
    )
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    heads = HEADS[asked.table].split(", ")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads), flush=True)
    for case in asked.case:
        hardware, model = case.split("=", 1)
        for seed in range(asked.seeds):
            print(
                "| " + " | ".join(row(asked.table, hardware, model, seed, asked)) + " |", flush=True
            )


if __name__ == "__main__":
    main()
