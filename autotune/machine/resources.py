"""Memory, cores, disk and limits: what there is for a server and for the tuner."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
from pathlib import Path
from typing import NamedTuple

from autotune.machine.files import ROOT, number, text


class Limit(NamedTuple):
    """A limit of this process, which its children inherit; None = unlimited."""

    soft: int | None
    hard: int | None


def memory_bytes(root: Path = ROOT) -> int:
    """Main memory that processes here may have: all of it, or less where a control group limits it; 0 = not known.

    Sources: proc(5) for ``MemTotal``; kernel documentation, "Control Group v2" (``memory.max``) and "Memory Resource
    Controller" (``memory.limit_in_bytes`` of version 1).
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    limits = [number(path) for path in _cgroup_files(root, "memory", "memory.max", "memory.limit_in_bytes")]
    known = [int(match[1]) * 1024] if match else []
    return min([*known, *(limit for limit in limits if limit)], default=0)


def cores(root: Path = ROOT) -> int:
    """Processors that this process may use at a time, whole ones: affinity and a control group's quota count."""
    listed = len(re.findall(r"^processor\s*:", text(root / "proc/cpuinfo"), re.MULTILINE))
    counts = [float(listed)] if listed else []
    if root == ROOT:
        counts.append(len(os.sched_getaffinity(0)))
    for path in _cgroup_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        words = [*text(path).split(), *text(path.with_name("cpu.cfs_period_us")).split()]
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


def open_file_limit() -> Limit:
    """How many files, sockets among them, a process may have open."""
    return _limit(resource.RLIMIT_NOFILE)


def locked_memory_limit() -> Limit:
    """How many bytes a process may lock into memory, as transfers between GPUs and to the network do."""
    return _limit(resource.RLIMIT_MEMLOCK)


def _limit(kind: int) -> Limit:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind))
    return Limit(soft, hard)


def _cgroup_files(root: Path, controller: str, unified: str, legacy: str) -> list[Path]:
    """The files of this process's control group and of those around it that hold a limit; the tightest one counts."""
    mount = root / "sys/fs/cgroup"
    found = []
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found += _upwards(mount, group, unified)
        elif controller in controllers.split(","):
            found += [path for name in (controllers, controller) for path in _upwards(mount / name, group, legacy)]
    return [path for path in found if path.is_file()]


def _upwards(mount: Path, group: str, name: str) -> list[Path]:
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth], name) for depth in range(len(parts), -1, -1)]
