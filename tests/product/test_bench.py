"""`autotune bench` against `autotune emulate` measures what `autotune simulate` predicts."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path

import pytest

from autotune.load.workloads import load_workload
from tests.product.cli import autotune
from tests.product.server import COMMAND, emulated

MODEL = COMMAND[2]
STREAMS = 64
WORKLOAD = f"random:256:128:{4 * STREAMS}"


def reference_tokens(url: str, requests: list[tuple[int, int]]) -> tuple[int, int]:
    """Prompt and answer tokens as a plain client counts them: one thread and one connection per
    request."""
    usages = []

    def send(prompt: int, answer: int) -> None:
        body = {
            "model": MODEL,
            "prompt": [7] * prompt,
            "max_tokens": answer,
            "ignore_eos": True,
            "stream": True,
        }
        body["stream_options"] = {"include_usage": True}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as response:
            chunks = [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]
        usages.append(chunks[-1]["usage"])

    threads = [threading.Thread(target=send, args=lengths) for lengths in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(u["prompt_tokens"] for u in usages), sum(u["completion_tokens"] for u in usages)


def test_bench_measures_what_simulate_predicts(tmp_path: Path) -> None:
    home, result = tmp_path / "home", tmp_path / "result.json"
    load = ["--workload", WORKLOAD, "--concurrency", str(STREAMS), "--seed", "1"]
    predicted = autotune(
        "simulate", "--hw", "h200", *load, "--json", "--", *COMMAND, home=home
    ).json
    drawn = load_workload(WORKLOAD).draw(0, 1)
    lengths = list(zip(drawn.input_tokens.tolist(), drawn.output_tokens.tolist(), strict=True))[
        :STREAMS
    ]
    with emulated() as url:
        # A busy machine delays and never hastens: the quickest of at most three runs counts.
        for _ in range(3):
            measured = autotune(
                "bench",
                "--url",
                url,
                "--model",
                MODEL,
                *load,
                "--save-result",
                str(result),
                home=home,
            )
            found = json.loads(result.read_text())
            if found["duration"] <= 1.05 * predicted["duration"]:
                break
        counted = reference_tokens(url, lengths)
    assert measured.code == 0, measured.err
    assert "EMULATED" in measured.out
    assert found["evidence"] == "emulated"
    assert (found["completed"], found["failed"]) == (4 * STREAMS, 0)
    for name in ("total_input_tokens", "total_output_tokens"):
        assert found[name] == predicted[name]
    assert counted == (sum(i for i, _ in lengths), sum(o for _, o in lengths))
    for name in ("total_token_throughput", "median_tpot_ms"):
        assert found[name] == pytest.approx(predicted[name], rel=0.05), name
