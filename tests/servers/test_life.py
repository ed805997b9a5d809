"""A server in trouble that is not its own: logs that go, full disks, held ports, programs that
cannot run."""

from __future__ import annotations

import os
import shutil
import urllib.request
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from autotune.base.errors import BadInput
from autotune.engines.failure import FailureKind, Phase
from autotune.servers import ShutdownTimeouts, StartupTimeouts
from autotune.servers.ports import NoFreePort, is_free, lease_port
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import Server
from autotune.servers.watchdog import END_BYTES
from tests.processes import until
from tests.servers.settings import CARD, PATIENT, alive_with, launch, stand_in

LONG = StartupTimeouts(total_s=600.0, silence_s=600.0)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    """Every process that a test starts carries it, whatever becomes of it."""
    name = uuid4().hex
    monkeypatch.setenv("LAUNCH_TEST", name)
    return name


def assert_gone(server: Server, token: str) -> None:
    assert server.stop().problem() == ""
    assert alive_with(token) == []
    assert is_free(int(server.url.rpartition(":")[2]))


def test_a_grandchild_that_holds_the_port_after_death_is_ended(tmp_path: Path, token: str) -> None:
    options = [
        "--leave-the-port",
        "--die-after-s",
        "0.3",
        "--last-words",
        "RuntimeError: it is over",
    ]
    with launch(
        tmp_path, *options, timeouts=ShutdownTimeouts(terminate_s=0.3, kill_s=10.0)
    ) as server:
        failure = server.failure(within_s=20.0)
        port = int(server.url.rpartition(":")[2])
        assert not is_free(port), "the port was not held, so nothing is shown"
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert "it is over" in failure.message
    assert "SIGKILL" in server.stop().signals
    assert_gone(server, token)


def test_memory_that_runs_out_under_load_says_so(tmp_path: Path, token: str) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory."
    with launch(tmp_path, "--die-after-token-s", "2.0", "--last-words", words) as server:
        assert server.wait_ready(PATIENT) is None
        with urllib.request.urlopen(f"{server.url}/health") as answer:
            assert answer.status == 200
        failure = server.failure(within_s=20.0)
    assert failure is not None
    assert (failure.kind, failure.phase) == (FailureKind.OUT_OF_MEMORY, Phase.SERVING)
    assert_gone(server, token)


@pytest.mark.parametrize("gone", ["server.log", "."], ids=["log", "folder"])
def test_a_log_that_is_removed_while_it_starts_ends_the_wait(
    tmp_path: Path, token: str, gone: str
) -> None:
    """At once: nothing can be understood of a start without its log, and its silence means
    nothing."""
    folder = tmp_path / "trial"
    with launch(folder, "--never-ready") as server:
        assert until(lambda: "shard 3" in (folder / "server.log").read_text())
        target = folder / gone
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        failure = server.wait_ready(LONG)
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "was deleted" in failure.message
    assert_gone(server, token)


def test_a_served_load_outlives_its_log(tmp_path: Path, token: str) -> None:
    with launch(tmp_path / "trial") as server:
        assert server.wait_ready(PATIENT) is None
        shutil.rmtree(tmp_path / "trial")
        assert server.failure() is None
    assert_gone(server, token)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full, the one disk that is always full"
)
def test_a_full_disk_is_not_the_configuration_s_fault(tmp_path: Path, token: str) -> None:
    (tmp_path / "server.log").symlink_to("/dev/full")
    with launch(tmp_path) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "No space left on device" in failure.message
    assert_gone(server, token)


def test_a_narrow_range_of_ports_that_is_full(tmp_path: Path, token: str) -> None:
    with (
        closing(lease_port()) as one,
        pytest.raises(NoFreePort, match=r"none of 1 ports .* end the servers that hold them"),
    ):
        ProcessLauncher(ports=[one.port]).launch(stand_in(), tmp_path, CARD)
    assert alive_with(token) == []


def test_a_range_of_one_port_is_kept_to(tmp_path: Path, token: str) -> None:
    with closing(lease_port()) as lease:
        port = lease.port
    with ProcessLauncher(ports=[port], timeouts=ShutdownTimeouts(0.3, 10.0)).launch(
        stand_in(), tmp_path, CARD
    ) as server:
        assert server.url.endswith(f":{port}")
    assert_gone(server, token)


def test_a_program_that_is_not_executable_is_bad_input(tmp_path: Path, token: str) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    command = stand_in()
    with pytest.raises(
        BadInput, match=r"is not an executable file; install Stand-in, or name its program"
    ):
        ProcessLauncher().launch(type(command)((str(program),)), tmp_path / "trial", CARD)
    assert not (tmp_path / "trial").exists(), "bad input left something behind"
    assert alive_with(token) == []


@pytest.mark.slow
def test_a_gigabyte_of_log(tmp_path: Path, token: str) -> None:
    """It dies at its end without a pattern of ours: both ends are read and kept, not all of it."""
    options = [
        "--flood-mib",
        "1024",
        "--say-last",
        "ValueError: at the very end",
        "--die-with",
        "1",
    ]
    with launch(tmp_path, *options) as server:
        failure = server.wait_ready(PATIENT)
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
    assert failure.log_excerpt == "ValueError: at the very end"
    assert_gone(server, token)
    assert os.stat(tmp_path / "server.log").st_size < 2 * END_BYTES + 200
