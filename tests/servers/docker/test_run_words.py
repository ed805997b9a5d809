"""The words `docker run … IMAGE` around an engine's command, and what the real docker command makes
of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

import pytest

from autotune.engines.command import Command
from autotune.engines.library import Library
from autotune.engines.registry import engine
from autotune.servers.docker_run import (
    docker_card,
    in_container,
    models_folder,
    mounted_paths,
    newest_image,
    version_of,
)

LIBRARY = Library()
ENGINES = ("vllm", "sglang", "tensorrt_llm")
IMAGES = {
    ("vllm", "h200"): ("0.33.0", "vllm/vllm-openai:v0.33.0"),
    ("vllm", "mi300x"): ("0.33.0", "vllm/vllm-openai-rocm:v0.33.0"),
    ("sglang", "h200"): ("0.5.23", "lmsysorg/sglang:v0.5.23"),
    ("sglang", "mi300x"): ("0.5.23", "lmsysorg/sglang:v0.5.23-rocm10-mi30x"),
    ("sglang", "mi355x"): ("0.5.23", "lmsysorg/sglang:v0.5.23-rocm10-mi35x"),
    ("tensorrt_llm", "h200"): ("1.2.1", "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"),
    ("tensorrt_llm", "mi300x"): None,
}


@pytest.mark.parametrize(("name", "hardware"), IMAGES)
def test_the_newest_version_that_has_an_image(name: str, hardware: str) -> None:
    assert newest_image(LIBRARY.engine(name), LIBRARY.node(hardware)) == IMAGES[name, hardware]


def words(name: str, hardware: str, command: Command, image: str | None = None) -> list[str]:
    card, node = LIBRARY.engine(name), LIBRARY.node(hardware)
    found = newest_image(card, node)
    image = image or (found[1] if found else "")
    return list(in_container(command, image, card, node).words)


def test_a_proxy_and_caches_of_the_shell_go_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://user:word@proxy:1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path / "none"))
    argv = words("vllm", "h200", Command(("vllm", "serve", "m")))
    assert values(argv, "--env")[-2:] == ["https_proxy", "HF_HUB_CACHE"]
    assert f"{tmp_path}:{tmp_path}:rw" in values(argv, "--volume")


def values(argv: list[str], option: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == option]


def test_devices_and_variables_by_vendor() -> None:
    env = {"VLLM_ROCM_USE_AITER": "1", "VLLM_API_KEY": "${KEY}"}
    command = Command(("vllm", "serve", "deepseek-ai/DeepSeek-R1"), env)
    nvidia, amd = words("vllm", "h200", command), words("vllm", "mi300x", command)
    assert nvidia[:3] == ["docker", "run", "--rm"]
    assert values(nvidia, "--gpus") == ["all"]
    assert values(nvidia, "--device") == []
    assert values(amd, "--gpus") == []
    assert values(amd, "--device") == ["/dev/kfd", "/dev/dri"]
    assert values(amd, "--group-add") == ["video"]
    assert values(amd, "--security-opt") == ["seccomp=unconfined"]
    for argv in (nvidia, amd):
        assert values(argv, "--network") == values(argv, "--ipc") == ["host"]
        assert values(argv, "--ulimit") == ["memlock=-1", "stack=67108864", "nofile=65535"]
        assert "VLLM_ROCM_USE_AITER=1" in values(argv, "--env")
        assert {"HF_TOKEN", "VLLM_API_KEY"} <= set(values(argv, "--env")), "secrets go in by name"
        assert f"{models_folder(os.environ)}:/root/.cache/huggingface" in values(argv, "--volume")
        # vLLM's own images start the server by themselves.
        assert argv[argv.index("--entrypoint=") + 2 :] == list(command.argv)
    assert "--entrypoint=" not in words(
        "sglang", "h200", Command(("python3", "-m", "sglang.launch_server"))
    )
    assert (
        command.shell()
        == 'VLLM_ROCM_USE_AITER=1 VLLM_API_KEY="${KEY}" vllm serve deepseek-ai/DeepSeek-R1'
    )
    typed = in_container(
        command, "vllm/vllm-openai:v0.32.0", LIBRARY.engine("vllm"), LIBRARY.node("h200")
    ).shell()
    assert typed.startswith('VLLM_API_KEY="${KEY}" docker run --rm'), (
        "what goes in by name is set outside"
    )
    amd_own = words("vllm", "mi300x", command, "rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210")
    assert "--entrypoint=" not in amd_own, "AMD's build has no entry point of that kind"


@pytest.mark.parametrize("there", [True, False])
def test_deepep_gets_the_network_cards_where_there_are_some(there: bool, tmp_path: Path) -> None:
    folder = tmp_path / "infiniband"
    if there:
        folder.mkdir()
    card = docker_card()
    assert card.networks[0].device == "/dev/infiniband"
    network = card.networks[0].model_copy(update={"device": str(folder)})
    docker = card.model_copy(update={"networks": [network]})

    def handed_over(*options: str) -> tuple[list[str], list[str]]:
        command = Command(("vllm", "serve", "m", *options))
        argv = list(in_container(command, "vllm/vllm-openai:v0.33.0", engine, node, docker).words)
        return values(argv, "--device"), values(argv, "--cap-add")

    engine, node = LIBRARY.engine("vllm"), LIBRARY.node("h200")
    assert handed_over() == ([], [])
    low_latency = handed_over("--all2all-backend", "deepep_low_latency")
    assert low_latency == ((["/dev/infiniband"], ["IPC_LOCK"]) if there else ([], []))


def test_a_command_s_own_folder_of_models_is_mounted_and_named_once() -> None:
    argv = words("vllm", "h200", Command(("vllm", "serve", "m"), {"HF_HOME": "/data/hf"}))
    assert "/data/hf:/root/.cache/huggingface" in values(argv, "--volume")
    assert [word for word in argv if word.startswith("HF_HOME=")] == [
        "HF_HOME=/root/.cache/huggingface"
    ]


def test_caches_are_kept_apart_by_version_and_gpu() -> None:
    command = Command(("vllm", "serve", "m"))
    caches = {
        volume.partition(":")[0]
        for hardware, image in (
            ("h200", None),
            ("h200", "vllm/vllm-openai:v0.13.0"),
            ("mi300x", None),
        )
        for volume in values(words("vllm", hardware, command, image), "--volume")
        if volume.endswith(":/root/.cache")
    }
    assert len(caches) == 3


def test_local_paths_are_mounted_at_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, template = tmp_path / "model", tmp_path / "model" / "chat.jinja"
    model.mkdir()
    template.touch()
    (model / "config.json").write_text("{}")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    argv = words(
        "vllm", "h200", Command(("vllm", "serve", "./model", f"--chat-template={template}"))
    )
    assert [v for v in values(argv, "--volume") if v.endswith(":ro")] == [f"{model}:{model}:ro"]
    assert argv[-3:] == ["serve", str(model), f"--chat-template={template}"]
    # A snapshot's files are links to its model's folder.
    assert mounted_paths(["vllm", "serve", str(snapshot)]) == [str(tmp_path / "models--a--b")]
    assert mounted_paths(["vllm", "serve", f"/{'x' * 300}"]) == [], "no path that can be asked for"


def test_a_command_s_own_file_lies_in_its_working_folder() -> None:
    command = Command(("trtllm-serve", "m", "--config", "a.yaml"), {}, {"a.yaml": "x: 1\n"})
    argv = words("tensorrt_llm", "h200", command)
    assert "./a.yaml:/autotune/a.yaml:ro" in values(argv, "--volume")
    assert values(argv, "--workdir") == ["/autotune"]
    assert argv[-4:] == list(command.argv)


@pytest.mark.parametrize(
    ("tag", "version"),
    [("v0.5.6.post2-rocm700", "0.5.6.post2"), ("v0.5.20", "0.5.20"), ("v0.9.0", "0.9.0")],
)
def test_an_image_has_the_version_of_its_tag(tag: str, version: str) -> None:
    kind = engine("sglang", LIBRARY)
    assert version_of(f"lmsysorg/sglang:{tag}", kind, LIBRARY.node("h200")) == version


class Recorder(BaseHTTPRequestHandler):
    """As much of the Docker daemon's API as `docker run` asks before the container is made; then an
    error."""

    server: RecordingDaemon

    def do_HEAD(self) -> None:
        self._answer(200, {})

    def do_GET(self) -> None:
        self._answer(200, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/containers/create" in self.path:
            self.server.created.append(json.loads(body))
        self._answer(500, {"message": "only recording"})

    def _answer(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (
            ("Api-Version", "1.43"),
            ("Ostype", "linux"),
            ("Content-Type", "application/json"),
        ):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "local"


class RecordingDaemon(ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.created: list[dict[str, Any]] = []
        super().__init__(str(path), Recorder)


@pytest.mark.skipif(shutil.which("docker") is None, reason="the docker command is not installed")
@pytest.mark.parametrize("hardware", ["h200", "mi300x"])
def test_the_real_docker_command_understands_the_words(tmp_path: Path, hardware: str) -> None:
    """Its own parser reads them, and what it asks a daemon for is what was meant. No container is
    made."""
    (tmp_path / "a.yaml").touch()
    command = Command(
        ("vllm", "serve", "m", "--x", "a.yaml"), {"A": "1", "KEY_BY_NAME": "${X}"}, {"a.yaml": ""}
    )
    argv = words("vllm", hardware, command)
    environment = {
        **os.environ,
        "DOCKER_HOST": f"unix://{tmp_path / 'socket'}",
        "DOCKER_CONFIG": str(tmp_path),
    }
    environment.pop("HF_ENDPOINT", None)
    environment |= {"KEY_BY_NAME": "a secret", "HF_TOKEN": "another"}
    with RecordingDaemon(tmp_path / "socket") as daemon:
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        daemon.shutdown()
    assert "only recording" in done.stderr, done.stderr
    assert done.returncode == 125
    (asked,) = daemon.created
    host = asked["HostConfig"]
    assert (asked["Entrypoint"], asked["Cmd"]) == ([""], list(command.argv))
    assert {
        "A=1",
        "KEY_BY_NAME=a secret",
        "HF_TOKEN=another",
        "HF_HOME=/root/.cache/huggingface",
    } <= set(asked["Env"])
    assert not any(variable.startswith("HF_ENDPOINT=") for variable in asked["Env"]), (
        "not set here, so not there"
    )
    assert asked["WorkingDir"] == "/autotune"
    assert (host["NetworkMode"], host["IpcMode"], host["Init"], host["AutoRemove"]) == (
        "host",
        "host",
        True,
        True,
    )
    assert f"{tmp_path / 'a.yaml'}:/autotune/a.yaml:ro" in host["Binds"], (
        "a relative path is the caller's folder's"
    )
    assert {u["Name"]: (u["Soft"], u["Hard"]) for u in host["Ulimits"]} == {
        "memlock": (-1, -1),
        "stack": (67108864, 67108864),
        "nofile": (65535, 65535),
    }
    if hardware == "h200":
        assert host["DeviceRequests"][0]["Count"] == -1
        assert host["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
    else:
        assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/kfd", "/dev/dri"]
        assert host["SecurityOpt"] == ["seccomp=unconfined"]


def test_each_of_several_containers_is_told_its_gpus_by_name() -> None:
    """Docker takes the value of a variable that is named alone from its own environment, which
    differs for each."""
    own = ({"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"})
    command = Command(("vllm", "serve", "org/m"), servers=own)
    placed = in_container(
        command, "vllm/vllm-openai:v1", LIBRARY.engine("vllm"), LIBRARY.node("h200")
    )
    assert placed.servers == own
    at = placed.container.index("CUDA_VISIBLE_DEVICES")
    assert placed.container[at - 1] == "--env"
    assert "for gpus in 0,1 2,3; do\n  CUDA_VISIBLE_DEVICES=$gpus docker run --rm" in placed.shell()
