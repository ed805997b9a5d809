"""What the load client costs, and by how much it is wrong: ``python benchmarks/client.py [--seconds 6]``.

A paced server in a process of its own, whose write times are the truth, against the client in this one. Both need a
core to themselves for the figures to mean anything; on a shared machine the lag of either shows as bias.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from autotune.client.generator import Limits, Schedule, run
from autotune.client.open_files import allow_open_files
from autotune.client.prompts import PromptKey, Prompts
from autotune.client.target import Target
from autotune.load.workloads import load_workload

_SERVER = Path(__file__).with_name("paced_server.py")
_ROWS = ((1000, 5_000, False), (1000, 15_000, False), (1000, 15_000, True), (1000, 40_000, False))
_FORM = "{:>9} {:>8} {:>10} {:>9} {:>9} {:>6} {:>9} {:>8} {:>8} {:>8} {:>8} {:>7}"
_TITLES = ("emission", "streams", "asked ch/s", "got ch/s", "µs/chunk", "core", "lag p99", "TTFT p50")
_MORE = ("p99", "ITL p99", "true", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """One run: chunks per second, client CPU, bias in ms."""

    rate: float
    us_per_chunk: float
    core: float
    lag_ms: float
    ttft_bias_ms: NDArray[np.float64]
    itl_p99_ms: float
    true_itl_p99_ms: float
    failed: int


def _measured(streams: int, rate: int, lockstep: bool, seconds: float) -> Row:
    interval_ms = max(round(streams / rate * 1000), 1)
    chunks = max(int(seconds * 1000 / interval_ms), 2)
    command = [sys.executable, str(_SERVER), "--interval-ms", str(interval_ms), *(["--lockstep"] if lockstep else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            target = Target.parse(f"http://127.0.0.1:{int(server.stdout.readline())}")
            return _row(target, streams, chunks)
        finally:
            server.terminate()


def _row(target: Target, streams: int, chunks: int) -> Row:
    requests = load_workload(f"random:64:{chunks}:{streams}").draw(0, 0)
    bodies = Prompts("m").bodies(requests, PromptKey("bench", 0, 0))
    sent = [target.request("/v1/completions", body) for body in bodies]
    log, client = run(target, Schedule(sent, requests.send_s, requests.output_tokens, streams), Limits())
    truth = {int(key): times for key, times in httpx.get(f"{target.url}/truth", timeout=60).json().items()}
    writes = [np.array(truth[zlib.crc32(body)]) for body in bodies]
    first_s = np.array([times[0] for times in writes]) / 1e9
    gaps_ms = np.concatenate([np.diff(times) for times in writes]) / 1e6
    span_s = max(times[-1] for times in writes) / 1e9 - first_s.min()
    return Row(
        rate=client.chunks / span_s,
        us_per_chunk=client.cpu_share * client.span_s / client.chunks * 1e6,
        core=client.cpu_share,
        lag_ms=client.loop_lag_p99_ms,
        ttft_bias_ms=(log.records.first_token_s - first_s) * 1e3,
        itl_p99_ms=float(np.percentile(log.records.itl_ms, 99)),
        true_itl_p99_ms=float(np.percentile(gaps_ms, 99)),
        failed=int((~log.records.ok).sum()),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    seconds = parser.parse_args().seconds
    allow_open_files(2048)  # the server inherits it
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; times in ms, biases against the server's writes")
    print(_FORM.format(*_TITLES, *_MORE))
    for streams, rate, lockstep in _ROWS:
        row = _measured(streams, rate, lockstep, seconds)
        p50, p99 = np.percentile(row.ttft_bias_ms, (50, 99))
        figures = (f"{row.rate:,.0f}", f"{row.us_per_chunk:.1f}", f"{row.core:.0%}", f"{row.lag_ms:.1f}")
        biases = (f"{p50:.2f}", f"{p99:.1f}", f"{row.itl_p99_ms:.1f}", f"{row.true_itl_p99_ms:.1f}", row.failed)
        print(_FORM.format("lockstep" if lockstep else "even", streams, f"{rate:,}", *figures, *biases))


if __name__ == "__main__":
    main()
