"""Whether a client measures through HTTP what `autotune simulate` predicts: ``python
benchmarks/node/emulator_fidelity.py``.

For each engine and load: `autotune emulate` is started, `autotune bench` loads it, and `autotune
simulate` predicts the same requests (same seed) under the same command line. A figure is ``bench /
simulate``, one line per run; targets at ``--speed 1`` and 64 streams: total token throughput within
3 %, median TPOT within 5 %.

    lost    seconds that the emulator fell behind and gave up: not 0 = the machine was too slow, repeat
    client  "ok", or "bound": the client could not keep up, repeat
    load    the machine's load average over the run's last minute

Takes a minute per line at ``--speed 1``. Two cores are needed, for the server and the client.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from autotune.load.workloads import load_workload

_R1, _V32 = "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3.2"
_SGLANG = ("python3", "-m", "sglang.launch_server", "--enable-metrics", "--tp", "8", "--model-path")
CASES = ("vllm", "sglang", "sglang-dp", "tensorrt_llm")

_COMPARED = (
    "total_token_throughput",
    "median_tpot_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_itl_ms",
)
_PAGES = ("/metrics", "/prometheus/metrics")
_LOST = re.compile(r"^autotune_emulator_lost_seconds_total\{.*\} (\S+)$", re.MULTILINE)
_FORM = "{:13} {:18} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6} {:>6} {:>6}"
_TITLES = (
    "engine",
    "load",
    "sim tok/s",
    "bench",
    "tok/s",
    "TPOT",
    "TTFT",
    "p99TTFT",
    "ITL",
    "lost",
    "client",
    "load",
)


def _json(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        raise SystemExit(f"autotune {words[0]} ended with {done.returncode}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _emulator(command: Sequence[str], speed: float) -> Iterator[dict[str, Any]]:
    options = ("--hw", "h200", "--port", "0", "--speed", str(speed), "--startup-s", "1", "--json")
    words = [sys.executable, "-m", "autotune", "emulate", *options, "--", *command]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def _lost_s(url: str) -> float:
    """NaN where the server shows no metrics."""
    for page in _PAGES:
        try:
            with urlopen(url + page) as answer:
                match = _LOST.search(answer.read().decode())
        except OSError:
            continue
        if match:
            return float(match[1])
    return float("nan")


def _commands(folder: Path) -> dict[str, tuple[str, ...]]:
    """An engine's command line by the short name of its case; each shows its metrics page."""
    options = folder / "trtllm.yaml"
    options.write_text("return_perf_metrics: true\n", encoding="utf-8")
    trtllm = (
        "trtllm-serve",
        _R1,
        "--tp_size",
        "8",
        "--ep_size",
        "8",
        "--extra_llm_api_options",
        str(options),
    )
    sglang_dp = (*_SGLANG, _V32, "--dp", "8", "--enable-dp-attention")
    return dict(
        zip(
            CASES,
            (("vllm", "serve", _R1, "-tp", "8"), (*_SGLANG, _R1), sglang_dp, trtllm),
            strict=True,
        )
    )


def _compare(
    case: str, command: Sequence[str], load: str, seed: int, asked: argparse.Namespace
) -> str:
    """One run as a line of the table."""
    speed = asked.speed
    same = ("--workload", load, "--concurrency", str(asked.streams), "--seed", str(seed), "--json")
    predicted = _json("simulate", "--hw", "h200", *same, "--", *command)
    with _emulator(command, speed) as server:
        measured = _json("bench", "--url", server["url"], "--model", server["models"][0], *same)
        lost_s = _lost_s(server["url"])
    # Times on the emulator's clock run `speed` times as fast as the node's.
    scale = {"total_token_throughput": 1 / speed}
    ratios = [measured[name] * scale.get(name, speed) / predicted[name] for name in _COMPARED]
    name = "sharegpt lengths" if load.startswith("jsonl:") else load
    throughput = (
        f"{predicted['total_token_throughput']:.0f}",
        f"{measured['total_token_throughput'] / speed:.0f}",
    )
    health = (
        f"{lost_s:.1f}",
        "bound" if measured["client_bound"] else "ok",
        f"{os.getloadavg()[0]:.1f}",
    )
    return _FORM.format(case, name, *throughput, *(f"{ratio:.3f}" for ratio in ratios), *health)


def _sharegpt(folder: Path, prompts: int, seed: int) -> str:
    """A load of so many requests with the stand-in's lengths for ShareGPT, as a file for both
    sides."""
    drawn = load_workload("sharegpt").draw(0, seed)
    pairs = list(zip(drawn.input_tokens.tolist(), drawn.output_tokens.tolist(), strict=True))[
        :prompts
    ]
    file = folder / "sharegpt.jsonl"
    file.write_text(
        "".join(json.dumps({"input_tokens": i, "output_tokens": o}) + "\n" for i, o in pairs)
    )
    return f"jsonl:{file}"


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=256, help="of each load")
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs per engine and load, each with the next seed"
    )
    parser.add_argument("--engine", action="append", choices=CASES, help="default: all")
    asked = parser.parse_args()
    print(_FORM.format(*_TITLES), flush=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        commands = _commands(folder)
        for seed in range(asked.repeat):
            loads = (f"random:2000:100:{asked.prompts}", _sharegpt(folder, asked.prompts, seed))
            for case in asked.engine or CASES:
                for load in loads:
                    print(_compare(case, commands[case], load, seed, asked), flush=True)


if __name__ == "__main__":
    main()
