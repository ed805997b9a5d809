"""What the Ray path adds to a trial, against the local executor, and what the tuner's process needs
for many trials.

    python -m benchmarks.tuner.executors [--trials 300] [--gpus 8 | 4]

The same simulated trials, one after the other through each executor, so that the difference is the
executor's: Ray Tune's loop, the trip to a worker process and back, the trial's files. With ``--gpus
4`` two run at a time. Ratios of one run; the machine's own noise is in both. The evaluation itself
is simulated and takes as long on both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.tuner.backends import EvaluationSetup
from autotune.tuner.executors import Executor
from autotune.tuner.executors.factory import executor_for
from autotune.tuner.prepare.build_spec import build_spec
from autotune.tuner.prepare.candidates import Prepared, prepare
from autotune.tuner.study.home import library_of
from autotune.tuner.study.options import RunOptions
from autotune.tuner.trial import Role, Trial

EVERY = 50


def trials(prepared: Prepared, count: int) -> Iterator[Trial]:
    """The baseline over and over: every trial takes as long."""
    candidate = prepared.candidates.baseline_candidate
    first = Trial(
        number=0,
        role=Role.SEARCH,
        configuration=candidate.configuration,
        engine_version=candidate.engine_version,
        command=prepared.command_of(candidate),
        workloads=prepared.spec.workloads,
    )
    return (replace(first, number=number, launch_index=number % 8) for number in range(count))


def resident_mib() -> float:
    """Memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def through(executor: Executor, todo: Sequence[Trial], name: str) -> list[float]:
    """Seconds between one end and the next, with as many under way as there is room for."""
    took: list[float] = []
    waiting = iter(todo)
    before_ns = time.perf_counter_ns()
    for _ in executor.launches(lambda: next(waiting, None)):
        now_ns = time.perf_counter_ns()
        took.append((now_ns - before_ns) / 1e9)
        before_ns = now_ns
        if len(took) % EVERY == 0:
            print(f"{name:<6} {len(took):>4} trials  {resident_mib():>6.0f} MiB", flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--gpus", type=int, default=8)
    arguments = parser.parse_args()
    request = RunOptions(
        model="openai/gpt-oss-120b",
        hardware="h200",
        gpus=arguments.gpus,
        engines=["vllm"],
        workloads=["random:64:16:16"],
        on="simulator",
    )
    spec = build_spec(request)
    prepared = prepare(spec, library_of(spec))
    todo = list(trials(prepared, arguments.trials))
    found: dict[str, list[float]] = {}
    for name in ("local", "ray"):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "trials").mkdir()
            setup = EvaluationSetup(spec, prepared.library, Path(folder), print)
            began_ns = time.perf_counter_ns()
            executor = executor_for(name, setup, [arguments.gpus], 1)
            started_s = (time.perf_counter_ns() - began_ns) / 1e9
            try:
                print(
                    f"{name:<6} started in {started_s:.1f} s  {resident_mib():.0f} MiB", flush=True
                )
                found[name] = through(executor, todo, name)
            finally:
                executor.close()
    for name, took in found.items():
        # The first trials wait for a worker process, and the local one fills caches.
        settled = took[10:]
        print(
            f"{name:<6} per trial: median {1e3 * statistics.median(settled):.0f} ms, "
            f"mean {1e3 * statistics.mean(settled):.0f} ms, first {1e3 * took[0]:.0f} ms (SIMULATED trials)"
        )
    extra = statistics.median(found["ray"][10:]) - statistics.median(found["local"][10:])
    print(f"Ray adds {1e3 * extra:.0f} ms to a trial (median)")


if __name__ == "__main__":
    main()
