from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.machine import (
    cores,
    cpu,
    disk_free_bytes,
    memory_bytes,
    open_file_limit,
    shared_memory_bytes,
)
from tests.engines.machine.machines import GIB, processor, write


def test_memory_is_the_kernel_s_where_nothing_limits_it(tmp_path: Path) -> None:
    processor(tmp_path, memory_kb=1000)
    assert memory_bytes(tmp_path) == 1000 * 1024
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"})
    assert memory_bytes(tmp_path) == 1000 * 1024


def test_the_tightest_of_the_nested_control_groups_counts(tmp_path: Path) -> None:
    processor(tmp_path, cores=16, memory_kb=64 * 2**20)
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/one/server",
            "sys/fs/cgroup/pods/memory.max": 32 * GIB,
            "sys/fs/cgroup/pods/one/memory.max": 8 * GIB,
            "sys/fs/cgroup/pods/one/server/memory.max": "max",
            "sys/fs/cgroup/pods/cpu.max": "max 100000",
            "sys/fs/cgroup/pods/one/cpu.max": "250000 100000",
        },
    )
    assert memory_bytes(tmp_path) == 8 * GIB
    assert cores(tmp_path) == 3


@given(total=st.integers(1, 2**40), limit=st.one_of(st.just("max"), st.integers(1, 2**60)))
def test_memory_is_never_more_than_there_is(
    total: int, limit: int | str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("machine")
    write(root, {"proc/meminfo": f"MemTotal: {total} kB", "proc/self/cgroup": "0::/"})
    write(root, {"sys/fs/cgroup/memory.max": limit})
    assert 0 < memory_bytes(root) <= total * 1024


def test_a_processor_s_peak_follows_its_cores_and_its_widest_instructions(tmp_path: Path) -> None:
    processor(tmp_path / "wide", cores=4, flags="avx2 avx512f")
    processor(tmp_path / "tiles", cores=4, flags="avx2 avx512f amx_bf16")
    wide, tiles = cpu(tmp_path / "wide"), cpu(tmp_path / "tiles")
    assert (wide.model, wide.cores, wide.clock_ghz) == ("Test 9000", 4, 2.5)
    assert wide.tflops == pytest.approx(4 * 2.5 * 64 / 1e3)
    assert tiles.tflops == pytest.approx(32 * wide.tflops)
    assert wide.bandwidth_gb_s == 40


def test_this_machine() -> None:
    assert cores() >= 1
    assert memory_bytes() > 2**20
    assert cpu().model
    hard = open_file_limit()
    assert hard is None or hard > 0


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert disk_free_bytes(tmp_path / "not" / "yet") == pytest.approx(
        disk_free_bytes(tmp_path), rel=0.1
    )
    assert shared_memory_bytes(tmp_path) == 0
