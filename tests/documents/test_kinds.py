"""What follows a study works for every kind of it: report, exports, bundle and its replay, compare,
resume, MLflow."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.outputs.export import FORMATS
from tests.documents.pages import ROOT
from tests.product.cli import Finished, autotune, finished_rows, here, new_home
from tests.product.processes import start
from tests.product.server import emulated

MODEL = "deepseek-ai/DeepSeek-V3.2"
NODE = ["--model", MODEL, "--hw", "h200"]
SIMULATED = [
    *NODE,
    "--on",
    "simulator",
    "--space",
    str(ROOT / "examples" / "small-space.yaml"),
    "--launches",
    "3",
]
EMULATED = [
    *(*NODE, "--on", "emulator", "--space", str(ROOT / "examples" / "emulated-space.yaml")),
    *("--workload", "random:256:16:32", "--launches", "3"),
]
SMALLEST = "engine,max_num_seqs,total_token_throughput\nvllm,128,5000\nvllm,256,6000\n"
VERSIONED = "engine,engine_version,max_num_seqs,total_token_throughput\nvllm,0.32.0,128,5000\nvllm,0.32.0,256,6000\n"
UNKNOWN_ENGINE = "engine,threads,total_token_throughput\nours,1,50\nours,2,60\n"
BASIC = {"shell", "json"}
ANY_ENGINE = BASIC | {"docker", "compose", "k8s", "dstack", "dstack-task", "gpustack"}


@dataclass(frozen=True)
class Kind:
    """A kind of study.

    Attributes:
        make: makes the study ``s`` in a home folder; gives the command's exit status.
        code: that status.
        resumed: the exit status of ``autotune resume``.
        formats: the export formats that its winner has.
        evidence: as `recommendation.json` names it.
        replayed: the exit status of a replay of its bundle.
    """

    make: Callable[[Path], int]
    formats: frozenset[str]
    code: int = 0
    resumed: int = 0
    evidence: str = "simulated"
    replayed: int = 0


def run(home: Path, *words: str) -> int:
    """Make the study ``s``."""
    done = autotune("run", "--study", "s", *words, home=home)
    assert "Traceback" not in done.err, done.err
    assert done.code in (0, 3), done.err
    return done.code


def replay(table: str) -> Callable[[Path], int]:
    """Make a study of a table."""

    def make(home: Path) -> int:
        path = home.parent / "table.csv"
        path.write_text(table)
        return run(home, *NODE, "--on", f"replay:{path}")

    return make


def replayed_rows(home: Path) -> int:
    """Make a study of the rows of another one."""
    assert autotune("run", "--study", "first", *SIMULATED, home=home).code == 0
    return run(home, *NODE, "--on", f"replay:{home / 'studies' / 'first' / 'results.jsonl'}")


def external(home: Path) -> int:
    """Make a study of a server that somebody else runs."""
    with emulated("--speed", "8") as url:
        return run(
            home,
            *NODE,
            "--on",
            f"external:{url}",
            "--workload",
            "random:64:8:16",
            "--launches",
            "1",
        )


def interrupted(home: Path) -> int:
    """Press Ctrl-C after the first launch."""
    words = ["run", "--study", "s", *SIMULATED, "--workload", "offline"]
    with start(
        *words, environment={**os.environ, "AUTOTUNE_HOME": str(home)}, err=subprocess.DEVNULL
    ) as process:
        while not finished_rows(home, "s"):
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            break
        process.send_signal(signal.SIGINT)
        return process.wait()


def accurate(home: Path) -> int:
    """Make a study that checks answers."""
    tasks = ROOT / "examples" / "accuracy" / "tasks.jsonl"
    return run(home, *EMULATED, "--accuracy", str(tasks))


def of(engine: str, *more: str) -> frozenset[str]:
    """Return formats with the engine's own."""
    return frozenset({*more, f"{engine}-config"})


KINDS = {
    "simulated": Kind(lambda home: run(home, *SIMULATED), formats=of("vllm", *ANY_ENGINE)),
    "emulated": Kind(
        lambda home: run(home, *EMULATED), formats=of("sglang", *ANY_ENGINE), evidence="emulated"
    ),
    "smallest table": Kind(replay(SMALLEST), formats=of("vllm", *BASIC), evidence="replayed"),
    "table with versions": Kind(
        replay(VERSIONED), formats=of("vllm", *ANY_ENGINE), evidence="replayed"
    ),
    "table of an unknown engine": Kind(
        replay(UNKNOWN_ENGINE), formats=frozenset(BASIC), evidence="replayed"
    ),
    "rows of a study": Kind(replayed_rows, formats=of("vllm", *ANY_ENGINE), evidence="replayed"),
    "external": Kind(external, formats=frozenset(), evidence="emulated"),
    "interrupted": Kind(interrupted, code=130, formats=frozenset()),
    "infeasible": Kind(
        lambda home: run(home, *SIMULATED, "--slo", "p99_ttft_ms<=1"),
        code=3,
        resumed=3,
        formats=frozenset(),
        replayed=3,
    ),
    "load search": Kind(
        lambda home: run(
            home, *SIMULATED, "--find-load", "concurrency", "--slo", "p99_ttft_ms<=4000"
        ),
        formats=of("vllm", *ANY_ENGINE) | {"capacity"},
    ),
    "accuracy": Kind(accurate, formats=of("sglang", *ANY_ENGINE), evidence="emulated"),
}


def told(done: Finished, *codes: int) -> Finished:
    """Check an exit status, and that there is a message and no traceback."""
    assert "Traceback" not in done.err, done.err
    assert done.code in codes, done.err
    assert done.code == 0 or done.err.startswith("autotune: ") or "\nautotune: " in done.err, (
        done.err
    )
    return done


@pytest.mark.parametrize("name", KINDS)
def test_what_follows_a_study(name: str, tmp_path: Path) -> None:
    kind, home = KINDS[name], new_home(tmp_path)
    assert kind.make(home) == kind.code

    bundle = str(tmp_path / "s.bundle")
    told(autotune("bundle", "s", "-o", bundle, home=home), 0)
    replayed = autotune("run", "--study", "again", "--on", f"replay:{bundle}", home=home)
    told(replayed, kind.replayed)

    for form in ("md", "html"):
        assert told(here("report", "s", "--format", form, home=home), 0).out
    for form in FORMATS:
        wanted = 0 if form in kind.formats else 2
        exported = told(here("export", "s", "--to", form, home=home), wanted)
        assert bool(exported.out) == (wanted == 0), form
    assert "s" in {row["study"] for row in told(autotune("list", "--json", home=home), 0).json}

    told(autotune("resume", "s", home=home), kind.resumed)
    found = json.loads((home / "studies" / "s" / "recommendation.json").read_text())
    assert found["evidence"] == kind.evidence
    told(autotune("compare", "s", bundle if kind.code != 130 else "s", home=home), 0)
    recorded = json.loads((home / "studies" / "s" / "mlflow.json").read_text())
    assert recorded, "the study is in MLflow"
    shutil.rmtree(home / "studies")
