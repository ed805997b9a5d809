"""Bounds a server's log: its first and its last megabytes are kept, as a server may print gigabytes.

While the server writes, the disk gets the middle back and every byte keeps its place: nothing stands between the server
and its log, and nothing of its end is lost. On a file system that cannot do so (fallocate(2), ``FALLOC_FL_PUNCH_HOLE``)
the log grows until the server has ended. Then one line stands for the middle.
Standard library only: the watchdog imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import BinaryIO

END_BYTES = 32 * 2**20
"""Bytes kept of each end of a log: a failed start is explained at its beginning, a crash under load at its end."""
_LINE_BYTES = 2**16
"""Length in bytes up to which a line is kept whole where the log is cut; a longer one is cut within."""
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_LIBC = ctypes.CDLL(None)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def free_middle(path: Path, offset: int = 0, end_bytes: int = END_BYTES) -> None:
    """Give the disk back the middle of a log that a server writes; it reads as zeros from then on.

    Args:
        offset: bytes that the log held before this launch, which are left.
    """
    with contextlib.suppress(OSError), path.open("r+b") as file:
        begin, stop = offset + end_bytes, os.fstat(file.fileno()).st_size - end_bytes
        if stop > begin:
            _LIBC.fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, begin, stop - begin)


def cut_middle(path: Path, offset: int = 0, end_bytes: int = END_BYTES) -> None:
    """Put one line in the place of a log's middle, once nobody writes it any more.

    Args:
        offset: as for `free_middle`.
    """
    with contextlib.suppress(OSError), path.open("r+b") as file:
        cut = _cut(file, offset, end_bytes)
        if cut is not None:
            begin, rest = cut
            file.seek(begin)
            file.write(rest)
            file.truncate()


def read_ends(path: Path, end_bytes: int) -> bytes:
    """Read a log with one line in the place of its middle; raises ``OSError``."""
    with path.open("rb") as file:
        cut = _cut(file, 0, end_bytes)
        file.seek(0)
        return file.read() if cut is None else file.read(cut[0]) + cut[1]


def _cut(file: BinaryIO, offset: int, end_bytes: int) -> tuple[int, bytes] | None:
    """Where the middle begins, and what stands from there on: a line about it and the end; None for a short log.

    It is cut between lines: a secret that is known by half could not be masked.
    """
    size = os.fstat(file.fileno()).st_size
    begin, resume = offset + end_bytes, size - end_bytes
    if resume <= begin:
        return None
    near = min(_LINE_BYTES, end_bytes)
    file.seek(begin - near)
    begin -= len(file.read(near).rpartition(b"\n")[2])
    file.seek(resume)
    tail = file.read(end_bytes)
    first = tail[:near].find(b"\n") + 1 or near
    left_out = resume + first - begin
    line = f"[autotune: {left_out:,} bytes are left out here, between the first and the last {end_bytes:,}]\n"
    return begin, line.encode() + tail[first:]
