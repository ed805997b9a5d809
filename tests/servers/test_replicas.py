"""Several servers of one launch are ready together, fall together, and leave nothing."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from autotune.base.errors import BadInput
from autotune.engines.command import Command
from autotune.engines.failure import Failure
from autotune.servers import StartupTimeouts, StopReport
from autotune.servers.ports import is_free
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import Replicas, Server
from tests.processes import until
from tests.servers.settings import CARD, GRACE, PATIENT, alive_with, stand_in


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    name = uuid4().hex
    monkeypatch.setenv("LAUNCH_TEST", name)
    return name


def several(folder: Path, count: int, command: Command) -> Server:
    servers = tuple({"CUDA_VISIBLE_DEVICES": str(i)} for i in range(count))
    return ProcessLauncher(GRACE).launch(replace(command, servers=servers), folder, CARD)


def test_all_serve_on_their_own_ports_and_gpus_and_all_end(tmp_path: Path, token: str) -> None:
    with several(tmp_path, 3, stand_in()) as server:
        assert server.wait_ready(PATIENT) is None
        assert (server.model, server.failure()) == ("tiny", None)
        ports = [int(url.rpartition(":")[2]) for url in server.url.split(",")]
        assert len(set(ports)) == 3
        environments = [
            Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in server.pids
        ]
        gpus = {
            word
            for words in environments
            for word in words
            if word.startswith(b"CUDA_VISIBLE_DEVICES=")
        }
        assert gpus == {f"CUDA_VISIBLE_DEVICES={i}".encode() for i in range(3)}
    report = server.stop()
    assert (report.problem(), report.survivors, alive_with(token)) == ("", (), [])
    assert all(map(is_free, ports))
    assert [
        (tmp_path / name).exists()
        for name in ("server.log", "server-1/server.log", "server-2/server.log")
    ]


def test_one_that_dies_is_the_failure_of_the_launch(tmp_path: Path, token: str) -> None:
    with several(tmp_path, 2, stand_in()) as server:
        assert server.wait_ready(PATIENT) is None
        second = server.pids[-1]
        assert b"CUDA_VISIBLE_DEVICES=1" in Path(f"/proc/{second}/environ").read_bytes()
        os.kill(second, signal.SIGKILL)
        failure = server.failure(within_s=20.0)
        assert failure is not None
        assert failure.message.startswith("Server 1 of 2: ")
    assert until(lambda: alive_with(token) == [])


def test_a_start_ends_with_the_first_that_cannot(tmp_path: Path, token: str) -> None:
    """The first server would never be ready; that the second one died is not found out after an
    hour."""
    never = stand_in("--never-ready")
    with several(tmp_path, 2, never) as server:
        os.kill(server.pids[-1], signal.SIGKILL)
        failure = server.wait_ready(StartupTimeouts(total_s=600.0, silence_s=600.0))
    assert failure is not None
    assert until(lambda: alive_with(token) == [])


def test_what_was_started_is_stopped_where_the_next_cannot_be(tmp_path: Path, token: str) -> None:
    (tmp_path / "server-1").write_text("in the way")
    with pytest.raises(BadInput, match="server-1"):
        several(tmp_path, 2, stand_in())
    assert until(lambda: alive_with(token) == [])


class Ended(Server):
    """A server that has ended, and how."""

    def __init__(self, port_free: bool) -> None:
        self.url, self.title, self.health, self.api_key = (
            "http://127.0.0.1:1",
            "Ended",
            "/health",
            None,
        )
        self._report = StopReport(port_free=port_free)

    def failure(self, within_s: float = 0.0) -> Failure | None:
        return None

    def stop(self) -> StopReport:
        return self._report


@pytest.mark.parametrize("free", [(True, True), (True, False), (False, True), (False, False)])
def test_a_port_that_one_of_several_leaves_taken_is_told(free: tuple[bool, bool]) -> None:
    report = Replicas([Ended(port_free) for port_free in free]).stop()
    assert report.port_free == (free == (True, True))
    assert (report.problem() == "") == report.port_free
