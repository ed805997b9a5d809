"""Shared memory and temporary files of a server that does not end by itself are removed (see
`test_shared_memory`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.engines.command import Command
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import Server
from tests.processes import until
from tests.servers.settings import CARD, GRACE, PATIENT, launch, memory_of, stand_in

TUNER = Path(__file__).with_name("tuner.py")


def temporary_of(server: Server) -> Path:
    """The folder for temporary files of a server that runs."""
    content = Path(f"/proc/{server.pids[0]}/environ").read_bytes().split(b"\0")
    (path,) = (Path(os.fsdecode(entry[7:])) for entry in content if entry.startswith(b"TMPDIR="))
    return path


def test_nothing_is_left_of_a_server_that_is_killed(tmp_path: Path) -> None:
    with launch(tmp_path / "trial", "--share-memory", "--ignore-term") as server:
        assert server.wait_ready(PATIENT) is None
        shared = memory_of(server)
        assert shared.exists()
        temporary = temporary_of(server)
        assert temporary.stat().st_mode & 0o777 == 0o700
        assert len(list(temporary.iterdir())) == 1
    assert not shared.exists()
    assert not temporary.exists()


def test_nothing_is_left_of_a_server_that_died(tmp_path: Path) -> None:
    with launch(tmp_path / "trial", "--share-memory", "--die-after-token-s", "0.5") as server:
        assert server.wait_ready(PATIENT) is None
        shared = memory_of(server)
        temporary = temporary_of(server)
        assert until(lambda: server.failure() is not None)
    assert not shared.exists()
    assert not temporary.exists()


def test_a_folder_for_temporary_files_that_the_command_names_is_left_as_it_is(
    tmp_path: Path,
) -> None:
    named = tmp_path / "named"
    named.mkdir()
    command = Command(stand_in("--share-memory").argv, {"TMPDIR": str(named)})
    with ProcessLauncher(GRACE).launch(command, tmp_path / "trial", CARD) as server:
        assert server.wait_ready(PATIENT) is None
    assert len(list(named.iterdir())) == 1


def test_temporary_files_go_with_a_tuner_that_is_killed(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder,
        subprocess.Popen(
            [sys.executable, str(TUNER), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder},
        ) as tuner,
    ):
        assert tuner.stdout is not None
        while tuner.stdout.readline().strip() != b"ready":
            assert tuner.poll() is None
        assert os.listdir(folder) != []
        tuner.send_signal(signal.SIGKILL)
        assert until(lambda: os.listdir(folder) == [])
