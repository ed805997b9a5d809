"""Starts the command line without starting Python: a process that has its modules loaded forks for
every call.

Loading them costs seconds of CPU, MLflow's the most. The child runs ``python -m autotune`` from
there on as a new process does: a working folder, an environment, output files and an exit status of
its own. Two arguments: the descriptor of a socket, and where to put an MLflow database without
runs. A call is one message: JSON, and three descriptors: what it writes to, its errors, and a pipe
on which it is told the number of the process, then the exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

LATE = [
    *(
        "autotune.cli.main",
        "autotune.run",
        "autotune.outputs.progress",
        "autotune.cli.studies",
        "autotune.cli.tuning",
    ),
    *("autotune.cli.prediction", "autotune.cli.spaces", "autotune.cli.calibration"),
    *("autotune.cli.bench", "autotune.cli.doctor"),
    *(
        "autotune.outputs.report.render",
        "autotune.outputs.report.draw",
        *(f"autotune.tuner.backends.{name}" for name in ("simulator", "servers", "recorded")),
    ),
    *("autotune.node.emulator.process", "scipy.stats", "pyarrow.parquet"),
]
"""What the commands import when they need it."""

TRACKED = ("run", "resume", "database")
"""Calls that need MLflow; ``database`` is none of the command line's, and only makes it."""

LONGEST = 1 << 17
"""Bytes of a call."""


@cache
def load_mlflow(database: Path) -> None:
    """Import MLflow, which loads the most when it makes a database; leaves that in its place, whole
    or not at all."""
    from autotune.outputs.tracking.runs import connect, disconnect
    from autotune.tuner.study.home import database_file, database_uri

    with tempfile.TemporaryDirectory() as folder:
        uri = database_uri(Path(folder))
        disconnect(connect(uri))
        made = database_file(uri)
        assert made is not None
        database.write_bytes(made.read_bytes())
    gc.collect()
    gc.freeze()


def serve(channel: socket.socket, database: Path) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each call. Returns the call in the child, and None in the parent when nobody calls
    any more."""
    with channel, selectors.DefaultSelector() as ready:
        ready.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.data is not None:
                    ready.unregister(key.fd)
                    tell_end(key.fd, *key.data)
                    continue
                message, descriptors, *_ = socket.recv_fds(channel, LONGEST, 3)
                if not message:
                    return None
                call = json.loads(message)
                if call["arguments"][0] in TRACKED:
                    load_mlflow(database)
                child = os.fork()
                if not child:
                    return call, descriptors
                *outputs, status = descriptors
                for output in outputs:
                    os.close(output)
                os.write(status, f"{child}\n".encode())
                ready.register(os.pidfd_open(child), selectors.EVENT_READ, (child, status))


def tell_end(waited_for: int, child: int, status: int) -> None:
    """Reap a child and say how it ended."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, f"{code}\n".encode())
    os.close(status)
    os.close(waited_for)


def become(call: dict[str, Any], descriptors: list[int]) -> None:
    """Be the process that was asked for."""
    for descriptor, standard in zip(descriptors[:2], (1, 2), strict=True):
        os.dup2(descriptor, standard)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    sys.argv[1:] = call["arguments"]
    sys.path[0] = call["folder"]


def run() -> None:
    """Run the command line, and end as Python does but for taking its modules apart.

    That would write to most of the memory that is shared with the parent, ten times the CPU of
    refusing an option.
    """
    code: int | str | None = None
    try:
        runpy.run_module("autotune", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        if not isinstance(code, int | None):
            raise
    threading._shutdown()
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        if not output.closed:
            output.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    for late in LATE:
        importlib.import_module(late)
    gc.collect()
    gc.freeze()
    mine = serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
    if mine is not None and mine[0]["arguments"] != ["database"]:
        become(*mine)
        run()
