"""The kernel's counters of processes killed for memory: cgroups v1 and v2, and the machine's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from autotune.engines.failure import FailureKind, Phase
from autotune.servers.memory_kills import MemoryKills
from autotune.servers.process import ProcessLauncher, ProcessServer
from tests.servers.settings import CARD, GRACE, PATIENT, stand_in

V2 = "0::/tuner\n"
EVENTS = "sys/fs/cgroup/tuner/memory.events"
V1 = "4:memory:/box/tuner\n3:cpu,cpuacct:/\n0::/\n"


def write(root: Path, path: str, text: str) -> Path:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return root / path


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        (V2, "sys/fs/cgroup/tuner/memory.events"),
        (V1, "sys/fs/cgroup/memory/box/tuner/memory.oom_control"),
        ("0::/\n", "sys/fs/cgroup/memory.events"),  # a container's own root
        ("0::/\n", "proc/vmstat"),  # the machine's root group has no file
    ],
)
def test_kills_since_the_first_reading(tmp_path: Path, groups: str, counter: str) -> None:
    write(tmp_path, "proc/self/cgroup", groups)
    write(tmp_path, counter, "oom 9\noom_kill 2\noom_group_kill 0\n")
    kills = MemoryKills.read(tmp_path)
    assert (kills.path, kills.since) == (tmp_path / counter, 0)
    write(tmp_path, counter, "oom 9\noom_kill 4\noom_group_kill 0\n")
    assert kills.since == 2
    (tmp_path / counter).unlink()
    assert kills.since == 0


def test_a_container_is_in_another_group(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", V2)
    write(tmp_path, "sys/fs/cgroup/tuner/memory.events", "oom_kill 0\n")
    write(tmp_path, "proc/vmstat", "nr_free_pages 1\noom_kill 5\n")
    assert MemoryKills.read(tmp_path, contained=True).path == tmp_path / "proc/vmstat"


def test_no_counter_is_no_proof(tmp_path: Path) -> None:
    assert MemoryKills.read(tmp_path).since == 0


@pytest.fixture
def launcher(tmp_path: Path) -> ProcessLauncher:
    """Launches servers whose kernel counts in a folder of the test."""

    class Here(ProcessServer):
        root = tmp_path / "machine"

    class Launcher(ProcessLauncher):
        server = Here

    write(Here.root, "proc/self/cgroup", V2)
    write(Here.root, EVENTS, "oom_kill 7\n")
    return Launcher(GRACE)


@pytest.mark.parametrize("by_kernel", [False, True])
def test_a_kill_is_the_kernels_only_where_it_counted_one(
    tmp_path: Path, launcher: ProcessLauncher, by_kernel: bool
) -> None:
    events = tmp_path / "machine" / EVENTS
    with launcher.launch(stand_in(), tmp_path / "trial", CARD) as server:
        assert server.wait_ready(PATIENT) is None
        if by_kernel:
            events.write_text("oom_kill 8\n")
        os.kill(server.pids[0], signal.SIGKILL)
        failure = server.failure(within_s=20.0)
    assert failure is not None
    if by_kernel:
        assert failure.kind is FailureKind.OUT_OF_MEMORY
        assert str(events) in failure.message
        assert not failure.may_be_external
    else:
        assert failure.kind is FailureKind.INFRASTRUCTURE
        assert failure.phase is Phase.SERVING
        assert failure.may_be_external
        assert "SIGKILL, which autotune did not send" in failure.message


def test_an_error_of_its_own_is_not_laid_to_the_kernel(
    tmp_path: Path, launcher: ProcessLauncher
) -> None:
    events = tmp_path / "machine" / EVENTS
    command = stand_in("--die-after-token-s", "1")
    with launcher.launch(command, tmp_path / "trial", CARD) as server:
        assert server.wait_ready(PATIENT) is None
        events.write_text("oom_kill 8\n")
        failure = server.failure(within_s=20.0)
    assert failure is not None
    assert failure.kind is FailureKind.CRASHED
