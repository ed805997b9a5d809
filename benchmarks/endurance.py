"""What a long study costs the machine: memory, descriptors, threads, disk and CPU of the tuner against its launches.

    python benchmarks/endurance.py --launches 300                    # on the simulator: the tuner's own share
    python benchmarks/endurance.py --launches 1000 --on emulator     # with real processes; about six seconds a launch

Prints a row about every tenth of the launches, and the slopes of the second half; exit code 1 where descriptors or
threads of the second half grow. ``--json FILE`` keeps every sample.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MODEL = "deepseek-ai/DeepSeek-V3.2"
_TICK_S = 0.5
_COLUMNS = ("launches", "seconds", "cpu_s", "memory_mb", "descriptors", "threads", "disk_mb")


@dataclass(frozen=True)
class Sample:
    """The tuner at one moment; memory is what is its own and resident, disk that of the home folder."""

    launches: int
    seconds: float
    cpu_s: float
    memory_mb: float
    descriptors: int
    threads: int
    disk_mb: float


def sample(pid: int, home: Path, began_s: float) -> Sample | None:
    """Look at a tuner; None when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmRSS" not in facts:
        return None
    results = home / "studies" / "long" / "results.jsonl"
    launches = results.read_bytes().count(b"\n") if results.exists() else 0
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    return Sample(
        launches,
        round(time.monotonic() - began_s, 1),
        (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
        int(facts["VmRSS"].split()[0]) / 1000,
        descriptors,
        int(facts["Threads"]),
        size / 1e6,
    )


def watch(launches: int, on: str, workload: str) -> list[Sample]:
    """Run a study of so many launches to its end, and look at its tuner whenever a launch has ended."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        words = ["run", "--model", MODEL, "--hw", "h200", "--on", on, "--launches", str(launches), "--study", "long"]
        # Random search never ends early.
        words += ["--workload", workload, "--sampler", "random", "--home", folder]
        began_s = time.monotonic()
        with subprocess.Popen([sys.executable, "-m", "autotune", *words], stdout=subprocess.DEVNULL) as tuner:
            samples: list[Sample] = []
            while tuner.poll() is None:
                found = sample(tuner.pid, home, began_s)
                if found is not None and (not samples or found.launches != samples[-1].launches):
                    samples.append(found)
                time.sleep(_TICK_S)
        if tuner.returncode:
            raise SystemExit(f"the study ended with exit code {tuner.returncode}")
        return samples


def slope(samples: Sequence[Sample], name: str) -> float:
    """By how much a figure grows per launch."""
    if len(samples) < 2:
        return 0.0
    found = statistics.linear_regression([x.launches for x in samples], [getattr(x, name) for x in samples])
    return found.slope


def main() -> int:
    """Run the study that is asked for, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=100)
    parser.add_argument("--on", choices=["simulator", "emulator"], default="simulator")
    parser.add_argument("--workload", default="random:64:8:16")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    samples = watch(asked.launches, asked.on, asked.workload)
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(one) for one in samples]))
    print(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}")
    for one in samples[:: max(1, len(samples) // 10)]:
        print(f"| {' | '.join(f'{getattr(one, name):g}' for name in _COLUMNS)} |")
    half = [one for one in samples if one.launches >= asked.launches / 2]
    slopes = {name: slope(half, name) for name in _COLUMNS[2:]}
    print("per launch, second half: " + ", ".join(f"{name} {value:.4g}" for name, value in slopes.items()))
    return int(slopes["descriptors"] > 0.05 or slopes["threads"] > 0.05)


if __name__ == "__main__":
    sys.exit(main())
