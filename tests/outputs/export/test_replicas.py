"""A winner of several servers in every form: each gets its GPUs and its place, and all are reached
by one address."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
from dstack._internal.core.models.configurations import (
    ServiceConfiguration,
    parse_apply_configuration,
)

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.outputs.export import Winner, all_of, export, winner_of
from tests.outputs.export import reading
from tests.outputs.export.golden import winner
from tests.processes import until

SIZES = {"replicas": 4, "tensor_parallel": 2, "data_parallel": 1, "expert_parallel": 1}


def several(study: str) -> Winner:
    base = winner(study)
    choice = base.choice.model_copy(update={"config": {**base.choice.config, **SIZES}})
    return winner_of(base.recommendation.model_copy(update={"recommended": choice}), base.spec, [])


NVIDIA, AMD = several("h200-v32-vllm"), several("mi300x-r1")


def test_a_cluster_runs_four_with_two_gpus_each() -> None:
    text = export(NVIDIA, "k8s")
    deployment = reading.kind(text, "Deployment")
    assert deployment["spec"]["replicas"] == 4
    assert reading.server(text)["resources"]["limits"] == {"nvidia.com/gpu": 2}
    for document in reading.documents(text):
        kubernetes_validate.validate(document, "1.28", strict=True)
    service = parse_apply_configuration(*reading.documents(export(NVIDIA, "dstack")))
    assert isinstance(service, ServiceConfiguration)
    assert (service.replicas.min, service.replicas.max, service.resources.gpu.count.min) == (
        4,
        4,
        2,
    )  # type: ignore[union-attr]
    (gpustack,) = reading.documents(export(NVIDIA, "gpustack"))
    assert (gpustack["replicas"], gpustack["gpu_selector"]["gpus_per_replica"]) == (4, 2)
    assert "task.dstack.yml" not in all_of(NVIDIA)[0]
    with pytest.raises(BadInput, match="use the format dstack"):
        export(NVIDIA, "dstack-task")


@pytest.mark.parametrize(
    ("told", "variable"), [(NVIDIA, "CUDA_VISIBLE_DEVICES"), (AMD, "HIP_VISIBLE_DEVICES")]
)
def test_compose_has_a_balancer_in_front_of_all_and_publishes_it_alone(
    told: Winner, variable: str
) -> None:
    text = export(told, "compose")
    compose_spec.PyCompose.from_yaml(text.replace("~/", "/root/"))
    (document,) = reading.documents(text)
    services: dict[str, Any] = document["services"]
    names = [f"server-{i}" for i in range(4)]
    assert sorted(services) == ["balancer", *names]
    assert [services[name]["environment"][variable] for name in names] == [
        "0,1",
        "2,3",
        "4,5",
        "6,7",
    ]
    assert [name for name in services if "ports" in services[name]] == ["balancer"]
    assert {services[name]["extends"]["service"] for name in names[1:]} == {names[0]}
    assert services[names[0]]["command"][-2:] == ["--port", "8000"]
    nginx = document["configs"]["balancer"]["content"]
    assert [f"server {name}:8000;" in nginx for name in names] == [True] * 4
    assert "least_conn;" in nginx
    assert "$" not in nginx


@pytest.mark.parametrize("typed", [["--port", "9000"], ["--port=9000"]])
def test_several_servers_count_from_the_user_s_own_port_and_say_it_once(typed: list[str]) -> None:
    choice = NVIDIA.choice.model_copy(
        update={"argv": [*NVIDIA.choice.argv[:3], *typed, *NVIDIA.choice.argv[3:]]}
    )
    own = replace(NVIDIA, choice=choice)
    for name, sign in (("shell", "--port"), ("docker", "--publish")):
        text = export(own, name)
        (line,) = [
            line for line in text.splitlines() if line.strip().startswith(sign) and "gpus" in line
        ]
        assert "$((9000 + ${gpus%%,*}))" in line
        assert "server 127.0.0.1:9000; server 127.0.0.1:9002;" in text
    command = Command(
        tuple(choice.argv),
        servers=({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}),
    )
    assert command.shell().count("--port") == 1
    assert '--port "$((9000 + ${gpus%%,*}))" &' in command.shell()


def script(told: Winner, name: str, folder: Path) -> Path:
    """The exported script, and a program that tells how it was started and then serves until it is
    ended."""
    program = folder / ("docker" if name == "docker" else told.choice.engine_argv[0])
    program.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*" >> "$TOLD"\nexec sleep 600\n')
    program.chmod(0o755)
    path = folder / "run.sh"
    path.write_text(export(told, name))
    return path


def state_of(pid: int) -> str:
    """The letter of a process's state: ``S`` sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("ended_by", ["a server", "a signal"])
@pytest.mark.parametrize("name", ["shell", "docker"])
def test_a_script_starts_each_on_its_gpus_and_ends_all_together(
    tmp_path: Path, name: str, ended_by: str
) -> None:
    told, path = tmp_path / "told", script(NVIDIA, name, tmp_path)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TOLD": str(told),
        "HOME": str(tmp_path),
        "MARK": str(tmp_path),
    }
    process = subprocess.Popen(["bash", str(path), "--more"], env=env, start_new_session=True)
    try:
        assert until(lambda: told.exists() and told.read_text().count("\n") == 4)
        lines = sorted(told.read_text().splitlines())
        assert [line.split()[0] for line in lines] == ["0,1", "2,3", "4,5", "6,7"]
        ports = [f"8{2 * i:03}" for i in range(4)]
        places = [
            f"--publish 127.0.0.1:{port}:8000" if name == "docker" else f"--port {port}"
            for port in ports
        ]
        assert [place in line for place, line in zip(places, lines, strict=True)] == [True] * 4
        assert all("--more" in line for line in lines)
        servers = children(process.pid)
        assert len(servers) == 4
        # A server that a signal ends before bash is in `wait -n` is not waited for.
        assert until(lambda: state_of(process.pid) == "S")
        os.kill(process.pid if ended_by == "a signal" else servers[2], signal.SIGTERM)
        assert process.wait(20) != 0
        assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_one_server_s_config_file_says_that_there_are_four() -> None:
    assert "# 4 servers of 2 GPUs each share the load" in export(NVIDIA, "vllm-config")
    alone = replace(
        NVIDIA,
        choice=NVIDIA.choice.model_copy(update={"config": {**NVIDIA.choice.config, "replicas": 1}}),
    )
    assert "servers of" not in export(alone, "vllm-config")
