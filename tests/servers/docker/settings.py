"""What the container tests share: a stand-in Docker with images, and what is left in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines.command import Command
from autotune.engines.library import Library
from autotune.engines.schema import EngineCard
from autotune.servers import ShutdownTimeouts
from autotune.servers.docker import DockerLauncher
from autotune.servers.docker_run import in_container
from autotune.servers.server import Server
from tests.servers.settings import CARD, GRACE, STAND_IN

HERE = Path(__file__).parent
NODE = Library().node("h200")
IMAGE = "stand-in:1.0"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@dataclass(frozen=True)
class StandIn:
    """A Docker that is none.

    Attributes:
        environment: what makes a program use it.
    """

    folder: Path
    environment: Mapping[str, str]

    def runs(self) -> list[dict[str, Any]]:
        """Every container that was made: options, image, words."""
        path = self.folder / "runs.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def left(self) -> list[str]:
        """The containers that are there, ended ones too."""
        labels = [label for run in self.runs() for label in run["options"]["label"]]
        argv = [self.folder / "bin" / "docker", "ps", "--all", "--quiet", "--no-trunc", "--filter"]
        listed = [
            subprocess.run(
                [*argv, f"label={label}"],
                env=self.environment,
                capture_output=True,
                text=True,
                check=True,
            )
            for label in labels
        ]
        return [identity for one in listed for identity in one.stdout.split()]


@contextmanager
def docker(
    folder: Path, images: Mapping[str, Any], registry: Mapping[str, Any] | None = None
) -> Iterator[StandIn]:
    """A running stand-in; `images` are there, `registry` can be pulled."""
    folder.mkdir()
    (folder / "images.json").write_text(json.dumps(images))
    (folder / "registry.json").write_text(json.dumps(registry or {}))
    program(
        folder / "bin" / "docker",
        f'#!/bin/sh\nexec {sys.executable} -S {HERE / "command.py"} "$@"\n',
    )
    home = folder / "home"
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "STAND_IN_DOCKER": str(folder),
        "HOME": str(home),
    }
    environment.pop("HF_HOME", None)
    # A daemon is nobody's child: it must not be found by what its caller's environment holds.
    with subprocess.Popen(
        [sys.executable, "-S", str(HERE / "daemon.py"), str(folder)],
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"listening\n"
        try:
            yield StandIn(folder, environment)
        finally:
            daemon.kill()


def stand_in_image(folder: Path, **more: Any) -> dict[str, Any]:
    """An image with the launch tests' misbehaving server as its program ``server``."""
    program(folder / "image" / "server", f'#!/bin/sh\nexec {sys.executable} -S {STAND_IN} "$@"\n')
    return {"path": str(folder / "image"), **more}


def launch(
    folder: Path,
    *options: str,
    image: str = IMAGE,
    card: EngineCard = CARD,
    timeouts: ShutdownTimeouts = GRACE,
) -> Server:
    """Launch the stand-in server in a container."""
    command = in_container(Command(("server", *options)), image, card, NODE)
    return DockerLauncher(timeouts).launch(command, folder, card)
