"""Servers in containers, against a stand-in for Docker: never run against a real Docker engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.engines.failure import FailureKind
from autotune.servers import ShutdownTimeouts
from autotune.servers.docker import DockerLauncher
from autotune.servers.docker_run import in_container
from autotune.servers.ports import is_free
from autotune.servers.processes import remove_container
from tests.processes import until
from tests.servers.docker.settings import (
    IMAGE,
    NODE,
    StandIn,
    docker,
    launch,
    program,
    stand_in_image,
)
from tests.servers.settings import CARD, PATIENT, alive_with

TUNER = Path(__file__).with_name("tuner.py")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    images = {
        IMAGE: stand_in_image(tmp_path),
        "small-machine:1.0": stand_in_image(tmp_path, memory_is_used_up=True),
        "broken-entrypoint:1.0": stand_in_image(tmp_path, entrypoint=["begin"]),
        "own-entrypoint:1.0": stand_in_image(tmp_path, entrypoint=["server", "--silent"]),
    }
    program(tmp_path / "image" / "begin", '#!/bin/sh\nno-such-engine "$@"\n')
    with docker(tmp_path / "docker", images) as stand_in:
        for name in ("PATH", "STAND_IN_DOCKER", "HOME"):
            monkeypatch.setenv(name, stand_in.environment[name])
        monkeypatch.delenv("HF_HOME", raising=False)
        yield stand_in


def test_a_good_server_serves_and_ends(
    tmp_path: Path, engine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted0secret0token")
    token = uuid4().hex
    with launch(tmp_path / "trial", "--say", token) as server:
        assert server.wait_ready(PATIENT) is None
        assert (server.model, server.failure()) == ("tiny", None)
        inside = [pid for pid in alive_with(token) if pid in server.pids]
        assert len(inside) == 3, (
            "the docker command, the container's first process and the server itself"
        )
    report = server.stop()
    assert (report.signals, report.problem()) == (("SIGTERM",), "")
    assert alive_with(token) == []
    assert is_free(int(server.url.rpartition(":")[2]))
    assert engine.left() == []
    (run,) = engine.runs()
    options = dict(run["options"])
    assert (options["network"], options["ipc"], options["gpus"], options["init"]) == (
        "host",
        "host",
        "all",
        True,
    )
    assert ["STAND_IN", "yes"] in options["env"], "what servers that autotune launches get"
    assert ["HF_TOKEN", "hf_planted0secret0token"] in options["env"]
    assert "HF_TOKEN" in options["by_name"], "a secret's value is on no command line"
    assert run["words"][-4:-2] == ["--host", "127.0.0.1"]
    said = (tmp_path / "trial" / "server.log").read_text()
    assert "loading shard 1" in said


def test_what_clings_to_life_is_ended_with_its_container(tmp_path: Path, engine: StandIn) -> None:
    token = uuid4().hex
    with launch(tmp_path, "--say", token, "--ignore-term", "--fork-away") as server:
        assert server.wait_ready(PATIENT) is None
    assert server.stop().signals == ("SIGTERM", "SIGKILL")
    assert server.stop().problem() == ""
    assert (alive_with(token), engine.left()) == ([], [])


def test_without_its_watchdog_the_container_is_ended_too(tmp_path: Path, engine: StandIn) -> None:
    token = uuid4().hex
    with launch(tmp_path, "--say", token, "--ignore-term") as server:
        assert server.wait_ready(PATIENT) is None
        (watchdog,) = [
            pid
            for pid in children(os.getpid())
            if b"autotune.servers.watchdog" in command_line(pid)
        ]
        os.kill(watchdog, signal.SIGKILL)
        assert until(lambda: server.failure() is not None)
        assert alive_with(token) != [], "the kernel ended the docker command, not the container"
    assert server.stop().problem() == ""
    assert (alive_with(token), engine.left()) == ([], [])


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


ENDINGS = [
    (["--die-with", "3", "--say", "ValueError: odd"], IMAGE, FailureKind.CRASHED, "odd"),
    (
        ["--max-num-sekvs", "4"],
        IMAGE,
        FailureKind.BAD_ARGUMENT,
        "It does not know --max-num-sekvs 4.",
    ),
    (["--die-with", "137"], IMAGE, FailureKind.INFRASTRUCTURE, "SIGKILL"),
    (["--die-with", "137"], "small-machine:1.0", FailureKind.OUT_OF_MEMORY, "OOMKilled"),
    # Codes of Docker or the image, though the container started.
    (
        ["--die-with", "126", "--say", "ValueError: odd"],
        IMAGE,
        FailureKind.INFRASTRUCTURE,
        "The container ended with",
    ),
    ([], "broken-entrypoint:1.0", FailureKind.INFRASTRUCTURE, "does not hold the engine's program"),
    ([], "no-such:1.0", FailureKind.INFRASTRUCTURE, "--image ENGINE=IMAGE"),
]


@pytest.mark.parametrize(("options", "image", "kind", "words"), ENDINGS)
def test_a_server_that_fails(
    tmp_path: Path, engine: StandIn, options: list[str], image: str, kind: FailureKind, words: str
) -> None:
    with launch(tmp_path, *options, image=image) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is kind, failure
    assert words in f"{failure.message} {failure.log_excerpt}"
    assert server.stop().problem() == ""
    assert engine.left() == []


def test_an_image_without_the_program(tmp_path: Path, engine: StandIn) -> None:
    command = in_container(Command(("no-such-engine", "serve")), IMAGE, CARD, NODE)
    with DockerLauncher().launch(command, tmp_path, CARD) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "executable file not found" in failure.log_excerpt
    assert failure.lasting, "it would not be found the next time either"
    assert engine.left() == [], "a container that was made and did not start is removed, too"


def test_a_daemon_that_goes_away_or_is_not_ours(tmp_path: Path, engine: StandIn) -> None:
    (engine.folder / "denied").touch()
    timeouts = ShutdownTimeouts(terminate_s=1.0, kill_s=0.5)
    with launch(tmp_path, timeouts=timeouts) as server:
        failure = server.wait_ready(PATIENT)
    (engine.folder / "denied").unlink()
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "group docker" in failure.message
    assert server.stop().problem() == ""
    (engine.folder / "daemon.sock").rename(engine.folder / "gone")
    with launch(tmp_path, timeouts=timeouts) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "systemctl start docker" in failure.message
    assert server.stop().problem() == ""
    (engine.folder / "gone").rename(engine.folder / "daemon.sock")
    assert engine.left() == []


def test_a_container_that_was_seen_is_not_forgotten_with_its_daemon(
    tmp_path: Path, engine: StandIn
) -> None:
    token = uuid4().hex
    with launch(
        tmp_path,
        "--say",
        token,
        "--never-ready",
        timeouts=ShutdownTimeouts(terminate_s=1.0, kill_s=0.5),
    ) as server:
        assert server.failure() is None
        assert until(lambda: len(server.pids) > 1)
        (engine.folder / "daemon.sock").rename(engine.folder / "gone")
        os.kill(
            server.pids[0], signal.SIGTERM
        )  # It cannot pass it on, and ends as it does when it loses the daemon.
        failure = server.failure(within_s=20.0)
    assert failure is not None
    assert (failure.kind, server.stop().survivors) == (
        FailureKind.INFRASTRUCTURE,
        ("its container (Docker does not answer)",),
    )
    assert alive_with(token) != []
    (engine.folder / "gone").rename(engine.folder / "daemon.sock")
    (run,) = engine.runs()
    marker = run["options"]["label"][0].partition("=")[2]
    assert (
        remove_container(str(engine.folder / "bin" / "docker"), marker, os.environ, None, 10.0)
        == ()
    )
    assert alive_with(token) == []


LOST = """#!/bin/sh
# Docker as it looks from here while its daemon restarts: it answers from the third question on.
echo >> asked
test $(wc -l < asked) -ge {answers_from} || exit 1
test "$1" = rm && touch removed
test -e removed || echo 0123456789abcdef
"""


def test_a_daemon_that_restarts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program(tmp_path / "back", LOST.format(answers_from=3))
    assert remove_container(str(tmp_path / "back"), "m", os.environ, 125, 10.0) == ()
    assert (tmp_path / "removed").exists()
    program(tmp_path / "gone", LOST.format(answers_from=1000))
    assert remove_container(str(tmp_path / "gone"), "m", os.environ, 125, 0.3) == ()
    left = remove_container(str(tmp_path / "gone"), "m", os.environ, None, 0.3)
    assert left == ("its container (Docker does not answer)",)


def test_a_folder_for_models_that_cannot_be_made_is_bad_input(
    tmp_path: Path, engine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file" / "models"))
    with pytest.raises(BadInput, match=r"Not a directory.*set HF_HOME"):
        launch(tmp_path / "trial")
    assert engine.runs() == []
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HOME", "~nobody-of-this-name")
    with pytest.raises(BadInput, match="has no home folder; set HF_HOME"):
        launch(tmp_path / "trial")


MOMENTS = [
    ("launching", 0.05, []),
    pytest.param("launched", 0.00, ["--ignore-term"], marks=pytest.mark.e2e),
    pytest.param("launched", 0.15, ["--never-ready"], marks=pytest.mark.e2e),
    ("ready", 0.00, ["--fork-away", "--ignore-term"]),
]


@pytest.mark.parametrize(("stage", "delay_s", "options"), MOMENTS)
def test_no_container_survives_its_tuner(
    tmp_path: Path, engine: StandIn, stage: str, delay_s: float, options: list[str]
) -> None:
    token = uuid4().hex
    argv = [sys.executable, str(TUNER), str(tmp_path / "trial"), "--say", token, *options]
    with subprocess.Popen(
        argv, env=dict(engine.environment), stdin=-1, stdout=-1, text=True
    ) as tuner:
        assert tuner.stdout is not None
        assert any(line.strip() == stage for line in tuner.stdout)
        with suppress(subprocess.TimeoutExpired):
            tuner.wait(delay_s)
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    assert until(lambda: alive_with(token) == [], deadline_s=5.0), alive_with(token)
    assert until(lambda: engine.left() == [], deadline_s=5.0)
