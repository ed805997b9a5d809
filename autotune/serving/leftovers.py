"""The shared memory that processes of a launch leave when they do not end by themselves. Linux, standard library only.

Engines share memory between their processes as files in ``/dev/shm`` and remove them when they are asked to end. One
that is killed, or dies, does not: they stay until the machine is started again, and when none is left servers die at
their start.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

SHARED_MEMORY = "/dev/shm/"


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """List the files in ``/dev/shm`` that processes have mapped or open (proc(5)); of others' processes none."""
    paths: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                paths.add(line.split(maxsplit=5)[-1])
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    paths.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {path for path in paths if path.startswith(SHARED_MEMORY) and not path.endswith(" (deleted)")}


def remove_shared_memory(paths: Collection[str]) -> None:
    """Remove files in ``/dev/shm`` that no process uses any more; those that other users may use are left."""
    if not paths:
        return
    used = shared_memory_of(int(entry) for entry in os.listdir("/proc") if entry.isdecimal())
    for path in set(paths) - used:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o066:
                os.unlink(path)
