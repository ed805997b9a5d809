"""Machines laid out in a folder, as the kernel would show them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GIB = 2**30


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def nvidia(root: Path, count: int, name: str = "NVIDIA H200") -> None:
    """A machine with the driver's files alone."""
    write(
        root,
        {
            f"proc/driver/nvidia/gpus/0000:{i:02x}:00.0/information": f"Model: \t\t {name}\nIRQ: {i}"
            for i in range(count)
        },
    )
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@host)"
    write(root, {"proc/driver/nvidia/version": f"{version}\nGCC version: gcc version 12.3.0"})


def amd(
    root: Path,
    count: int,
    name: str = "AMD Instinct MI300X OAM",
    memory: int = 192 * GIB,
) -> None:
    """Cards from 1 on (a board's own graphics is card0), each with its number in amdkfd, and nobody
    using them."""
    write(
        root,
        {
            "sys/class/drm/card0/device/vendor": "0x1a03",
            "sys/class/drm/card1-DP-1/status": "connected",
        },
    )
    for i in range(count):
        card = f"sys/class/drm/card{i + 1}/device"
        (root / card / f"drm/renderD{128 + i}").mkdir(parents=True)
        node = f"sys/class/kfd/kfd/topology/nodes/{i + 2}"
        write(
            root,
            {
                f"{card}/product_name": name,
                f"{card}/device": "0x74a1",
                f"{card}/mem_info_vram_total": memory,
                f"{card}/mem_info_vram_used": 300 * 2**20,
                f"{node}/properties": f"simd_count 1216\ndrm_render_minor {128 + i}\nnum_xcc 8",
                f"{node}/gpu_id": 1000 + i,
            },
        )
    (root / "dev/dri").mkdir(parents=True)
    write(
        root,
        {
            "dev/kfd": "",
            "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 96\nsimd_count 0",
        },
    )


def busy(root: Path, pid: int, gpu: int, held: int) -> None:
    """A process that holds memory of one of the AMD GPUs, and none of GPU 0's."""
    folder = f"sys/class/kfd/kfd/proc/{pid}"
    write(root, {f"{folder}/vram_1000": 0, f"{folder}/vram_{1000 + gpu}": held})
    write(root, {f"sys/class/drm/card{gpu + 1}/device/mem_info_vram_used": held})


def processor(
    root: Path, cores: int = 4, flags: str = "fpu sse2 avx2 avx512f", memory_kb: int = 64_000_000
) -> None:
    lines = "\n\n".join(
        f"processor\t: {i}\nmodel name\t: Test 9000\ncpu MHz\t\t: 2500.0\nflags\t\t: {flags}"
        for i in range(cores)
    )
    write(
        root,
        {"proc/cpuinfo": lines, "proc/meminfo": f"MemTotal:       {memory_kb} kB\nMemFree: 1 kB"},
    )
