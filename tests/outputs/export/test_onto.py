"""A recommended command in a deployment of the user's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotune.base.errors import BadInput
from autotune.cli.main import cli
from autotune.engines import Configuration, Library, Scalar
from autotune.outputs.export import Winner
from autotune.outputs.export.onto import Onto
from autotune.tuner.prepare.deployments import read
from autotune.tuner.study.loads import context_of
from tests.outputs.export.golden import HOME, winner
from tests.outputs.manifests import HERE, SOURCES, check_nothing_else, check_valid

BASE = winner("h200-v32-vllm")
LIBRARY = Library()
ROOT = Path(__file__).parents[3]
FEW_REQUESTS: Mapping[str, Scalar] = {"max_running_requests": 200}


def tuned(source: Mapping[str, Any], knobs: Mapping[str, Scalar]) -> Winner:
    """A winner that runs the source's server with other knobs."""
    spec = BASE.spec.with_fields(
        model=LIBRARY.model(source["model"]),
        hardware=LIBRARY.hardware[source["hw"]],
        gpus=source["gpus"],
        workloads=("sharegpt",),
    )
    part = f"#{source['part']}" if "part" in source else ""
    deployment = read(f"{HERE / source['file']}{part}")
    assert deployment is not None
    kind = deployment.kind
    version = kind.version(deployment.version)
    context = context_of(spec, version, LIBRARY).as_read(kind.card)
    own = kind.knobs(kind.parse(deployment.command, version), context)
    made = Configuration(kind.name, {**own.knobs, **knobs})
    command = kind.command(made, context)
    choice = BASE.choice.model_copy(
        update={
            "engine": kind.name,
            "engine_version": version,
            "config": dict(made.knobs),
            "argv": list(command.argv),
            "env": dict(command.env),
            "files": dict(command.files),
        }
    )
    return replace(BASE, spec=spec, choice=choice, gpus=source["gpus"])


def named(source: Mapping[str, Any]) -> str:
    part = f"#{source['part']}" if "part" in source else ""
    return f"{HERE / source['file']}{part}"


@pytest.mark.parametrize("source", SOURCES, ids=[one["file"] for one in SOURCES])
def test_a_file_changes_in_its_command_alone(source: dict[str, Any], tmp_path: Path) -> None:
    put = Onto(tuned(source, FEW_REQUESTS), named(source))
    text = put.text()
    path = tmp_path / source["file"]
    path.write_text(text)
    check_valid(path)
    check_nothing_else(path, put.deployment.text, text)
    assert "200" in text
    (change,) = [one for one in put.changes() if "200" in one["after"]]
    assert "max_running_requests" in change["reason"]
    again = read(f"{path}{named(source).partition(source['file'])[2]}")
    assert again is not None
    assert put.deployment.container.env.items() <= again.container.env.items()


def test_a_config_file_in_a_script() -> None:
    source = next(one for one in SOURCES if one["file"].startswith("04"))
    put = Onto(tuned(source, {"memory_fraction": 0.8}), named(source))
    text = put.text()
    assert "free_gpu_memory_fraction: 0.8" in text
    assert text.partition("<<YAML")[0] == put.deployment.text.partition("<<YAML")[0]


COMPOSE = """\
services:
  chat:
    image: vllm/vllm-openai:v0.32.0   # ours
    environment: {VLLM_API_KEY: wfkgjq83hfowi2, HF_HUB_OFFLINE: "1"}
    command: --model deepseek-ai/DeepSeek-V3.2 -tp 8 --max-num-seqs 16 --served-model-name chat
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 8, capabilities: [gpu]}]}}}
"""


def export(*options: str) -> Any:
    command = ["export", "h200-v32-vllm", *options, "--home", str(HOME.path)]
    return CliRunner().invoke(cli, command, catch_exceptions=False)


def test_it_prints_the_file_and_tells_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    done = export("--onto", str(path))
    assert done.exit_code == 0, done.stderr
    assert path.read_text() == COMPOSE
    assert "# ours" in done.stdout
    assert "wfkgjq83hfowi2" in done.stdout
    assert "--served-model-name chat" in done.stdout
    assert "--max-num-seqs 16" not in done.stdout
    assert "wfkgjq83hfowi2" not in done.stderr
    assert "--max-num-seqs 16 → " in done.stderr
    assert "another command" in done.stderr

    said = json.loads(export("--onto", str(path), "-o", str(path), "--json").stdout)
    assert said["text"] == path.read_text() == done.stdout
    assert said["file"] == str(path)
    assert {"before", "after", "reason", "gain_percent", "ci95", "odds"} == {*said["changes"][0]}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("v0.32.0", "v0.30.0", "runs there with vLLM 0.30.0, but study"),
        ("DeepSeek-V3.2", "DeepSeek-R1", "deepseek-ai/DeepSeek-R1 runs there"),
        ("vllm/vllm-openai:v0.32.0", "redis:7", "not an engine's command line"),
    ],
)
def test_another_server_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE.replace(old, new))
    with pytest.raises(BadInput, match=problem):
        export("--onto", str(path))


def test_one_of_two_forms_is_asked_for() -> None:
    for options in ([], ["--to", "k8s", "--onto", "x.yaml"], ["--onto", "x.yaml", "--image", "y"]):
        with pytest.raises(BadInput, match="give one of --to FORMAT"):
            export(*options)


def test_several_servers_need_a_cluster() -> None:
    by_file = {one["file"][:2]: one for one in SOURCES}
    half: dict[str, Scalar] = {"replicas": 2, "tensor_parallel": 1}
    cluster = by_file["11"]
    put = Onto(replace(tuned(cluster, half), gpus=1), named(cluster))
    text = put.text()
    assert text.count("replicas: 2") == 1
    assert text.count('nvidia.com/gpu: "1"') == 2
    said = [(one["before"], one["after"]) for one in put.changes()]
    assert said[-2:] == [("GPUs: 2", "1"), ("replicas: 1", "2")]
    with pytest.raises(BadInput, match="Docker would give all of them the same GPUs"):
        Onto(replace(tuned(by_file["06"], half), gpus=1), named(by_file["06"])).text()


@pytest.mark.e2e
def test_a_round_trip(tmp_path: Path) -> None:
    options = ["--out", str(tmp_path), "--launches", "10", "--seeds", "1", "05-sglang.compose.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.product.round_trip", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    row = done.stdout.splitlines()[-1]
    assert row.endswith("| 1 of 1 |"), done.stdout
    assert "| yes | yes |" in row
