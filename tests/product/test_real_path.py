"""The real path, against emulated engines: processes, HTTP, load, stop, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.product.cli import autotune, finished_rows, kill_after, new_home, rows
from tests.product.server import COMMAND, emulated

ROOT = Path(__file__).resolve().parents[2]
QUESTION = [
    *("--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200", "--on", "emulator"),
    *("--workload", "random:256:16:64", "--launches", "6", "--seed", "3"),
    *("--space", str(ROOT / "examples" / "emulated-space.yaml")),
]
MARKER = "AUTOTUNE_LAUNCH"
KILLS = [pytest.param(3, marks=pytest.mark.e2e), pytest.param(20, marks=pytest.mark.slow)]
"""The first meets a server for certain."""


def launched_processes(home: Path) -> list[str]:
    """Processes that a tuner of this home launched, or that watch over them: those that work in its
    folders."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (
                (process / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
                .strip()
            )
            environment = (process / "environ").read_bytes()
            folder = os.readlink(process / "cwd")
        except OSError:
            continue
        if command and folder.startswith(str(home)) and MARKER.encode() + b"=" in environment:
            found.append(f"{process.name} {command[:120]}")
    return found


def nothing_is_left(home: Path, within_s: float) -> list[str]:
    """What is still alive when the time is over; empty as soon as nothing is."""
    deadline = time.monotonic() + within_s
    while (alive := launched_processes(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def alive_for(home: Path, seconds: float) -> Callable[[], bool]:
    """Whether something that a tuner launched has been alive for so long, and still is."""
    since: float | None = None

    def is_alive() -> bool:
        nonlocal since
        if not launched_processes(home):
            since = None
        elif since is None:
            since = time.monotonic()
        return since is not None and time.monotonic() - since >= seconds

    return is_alive


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for several studies."""
    return new_home(tmp_path_factory.mktemp("real_path"))


@pytest.fixture(scope="module")
def emulated_home(home: Path) -> Path:
    """The home whose study ``s`` ran on the emulator."""
    done = autotune("run", *QUESTION, "--launches", "3", "--study", "s", home=home)
    assert done.code == 0, done.err
    return home


@pytest.mark.e2e
def test_a_study_on_the_emulator(emulated_home: Path) -> None:
    home = emulated_home
    assert nothing_is_left(home, 0) == []
    launches = rows(home, "s")
    assert {row["evidence"] for row in launches} == {"emulated"}
    assert len(launches) <= 3
    found = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert (found["evidence"], found["engine"]) == ("emulated", "sglang")
    failed = [row for row in launches if row["state"] == "failed"]
    assert [row["config"]["cuda_graph_max_batch"] for row in failed] == [96]
    assert "Capture CUDA graph failed" in failed[0]["failure"]["log_excerpt"]
    assert "Capture CUDA graph failed" in (home / "studies" / "s" / "report.md").read_text()
    assert found["failures"] == {failed[0]["failure"]["kind"]: 1}
    for row in launches:
        assert (
            home / "studies" / "s" / "trials" / f"{row['number']:04d}" / "server.log"
        ).stat().st_size > 0
        assert row["pids"]
        assert row["times_s"]["ready"] > 0
        if row["state"] == "complete":
            metrics = row["metrics"]["random:256:16:64"]
            assert (metrics["completed"], metrics["failed"]) == (64, 0)
            assert (metrics["total_input_tokens"], metrics["total_output_tokens"]) == (
                64 * 256,
                64 * 16,
            )
            assert "emulate" not in " ".join(row["argv"]), "the row holds the engine's own command"


@pytest.mark.e2e
def test_emulated_and_simulated_rows_have_one_shape(emulated_home: Path) -> None:
    home = emulated_home
    question = [*QUESTION, "--on", "simulator", "--launches", "1", "--study", "simulated"]
    assert autotune("run", *question, home=home).code == 0
    first, (simulated,) = rows(home, "s")[0], rows(home, "simulated")
    assert first.keys() == simulated.keys()
    one, other = (row["metrics"]["random:256:16:64"] for row in (first, simulated))
    assert set(simulated["metrics"]["random:256:16:64"]) - {"cache_hit_rate"} <= set(one)
    assert one["total_token_throughput"] == pytest.approx(other["total_token_throughput"], rel=0.25)


@pytest.mark.parametrize("wanted", KILLS)
def test_kill_9_of_the_tuner_leaves_nothing_and_loses_nothing(tmp_path: Path, wanted: int) -> None:
    home = new_home(tmp_path)
    moments = random.Random(9)
    kills, studies = 0, 0
    while kills < wanted:
        studies += 1
        study = f"killed-{studies}"
        arguments = ["run", *QUESTION, "--study", study]
        before: list[str] = []
        killed = True
        while kills < wanted and killed:
            # Every other kill meets a server for certain, however slow the machine is.
            killed = (
                kill_after(arguments, home, moments.uniform(0.0, 6.0))
                if kills % 2
                else kill_after(arguments, home, 0.0, alive_for(home, moments.uniform(0.0, 0.5)))
            )
            kills += killed
            assert nothing_is_left(home, 5.0) == [], f"alive 5 s after kill {kills}"
            if (home / "studies" / study / "study.yaml").exists():
                arguments = ["resume", study]
            after = finished_rows(home, study)
            assert after[: len(before)] == before, "a finished launch was lost or made again"
            before = after
        done = autotune(*arguments, home=home)
        assert done.code == 0, done.err
        launches = rows(home, study)
        assert finished_rows(home, study)[: len(before)] == before
        assert [row["number"] for row in launches] == list(range(len(launches)))
        assert nothing_is_left(home, 0) == []
    assert kills == wanted


@pytest.mark.e2e
def test_a_server_that_dies_under_load_leaves_nothing_feasible(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault's kind is asserted of the evaluator; this is what a user sees of one."""
    monkeypatch.setenv("AUTOTUNE_EMULATE_FAULT", "die-mid-load:200")
    done = autotune("run", *QUESTION, "--launches", "1", "--study", "dies", home=home)
    assert done.code == 3, done.err
    (row,) = rows(home, "dies")
    assert (row["state"], row["failure"]["kind"]) == ("failed", "crashed")
    assert "an illegal memory access was encountered" in row["failure"]["log_excerpt"]
    assert nothing_is_left(home, 0) == []


@pytest.mark.e2e
def test_a_server_that_somebody_else_runs_is_measured_and_left_alone(home: Path) -> None:
    question = [
        "run",
        "--model",
        COMMAND[2],
        "--hw",
        "h200",
        "--workload",
        "random:64:4:32",
        "--launches",
        "2",
    ]
    with emulated() as url:
        done = autotune(*question, "--on", f"external:{url}", "--study", "external", home=home)
        again = autotune(
            "bench", "--url", url, "--model", COMMAND[2], "--workload", "random:64:4:8", home=home
        )
        other = autotune(
            *question, "--on", f"external:{url}", "--model", "deepseek-ai/DeepSeek-R1", home=home
        )
    assert done.code == 0, done.err
    assert again.code == 0, "the server was not left alone"
    assert other.code == 2
    assert COMMAND[2] in other.err, "a wrong model is answered with what is served"
    found = json.loads((home / "studies" / "external" / "recommendation.json").read_text())
    assert (found["verdict"], found["config"]) == ("indistinguishable", {"url": url})
    assert found["objective"]["repeats"] == 2
    assert found["evidence"] == "emulated", "an emulated engine says so, whoever runs it"
    assert not (home / "studies" / "external" / "serve.sh").exists()
    exported = autotune("export", "external", "--to", "shell", home=home)
    assert exported.code == 2
    assert "did not start the server" in exported.err


def test_bad_input_of_the_real_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    question = ["run", "--model", "deepseek-ai/DeepSeek-V3.2", "--hw", "h200"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    for arguments, words in (
        ([*question, "--on", "process", "--engine", "vllm"], ["vllm", "PATH"]),
        ([*question, "--on", f"external:{url}"], [url]),
        ([*question, "--on", "external:"], ["external:URL"]),
    ):
        done = autotune(*arguments, home=home)
        assert done.code == 2, (done.code, done.err)
        assert "Traceback" not in done.err
        for word in words:
            assert word in done.err, done.err
        assert not home.exists(), "bad input left something behind"
