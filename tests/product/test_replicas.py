"""Two emulated servers as one layout: measured as one, a server killed in mid-load, the tuner
killed, and resumed."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.processes import until
from tests.product.cli import autotune, finished_rows, kill_after, new_home, rows

LAYOUT = ["--set", "replicas=2", "--set", "context_length=16384", "--engine", "vllm", "--gpus", "2"]
QUESTION = [
    "run",
    "--model",
    "Qwen/Qwen3-8B",
    "--hw",
    "h200",
    "--on",
    "emulator",
    *LAYOUT,
    "--study",
    "s",
]
TWICE = ["--launches", "2", "--workload", "random:64:64:128"]


def running_in(folder: Path) -> list[int]:
    """The processes whose working folder it is, or lies in it."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if Path(os.readlink(f"/proc/{entry}/cwd")).is_relative_to(folder):
                found.append(int(entry))
    return found


def serves(pid: int) -> int:
    """How many requests the server of a process runs, as its metrics say."""
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        port = words[words.index("--port") + 1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return int(
            sum(
                float(line.split()[-1])
                for line in lines
                if line.startswith("vllm:num_requests_running")
            )
        )
    return 0


def test_the_tuner_is_killed_in_mid_launch_and_resumed(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    trials = home / "studies" / "s" / "trials"
    second = trials / "0001" / "server-1"
    assert kill_after([*QUESTION, *TWICE], home, 0.0, lambda: bool(running_in(second)))
    assert until(lambda: running_in(home) == [])
    assert len(finished_rows(home, "s")) == 1
    finished = autotune("resume", "s", home=home)
    assert finished.code == 0, finished.err
    assert running_in(home) == []
    first, again = rows(home, "s")
    assert (first["config"]["replicas"], first["gpus"], first["state"]) == (2, 2, "complete")
    assert first["servers"] == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert first["metrics"]["random:64:64:128"]["completed"] == 128
    assert again["number"] == 1
    told = json.loads((trials / "0000" / "random-64-64-128.json").read_text())
    assert told["servers"] == 2
    assert "fewest requests in flight" in told["balancing"]
    recommended = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert "for gpus in 0 1; do" in recommended["command"]
    assert "for gpus" not in " ".join(recommended["argv"])
    assert recommended["command"] in finished.unbroken


def test_a_server_that_is_killed_in_mid_load_fails_the_launch(tmp_path: Path) -> None:
    home = new_home(tmp_path)
    second = home / "studies" / "s" / "trials" / "0000" / "server-1"

    def kill() -> None:
        # More than the one request that tells whether it is ready: the load's.
        assert until(lambda: any(serves(pid) > 5 for pid in running_in(second)), 60.0)
        for pid in running_in(second):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    finished = autotune(*QUESTION, "--launches", "1", "--workload", "random:64:2000:400", home=home)
    killer.join()
    assert finished.code == 3, finished.out + finished.err
    (row,) = rows(home, "s")
    # Nobody but the test sent the signal: no fault of the configuration.
    assert (row["state"], row["failure"]["kind"]) == ("invalid", "infrastructure")
    assert row["failure"]["unexplained"]
    assert row["failure"]["message"].startswith("Server 1 of 2: ")
    assert running_in(home) == []
