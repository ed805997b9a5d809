"""Child processes: where they import this package from, and how they end with their parent. Standard library only."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

IMPORT_FOLDER = str(Path(__file__).resolve().parents[1])
"""Stands in ``PYTHONPATH`` of a child that has to run this very package, wherever it lies."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork: a child between fork and exec must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel send this process SIGKILL when its parent ends (prctl(2), ``PR_SET_PDEATHSIG``)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every orphan among this process's descendants (prctl(2), ``PR_SET_CHILD_SUBREAPER``)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
