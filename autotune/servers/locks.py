"""Lock files that a killed server leaves behind: proof that nobody holds them, and their removal.

AITER and PyTorch serialise the compilation of kernels by a file that exists while it is locked. Its
owner keeps it open and removes it in the end, unless it is killed: then every later start waits for
ever. A file goes only if all of this holds:

* its path is one that the engine's card lists;
* it was made after the launch began;
* a process of the launch had it open, or it lies on a disk of this machine, where no other machine
  can hold it;
* no living process has it open or locked;
* it is a regular file of this user, with one name, a few bytes long, and no link leads to it.

Everything else stays.

Standard library only: the watchdog imports it.
"""

import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from .processes import Identity, all_pids, identity, open_files

_MOST_BYTES = 4096  # Length of a lock file: at most its owner's name, host and process
_LOG_BYTES = 32 * 2**20  # Bytes of each end of a log in which paths of locks are looked for
_ON_THIS_MACHINE = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
)


class LeftLocks:
    """The lock files of one launch.

    Args:
        patterns: regular expressions of their whole paths.
        contained: whether the server's paths are those of a container: then nothing is removed.
    """

    def __init__(self, patterns: Sequence[str], contained: bool = False) -> None:
        self._contained = contained
        self._path = re.compile("|".join(f"(?:{one})" for one in patterns)) if patterns else None
        self._began_s = time.time()
        self._held: dict[str, Identity] = {}

    def look(self, members: Iterable[int]) -> None:
        """Record the lock files that the launch's processes have open."""
        if self._path is None:
            return
        for link, path in open_files(members):
            if self._path.fullmatch(path):
                with suppress(OSError):
                    self._held[path] = identity(os.stat(link))

    def remove(self, log: Path) -> dict[str, list[str]]:
        """Remove what is proven to be left by the launch, whose processes have ended; return what
        stays, by the reason. `log` may name further ones."""
        named = self._named_in(log)
        if self._contained:
            return {"perhaps, in a volume of its container": sorted(named)} if named else {}
        kept: dict[str, list[str]] = {}
        for path in sorted({*self._held, *named}):
            with suppress(OSError):
                status = os.lstat(path)
                if reason := self._reason_to_keep(path, status):
                    kept.setdefault(reason, []).append(path)
                else:
                    os.unlink(path)
        return kept

    def _named_in(self, log: Path) -> set[str]:
        if self._path is None:
            return set()
        with suppress(OSError), log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            text = stream.read(_LOG_BYTES)
            stream.seek(max(stream.tell(), size - _LOG_BYTES))
            text += b"\n" + stream.read(_LOG_BYTES)
            # Without the other lines, which may be millions, the search is fast.
            lines = os.fsdecode(b"\n".join(one for one in text.split(b"\n") if b"lock" in one))
            return {match[0] for match in self._path.finditer(lines)}
        return set()

    def _reason_to_keep(self, path: str, status: os.stat_result) -> str:
        if not stat.S_ISREG(status.st_mode) or os.path.realpath(path) != path:
            return "no file of its own"
        if status.st_uid != os.getuid() or status.st_nlink != 1:
            return "another user's"
        if status.st_size > _MOST_BYTES:
            return "too long for a lock"
        if status.st_mtime < self._began_s:
            return "there before the launch"
        if self._held.get(path) != identity(status) and not _on_this_machine(status):
            return "perhaps of another machine"
        return "open in another process" if is_held(path, status) else ""


def is_held(path: str, status: os.stat_result) -> bool:
    """Return whether a living process has a file open or locked, as far as this user may see it."""
    name = os.path.basename(path)
    for link, opened in open_files(all_pids()):
        if os.path.basename(opened) == name:
            with suppress(OSError):
                if identity(os.stat(link)) == identity(status):
                    return True
    # Locks of processes whose open files are not ours to see (proc(5), /proc/locks).
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return f" {device} " in Path("/proc/locks").read_text(encoding="ascii")


def _on_this_machine(status: os.stat_result) -> bool:
    """Return whether a file lies on a file system that no other machine can mount (proc(5),
    mountinfo)."""
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    for line in (
        Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    ):
        before, _, after = line.partition(" - ")
        if before.split()[2] == device:
            return after.split()[0] in _ON_THIS_MACHINE
    return False
