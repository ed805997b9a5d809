"""``--hw local``: whatever this machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from autotune.machine.node import local_node
from tests.engines.stand_ins import executable, python_with
from tests.engines.test_cpu import CONFIG

from .cli import autotune, new_home

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
def test_without_an_engine_it_is_simulated_and_says_so(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    home = new_home(tmp_path)
    run = ["run", "--model", model, "--hw", "local", "--engine", "vllm", *LOAD, "--launches", "1", "--study", "s"]
    done = autotune(*run, "--json", home=home)
    assert done.code == 0, done.err
    assert "SIMULATED: this machine has no engine installed" in done.err
    assert done.json["evidence"] == "simulated"
    spec = yaml.safe_load((home / "studies" / "s" / "study.yaml").read_text())
    assert (spec["hardware"]["vendor"], spec["hardware"]["memory_gb"]) == ("cpu", local_node().memory_gb)
    assert "without a GPU" in (home / "studies" / "s" / "report.md").read_text()


@WITHOUT_GPU
def test_with_an_engine_it_is_measured_in_processes(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "bin" / "vllm", f"#!{python_with(tmp_path, vllm='0.32.0')}\n")
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    done = autotune("run", "--model", model, "--hw", "local", *LOAD, "--dry-run", "--json", home=tmp_path / "home")
    assert done.code == 0, done.err
    assert "measured on process" in done.err
    assert done.json["candidates"]["vllm"] > 20
    assert done.json["baseline"].startswith("VLLM_CPU_KVCACHE_SPACE=")
    assert {row["engine"] for row in done.json["excluded"]} >= {"sglang", "tensorrt_llm"}


@WITHOUT_GPU
def test_a_command_line_is_predicted_for_it(tmp_path: Path, model: str) -> None:
    load = [*LOAD, "--concurrency", "2"]
    done = autotune("simulate", "--hw", "local", "--json", *load, "--", "vllm", "serve", model, home=tmp_path)
    assert done.code == 0, done.err
    assert done.json["failure"] is None
    assert done.json["total_token_throughput"] > 0


def test_the_name_is_offered_where_a_name_is_wrong(tmp_path: Path) -> None:
    done = autotune("space", "show", "--hw", "h2000", home=tmp_path)
    assert done.code == 2
    assert "'local' is whatever this machine has" in done.err
