"""Whether a process lives, and how long a test waits until it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits for its parent is not alive.

    SIGKILL returns before the process is gone: a test that ended one waits with `until`.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def until(condition: Callable[[], bool], deadline_s: float = 20.0) -> bool:
    """Whether a condition came true before the deadline."""
    deadline, pause = time.monotonic() + deadline_s, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.02)
    return True
