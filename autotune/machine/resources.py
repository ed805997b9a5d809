"""Processor, memory, disk and limits of this machine, as the kernel's small files tell them.

``root`` is where ``/proc``, ``/sys``, ``/dev`` and ``/etc`` are looked for, so that another machine can be laid out in
a folder.
"""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
"""This machine itself; every other root is another one, laid out in a folder."""

CORE_GB_S = 10.0
SOCKET_GB_S = 200.0
_FLOPS_PER_CYCLE = {"amx_bf16": 2048, "avx512_bf16": 128, "avx512f": 64, "avx2": 32, "asimd": 16}
_GHZ = 2.0


def text(path: Path) -> str:
    """A file's content without white space around it; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """A file that holds one whole number, decimal or as ``0x…``; None when it does not."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as the kernel describes it.

    Attributes:
        model: its name, else the kind of machine, e.g. ``aarch64``.
        cores: that this process may use.
        flags: instruction sets, in the kernel's names.
        clock_ghz: the highest, else that of the moment to a tenth; 2 where the kernel does not say.
    """

    model: str
    cores: int
    flags: frozenset[str]
    clock_ghz: float

    @property
    def bandwidth_gb_s(self) -> float:
        """Memory bandwidth by a rule of thumb: about 10 GB/s per core, at most 200 GB/s."""
        return min(self.cores * CORE_GB_S, SOCKET_GB_S)

    @property
    def tflops(self) -> float:
        """Peak of 16-bit matrix products: cores x clock x operations per cycle of the widest instruction set.

        Two fused multiply-adds per cycle: 16 operations with 128 bits of float32, 32 with AVX2, 64 with AVX-512, 128
        with its bfloat16 dot product; 2048 with AMX tiles (Intel optimisation reference manual, chapter on AMX).
        """
        widest = next((count for flag, count in _FLOPS_PER_CYCLE.items() if flag in self.flags), 8)
        return self.cores * self.clock_ghz * widest / 1e3


def cpu(root: Path = ROOT) -> Cpu:
    """This machine's processor, from ``/proc/cpuinfo`` (proc(5)): the first one's lines."""
    lines = [line.partition(":") for line in text(root / "proc/cpuinfo").split("\n\n")[0].splitlines()]
    first = {key.strip(): value.strip() for key, _, value in lines}
    return Cpu(
        model=first.get("model name") or platform.machine() or "unknown processor",
        cores=cores(root),
        flags=frozenset((first.get("flags") or first.get("Features") or "").split()),
        clock_ghz=_clock_ghz(root, first.get("cpu MHz", "")),
    )


def _clock_ghz(root: Path, now_mhz: str) -> float:
    highest_khz = number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if highest_khz:
        return highest_khz / 1e6
    return round(float(now_mhz) / 1e3, 1) if re.fullmatch(r"\d+(?:\.\d+)?", now_mhz) else _GHZ


def memory_bytes(root: Path = ROOT) -> int:
    """Main memory that processes here may have: all of it, or less where a control group limits it; 0 = not known.

    Sources: proc(5) for ``MemTotal``; kernel documentation, "Control Group v2" (``memory.max``).
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    limits = [number(path) for path in _cgroup_files(root, "memory.max")]
    known = [int(match[1]) * 1024] if match else []
    return min([*known, *(limit for limit in limits if limit)], default=0)


def cores(root: Path = ROOT) -> int:
    """Processors that this process may use at a time, whole ones: affinity and a control group's quota count."""
    listed = len(re.findall(r"^processor\s*:", text(root / "proc/cpuinfo"), re.MULTILINE))
    counts = [float(listed)] if listed else []
    if root == ROOT:
        counts.append(len(os.sched_getaffinity(0)))
    for path in _cgroup_files(root, "cpu.max"):
        words = text(path).split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]):
            counts.append(int(words[0]) / int(words[1]))
    return max(1, math.ceil(min(counts, default=1)))


def disk_free_bytes(folder: Path) -> int:
    """What an ordinary user may still write where a folder lies, or would lie once it is made."""
    return shutil.disk_usage(existing_folder(folder)).free


def existing_folder(folder: Path) -> Path:
    """A folder itself, else the nearest one above it that is there and may be seen by this user."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def shared_memory_bytes(root: Path = ROOT) -> int:
    """The size of ``/dev/shm``; 0 where there is none."""
    try:
        return shutil.disk_usage(root / "dev/shm").total
    except OSError:
        return 0


def open_file_limit() -> int | None:
    """How many files, sockets among them, a process may have open at most; None: any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _cgroup_files(root: Path, name: str) -> list[Path]:
    """The files of this process's control group and of those around it that hold a limit; the tightest one counts."""
    lines = text(root / "proc/self/cgroup").splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    parts = [part for part in group.split("/") if part not in ("", "..")]
    paths = [(root / "sys/fs/cgroup").joinpath(*parts[:depth], name) for depth in range(len(parts), -1, -1)]
    return [path for path in paths if path.is_file()]
