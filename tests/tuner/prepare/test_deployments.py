"""Deployments are read as their tools read them, and changed by place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.base import BadInput
from autotune.engines import Command, Library
from autotune.engines.command import referenced
from autotune.outputs.export import Winner, export
from autotune.tuner.prepare.deployed import with_deployment
from autotune.tuner.prepare.deployments import Deployment, gpus_of, read
from autotune.tuner.prepare.deployments.changes import knob_variables
from autotune.tuner.prepare.deployments.forms import containers
from autotune.tuner.study.options import RunOptions
from tests.outputs.export.golden import STUDIES, winner
from tests.outputs.export.test_replicas import several
from tests.servers.docker.test_run_words import RecordingDaemon

MANIFESTS = Path(__file__).parents[2] / "outputs" / "manifests"
FILES = [
    MANIFESTS / row["file"] for row in yaml.safe_load((MANIFESTS / "sources.yaml").read_text())
]
OTHER = {
    "vllm": ["--max-num-seqs", "200", "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'],
    "sglang": ["--max-running-requests", "200", "--mem-fraction-static", "0.91"],
    "tensorrt_llm": ["--max_batch_size", "200", "--max_num_tokens", "8000"],
}  # fmt: skip
CHANGED = {word for words in OTHER.values() for word in words if word.startswith("-")}


def deployment_of(text: str | Path) -> Deployment:
    found = read(str(text))
    assert found is not None
    return found


def rest_of(argv: Sequence[str]) -> list[str]:
    """The words of the other options."""
    kept = list[str]()
    words = iter(argv)
    for word in words:
        flag, equals, _ = word.partition("=")
        if flag not in CHANGED:
            kept.append(word)
        elif not equals:
            next(words)
    return kept


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_own_command_changes_no_byte(path: Path) -> None:
    found = deployment_of(path)
    assert found.rewritten(found.command.argv, found.command.env, found.gpus, 1) == found.text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_another_command_changes_its_knobs_alone(path: Path, tmp_path: Path) -> None:
    found = deployment_of(path)
    variable = min(knob_variables(found.kind, found.kind.version(found.version)))
    argv = [*rest_of(found.command.argv), *OTHER[found.kind.name]]
    copy = tmp_path / path.name
    copy.write_text(found.rewritten(argv, {**found.command.env, variable: "1"}))
    changed = deployment_of(copy)
    assert changed.container.env == {**found.container.env, variable: "1"}
    assert changed.container.folders.keys() == found.container.folders.keys()
    assert rest_of(changed.command.argv) == rest_of(found.command.argv)
    for word in OTHER[found.kind.name][1::2]:
        assert any(one.endswith(word) for one in changed.command.argv)
    # And back: what was added goes, with its line.
    copy.write_text(changed.rewritten(found.command.argv, found.command.env))
    assert deployment_of(copy).command.env == found.command.env
    lines = copy.read_text().splitlines()
    assert [line for line in lines if line.lstrip().startswith("#")] == [
        line for line in found.text.splitlines() if line.lstrip().startswith("#")
    ]


ADDRESS = {"host", "port"}


@pytest.mark.parametrize("form", ["docker", "compose", "k8s"])
@pytest.mark.parametrize(
    "told", [*map(winner, STUDIES), *map(several, ["h200-v32-vllm", "mi300x-r1"])]
)
def test_what_is_exported_reads_back(told: Winner, form: str, tmp_path: Path) -> None:
    file = tmp_path / (f"{form}.sh" if form == "docker" else f"{form}.yaml")
    file.write_text(export(told, form))
    found = deployment_of(file)
    version = found.kind.version(found.version)
    parsed, own = (
        found.kind.parse(command, version)
        for command in (
            found.command,
            Command(tuple(told.choice.engine_argv), told.choice.env, told.choice.files),
        )
    )
    assert version == told.choice.engine_version
    assert {**parsed.args, **dict.fromkeys(ADDRESS)} == {**own.args, **dict.fromkeys(ADDRESS)}
    assert parsed.config == own.config
    assert found.container.replicas * found.command.replicas == told.fleet.count
    assert {name: found.command.env.get(name) for name in told.choice.env} == told.choice.env


LINES = """
docker run -itd=true --rm --gpus all vllm/vllm-openai:v0.33.0 --model m -tp 2
docker run -i --gpus '"device=0,1"' -eA=1 -e=B=2 -e C -e D -p8000:8000 -v/a:/b --shm-size=8g img:1 a b
docker run --gpus=2 --env=A='x y' --env B="$HOME" --entrypoint vllm img serve m
docker run --gpus '"device=0,1",capabilities=compute' --entrypoint= img vllm serve m
docker run --privileged --rm=false --init=true -d=true img vllm serve m
docker run -di -e A --name=n --network host --ulimit memlock=-1 img -tp 4
docker --log-level debug container run --rm img vllm serve m --flag -e
docker run -u 1000:1000 -w /app -h host --cap-add=SYS_PTRACE --security-opt seccomp=unconfined img x
docker run -iv /a:/b --label a=b -l c=d --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=0,1 img x
docker run --env-file variables -e A=2 --gpus count=2 img x
docker run -e A= -e 'B=a=b' --restart unless-stopped -P -m 64g --cpus 4 img -- x
docker run --mount type=bind,source=/a,target=/b --device /dev/kfd --group-add video img x
""".strip().splitlines()


@pytest.mark.skipif(shutil.which("docker") is None, reason="the docker command is not installed")
def test_the_real_docker_command_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "variables").write_text('# one a line\nA=1\nE=e f\nF="q"\nC\n')
    monkeypatch.chdir(tmp_path)
    for name, value in {"A": "aa", "C": "cc", "DOCKER_CONFIG": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'socket'}")
    monkeypatch.delenv("D", raising=False)
    with RecordingDaemon(tmp_path / "socket") as daemon:
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        for line in LINES:
            subprocess.run(["bash", "-c", line], capture_output=True, check=False)
            asked = daemon.created.pop()
            (found,) = containers(line, "")
            # A name alone is a variable that is set nowhere.
            environ = dict(one.partition("=")[::2] for one in asked["Env"] or [] if "=" in one)
            values = {
                name: os.environ.get(name) if referenced(value) else value
                for name, value in found.env.items()
            }
            assert {n: v for n, v in values.items() if v is not None} == environ, line
            requests = asked["HostConfig"]["DeviceRequests"] or [{"DeviceIDs": None, "Count": -1}]
            assert (found.image, list(found.command)) == (asked["Image"], asked["Cmd"]), line
            assert (found.entrypoint or []) == [
                word for word in asked["Entrypoint"] or [] if word
            ], line
            given = [len(one["DeviceIDs"] or []) or one["Count"] for one in requests]
            assert given == [gpus_of(found) or -1] or "NVIDIA" in line, line
        daemon.shutdown()


def test_a_folder_of_the_container_is_the_host_s(tmp_path: Path) -> None:
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    file = tmp_path / "compose.yaml"
    image = "services:\n  chat:\n    image: vllm/vllm-openai:v0.33.0\n    volumes: [./models:/models:ro]\n"
    file.write_text(f"{image}    command: [--model=/models/m, --max-num-seqs, '64']\n")
    found = deployment_of(file)
    assert found.command.argv[2] == f"--model={model}"
    other = [*found.command.argv[:4], "128"]
    assert found.rewritten(other, {}) == found.text.replace("64", "128")


def service(command: str) -> str:
    return f"services:\n  a:\n    image: vllm/vllm-openai:v0.33.0\n    command: {command}\n    init: true\n"


FORMS = {
    "block.yaml": service('\n      - Qwen/Qwen3-8B\n      - --max-num-seqs\n      - "64"  # why'),
    "equals.yaml": service("\n      - Qwen/Qwen3-8B\n      - --max-num-seqs=64"),
    "flow.yaml": service('[Qwen/Qwen3-8B, --max-num-seqs, "64"]'),
    "plain.yaml": service("Qwen/Qwen3-8B --max-num-seqs 64"),
    "quoted.yaml": service('"Qwen/Qwen3-8B --max-num-seqs 64"'),
    "folded.yaml": service(">-\n      Qwen/Qwen3-8B\n      --max-num-seqs 64"),
    "script.yaml": service('[sh, -c, "exec vllm serve Qwen/Qwen3-8B --max-num-seqs 64"]'),
    "literal.yaml": service(
        "\n    - sh\n    - -c\n    - |\n      exec vllm serve Qwen/Qwen3-8B \\\n        --max-num-seqs 64"
    ),
    "run.sh": "docker run --gpus all vllm/vllm-openai:v0.33.0 Qwen/Qwen3-8B \\\n  --max-num-seqs 64 > log\n",
    "run-c.sh": 'docker run --entrypoint bash vllm/vllm-openai:v0.33.0 -c "vllm serve Qwen/Qwen3-8B --max-num-seqs 64"\n',
    "serve": "vllm serve Qwen/Qwen3-8B --max-num-seqs 64\n",
    "vllm.service": "[Service]\nExecStart=-vllm serve Qwen/Qwen3-8B \\\n  --max-num-seqs 64\nRestart=always\n",
    "serve.sh": "#!/bin/sh\nvllm serve Qwen/Qwen3-8B --max-num-seqs 64 # as ever\n",
}  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(FORMS)), st.text(st.characters(codec="ascii"), max_size=8))
@example("folded.yaml", "it's $HOME")
@example("run-c.sh", 'a "b" \\c')
def test_a_value_is_written_as_it_is_read_or_not_at_all(name: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_text(FORMS[name])
        found = deployment_of(file)
        value = json.dumps({"method": "mtp", "model": text, "num_speculative_tokens": 1})
        try:
            changed = found.rewritten([*found.command.argv, "--speculative-config", value], {})
            file.write_text(changed)
            again = deployment_of(file)
            assert again.command.argv[-1].removeprefix("--speculative-config=") == value
            assert again.rewritten(found.command.argv, {}) == FORMS[name]
        except BadInput:
            # Quotes within quotes within quotes; never those of numbers and names.
            assert re.search(r"[^\w./-]", text) or name == "plain.yaml"


def test_a_unit_of_systemd_sets_its_variables(tmp_path: Path) -> None:
    unit = tmp_path / "chat.service"
    unit.write_text(
        "[Service]\nEnvironment='MODEL=Qwen/Qwen3-8B' VLLM_USE_V1=1\nEnvironment=CUDA_VISIBLE_DEVICES=0,1\n"
        f"EnvironmentFile=-{tmp_path}/none\nExecStartPre=/bin/true\nExecStart=/usr/bin/vllm serve ${{MODEL}} -tp 2\n"
    )
    found = deployment_of(unit)
    assert found.command.argv == ("/usr/bin/vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2")
    assert (found.gpus, found.command.env["VLLM_USE_V1"]) == (2, "1")
    assert found.notes == [f"{tmp_path}/none is not there; its variables are not read"]
    text = unit.read_text().replace(
        "/usr/bin/vllm serve", "docker run -e VLLM_USE_V1 vllm/vllm-openai"
    )
    unit.write_text(text)
    assert deployment_of(unit).command.argv == ("vllm", *found.command.argv[1:])
    assert deployment_of(unit).command.env == {"VLLM_USE_V1": "1"}


def test_several_servers_of_a_script_share_the_load(tmp_path: Path) -> None:
    script = tmp_path / "two.sh"
    line = "CUDA_VISIBLE_DEVICES={} vllm serve Qwen/Qwen3-8B -tp 2 --port {} &\n"
    script.write_text(f"{line.format('0,1', 8000)}{line.format('2,3', 8001)}wait\n")
    found = deployment_of(script)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found.command.servers] == ["0,1", "2,3"]
    asked, _ = with_deployment(
        RunOptions(model="", hardware="h200", baseline=str(script)), Library()
    )
    assert (found.gpus, asked.gpus) == (2, 4)


def test_an_image_that_is_built_there_has_no_name(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("services: {a: {build: ., command: vllm serve m}}\n")
    assert (deployment_of(file).container.image, deployment_of(file).notes) == ("", [])


RUN = "docker run --gpus 4 -e HF_TOKEN=hf_0123456789 vllm/vllm-openai:v0.32.0 --model {} -tp 4 --api-key k3y"


def test_what_the_deployment_says_stands_for_options() -> None:
    options = RunOptions(model="", hardware="h100", baseline=RUN.format("Qwen/Qwen3-32B"))
    asked, deployed = with_deployment(options, Library())
    assert (asked.model, asked.gpus) == ("Qwen/Qwen3-32B", 4)
    assert asked.baseline == 'vllm serve --model Qwen/Qwen3-32B -tp 4 --api-key "${API_KEY}"'
    assert deployed.versions == {"vllm": "0.32.0"}
    assert deployed.images({"vllm": "0.32.0"}) == ["vllm=vllm/vllm-openai:v0.32.0"]
    assert deployed.images({"vllm": "0.33.0"}) == [], "another version was asked for"
    assert deployed.notes == [
        "secrets are not stored: HF_TOKEN, --api-key",
        "4 of the node's 8 GPUs are tuned, as the deployment has them",
    ]


def test_options_stand_for_what_the_deployment_says() -> None:
    text = RUN.format("/models/q")
    options = RunOptions(model="Qwen/Qwen3-32B", hardware="h100", gpus=8, baseline=text)
    asked, deployed = with_deployment(options, Library())
    assert asked.gpus == 8
    assert "--model Qwen/Qwen3-32B" in str(asked.baseline)
    assert deployed.notes[1:] == [
        "the deployment's /models/q is taken for Qwen/Qwen3-32B",
        "the deployment has 4 GPUs; --gpus 8 are tuned",
    ]
    with pytest.raises(BadInput, match="--model is missing: /models/q"):
        with_deployment(replace(options, model=""), Library())


REFUSED = {
    "no service of Compose, pod of Kubernetes": "replicas: 2\nimage: x\n",
    "helm template": "kind: Pod\nspec: {{ .Values.x }}\n",
    "is a template of a chart": "kind: Pod\nspec: {containers: [{image: '{{ .Values.image }}'}]}\n",
    "size is 2: several": "{kind: LeaderWorkerSet, metadata: {name: a}, spec: {leaderWorkerTemplate: {size: 2}}}",
    "choose .*#a or .*#b": "x-i: &i {image: vllm/vllm-openai}\nservices: {a: {<<: *i, command: m}, b: {<<: *i, command: n}}\n",
    "MODEL is not set here": "services: {a: {image: 'vllm/vllm-openai:v0.33.0', command: ['${MODEL}']}}\n",
    "no deployment as Compose": "services: {a: 1}\n",
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_a_file_that_tells_no_server_is_answered(message: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(REFUSED[message])
    with pytest.raises(BadInput, match=message):
        read(str(file))


def test_replicas_are_added_where_none_are_written_and_a_sidecar_comes_with_each(
    tmp_path: Path,
) -> None:
    file = tmp_path / "set.yaml"
    file.write_text(
        "kind: StatefulSet\nmetadata: {name: s}\nspec:\n  serviceName: s\n  template:\n    spec:\n"
        "      containers:\n"
        "      - {name: log, image: fluent/fluent-bit:4}\n"
        "      - name: s\n        image: lmsysorg/sglang:v0.5.23\n"
        "        command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B]\n"
        "        resources: {limits: {nvidia.com/gpu: 2}}\n"
    )
    found = deployment_of(file)
    changed = found.rewritten(found.command.argv, found.command.env, 1, 2)
    assert changed == found.text.replace("gpu: 2", "gpu: 1").replace(
        "  serviceName", "  replicas: 2\n  serviceName"
    )


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("ghcr.io/acme/vllm:v0.31.0", "0.31.0"),
        ("acme/vllm:1.4.2", None),
        ("acme/vllm-qwen:build-7", None),
        ("rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210", "0.11.2"),
    ],
)
def test_the_tag_of_somebody_s_own_image_is_a_version_where_the_engine_has_such(
    image: str, version: str | None
) -> None:
    assert deployment_of(f"docker run {image} vllm serve m").version == version
