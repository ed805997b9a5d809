"""What a command says of the machine that it was measured on, in a container of another one."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.outputs.export import all_of, export
from tests.outputs.export import reading
from tests.outputs.export.golden import winner
from tests.outputs.export.test_containers import BASE, with_command
from tests.small_study import MODEL

TYPED = Command(
    (
        *("vllm", "serve", "-tp", "2", MODEL, "--served-model-name", "mine", "also-mine"),
        *("--revision", "abc", "--tokenizer", MODEL, "--max-model-len", "9000"),
    ),
    {
        "HF_HOME": "/data/hf",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "HF_ENDPOINT": "https://mirror",
        "HF_HUB_OFFLINE": "1",
    },
)


def environment(text: str) -> dict[str, str]:
    """The server's plain variables in a Deployment, where no name may stand twice."""
    rows = [row for row in reading.server(text)["env"] if "value" in row]
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row["value"] for row in rows}


def test_gpus_are_counted_anew_where_only_a_share_of_them_goes_in() -> None:
    made = all_of(with_command(TYPED))[0]
    kept = {"HF_ENDPOINT": "https://mirror", "HF_HUB_OFFLINE": "1"}
    assert environment(made["kubernetes.yaml"]) == {"HF_HOME": "/root/.cache/huggingface", **kept}
    assert reading.dstack_started(made["service.dstack.yml"])[1] == {
        "HF_HOME": "/root/.cache/huggingface",
        **kept,
    }
    (gpustack,) = reading.documents(made["gpustack.yaml"])
    assert kept.items() <= gpustack["env"].items()
    assert {"HF_HOME", "CUDA_VISIBLE_DEVICES"}.isdisjoint(gpustack["env"])
    service = reading.compose_service(made["compose.yaml"], {})
    assert not [name for name in service["environment"] if name.endswith("_VISIBLE_DEVICES")]
    # All of them go in by docker run, and by Compose on AMD.
    assert "--env CUDA_VISIBLE_DEVICES=4,5 \\\n" in made["docker-run.sh"]
    amd = winner("mi300x-r1")
    amd = replace(amd, choice=amd.choice.model_copy(update={"env": {"HIP_VISIBLE_DEVICES": "2,3"}}))
    asked = reading.compose_service(export(amd, "compose"), {})["environment"]
    assert (asked["HIP_VISIBLE_DEVICES"], "ROCR_VISIBLE_DEVICES" in asked) == ("2,3", True)


def test_a_cache_of_that_machine_is_mounted_where_the_container_has_its_own() -> None:
    made = all_of(with_command(TYPED))[0]
    assert "--volume /data/hf:/root/.cache/huggingface \\\n" in made["docker-run.sh"]
    assert "--env HF_HOME=/data/hf" not in made["docker-run.sh"]
    service = reading.compose_service(made["compose.yaml"], {})
    assert "/data/hf:/root/.cache/huggingface" in service["volumes"]
    assert service["environment"]["HF_HOME"] == "/root/.cache/huggingface"


def test_weights_are_fetched_as_the_server_will_ask_for_them() -> None:
    text = export(with_command(TYPED), "k8s")
    (fetch,) = reading.kind(text, "Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert fetch["command"][3:] == [MODEL, "abc"]
    assert {"HF_HOME", "HF_TOKEN", "HF_ENDPOINT"} == {row["name"] for row in fetch["env"]}, (
        "offline is the server alone"
    )
    package = "def snapshot_download(repo_id, *, revision=None, ignore_patterns=None): print(repo_id, revision)"
    ran = [
        sys.executable,
        "-c",
        f"import sys, types; {stand_in(package)}; exec(sys.argv.pop(1))",
        fetch["command"][2],
    ]
    for given in ([MODEL, "abc"], [MODEL]):
        done = subprocess.run([*ran, *given], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [MODEL, "abc" if given[1:] else "None"]


def stand_in(code: str) -> str:
    """Statements that make a module ``huggingface_hub`` of this code."""
    made = "module = sys.modules['huggingface_hub'] = types.ModuleType('huggingface_hub')"
    return f"{made}; exec({code!r}, module.__dict__)"


def test_dstack_is_told_the_name_that_the_server_answers_to() -> None:
    assert parse(export(with_command(TYPED), "dstack")).model.name == "mine"
    assert parse(export(BASE, "dstack")).model.name == MODEL


def parse(text: str) -> Any:
    return parse_apply_configuration(*reading.documents(text))


def test_a_model_behind_options_is_the_model_not_one_more_value() -> None:
    made = all_of(with_command(TYPED))[0]
    (gpustack,) = reading.documents(made["gpustack.yaml"])
    assert gpustack["backend_parameters"][:2] == ["-tp 2", "--served-model-name mine also-mine"]
    assert f"--tokenizer {MODEL}" in gpustack["backend_parameters"]
    words = reading.kubernetes_words(made["kubernetes.yaml"], {})
    assert words[:5] == ["vllm", "serve", MODEL, "-tp", "2"]
    assert sorted(words[:-4]) == sorted(TYPED.argv)
    # vLLM wants it in the file or right behind `serve`.
    config = yaml.safe_load(made["vllm.yaml"])
    assert (config["model"], config["served-model-name"]) == (MODEL, ["mine", "also-mine"])
    trtllm = winner("h200-v32-tensorrt-llm")
    argv = ["trtllm-serve", "--max_batch_size", "64", MODEL, "--tp_size", "8"]
    trtllm = replace(trtllm, choice=trtllm.choice.model_copy(update={"argv": argv, "files": {}}))
    assert yaml.safe_load(export(trtllm, "trtllm-config")) == {
        "max_batch_size": 64,
        "tensor_parallel_size": 8,
    }


def test_a_model_folder_named_from_where_the_study_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "Mine.8B").mkdir(parents=True)
    (tmp_path / "models" / "Mine.8B" / "config.json").write_text("{}")
    told = with_command(Command(("vllm", "serve", "./models/Mine.8B")))
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "models" / "Mine.8B")
    text = export(told, "k8s")
    pod = reading.kind(text, "Deployment")["spec"]["template"]["spec"]
    assert reading.kubernetes_words(text, {})[2] == path
    assert {"name": "host-0", "hostPath": {"path": path}} in pod["volumes"]
    assert "initContainers" not in pod
    claim = reading.kind(text, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    assert claim == "20Gi", "the weights lie elsewhere"
    assert f"{path}:{path}:ro" in export(told, "docker")
    assert parse(export(told, "dstack")).resources.disk.size.min >= 100, "room for the image"
    monkeypatch.chdir("/")
    with pytest.raises(
        BadInput,
        match=r"model folder './models/Mine.8B' does not exist here; export on the machine",
    ):
        export(told, "k8s")


def test_a_snapshot_is_mounted_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    pod = reading.kind(
        export(with_command(Command(("vllm", "serve", str(snapshot)))), "k8s"), "Deployment"
    )
    hosts = [
        row["hostPath"]["path"]
        for row in pod["spec"]["template"]["spec"]["volumes"]
        if "hostPath" in row
    ]
    assert hosts == [str(tmp_path / "models--a--b")]


def test_a_variable_that_holds_a_secret_in_its_midst_keeps_the_rest() -> None:
    told = with_command(Command(("vllm", "serve", MODEL), {"OPTS": "key=${MY_KEY}"}))
    text = export(told, "k8s")
    names = [row["name"] for row in reading.server(text)["env"]]
    assert names.index("MY_KEY") < names.index("OPTS"), (
        "Kubernetes replaces only what stands in front"
    )
    assert reading.expanded(environment(text)["OPTS"], {"MY_KEY": "k"}) == "key=k"
    assert '# use: OPTS=key="${MY_KEY:?set MY_KEY' in export(told, "vllm-config")


def test_a_rollout_is_not_given_up_before_the_start_is() -> None:
    text = export(BASE, "k8s")
    probe = reading.server(text)["startupProbe"]
    start_s = probe["periodSeconds"] * probe["failureThreshold"]
    # By its default, 600 s, Kubernetes would call it failed while the weights are still on their
    # way.
    assert reading.kind(text, "Deployment")["spec"]["progressDeadlineSeconds"] >= start_s + 3600


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_compose_asks_the_server_itself_though_a_proxy_is_configured() -> None:
    service = reading.compose_service(export(BASE, "compose"), {})
    program, *words = service["healthcheck"]["test"][1:]
    assert program == "python3"
    server = http.server.HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [word.replace("8000", str(server.server_port)) for word in words]
    nobody = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    codes = [
        subprocess.run(
            [sys.executable, *asked], env=nobody, capture_output=True, check=False
        ).returncode
        for asked in (words, [*words[:-1], "/starting"])
    ]
    server.shutdown()
    server.server_close()
    assert (codes[0], codes[1] != 0) == (0, True)
