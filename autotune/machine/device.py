"""What a vendor's file says of one GPU; `autotune.machine.gpu` makes a `Gpu` of it."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """One GPU; figures are 0 and pids empty where they are not known."""

    name: str
    total_bytes: int = 0
    used_bytes: int = 0
    pids: tuple[int, ...] = ()
