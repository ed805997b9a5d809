"""A stand-in for the first process of a container that was started with ``--init``: it gets the
container's orphans."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    code = child.wait()
    os._exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    main()
