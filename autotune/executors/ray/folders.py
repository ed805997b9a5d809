"""Folders for the time of a process; those that killed processes of this machine left behind are removed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

TRIAL = "autotune-trial"
"""How the folders of running trials begin."""
TUNING = "autotune-ray"
"""How the folders begin in which Ray Tune keeps what it wants to."""


def own_folder(kind: str, name: str = "") -> tempfile.TemporaryDirectory[str]:
    """A new folder, and away with those of dead processes.

    Several machines may share the place where they lie, so a machine looks at its own only.
    """
    here = f"{kind}-{_safe(platform.node())}-"
    for left in Path(tempfile.gettempdir()).glob(f"{here}*"):
        pid = left.name.removeprefix(here).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    # A container's files may be another user's.
    return tempfile.TemporaryDirectory(prefix=f"{here}{os.getpid()}-{_safe(name)}-", ignore_cleanup_errors=True)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)
