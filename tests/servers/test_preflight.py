"""What is looked at before a launch and after it, on GPUs that a file describes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.failure import FailureKind
from autotune.servers.preflight import Node
from tests.servers.settings import GpuFile


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuFile:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return GpuFile(tmp_path / "gpus.json")


def said(node: Node, folder: Path) -> str:
    failure = node.unfit(folder)
    assert failure is None or failure.kind is FailureKind.INFRASTRUCTURE
    return failure.message if failure else ""


def test_idle_gpus_do(tmp_path: Path, file: GpuFile) -> None:
    """A driver by itself holds some memory."""
    assert said(Node(gpus=file.write(0.6, 0.6), count=2), tmp_path) == ""


def test_a_foreign_process_is_named_and_left_alone(tmp_path: Path, file: GpuFile) -> None:
    node = Node(gpus=file.write(0.6, 71.2, busy={1: os.getpid()}), count=2)
    message = said(node, tmp_path)
    program = Path("/proc/self/comm").read_text().strip()
    assert message.startswith("GPU 1 (H200) is not idle: 71.2 GB of 141.0 GB are in use")
    assert f"by process {os.getpid()} {program}" in message
    assert "only ends processes that it started" in message


def test_a_foreign_process_is_told_though_the_gpu_looks_idle(tmp_path: Path, file: GpuFile) -> None:
    """It computes, or will: what is measured beside it is not the server's alone."""
    node = Node(gpus=file.write(0.6, 0.6, busy={1: os.getpid()}), count=2)
    assert said(node, tmp_path).startswith(
        "GPU 1 (H200) is not idle: 0.6 GB of 141.0 GB are in use, by process"
    )


@pytest.mark.parametrize(
    ("vendor", "command"), [("nvidia", "nvidia-smi"), ("amd", "rocm-smi"), ("other", "reset it")]
)
def test_memory_that_nobody_is_seen_to_hold(
    tmp_path: Path, file: GpuFile, vendor: str, command: str
) -> None:
    message = said(Node(gpus=file.write(30.0, vendor=vendor), count=1), tmp_path)
    assert "by no visible process" in message
    assert command in message


def test_only_the_gpus_that_are_used_must_be_idle(
    tmp_path: Path, file: GpuFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = file.write(0.5, 0.5, 50.0, 0.5)
    assert said(Node(gpus=gpus, count=2), tmp_path) == ""
    assert "GPU 2" in said(Node(gpus=gpus, count=3), tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert "GPU 2" in said(Node(gpus=gpus, count=1), tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert said(Node(gpus=gpus, count=1), tmp_path) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f1c")
    assert "GPU 2" in said(Node(gpus=gpus, count=1), tmp_path)


def test_disk_and_open_files(tmp_path: Path) -> None:
    caches = {"VLLM_CACHE_ROOT": Path("/dev/shm/none")}
    small = Node(disk_bytes=10**18, caches=caches).unfit(tmp_path)
    assert small is not None
    assert f"are free in {tmp_path}, " in small.message
    assert "are free in /dev/shm/none (VLLM_CACHE_ROOT)" in small.message
    assert not small.lasting, "somebody may make room in the meantime"
    few = Node(open_files=10**9).unfit(tmp_path)
    assert few is not None
    assert "ulimit -Hn 1000000000" in few.message
    assert few.lasting


def test_a_study_whose_folder_is_gone(tmp_path: Path) -> None:
    failure = Node().unfit(tmp_path / "none")
    assert failure is not None
    assert "were deleted" in failure.message
    assert failure.lasting


def test_a_driver_is_given_time_to_take_memory_back(tmp_path: Path, file: GpuFile) -> None:
    looks: list[float] = []

    def driver(seconds: float) -> None:
        looks.append(seconds)
        file.write(0.6 if len(looks) == 3 else 80.0)

    node = Node(gpus=file.write(0.6), count=1, pause=driver)
    before = node.used()
    file.write(130.0)
    assert node.left_behind(before) == ""
    assert len(looks) == 3


def test_memory_that_does_not_come_back_is_told(tmp_path: Path, file: GpuFile) -> None:
    node = Node(gpus=file.write(0.6, 0.6), count=2, settle_s=0.0)
    before = node.used()
    file.write(0.6, 70.0)
    assert node.left_behind(before).startswith(
        "GPU 1 (H200) still holds 70.0 GB (0.6 GB before) 0 s after the server"
    )
    file.write(0.6)
    assert "GPU 1 was present before the launch" in node.left_behind(before)


def test_a_gpu_that_cannot_be_read_any_more_is_lost(tmp_path: Path, file: GpuFile) -> None:
    node = Node(gpus=file.write(0.6, 0.6), count=2, settle_s=0.0)
    before = node.used()
    alive, dead = file()
    lost = Node(
        gpus=lambda: [alive, replace(dead, memory_total_bytes=0, memory_used_bytes=0)],
        count=2,
        settle_s=0.0,
    )
    assert lost.left_behind(before).startswith("GPU 1 was present before the launch")
    assert lost.left_behind(lost.used()) == "", "where a driver never told, nothing can be compared"
