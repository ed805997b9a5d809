"""Each setting of the host side, launched once on a real engine: what a study reads back of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.product.cli import autotune
from tests.real_engines.server import EXAMPLE, SETTINGS, environment
from tests.real_engines.test_both_engines import ASKED, sglang
from tests.servers.settings import alive_with

pytestmark = pytest.mark.real_engines

COMMANDS = {
    "vllm": "vllm serve {model} " + ASKED[0] + " --max-num-seqs 64",
    "sglang": "sglang serve --model-path {model} --device cpu "
    + ASKED[1]
    + " --max-running-requests 64",
}
# On a busy machine its tokenizer processes start in more than the ten seconds that they have.
VARIABLES = {"sglang": "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT=300 "}
PROGRAMS = {"vllm": environment, "sglang": sglang}
DEFAULTS: dict[str, dict[str, Any]] = {
    "vllm": {"stream_interval": 1, "async_scheduling": False, "rust_frontend": False},
    "sglang": {
        "stream_interval": 1,
        "tokenizer_worker_num": 1,
        "detokenizer_worker_num": 1,
        "batch_notify_size": 16,
        "scheduler_recv_interval": 1,
        "enable_mixed_chunk": False,
        "schedule_policy": "fcfs",
        "rust_frontend": False,
    },
}
RUST = "VLLM_RUST_FRONTEND_PATH"
"""The program `vllm-rs`, which vLLM's wheels for GPUs have and those for CPUs lack."""
CASES = [
    ("vllm", "", {}),
    ("vllm", "--api-server-count 2", {"api_server_count": 2}),
    ("vllm", "--stream-interval 10", {"stream_interval": 10}),
    # On a CPU vLLM turns it off.
    ("vllm", "--async-scheduling", {"async_scheduling": False}),
    ("vllm", "rust", {"rust_frontend": True}),
    ("sglang", "", {}),
    ("sglang", "--stream-interval 10", {"stream_interval": 10}),
    ("sglang", "--tokenizer-worker-num 2", {"tokenizer_worker_num": 2}),
    (
        "sglang",
        "--detokenizer-worker-num 2 --batch-notify-size 128",
        {"detokenizer_worker_num": 2, "batch_notify_size": 128},
    ),
    (
        "sglang",
        "--scheduler-recv-interval 8 --enable-mixed-chunk --schedule-policy hrrn",
        {"scheduler_recv_interval": 8, "enable_mixed_chunk": True, "schedule_policy": "hrrn"},
    ),
    ("sglang", "rust", {"rust_frontend": True}),
]


@pytest.mark.parametrize(("engine", "asked", "told"), CASES, ids=lambda one: str(one) or "default")
def test_the_running_server_tells_it(
    model: Path, tmp_path: Path, engine: str, asked: str, told: dict[str, Any]
) -> None:
    program, variables = PROGRAMS[engine](), VARIABLES.get(engine, "")
    if asked == "rust" and engine == "sglang":
        asked, variables = "", variables + "SGLANG_RUST_SERVER=1 "
    elif asked == "rust":
        if RUST not in os.environ:
            pytest.skip(f"{RUST} names no vllm-rs of this vLLM's version")
        asked, variables = "", f"VLLM_USE_RUST_FRONTEND=1 {RUST}={os.environ[RUST]} "
    command = f"{variables}{COMMANDS[engine].format(model=model)} {asked}"
    home = tmp_path / "home"
    done = autotune(
        *("run", "--model", str(model), "--hw", "local", "--on", "process", "--engine", engine),
        *("--engine-bin", f"{engine}={program}", "--baseline", command.strip()),
        *("--space", str(EXAMPLE / "space"), "--workload", "tiny-shared-prefix"),
        *("--launches", "1", "--study", "host", "--json"),
        home=home,
        **{**SETTINGS, "OMP_NUM_THREADS": "1", "LAUNCH_TEST": tmp_path.name},
    )
    assert done.code == 0, done.err
    folder = home / "studies" / "host"
    (row,) = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    kept = json.loads((folder / "trials" / "0000" / "resolved.json").read_text())
    (metrics,) = row["metrics"].values()
    expected = {**DEFAULTS[engine], **told}
    read = {name: kept["told"].get(name) for name in expected}
    print(f"\n{engine} {asked or variables or 'default'}: {read}, differs {kept['differs']},")
    print(f"  {metrics['total_token_throughput']:,.0f} tok/s, {row['state']}")
    # A busy machine's load is `invalid`: its settings are read all the same.
    assert row["state"] in ("complete", "invalid"), row
    assert {name: kept["told"].get(name, kept["config"][name]) for name in expected} == expected
    assert told.keys() <= kept["told"].keys(), "read off the running server, not only asked for"
    assert alive_with(tmp_path.name) == []
