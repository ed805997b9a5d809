"""Four winners in every format: as they lie here, as the real validators take them, and as the
engines read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import compose_spec
import kubernetes_validate
import pytest
import yaml
from dstack._internal.core.models.configurations import (
    ServiceConfiguration,
    TaskConfiguration,
    parse_apply_configuration,
)

from autotune.engines.command import Command, Configuration
from autotune.engines.context import Context
from autotune.engines.registry import engine
from tests.outputs.export import reading
from tests.outputs.export.golden import GOLDEN, STUDIES, texts, winner
from tests.outputs.export.test_export import as_the_engine_reads
from tests.servers.docker.test_run_words import RecordingDaemon

each = pytest.mark.parametrize("study", STUDIES)


def golden(study: str, name: str) -> str:
    return (GOLDEN / study / name).read_text()


@each
def test_every_format_is_as_it_was(study: str) -> None:
    """After a wanted change: ``python -m tests.outputs.export.golden``, and read the difference."""
    made = texts(study)
    assert made == {path.name: path.read_text() for path in (GOLDEN / study).iterdir()}
    assert len(made) == 8, "one of three engine files, and all that fit any engine"
    for text in made.values():
        assert "# evidence: SIMULATED, not measured on this hardware" in text.splitlines()[:4]


@each
@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_kubernetes_takes_the_manifests(study: str, version: str) -> None:
    documents = reading.documents(golden(study, "kubernetes.yaml"))
    assert {"Deployment", "Service"} <= {document["kind"] for document in documents}
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_kubernetes_schema_is_strict() -> None:
    document = reading.kind(golden("h200-v32-vllm", "kubernetes.yaml"), "Deployment")
    document["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.37", strict=True)


@each
def test_compose_takes_the_file(study: str) -> None:
    # Compose fills the home folder in before it looks at the file.
    text = golden(study, "compose.yaml").replace("~/", "/root/")
    assert compose_spec.PyCompose.from_yaml(text).service_names() == ["server"]
    with pytest.raises(ValueError, match="imag"):
        compose_spec.PyCompose.from_yaml(text.replace("    image:", "    imag:"))


@each
def test_dstack_takes_the_service_and_the_task(study: str) -> None:
    hardware = winner(study).spec.hardware
    for name, kind in (("service", ServiceConfiguration), ("task", TaskConfiguration)):
        found = parse_apply_configuration(yaml.safe_load(golden(study, f"{name}.dstack.yml")))
        assert isinstance(found, kind)
        gpu = found.resources.gpu
        assert (gpu.vendor.value, gpu.name, gpu.count.min) == (
            hardware.vendor,
            [hardware.name.upper()],
            8,
        )
        assert gpu.memory.min <= hardware.memory_gb


@each
def test_the_engine_reads_the_winner_s_configuration_out_of_every_form(study: str) -> None:
    told = winner(study)
    choice = told.choice
    asked = Command(tuple(choice.engine_argv), choice.env, choice.files)
    kind = engine(choice.engine)
    context = Context(told.spec.model, told.spec.hardware, told.spec.gpus, choice.engine_version)

    def read(words: Sequence[str], files: dict[str, str]) -> Configuration:
        return kind.knobs(
            kind.parse(Command(tuple(words), choice.env, files), choice.engine_version), context
        )

    program = list(kind.card.program) + ([kind.card.model_flag] if kind.card.model_flag else [])
    forms = {
        "kubernetes": reading.kubernetes_words(golden(study, "kubernetes.yaml"), {}),
        "compose": reading.compose_service(golden(study, "compose.yaml"), {})["command"],
        "service": reading.dstack_started(golden(study, "service.dstack.yml"))[0],
        "task": reading.dstack_started(golden(study, "task.dstack.yml"))[0],
        "gpustack": reading.gpustack_words(golden(study, "gpustack.yaml"), program),
    }
    for name, words in forms.items():
        assert read(words, choice.files) == read(asked.argv, choice.files), name
    own = {"vllm": "vllm.yaml", "sglang": "sglang.yaml", "tensorrt_llm": "trtllm.yaml"}[
        choice.engine
    ]
    document = yaml.safe_load(golden(study, own))
    words = [*kind.card.program, *as_the_engine_reads(document)]
    if choice.engine == "tensorrt_llm":
        words = [*kind.card.program, told.spec.model.id, "--config", own]
    elif choice.engine == "vllm":
        words = [*kind.card.program, document.pop("model"), *as_the_engine_reads(document)]
    assert read(words, {own: golden(study, own)}) == read(asked.argv, choice.files)


@each
def test_files_of_the_engine_arrive_where_it_looks_for_them(study: str) -> None:
    files = winner(study).choice.files
    assert bool(files) == (study == "h200-v32-tensorrt-llm")
    if not files:
        return
    ((name, content),) = files.items()
    text = golden(study, "kubernetes.yaml")
    (volume,) = [
        volume["configMap"]
        for volume in reading.kind(text, "Deployment")["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    ]
    config_map = reading.kind(text, "ConfigMap")
    assert volume["name"] == config_map["metadata"]["name"]
    assert {item["path"]: config_map["data"][item["key"]] for item in volume["items"]} == {
        name: content
    }
    assert reading.server(text)["workingDir"] == "/autotune"
    (compose,) = reading.documents(golden(study, "compose.yaml"))
    (used,) = compose["services"]["server"]["configs"]
    assert (used["target"], compose["configs"][used["source"]]["content"]) == (
        f"/autotune/{name}",
        content,
    )


@pytest.mark.skipif(shutil.which("docker") is None, reason="the docker command is not installed")
@pytest.mark.parametrize("study", ["h200-v32-tensorrt-llm", "mi300x-r1"])
def test_docker_understands_the_script(study: str, tmp_path: Path) -> None:
    """The real command parses it and asks a daemon, which only takes notes, for what was meant."""
    environment = {
        **os.environ,
        "DOCKER_HOST": f"unix://{tmp_path / 'socket'}",
        "DOCKER_CONFIG": str(tmp_path),
    }
    environment |= {"HF_TOKEN": "of the caller", "TMPDIR": str(tmp_path)}
    with RecordingDaemon(tmp_path / "socket") as daemon:
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        script = GOLDEN / study / "docker-run.sh"
        done = subprocess.run(
            ["bash", script], env=environment, capture_output=True, text=True, check=False
        )
        daemon.shutdown()
    assert "only recording" in done.stderr, done.stderr
    (asked,) = daemon.created
    host, choice = asked["HostConfig"], winner(study).choice
    words = list(reading.kubernetes_words(golden(study, "kubernetes.yaml"), {}))
    assert (asked["Image"], asked["Cmd"]) == (
        reading.server(golden(study, "kubernetes.yaml"))["image"],
        words,
    )
    assert {
        *(f"{name}={value}" for name, value in choice.env.items()),
        "HF_TOKEN=of the caller",
    } <= set(asked["Env"])
    assert host["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]}
    assert host["IpcMode"] == "host"
    amd = [device["PathOnHost"] for device in host["Devices"]]
    assert amd == (["/dev/kfd", "/dev/dri"] if study == "mi300x-r1" else [])
    for bind in (bind for bind in host["Binds"] if "/autotune/" in bind):
        assert Path(bind.partition(":")[0]).read_text() == choice.files["trtllm-config.yaml"]
