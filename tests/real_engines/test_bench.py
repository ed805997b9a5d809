"""autotune bench against vLLM's own `vllm bench serve`: one server, one load, in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.real_engines.server import environment, make_model, serving

pytestmark = pytest.mark.real_engines

ROUNDS = 3
PROMPTS, READ, WRITTEN, AT_ONCE = 96, 128, 64, 16
SLOWER = ("--layers", "8", "--hidden", "512")
"""A model that keeps the server busy: client and server share two cores, and beside a quick model
the client's own work takes from the server's (vLLM's client, which needs more of it, then measures
15 % less)."""
COUNTS = ("completed", "total_input_tokens", "total_output_tokens")


def theirs(url: str, model: Path, file: Path, seed: int) -> dict[str, Any]:
    shape = ["--random-input-len", READ, "--random-output-len", WRITTEN, "--num-prompts", PROMPTS]
    command = [
        environment() / "bin" / "vllm",
        "bench",
        "serve",
        "--backend",
        "openai",
        "--base-url",
        url,
    ]
    command += [
        "--endpoint",
        "/v1/completions",
        "--model",
        "tiny",
        "--tokenizer",
        model,
        "--dataset-name",
        "random",
    ]
    command += [
        *shape,
        "--max-concurrency",
        AT_ONCE,
        "--num-warmups",
        AT_ONCE,
        "--ignore-eos",
        "--temperature",
        0,
    ]
    command += ["--seed", seed, "--disable-tqdm", "--save-result", "--result-dir", file.parent]
    subprocess.run(
        [*map(str, command), "--result-filename", file.name], check=True, capture_output=True
    )
    return json.loads(file.read_text())


def ours(url: str, model: Path, file: Path, seed: int) -> dict[str, Any]:
    """As text, like theirs: the server has the same work with it."""
    command = [
        sys.executable,
        "-m",
        "autotune",
        "bench",
        "--url",
        url,
        "--model",
        "tiny",
        "--prompts",
        "text",
    ]
    command += [
        "--tokenizer",
        model,
        "--workload",
        f"random:{READ}:{WRITTEN}:{PROMPTS}",
        "--concurrency",
        AT_ONCE,
    ]
    subprocess.run(
        [*map(str, command), "--seed", str(seed), "--save-result", str(file)], capture_output=True
    )
    return json.loads(file.read_text())


def test_throughput_is_that_of_vllm_bench_serve(tmp_path: Path) -> None:
    model = make_model(tmp_path / "slower", *SLOWER)
    ratios = []
    with serving(
        model, tmp_path / "server", "--no-enable-prefix-caching", "--max-num-seqs", "64"
    ) as server:
        for seed in range(ROUNDS):
            first, second = (theirs, ours) if seed % 2 == 0 else (ours, theirs)
            results = {
                run: run(server.url, model, tmp_path / f"{run.__name__}-{seed}.json", seed)
                for run in (first, second)
            }
            a, b = results[ours], results[theirs]
            ratios.append(a["total_token_throughput"] / b["total_token_throughput"])
            print(
                f"\nround {seed}: " + ", ".join(f"{n} {a[n]} / {b[n]}" for n in COUNTS),
                f"ratio {ratios[-1]:.3f}",
            )
            for name in (
                "total_token_throughput",
                "mean_ttft_ms",
                "mean_tpot_ms",
                "p99_itl_ms",
                "duration",
            ):
                print(f"  {name}: {a[name]:,.1f} / {b[name]:,.1f}")
            assert [a[name] for name in COUNTS] == [b[name] for name in COUNTS]
    assert median(ratios) == pytest.approx(1, abs=0.05)
