"""Processes of the command line whose modules are loaded before they begin; see ``warm.py``."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import TIMEOUT_MAX, Lock, Timer
from types import TracebackType
from typing import IO

PROGRAM = [sys.executable, "-m", "autotune"]


class Started:
    """A process that was started so: of what `subprocess.Popen` has in text mode, what tests need.

    Args:
        status: gives the process's number, then its exit status.
    """

    def __init__(self, status: IO[str], stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.stdout, self.stderr, self._status = stdout, stderr, status
        self.returncode: int | None = None
        number = status.readline()
        assert number, "the process that makes the others has ended; its stderr says why"
        self.pid = int(number)

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status when it has ended; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("autotune", timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All it writes, when it has ended; when so many seconds are over, it is killed."""
        late = Timer(timeout or TIMEOUT_MAX, self.kill)
        late.start()
        try:
            with ThreadPoolExecutor(2) as threads:
                out, err = threads.map(
                    lambda stream: stream.read() if stream else "", (self.stdout, self.stderr)
                )
        finally:
            late.cancel()
        self._close()
        self.wait()
        return out, err

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._close()
        self.wait()


Process = Started | subprocess.Popen[str]


class Warm:
    """Makes processes of the command line that have their modules loaded; see `warm`."""

    def __init__(self) -> None:
        self._python = python_variables(os.environ)
        self._lock = Lock()
        self._folder = TemporaryDirectory()
        self._database = Path(self._folder.name, "mlflow.db")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [
                str(Path(__file__).with_name("warm.py")),
                str(theirs.fileno()),
                str(self._database),
            ]
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether Python would start there as it did here."""
        return python_variables(environment) == self._python

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        out: int | None,
        err: int | None,
    ) -> Started:
        """Start the command line with these arguments; for its output what `subprocess.Popen`
        takes, or a descriptor.

        Both are closed here.
        """
        call = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
        }
        (written, stdout), (errors, stderr) = _output(out, 1), _output(err, 2)
        status, told = os.pipe()
        if err == subprocess.STDOUT:
            errors = os.dup(written)
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(call).encode()], [written, errors, told])
        for descriptor in (written, errors, told):
            os.close(descriptor)
        return Started(os.fdopen(status), stdout, stderr)

    def database(self) -> Path:
        """An MLflow database in which there is nothing; to make one takes seconds."""
        if not self._database.exists():
            self.start(["database"], {}, Path.cwd(), subprocess.DEVNULL, None).wait()
        return self._database

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait()
        self._folder.cleanup()


def _output(kind: int | None, standard: int) -> tuple[int, IO[str] | None]:
    """What a process writes to, and what is read of it here."""
    if kind == subprocess.PIPE:
        read, write = os.pipe()
        return write, os.fdopen(read)
    if kind == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_WRONLY), None
    if kind == subprocess.STDOUT:
        return -1, None
    return os.dup(standard if kind is None else kind), None


def python_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


@cache
def warm() -> Warm:
    """This test process's one."""
    made = Warm()
    atexit.register(made.close)
    return made


def start(
    *arguments: str,
    out: int | None = None,
    err: int | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Process:
    """Start a command line in a process of its own; outputs, environment and folder as
    `subprocess.Popen` has them."""
    environment = os.environ if environment is None else environment
    if warm().fits(environment):
        return warm().start(arguments, environment, folder or Path.cwd(), out, err)
    return subprocess.Popen(
        [*PROGRAM, *arguments], stdout=out, stderr=err, env=dict(environment), cwd=folder, text=True
    )
