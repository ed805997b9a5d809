"""Starts the command line without starting Python: a process that has its modules loaded forks for every call.

Loading them costs seconds of CPU, MLflow's the most. The child runs ``python -m autotune`` from there on as a new
process does: a working folder, an environment, output files and an exit status of its own. The descriptor of a
socket is the argument; a line of JSON comes in per call, the exit status goes out.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

LATE = [
    *("autotune.cli", "autotune.run", "autotune.progress", "autotune.commands.studies", "autotune.commands.tuning"),
    *("autotune.commands.prediction", "autotune.commands.spaces", "autotune.commands.calibration"),
    *("autotune.bench.command", "autotune.bench.compare", "autotune.bench.self_test", "autotune.doctor.command"),
    *("autotune.report.html", "autotune.report.markdown", "autotune.evaluate.simulated", "autotune.evaluate.launched"),
    *("scipy.stats", "pyarrow.parquet"),
]
"""What the commands import when they need it."""


def load() -> None:
    """Import it, and MLflow's with it, which loads the most when it makes a database."""
    for name in LATE:
        importlib.import_module(name)
    from autotune.tracking.database import connect, disconnect
    from autotune.tracking_uri import database_uri

    with tempfile.TemporaryDirectory() as folder:
        disconnect(connect(database_uri(Path(folder))))
    gc.collect()
    gc.freeze()


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Fork for each call. Returns the call in the child, and None in the parent when nobody calls any more."""
    with channel, channel.makefile() as calls:
        for line in calls:
            child = os.fork()
            if not child:
                return dict(json.loads(line))
            _, status = os.waitpid(child, 0)
            channel.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return None


def become(call: dict[str, Any]) -> None:
    """Be the process that was asked for."""
    for name, descriptor in (("out", 1), ("err", 2)):
        opened = os.open(call[name], os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.argv[1:] = call["arguments"]
    sys.path[0] = call["folder"]


if __name__ == "__main__":
    load()
    mine = serve(socket.socket(fileno=int(sys.argv[1])))
    if mine is not None:
        become(mine)
        runpy.run_module("autotune", run_name="__main__", alter_sys=True)
