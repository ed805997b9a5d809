"""What the container formats say of any winner: names, words, secrets, start times, images."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from autotune.base import redact
from autotune.base.errors import BadInput
from autotune.base.evidence import Evidence
from autotune.engines.command import Command
from autotune.outputs.export import FORMATS, Winner, all_of, export, winner_of
from autotune.outputs.export.winner import asked_for, container_of, dump_yaml
from tests import small_study
from tests.outputs.export import reading
from tests.outputs.export.golden import HOME, winner
from tests.outputs.export.test_export import Machine
from tests.small_study import MODEL, SECRET

CONTAINERS = [name for name, form in FORMATS.items() if form.container]
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1035, as Kubernetes checks a Service's name."""
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
BASE = winner("h200-v32-vllm")


def with_command(command: Command, **changes: Any) -> Winner:
    choice = BASE.choice.model_copy(
        update={"argv": list(command.argv), "env": dict(command.env), "files": dict(command.files)}
    )
    return replace(BASE, choice=choice, **changes)


def of_model(name: str, study: str = "s") -> Winner:
    """A winner of a model and a study of any name."""
    recommendation = BASE.recommendation.model_copy(update={"model": name, "study": study})
    return replace(BASE, recommendation=recommendation)


@pytest.mark.e2e
@settings(max_examples=25, deadline=None)
@given(TEXT, TEXT)
@example("org/" + "Ünï_" * 40, "a\nb: c")
@example("123/456", "#")
@example("/models/日本", "- |")
@example("x/" + "-" * 70 + "y", "{{x}} ${y} $(z)")
def test_any_name_makes_valid_names(model: str, study: str) -> None:
    told = of_model(model, study)
    text = export(told, "k8s")
    for document in reading.documents(text):
        name = document["metadata"]["name"]
        assert LABEL.fullmatch(name), name
        assert all(len(value) <= 63 for value in document["metadata"]["labels"].values())
    assert reading.kind(text, "Deployment")["metadata"]["annotations"]["autotune/study"] == study
    run = parse_apply_configuration(*reading.documents(export(told, "dstack")))
    assert re.fullmatch(r"[a-z][a-z0-9-]{1,40}", run.name)
    compose_spec.PyCompose.from_yaml(export(told, "compose").replace("~/", "/root/"))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(TEXT, max_size=4),
    st.dictionaries(st.from_regex(r"[A-Z]{3,6}", fullmatch=True), TEXT, max_size=3),
)
@example(
    [
        "$(HF_TOKEN)",
        "$$",
        "$",
        "a${HOME}b",
        "1e3",
        "0x10",
        "~",
        "null",
        "yes",
        "a: b",
        "# c",
        "",
        "\x85",
        "\n",
        "é",
    ],
    {"ABC": "$$ ${HOME}b '$x' $(HF_TOKEN)$"},
)
@example(
    ['{"a": "${{ run.args }} ${{x}} $${{ y }} $a"}', "$b"],
    {"ABC": "${{ secrets.x }} $$", "DEF": "${{"},
)
def test_the_server_gets_exactly_these_words(words: list[str], env: dict[str, str]) -> None:
    argv = ["vllm", "serve", MODEL, *(f"--x={word}" for word in words), "--y"]
    argv += [word for word in words if not word.startswith("-")]
    assume((redact.argv(argv), redact.env(env), asked_for(argv, env)) == (argv, env, []))
    told = with_command(Command(tuple(argv), env))
    expected = [*argv, "--host", "0.0.0.0", "--port", "8000"]
    manifests = export(told, "k8s")
    assert reading.kubernetes_words(manifests, {"HF_TOKEN": "a secret"}) == expected
    rows = {row["name"]: row for row in reading.server(manifests)["env"]}
    assert {name: reading.expanded(rows[name]["value"], {}) for name in env} == env
    service = reading.compose_service(export(told, "compose"), {})
    assert service["command"] == expected
    assert {name: service["environment"][name] for name in env} == env
    started, variables = reading.dstack_started(export(told, "dstack"))
    assert (started, {name: variables[name] for name in env}) == (expected, env)
    text = export(told, "gpustack")
    assert reading.gpustack_words(text, ["vllm", "serve"]) == [*argv, "--max-model-len", "163840"]
    assert env.items() <= reading.documents(text)[0]["env"].items()


@given(
    st.recursive(
        TEXT | st.integers() | st.booleans(),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=8,
    )
)
@example(
    [
        "1e3",
        "on",
        "y",
        "0o17",
        "012",
        "1_000",
        "a\n b",
        " x\ny ",
        "\t\n",
        "x\n\n",
        "a\r\nb",
        "12:30:00",
        "=",
        "<<",
    ]
)
def test_yaml_is_read_back_as_it_was(value: Any) -> None:
    text = dump_yaml({"key": value})
    assert yaml.safe_load(text) == {"key": value}
    # What YAML 1.2 takes for a number stands in quotes.
    assert not re.search(r"^(- )*[-+.]?\d[\w.]*e[-+\d]*$", text, re.MULTILINE)


REFERRING = Command(
    ("vllm", "serve", MODEL, "--api-key", "${MY_KEY}", f"--x={SECRET}", "--y"),
    {"OTHER_TOKEN": "plain-but-secret", "HF_TOKEN": "${HF_TOKEN}", "A": "$B"},
)


def test_no_secret_stands_in_any_output_and_all_are_asked_for() -> None:
    told = with_command(REFERRING)
    made = all_of(told)[0]
    for name, text in made.items():
        assert SECRET not in text, name
        assert "plain-but-secret" not in text, name
    values = {"MY_KEY": "k", "X": "x", "OTHER_TOKEN": "o"}
    words = [
        "vllm",
        "serve",
        MODEL,
        "--api-key",
        "k",
        "--x=x",
        "--y",
        "--host",
        "0.0.0.0",
        "--port",
        "8000",
    ]
    assert reading.kubernetes_words(made["kubernetes.yaml"], values) == words
    env = {row["name"]: row for row in reading.server(made["kubernetes.yaml"])["env"]}
    asked = {
        name: row["valueFrom"]["secretKeyRef"] for name, row in env.items() if "valueFrom" in row
    }
    assert {name: source.get("optional", False) for name, source in asked.items()} == {
        "HF_TOKEN": True,
        "MY_KEY": False,
        "X": False,
        "OTHER_TOKEN": False,
    }
    assert all(source["key"] == name for name, source in asked.items())
    service = reading.compose_service(made["compose.yaml"], {**values, "HF_TOKEN": "t"})
    assert service["command"] == words
    assert (service["environment"]["OTHER_TOKEN"], service["environment"]["HF_TOKEN"]) == ("o", "t")
    run = parse_apply_configuration(yaml.safe_load(made["service.dstack.yml"]))
    assert {"HF_TOKEN", "MY_KEY", "X", "OTHER_TOKEN"} <= set(run.env)
    assert '--api-key "$$MY_KEY"' in run.commands[-1], "one $ for the shell"
    assert "left out because its value is a secret: --api-key" in made["gpustack.yaml"]
    for document in reading.documents(made["kubernetes.yaml"]):
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_docker_script_asks_for_secrets_and_puts_none_on_a_command_line(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "bin" / "vllm").rename(tmp_path / "bin" / "docker")
    script = export(with_command(Command(("vllm", "serve", MODEL), REFERRING.env)), "docker")
    assert "set OTHER_TOKEN to the secret" in machine.serve(script, HOME="/h", HF_TOKEN="t").stderr
    done = machine.serve(script, "--more", HOME="/h", HF_TOKEN="t", OTHER_TOKEN="o")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"HF_TOKEN=t", "OTHER_TOKEN=o"}.isdisjoint(machine.argv)
    assert {"HF_TOKEN", "OTHER_TOKEN", "A=$B"} <= set(machine.argv)
    assert (machine.env["HF_TOKEN"], machine.env["OTHER_TOKEN"]) == ("t", "o")
    assert machine.argv[-8:] == [
        "vllm",
        "serve",
        MODEL,
        "--host",
        "0.0.0.0",
        "--port",
        "8000",
        "--more",
    ]


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(TEXT, max_size=4),
    st.dictionaries(st.from_regex(r"[A-Z]{3,6}", fullmatch=True), TEXT, max_size=3),
)
@example(["$(id)", "`id`", "'", '"', "a b", "", "\n", "!!", "\\", "${{x}}"], {"ABC": "$HOME\n'\""})
def test_the_docker_script_hands_on_exactly_these_words(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], env: dict[str, str]
) -> None:
    argv = ["vllm", "serve", MODEL, *(f"--x={word}" for word in words), "--y"]
    argv += [word for word in words if not word.startswith("-")]
    assume((redact.argv(argv), redact.env(env), asked_for(argv, env)) == (argv, env, []))
    machine = Machine(tmp_path_factory.mktemp("machine"))
    (machine.folder / "bin" / "vllm").rename(machine.folder / "bin" / "docker")
    done = machine.serve(export(with_command(Command(tuple(argv), env)), "docker"), HOME="/h")
    assert (done.returncode, done.stderr) == (0, "")
    image = machine.argv.index("vllm/vllm-openai:v0.32.0")
    assert machine.argv[image + 1 :] == [*argv, "--host", "0.0.0.0", "--port", "8000"]
    assert {f"{name}={value}" for name, value in env.items()} <= set(machine.argv[:image])


def test_published_ports_are_this_machine_s_alone() -> None:
    assert '--publish "${PUBLISH:-127.0.0.1:8000}:8000"' in export(BASE, "docker")
    assert reading.compose_service(export(BASE, "compose"), {})["ports"] == ["127.0.0.1:8000:8000"]
    assert "network" not in export(BASE, "docker").partition("docker run")[2]


def test_people_reach_a_container_at_the_port_of_the_user_s_own_command() -> None:
    own = with_command(Command(("vllm", "serve", "deepseek-ai/DeepSeek-V3.2", "--port", "9000")))
    docker = export(own, "docker")
    assert '--publish "${PUBLISH:-127.0.0.1:9000}:8000"' in docker
    assert "--port 9000" not in docker
    assert reading.compose_service(export(own, "compose"), {})["ports"] == ["127.0.0.1:9000:8000"]
    (service,) = [one for one in reading.documents(export(own, "k8s")) if one["kind"] == "Service"]
    assert service["spec"]["ports"] == [{"name": "http", "port": 9000, "targetPort": "http"}]


@pytest.mark.parametrize(
    ("evidence", "ready_s", "limit_s", "said"),
    [
        (
            Evidence.MEASURED,
            (400.0, 431.2, 380.0),
            1294,
            "the slowest of 3 measured starts took 431 s",
        ),
        (Evidence.EMULATED, (6.0,), 7200, "its starts were EMULATED and loaded no weights"),
        (Evidence.SIMULATED, (20.0,), 600, "the slowest of 1 SIMULATED starts took 20 s"),
        (Evidence.REPLAYED, (), 7200, "the study has no measured start"),
    ],
)
def test_the_startup_probe_waits_for_the_slowest_start_and_says_whose(
    evidence: Evidence, ready_s: tuple[float, ...], limit_s: int, said: str
) -> None:
    recommendation = BASE.recommendation.model_copy(update={"evidence": evidence})
    told = replace(BASE, recommendation=recommendation, ready_s=ready_s)
    text = export(told, "k8s")
    probe = reading.server(text)["startupProbe"]
    assert (
        0 <= probe["periodSeconds"] * probe["failureThreshold"] - limit_s < probe["periodSeconds"]
    )
    assert (probe["httpGet"], f"limit {limit_s} s" in text, said in text) == (
        {"path": "/health", "port": "http"},
        True,
        True,
    )
    assert (
        reading.compose_service(export(told, "compose"), {})["healthcheck"]["start_period"]
        == f"{limit_s}s"
    )


def test_the_start_time_is_that_of_the_winner_s_own_launches() -> None:
    rows = small_study.launches()
    slow = replace(rows[5], result=replace(rows[5].result, times_s={"ready": 700.0}))
    told = winner_of(small_study.recommendation(), small_study.spec(), [*rows[:5], slow, *rows[6:]])
    assert sorted(told.ready_s) == [400.0, 400.0, 700.0], (
        "three launches of the winner; the baseline's are its own"
    )


def test_devices_and_memory_by_vendor() -> None:
    amd = winner("mi300x-r1")
    server = reading.server(export(amd, "k8s"))
    assert server["resources"] == {"limits": {"amd.com/gpu": 8}}
    assert server["securityContext"] == {
        "capabilities": {"add": ["SYS_PTRACE"]},
        "seccompProfile": {"type": "Unconfined"},
    }
    assert "securityContext" not in reading.server(export(BASE, "k8s"))
    pod = reading.kind(export(amd, "k8s"), "Deployment")["spec"]["template"]["spec"]
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}} in pod[
        "volumes"
    ]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in server["volumeMounts"]
    claim = reading.kind(export(amd, "k8s"), "PersistentVolumeClaim")["spec"]["resources"][
        "requests"
    ]["storage"]
    assert 684e9 < int(claim.removesuffix("Gi")) * 2**30 < 1e12, "R1's weights are 684 GB"


def test_a_folder_with_a_model_is_mounted_not_fetched() -> None:
    told = with_command(Command(("vllm", "serve", "/models/DeepSeek-V3.2")))
    pod = reading.kind(export(told, "k8s"), "Deployment")["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    assert {"name": "host-0", "hostPath": {"path": "/models/DeepSeek-V3.2"}} in pod["volumes"]
    assert "--volume /models/DeepSeek-V3.2:/models/DeepSeek-V3.2:ro" in export(told, "docker")
    assert "local_path: /models/DeepSeek-V3.2" in export(told, "gpustack")
    fetched = reading.kind(export(BASE, "k8s"), "Deployment")["spec"]["template"]["spec"][
        "initContainers"
    ]
    assert fetched[0]["command"][-1] == MODEL


def test_a_program_of_this_machine_is_called_by_its_name_in_the_image() -> None:
    told = with_command(Command(("/opt/vllm/bin/vllm", "serve", MODEL)))
    assert container_of(told).argv[:3] == ("vllm", "serve", MODEL)
    told = with_command(
        Command(("/opt/vllm/bin/python3.11", "-m", "vllm.entrypoints.cli.main", "serve", MODEL))
    )
    assert container_of(told).argv[:4] == ("python3", "-m", "vllm.entrypoints.cli.main", "serve")


def test_the_measured_image_stands_before_the_known_one_and_the_asked_one_before_both() -> None:
    words = ["docker", "run", "--rm", "me/vllm:mine"]
    choice = BASE.choice.model_copy(
        update={"container": words, "argv": [*words, "vllm", "serve", MODEL]}
    )
    measured = replace(BASE, choice=choice)
    assert 'image: "me/vllm:mine"' in export(measured, "k8s").replace(
        "image: me/vllm:mine", 'image: "me/vllm:mine"'
    )
    assert reading.server(export(replace(measured, image="a/b:c"), "k8s"))["image"] == "a/b:c"
    assert reading.server(export(BASE, "k8s"))["image"] == "vllm/vllm-openai:v0.32.0"


def test_without_an_image_it_says_how_to_name_one() -> None:
    spec = winner("mi300x-r1").spec
    spec = spec.model_copy(
        update={"hardware": spec.hardware.model_copy(update={"generation": "cdna2"})}
    )
    amd = replace(winner("h200-v32-sglang"), spec=spec)
    for name in CONTAINERS:
        with pytest.raises(
            BadInput, match=r"no container image of SGLang 0\.5\.23 for amd cdna2 .* --image IMAGE"
        ):
            export(amd, name)
    texts, denied = all_of(amd)
    assert set(texts) == {"serve.sh", "sglang.yaml", "recommendation.json"}, (
        "what can be made is made"
    )
    assert [sorted(names) for names in denied.values()] == [
        sorted(FORMATS[name].filename for name in CONTAINERS)
    ]
    assert "no container image" in next(iter(denied))
    named = replace(amd, image="lmsysorg/sglang-rocm:v0.5.23-rocm724-mi30x-20260919")
    assert "sglang-rocm" in export(named, "compose")
    with pytest.raises(BadInput, match="--image is for the formats that run a container"):
        export(named, "shell")
    with pytest.raises(BadInput, match="name an image with its tag"):
        export(replace(amd, image="a b"), "k8s")


@pytest.mark.parametrize("name", CONTAINERS)
def test_sglang_on_an_mi300x_has_its_release_s_image(name: str) -> None:
    amd = replace(winner("h200-v32-sglang"), spec=winner("mi300x-r1").spec)
    image = "lmsysorg/sglang:v{}-rocm10-mi30x"
    # Nobody has seen the tag of 0.5.23, and the file says so; that of 0.5.21 is in its release
    # notes.
    text = export(amd, name)
    assert image.format("0.5.23") in text
    assert "check that it exists" in text
    text = export(
        replace(amd, choice=amd.choice.model_copy(update={"engine_version": "0.5.21"})), name
    )
    assert image.format("0.5.21") in text
    assert "check that it exists" not in text
    assert "check that it exists" not in export(replace(amd, image="mine:1"), name)


def test_the_studies_are_read_as_they_lie() -> None:
    assert sorted(HOME.names()) == [
        "h200-v32-sglang",
        "h200-v32-tensorrt-llm",
        "h200-v32-vllm",
        "mi300x-r1",
    ]
    assert [len(HOME.launches(name)) > 0 for name in HOME.names()] == [True] * 4


def test_a_winner_that_leaves_gpus_free_asks_for_its_own_only() -> None:
    config = {
        **BASE.choice.config,
        "tensor_parallel": 2,
        "data_parallel": 2,
        "pipeline_parallel": 1,
    }
    choice = BASE.choice.model_copy(update={"config": config})
    half = winner_of(BASE.recommendation.model_copy(update={"recommended": choice}), BASE.spec, [])
    assert reading.server(export(half, "k8s"))["resources"]["limits"] == {"nvidia.com/gpu": 4}
    (compose,) = reading.documents(export(half, "compose"))
    (device,) = compose["services"]["server"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == 4


def test_a_file_of_the_command_that_a_container_does_not_see_is_named(tmp_path: Path) -> None:
    here = tmp_path / "here.jinja"
    here.write_text("{{ messages }}")
    command = (
        "vllm",
        "serve",
        MODEL,
        "--chat-template",
        str(here),
        "--ssl-keyfile",
        "/nowhere/key.pem",
    )
    told = with_command(Command(command))
    for name in CONTAINERS:
        text = export(told, name)
        assert (
            "not in the container, as it is not on this machine: --ssl-keyfile /nowhere/key.pem"
            in text
        ), name
        assert str(here) in text, name
    assert CONTAINERS
