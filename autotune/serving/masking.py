"""Secrets that a server printed, overwritten in its log. The watchdog imports this: standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

_BLOCK_BYTES = 2**20
_TELLING = 4
"""Shorter values are left: they are found everywhere."""


def mask_file(path: Path, secrets: Iterable[str], offset: int = 0) -> None:
    """Overwrite each secret in place, sign for sign, so that nothing moves; a file that is gone is left.

    Args:
        offset: bytes to skip.
    """
    values = sorted({secret.encode() for secret in secrets if len(secret) >= _TELLING}, key=len, reverse=True)
    if not values:
        return
    overlap = len(values[0]) - 1
    with contextlib.suppress(OSError), path.open("r+b") as file:
        while True:
            file.seek(offset)
            block = file.read(_BLOCK_BYTES + overlap)
            masked = block
            for value in values:
                masked = masked.replace(value, b"REDACTED".ljust(len(value), b"*")[: len(value)])
            if masked != block:
                file.seek(offset)
                file.write(masked)
            if len(block) <= _BLOCK_BYTES:
                return
            offset += _BLOCK_BYTES
