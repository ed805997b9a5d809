"""Shared memory that a server leaves behind: proof that a file in ``/dev/shm`` is the server's own,
and its removal.

Engines share memory between their processes as files in ``/dev/shm`` and remove them when they are
asked to end. One that is killed, or dies, does not: they stay until the machine is started again,
and when none is left servers die at their start.

People keep models there too, and a server maps those as well. So a file goes only if all of this
holds:

* it was not there, under any name, when the launch began;
* it lies directly in ``/dev/shm``, under a name that the engine's card lists;
* no process outside the launch had it open at any look;
* it is a regular file of this user, with one name, for this user alone;
* nothing in the command names it.

Everything else stays.

Standard library only: the watchdog imports it.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from autotune.base import Environment

from . import processes
from .processes import Identity, identity

FOLDER = "/dev/shm"
_DELETED = " (deleted)"  # Behind the path of a file without a name (proc(5))
_MOST_FOLDERS = 10_000  # Most folders below an argument of the command that are searched for links
_MOST_NAMES = 5  # Most files named in a line of the log for one reason
_SEPARATORS = re.compile(r"""[\s"'=:,;]+""")


class SharedFile(NamedTuple):
    """A file in ``/dev/shm`` that a process had open or mapped."""

    path: str
    identity: Identity


def open_files(pids: Iterable[int]) -> set[SharedFile]:
    """List the files in ``/dev/shm`` that processes have mapped or open (proc(5)); none of other
    users' processes."""
    found: set[SharedFile] = set()
    for pid in pids:
        with suppress(OSError):
            found.update(_mapped(pid))
        for link, path in processes.open_files([pid]):
            with suppress(OSError):
                found.add(SharedFile(path, identity(os.stat(link))))
    return {
        file
        for file in found
        if file.path.startswith(f"{FOLDER}/") and not file.path.endswith(_DELETED)
    }


def _mapped(pid: int) -> Iterator[SharedFile]:
    for line in (
        Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    ):
        if FOLDER in line:
            _, _, _, device, inode, path = line.split(maxsplit=5)
            major, minor = (int(part, 16) for part in device.split(":"))
            yield SharedFile(path, (os.makedev(major, minor), int(inode)))


class LeftMemory:
    """The shared memory of one launch, from before its first process to after its last.

    Args:
        names: regular expressions of the names that the engine gives to its files; none: nothing is
            looked at.
        argv: the server's command, and `environment` its variables; what they name is not its own.
    """

    def __init__(self, names: Sequence[str], argv: Sequence[str], environment: Environment) -> None:
        self._name = re.compile("|".join(f"(?:{name})" for name in names)) if names else None
        self._argv = argv
        self._texts = (*argv, *environment.values())
        self._there = frozenset(_files_below(FOLDER)) if names else frozenset()
        self._used: set[SharedFile] = set()
        self._foreign: set[Identity] = set()

    def look(self, members: Callable[[], Iterable[int]]) -> None:
        """Record what the launch's processes have open, and which of it others have open as well.

        The members are asked for after all processes, so that a child that is born meanwhile is no
        stranger.
        """
        if self._name is None:
            return
        everybody = processes.all_pids() - {os.getpid()}
        ours = set(members())
        self._used |= open_files(ours)
        if any(self.is_engines(file) for file in self._used):
            self._foreign |= {file.identity for file in open_files(everybody - ours)}

    def remove(self) -> dict[str, list[str]]:
        """Remove what is proven to be the launch's, whose processes have ended; return what stays,
        by the reason."""
        self.look(tuple)
        kept: dict[str, list[str]] = {}
        for file in sorted(self._used):
            with suppress(OSError):
                status = os.lstat(file.path)
                if identity(status) != file.identity:
                    continue  # Somebody else has given the name to a file of his.
                if reason := self._reason_to_keep(file, status):
                    kept.setdefault(reason, []).append(file.path.removeprefix(f"{FOLDER}/"))
                else:
                    os.unlink(file.path)
        return kept

    def is_engines(self, file: SharedFile) -> bool:
        """Return whether a file has a name that the engine gives."""
        folder, _, name = file.path.rpartition("/")
        return (
            folder == FOLDER and self._name is not None and self._name.fullmatch(name) is not None
        )

    def _reason_to_keep(self, file: SharedFile, status: os.stat_result) -> str:
        if file.identity in self._there:
            return "there before the launch"
        if not self.is_engines(file):
            return "not a name of the engine's shared memory"
        if file.identity in self._foreign:
            return "open in another process"
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return "another user's"
        if status.st_nlink != 1 or status.st_mode & 0o066:
            return "shared with others"
        return "named by the command" if self._is_named(file) else ""

    def _is_named(self, file: SharedFile) -> bool:
        name = os.path.basename(file.path)
        if any(name in text for text in self._texts):
            return True
        paths = {path for text in self._texts for path in _paths(text)}
        if FOLDER in map(os.path.realpath, paths):
            return True
        folders = {path for text in self._argv for path in _paths(text) if os.path.isdir(path)}
        return file.identity in {
            *_identities(paths),
            *(found for folder in folders for found in _files_below(folder, links=True)),
        }


def _paths(text: str) -> set[str]:
    """Return the absolute paths in a text: the whole text, the part behind its ``=``, and parts of
    a list or JSON."""
    return {
        part
        for part in (text, text.partition("=")[2], *_SEPARATORS.split(text))
        if part.startswith("/") and "\0" not in part
    }


def _identities(paths: Iterable[str], links: bool = True) -> Iterator[Identity]:
    for path in paths:
        with suppress(OSError):
            yield identity(os.stat(path, follow_symlinks=links))


def _files_below(folder: str, links: bool = False) -> Iterator[Identity]:
    """Find the files in a folder and all below it, or with `links` those that they lead to."""
    for parent, _, names in islice(os.walk(folder), _MOST_FOLDERS if links else None):
        yield from _identities((os.path.join(parent, name) for name in names), links)


def kept_line(kept: Mapping[str, Sequence[str]], what: str = f"left in {FOLDER}") -> str:
    """Return the line of the log that names what stays, by the reason; empty for nothing."""
    groups = []
    for reason, paths in kept.items():
        more = f" and {len(paths) - _MOST_NAMES} more" if len(paths) > _MOST_NAMES else ""
        groups.append(f"{', '.join(paths[:_MOST_NAMES])}{more} ({reason})")
    return f"[autotune: {what}: {'; '.join(groups)}]" if groups else ""
