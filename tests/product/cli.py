"""Runs the real command line as a user does: a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

PROGRAM = [sys.executable, "-m", "autotune"]
SHARED = Path(__file__).resolve().parents[3] / "shared"


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Warm:
    """Makes processes of the command line that have their modules loaded; see `warm`."""

    def __init__(self) -> None:
        self._python = python_variables(os.environ)
        self._lock = Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            program = [sys.executable, str(Path(__file__).with_name("warm.py")), str(theirs.fileno())]
            self._process = subprocess.Popen(
                program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._answers = self._socket.makefile()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether Python would start there as it did here."""
        return python_variables(environment) == self._python

    def run(self, arguments: tuple[str, ...], environment: Mapping[str, str], folder: Path) -> Finished:
        """Run the command line with these arguments until it ends."""
        with self._lock, TemporaryDirectory() as outputs:
            out, err = Path(outputs, "out"), Path(outputs, "err")
            out.touch()
            err.touch()
            call = {"arguments": arguments, "environment": environment, "folder": str(folder)}
            line = json.dumps({**call, "out": str(out), "err": str(err)}) + "\n"
            self._socket.sendall(line.encode())
            answer = self._answers.readline()
            assert answer, "the process that makes the others has ended; its stderr says why"
            return Finished(int(answer), out.read_text(), err.read_text())

    def close(self) -> None:
        """End it."""
        self._answers.close()
        self._socket.close()
        self._process.wait()


def python_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


@cache
def warm() -> Warm:
    """This test process's one."""
    made = Warm()
    atexit.register(made.close)
    return made


def autotune(*arguments: str, home: Path, cwd: Path | None = None, fresh: bool = False, **variables: str) -> Finished:
    """Run a command line to its end, in a process of its own.

    Args:
        fresh: start Python for it, as a person's shell does; else its modules are loaded before, which saves seconds.
        variables: for its environment, besides this process's.
    """
    environment, folder = {**os.environ, "AUTOTUNE_HOME": str(home), **variables}, cwd or home.parent
    if not fresh and warm().fits(environment):
        return warm().run(arguments, environment, folder)
    done = subprocess.run(
        [*PROGRAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def kill_after(arguments: list[str], home: Path, delay_s: float, moment: Callable[[], bool] | None = None) -> bool:
    """Run until the moment comes, and so many seconds more, then `kill -9`; False when it had ended before."""
    environment = {**os.environ, "AUTOTUNE_HOME": str(home)}
    with subprocess.Popen(
        [*PROGRAM, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while moment is not None and not moment() and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        try:
            process.wait(timeout=delay_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        return False


def finished_rows(home: Path, study: str) -> list[str]:
    """The whole lines of results.jsonl: launches that were finished."""
    path = home / "studies" / study / "results.jsonl"
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def rows(home: Path, study: str) -> list[dict[str, Any]]:
    text = (home / "studies" / study / "results.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
