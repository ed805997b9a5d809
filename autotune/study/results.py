"""`results.jsonl`, the truth of a study: one finished launch per line, on disk before anything else knows of it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from autotune.errors import MalformedFile, StudyLocked
from autotune.trial import Launch


class Results:
    """The finished launches of a study, in the order in which they ended.

    A kill in the middle of a write leaves a torn last line; opening cuts it off.

    Raises:
        MalformedFile: a line before the last is no launch.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.launches = _read(path) if path.exists() else []

    def append(self, launch: Launch) -> None:
        """Add a launch; it is on disk when this returns."""
        with self._path.open("ab") as file:
            row = json.dumps(launch.to_json(), separators=(",", ":"), allow_nan=False)
            file.write(row.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.launches.append(launch)


def _read(path: Path) -> list[Launch]:
    content = path.read_bytes()
    lines = content.split(b"\n")
    launches, kept = [], b""
    last = max((i for i, line in enumerate(lines) if line.strip()), default=-1)
    for i, line in enumerate(lines[: last + 1]):
        try:
            launches.append(Launch.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            if i < last:
                raise MalformedFile(
                    path, f"not a launch ({error}); remove the line to go on without it", i + 1
                ) from None
            break
        kept += line + b"\n"
    if kept != content:
        _replace(path, kept)
    return launches


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".repaired")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Lock:
    """Held while a tuner works on a study; the kernel releases it when the process dies.

    Raises:
        StudyLocked: somebody else holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StudyLocked(
                f"another tuner (process {holder}) works on the study in {folder}: "
                "wait for it, stop it, or choose another --study"
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let others have the study."""
        self._file.close()


def is_held(folder: Path) -> bool:
    """Whether a tuner works on a study now, on this machine or another that shares its folder."""
    try:
        file = (folder / "lock").open()
    except OSError:
        return False
    with file:
        try:
            # Shared, and let go of at once: two who look do not disturb each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
