"""``--hw local``: whatever this machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.engines.machine import local_node
from tests.engines.stand_ins import executable, python_with
from tests.engines.test_cpu import CONFIG
from tests.product.cli import autotune

WITHOUT_GPU = pytest.mark.skipif(
    local_node().vendor != "cpu", reason="what is asserted holds of a machine without GPUs"
)
LOAD = ["--workload", "random:64:16:8"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


@WITHOUT_GPU
@pytest.mark.parametrize("on", [[], ["--on", "simulator"]])
def test_a_study_of_a_cpu_is_measured_or_refused(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, on: list[str]
) -> None:
    """Predictions are fitted to GPUs: a study on those of a CPU would choose by nothing."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = autotune(
        "run", "--model", model, "--hw", "local", "--engine", "vllm", *LOAD, *on, home=tmp_path
    )
    assert done.code == 2
    assert "--on process" in done.err
    assert "--hw h200" in done.err


@WITHOUT_GPU
def test_with_an_engine_it_is_measured_in_processes(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "bin" / "vllm", f"#!{python_with(tmp_path, vllm='0.32.0')}\n")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    done = autotune(
        "run",
        "--model",
        model,
        "--hw",
        "local",
        *LOAD,
        "--dry-run",
        "--json",
        home=tmp_path / "home",
    )
    assert done.code == 0, done.err
    assert "measured on process" in done.err
    assert done.json["candidates"]["vllm"] > 20
    assert done.json["baseline"].startswith("VLLM_CPU_KVCACHE_SPACE=")
    assert {row["engine"] for row in done.json["excluded"]} >= {"sglang", "tensorrt_llm"}


@WITHOUT_GPU
def test_a_command_line_is_predicted_for_it(tmp_path: Path, model: str) -> None:
    load = [*LOAD, "--concurrency", "2"]
    done = autotune(
        "simulate", "--hw", "local", "--json", *load, "--", "vllm", "serve", model, home=tmp_path
    )
    assert done.code == 0, done.err
    assert done.json["failure"] is None
    assert done.json["total_token_throughput"] > 0


def test_the_name_is_offered_where_a_name_is_wrong(tmp_path: Path) -> None:
    done = autotune("space", "show", "--hw", "h2000", home=tmp_path)
    assert done.code == 2
    assert "'local' is this machine" in done.err
