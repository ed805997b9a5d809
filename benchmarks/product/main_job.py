"""Times the main job: 30 simulated launches, the tuner's own time per launch, and `autotune
--help`.

    python benchmarks/product/main_job.py

Wall times of a noisy machine; the ratio of `--help` to a bare interpreter is taken pair by pair in
one run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune.tuner.backends import EvaluationSetup, evaluator_for
from autotune.tuner.prepare.build_spec import library_for
from autotune.tuner.study.home import Home
from autotune.tuner.study.results import launch_of

QUESTION = [
    "--model",
    "deepseek-ai/DeepSeek-V3.2",
    "--hw",
    "h200",
    "--launches",
    "30",
    "--study",
    "bench",
]
PROGRAM = Path(sys.executable).with_name("autotune")
PAIRS = 15


def seconds(*command: str | Path, home: Path) -> float:
    started_s = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        env={**os.environ, "AUTOTUNE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started_s


def evaluation_seconds(home: Path) -> tuple[int, float]:
    """Launches of the study, and the time that evaluating them again takes (evaluation is
    deterministic)."""
    folder = Home(home)
    spec = folder.spec("bench")
    evaluate = evaluator_for(EvaluationSetup(spec, library_for(None), folder.study_folder("bench")))
    lines = (folder.study_folder("bench") / "results.jsonl").read_text().splitlines()
    launches = [launch_of(json.loads(line)) for line in lines]
    started_s = time.perf_counter()
    for launch in launches:
        evaluate(launch.trial)
    return len(launches), time.perf_counter() - started_s


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        whole_s = seconds(PROGRAM, "run", *QUESTION, home=home)
        start_s = seconds(PROGRAM, "run", *QUESTION, "--dry-run", home=home)
        launches, evaluation_s = evaluation_seconds(home)
        ratios = [
            seconds(PROGRAM, "--help", home=home) / seconds(sys.executable, "-c", "pass", home=home)
            for _ in range(PAIRS)
        ]
    own_s = (whole_s - evaluation_s) / launches
    print(f"medians of {PAIRS} pairs where a ratio is given")
    print(
        f"{launches} simulated launches, default run           {whole_s:8.1f} s (goal: under 45 s for 30)"
    )
    print(f"  of which evaluating on the simulated node     {evaluation_s:8.1f} s")
    print(f"  start-up and enumeration (a dry run)          {start_s:8.1f} s")
    print(f"tuner's own time per launch, start-up included  {own_s:8.3f} s (goal: under 0.3 s)")
    ratio = statistics.median(ratios)
    print(f"autotune --help over a bare interpreter         {ratio:8.1f} x (goal: at most 12)")


if __name__ == "__main__":
    main()
