"""The search benchmark counts launches right: run as people run it, on its smallest landscape."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
def test_the_benchmark_counts_launches_from_the_baseline(tmp_path: Path) -> None:
    samplers = ["ours", "tpe", "one-factor"]
    out = tmp_path / "runs.json"
    words = ["--landscape", "toy", "kernels-r1", "--seeds", "2", "--jobs", "1", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "search.py", *words, "--sampler", *samplers],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "skipped kernels-r1: give --kernel-tables" in done.stdout
    told = json.loads(out.read_text())
    assert [(run["sampler"], run["seed"]) for run in told["runs"]] == [(s, seed) for s in samplers for seed in (0, 1)]
    baseline = round(told["landscapes"]["toy"]["figures"]["baseline"], 5)
    assert all(run["qualities"][0] == baseline for run in told["runs"])
    # What is launched once by launch number 24 is the whole toy; only the product launches one again.
    assert {len(run["qualities"]) for run in told["runs"] if run["sampler"] == "tpe"} == {24}
    for row in told["summary"]:
        runs = [run for run in told["runs"] if run["sampler"] == row["sampler"]]
        firsts = [next(n for n, quality in enumerate(run["qualities"], 1) if quality >= 0.98) for run in runs]
        # Of two neighbours the upper one is told.
        assert row["to"]["0.98"][1] == max(firsts) > 1
        assert row["regret"]["40"] == [0, 0, 0]
        assert all(0 <= short < 1 for short in row["recommended"]["10"])
