"""Kernel's counters of processes that it ended because the machine's memory was used up."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.base import frozen


@frozen
class MemoryKills:
    """Counter of this process's control group, or of the machine where the group has none.

    Attributes:
        path: file of the counter, a line ``oom_kill N`` among others; None where there is none.
        count: its value when it was read first.
    """

    path: Path | None
    count: int

    @classmethod
    def read(cls, root: Path = Path("/"), *, contained: bool = False) -> MemoryKills:
        """Read the counter before a launch; `root` is the folder with ``proc`` and ``sys``.

        ``memory.events`` of control groups v2 and ``memory.oom_control`` of v1 count the group's
        own processes (Linux, admin-guide/cgroup-v2 and cgroup-v1/memory). The root group of v2 has
        no such file; ``/proc/vmstat`` counts for the machine, and so for a `contained` server, whose
        group is another one.
        """
        for path in (*([] if contained else _group_files(root)), root / "proc/vmstat"):
            if (count := _count(path)) is not None:
                return cls(path, count)
        return cls(None, 0)

    @property
    def since(self) -> int:
        """Return the number of processes that the kernel has ended since the first reading."""
        now = None if self.path is None else _count(self.path)
        return 0 if now is None else max(0, now - self.count)


def _group_files(root: Path) -> list[Path]:
    """Return the possible files of this process's control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = list[Path]()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = path.lstrip("/")
        if not controllers:
            files.append(root / "sys/fs/cgroup" / group / "memory.events")
        if "memory" in controllers.split(","):
            files.append(root / "sys/fs/cgroup/memory" / group / "memory.oom_control")
    return files


def _count(path: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
