"""The limit on open files: a thousand streams need a thousand sockets."""

from __future__ import annotations

import os
import resource

from autotune.errors import BadInput

_SPARE = 64
"""For the log, the event loop, and what libraries open while a load runs."""


def allow_open_files(connections: int, surely: bool = True) -> None:
    """Raise ``RLIMIT_NOFILE`` so that this process may open so many more sockets.

    Args:
        surely: whether all of them will be open at once; an open loop may need fewer, and gets what there is.

    Raises `BadInput` when the hard limit is lower, before any request fails of it.
    """
    need = len(os.listdir("/proc/self/fd")) + connections + _SPARE if os.path.isdir("/proc/self/fd") else connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need and not surely:
        need = hard
    if hard != resource.RLIM_INFINITY and hard < need:
        raise BadInput(
            f"{connections} connections at once in one process need {need} open files, but the hard limit is {hard}; "
            f"raise it with `ulimit -Hn {need}`, spread them with --workers, or ask for fewer with --concurrency"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
