"""`results.jsonl`, the record of a study: one finished launch per line, on disk before any other
use of it."""

import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotune.base import (
    BadInput,
    CannotGoOn,
    Json,
    JsonObject,
    MalformedFile,
    StudyLocked,
    frozen,
    sync_folder,
)

from ..trial import Launch, Role, Trial, TrialResult

RESULTS = "results.jsonl"

_TRIAL = TypeAdapter(Trial)
_RESULT = TypeAdapter(TrialResult)
_HELD = (BlockingIOError, PermissionError)
"""Errors of a file lock held by another process (flock(2); fcntl(2) on network file systems)."""
_OPTIONAL = ("servers", "bound_node", "ladder", "retry")
"""Keys of a trial that its row omits if they are empty."""


def row_of(launch: Launch) -> Json:
    """Return the row of a launch, with the keys promised in `docs/files.md`."""
    trial = launch.trial
    row = {
        "number": trial.number,
        **trial.role.to_json(),
        "engine": trial.configuration.engine,
        "engine_version": trial.engine_version,
        "config": dict(trial.configuration.knobs),
        "fingerprint": trial.configuration.fingerprint,
        "launch_index": trial.launch_index,
        **asdict(trial.command),
        "argv": trial.command.words,
        "workloads": trial.workloads,
        "ladder": trial.rungs,
        "bound_node": trial.node,
        "retry": asdict(trial.retry) if trial.retry else None,
    }
    kept = {key: value for key, value in row.items() if value or key not in _OPTIONAL}
    return {**kept, **launch.result.to_json()}


def launch_of(row: JsonObject) -> Launch:
    """Parse the result of `row_of`; raises ``KeyError``, ``TypeError`` or ``ValueError`` on another
    shape."""
    trial = {
        **row,
        "role": Role.from_json(row),
        "configuration": {"engine": row["engine"], "knobs": row["config"]},
        "command": {**row, "argv": row["argv"][len(row.get("container", ())) :]},
        "node": row.get("bound_node", ""),
        "rungs": row.get("ladder", ()),
    }
    return Launch(_TRIAL.validate_python(trial), _RESULT.validate_python(row))


@frozen
class Rows:
    """The launches of a `results.jsonl`, the bytes of their lines, and why the rest is invalid (it
    is cut off)."""

    launches: list[Launch]
    torn: MalformedFile | None
    size: int


def parse_rows(path: Path, content: bytes) -> Rows:
    """Parse a `results.jsonl`; its only reader. Raises `MalformedFile` for a bad line before
    another row."""
    lines = content.rstrip().split(b"\n") if content.strip() else []
    launches = []
    size = 0
    for number, line in enumerate(lines, start=1):
        try:
            launches.append(launch_of(json.loads(line, parse_int=_whole)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problem = f"not a launch of a study ({_reason(error)}); remove the line to continue without it"
            torn = MalformedFile(path, problem, number)
            # A row that a crash cut off may hold line breaks; no other row stands behind it.
            if any(map(_is_object, lines[number:])):
                raise torn from None
            return Rows(launches, torn, size)
        size += len(line) + 1
    return Rows(launches, None, size)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _whole(digits: str) -> int:
    """Parse an integer within the range of a float; raises ``ValueError`` for a longer one."""
    if len(digits) > sys.float_info.max_10_exp:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"


def recount_finals(launches: Iterable[Launch], finals_from: int) -> list[Launch]:
    """Count finals before a number as launches of the search, and as controls if they are of the
    baseline."""
    rows = list(launches)
    base = {row.fingerprint for row in rows if row.role is Role.BASELINE}
    for place, row in enumerate(rows):
        if row.role is Role.FINAL and row.number < finals_from:
            role = Role.CONTROL if row.fingerprint in base else Role.SEARCH
            rows[place] = replace(row, trial=replace(row.trial, role=role))
    return rows


def read_launches(path: Path) -> list[Launch]:
    """Read the launches of a `results.jsonl` with `parse_rows`; none without a file."""
    return parse_rows(path, path.read_bytes()).launches if path.is_file() else []


class Results:
    """The finished launches of a study that a tuner adds to.

    Opening repairs the file: a torn last line is cut off, or the next launch would be written
    behind it. Raises as `parse_rows`.
    """

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        rows = parse_rows(path, content)
        self._path = path
        self._size = rows.size
        self.launches = rows.launches
        if rows.size != len(content):
            # Cut off what follows the launches, and end the last of them with a line break.
            kept = content[: rows.size]
            with path.open("r+b") as file:
                file.truncate(len(kept))
                if kept and not kept.endswith(b"\n"):
                    file.seek(0, os.SEEK_END)
                    file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())

    def append(self, launch: Launch) -> None:
        """Append a launch; it is on disk on return.

        Raises `CannotGoOn` where somebody else has added to the file: a tuner on another machine,
        where a network file system keeps locks within each machine, or shows files late.
        """
        with self._path.open("ab") as file:
            if file.tell() > self._size:
                raise CannotGoOn(
                    f"another process has written to {self._path}; launch {launch.number} is "
                    "not stored: look for a second tuner of this study on other machines that "
                    "share the folder."
                )
            row = json.dumps(row_of(launch), separators=(",", ":"), allow_nan=False)
            file.write(row.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            if not self._size:
                sync_folder(self._path.parent)
            self._size = file.tell()
        self.launches.append(launch)


class Lock:
    """Lock of a study for its tuner (else `StudyLocked`); the kernel releases it when the process
    dies."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as closing:
            self._file = closing.enter_context((folder / "lock").open("a+"))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except _HELD:
                holder = ""
                # SMB keeps readers out, too.
                with suppress(OSError):
                    self._file.seek(0)
                    holder = self._file.read().strip()
                raise StudyLocked(
                    f"another tuner (process {holder or 'unknown'}) works on the study in "
                    f"{folder}: wait for it, stop it, or choose another --study"
                ) from None
            except OSError as error:
                raise BadInput(
                    f"the file system of {folder} has no locks ({error.strerror}), so a second "
                    "tuner of the study cannot be excluded; choose a --home on a local disk, or "
                    "mount the file system with locks"
                ) from None
            # Write without the buffer, which would be written again when it is closed.
            os.ftruncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), f"{os.getpid()} on {platform.node()}\n".encode())
            # Keep the file open, and with it the lock.
            closing.pop_all()

    def release(self) -> None:
        """Release the study."""
        self._file.close()


def is_held(folder: Path) -> bool:
    """Return whether a tuner works on a study now, on this machine or another with the same
    folder."""
    try:
        file = (folder / "lock").open()
    except OSError:
        return False
    with file:
        try:
            # Shared, and let go of at once: two who look do not disturb each other.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except _HELD:
            return True
        except OSError:
            return False  # without locks no tuner begins
    return False
