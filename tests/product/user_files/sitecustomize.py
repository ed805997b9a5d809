"""An emulated engine that has a user's files open and mapped, as a real one has weights, caches and
locks.

Python imports this at its start where PYTHONPATH has the folder. The variable `HELD` names the
files, as patterns with a colon between them; one that appears later, such as a model that is still
being copied, is mapped then.
"""

from __future__ import annotations

import glob
import mmap
import os
import sys
import threading

HELD = "AUTOTUNE_TEST_HELD"
PAUSE_S = 0.05


def hold(patterns: list[str]) -> None:
    """Open and map each file once, for as long as the process lives."""
    held: dict[str, mmap.mmap] = {}
    pause = threading.Event()
    while True:
        for path in (path for pattern in patterns for path in glob.glob(pattern)):
            if path not in held and os.path.getsize(path):
                held[path] = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
        pause.wait(PAUSE_S)


# The tuner and its helpers inherit the variables: only the engine's own process is meant.
if "emulate" in sys.orig_argv and HELD in os.environ:
    threading.Thread(target=hold, args=(os.environ[HELD].split(":"),), daemon=True).start()
