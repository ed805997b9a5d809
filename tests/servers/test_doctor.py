"""The checks on machines that are laid out in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.servers.doctor import CHECKS, Finding, Host, Status, examine, ready
from tests.engines.machine.machines import GIB, amd, busy, nvidia, processor, write
from tests.processes import alive, until


def host(root: Path, **changes: object) -> Host:
    (root / "home").mkdir(exist_ok=True)
    given = {"environment": {"PATH": str(root / "bin"), "HOME": str(root / "home")}}
    return Host(root / "home", root, **{**given, "open_files": None, **changes})  # type: ignore[arg-type]


def program(root: Path, name: str, text: str) -> None:
    path = root / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def found(host: Host, name: str) -> list[Finding]:
    """What the checks of a name found; the checks are asked alone, so that no engine is looked
    for."""
    return list(examine(host, [check for check in CHECKS if check.name == name]))


def status(host: Host, name: str) -> list[str]:
    return [finding.status.value for finding in found(host, name)]


def test_every_check_says_what_it_is_about_and_who_says_so() -> None:
    assert all(check.source and check.targets and check.look.__doc__ for check in CHECKS)


def test_what_is_not_ok_says_what_to_do(tmp_path: Path) -> None:
    amd(tmp_path, 2)
    busy(tmp_path, pid=77, gpu=1, held=40 * GIB)
    write(tmp_path, {"proc/sys/kernel/numa_balancing": 1})
    findings = list(examine(host(tmp_path, open_files=4096)))
    assert all(finding.message for finding in findings)
    assert all(bool(finding.to_do) != (finding.status is Status.OK) for finding in findings)
    warned = {finding.name for finding in findings if finding.status is Status.WARNING}
    assert {"NUMA balancing", "GPU idle 1", "open files", "shared memory"} <= warned


def test_a_node_as_amd_advises_it(tmp_path: Path) -> None:
    amd(tmp_path, 8)
    write(tmp_path, {"proc/sys/kernel/numa_balancing": 0})
    seen = host(tmp_path)
    for name in ("GPUs", "GPU idle", "AMD devices", "NUMA balancing"):
        assert status(seen, name) == ["ok"], name
    assert "8 x AMD Instinct MI300X OAM, 206 GB" in found(seen, "GPUs")[0].message
    (tmp_path / "dev/dri/renderD128").symlink_to("nobody may open it")
    (closed,) = found(seen, "AMD devices")
    assert (closed.status, "-aG render" in closed.to_do) == ("missing", True)
    assert "may not open /dev/dri/renderD128" in closed.message


def test_what_concerns_amd_is_not_asked_of_others(tmp_path: Path) -> None:
    nvidia(tmp_path, 8)
    write(tmp_path, {"proc/sys/kernel/numa_balancing": 1})
    for name in ("NUMA balancing", "AMD devices"):
        assert status(host(tmp_path), name) == []
    assert "driver 570.86.15" in found(host(tmp_path), "GPUs")[0].message


def test_a_gpu_without_its_driver_is_missing(tmp_path: Path) -> None:
    assert status(host(tmp_path), "GPUs") == ["warning"]
    device = "sys/bus/pci/devices/0000:1b:00.0"
    write(tmp_path, {f"{device}/class": "0x030200", f"{device}/vendor": "0x10de"})
    assert status(host(tmp_path), "GPUs") == ["missing"]
    assert "NVIDIA" in found(host(tmp_path), "GPUs")[0].message


def test_a_gpu_in_use_names_its_processes(tmp_path: Path) -> None:
    amd(tmp_path, 4)
    busy(tmp_path, pid=77, gpu=2, held=96 * GIB)
    (finding,) = found(host(tmp_path), "GPU idle")
    assert (finding.name, finding.status) == ("GPU idle 2", Status.WARNING)
    assert "50% of its memory is held, processes 77" in finding.message


@pytest.mark.parametrize(
    ("hard", "expected"),
    [(None, "ok"), (1_048_576, "ok"), (65535, "ok"), (65534, "warning"), (1024, "warning")],
)
def test_open_files(tmp_path: Path, hard: int | None, expected: str) -> None:
    assert status(host(tmp_path, open_files=hard), "open files") == [expected]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    seen = host(tmp_path)
    seen.home.chmod(0o500)
    assert status(seen, "disk for studies") == ["missing"]


def test_no_docker_command(tmp_path: Path) -> None:
    seen = host(tmp_path)
    assert status(seen, "Docker command") == ["missing"]
    assert status(seen, "Docker daemon") == []


@pytest.mark.parametrize(
    ("script", "expected", "said"),
    [
        ("echo 28.1.1", "ok", "version 28.1.1"),
        ("echo [name=rootless] 28.1.1", "missing", "rootless"),
        ("echo; echo 'permission denied' >&2; exit 1", "missing", "permission denied"),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "missing", "Cannot connect"),
        ("echo", "missing", "names no server"),
    ],
)
def test_docker_s_daemon(tmp_path: Path, script: str, expected: str, said: str) -> None:
    program(
        tmp_path,
        "docker",
        '[ "$1 $2" = "version --format" ] || [ "$1 $3" = "info {{.SecurityOptions}}" ] || exit 64\n'
        + script,
    )
    (finding,) = found(host(tmp_path), "Docker daemon")
    assert finding.status.value == expected
    assert said in finding.message


def test_a_daemon_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    """The command's own child, which keeps its output open, goes with it."""
    program(tmp_path, "docker", f"/bin/sleep 1000 & echo $! > {tmp_path}/pid; wait")
    (finding,) = found(host(tmp_path, timeout_s=0.5), "Docker daemon")
    assert "did not answer within 0.5 s" in finding.message
    child = int((tmp_path / "pid").read_text())
    assert until(lambda: not alive(child))


def test_containers_get_nvidia_s_gpus_through_its_toolkit(tmp_path: Path) -> None:
    nvidia(tmp_path, 1)
    assert status(host(tmp_path), "NVIDIA container toolkit") == ["missing"]
    program(tmp_path, "nvidia-ctk", "")
    assert status(host(tmp_path), "NVIDIA container toolkit") == ["ok"]
    assert status(host(tmp_path, environment={"PATH": ""}), "NVIDIA container toolkit") == [
        "missing"
    ]
    write(tmp_path, {"etc/cdi/nvidia.yaml": "cdiVersion: 0.5.0"})
    assert status(host(tmp_path, environment={"PATH": ""}), "NVIDIA container toolkit") == ["ok"]


def test_readiness_is_that_nothing_is_missing(tmp_path: Path) -> None:
    processor(tmp_path)
    nothing = [finding for finding in examine(host(tmp_path)) if finding.name == "Docker command"]
    assert ready(nothing) == {"process": True, "docker": False}
    assert ready([]) == {"process": True, "docker": True}
