"""Child processes: their import path, their end with the parent, and programs that are run to
completion.

Standard library only.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from .values import StringMap

IMPORT_FOLDER = str(Path(__file__).resolve().parents[2])
"""``PYTHONPATH`` of a child that must run this very package."""

Environment = StringMap
"""Environment variables."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork: a child between fork and exec must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Make the kernel send this process SIGKILL when its parent ends (prctl(2),
    ``PR_SET_PDEATHSIG``)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every orphan among this process's descendants (prctl(2),
    ``PR_SET_CHILD_SUBREAPER``)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_python(
    words: Sequence[str], fds: Sequence[int], environment: Environment
) -> subprocess.Popen[bytes]:
    """Start this Python with ends of pipes, in its own group: Ctrl-C does not reach it, the parent
    decides.

    With ``-P``: a folder that happens to be the current one must not put its own modules in front.
    """
    command = [sys.executable, "-P", *words]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environment)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_or_kill(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for the end of a process that was asked to end; kill it after the time limit."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_program(
    argv: Sequence[str],
    limit_s: float,
    environment: Environment | None = None,
    folder: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; after the time limit, kill it and its children.

    Its output goes to files: a child of its own that kept a pipe open would keep us waiting beyond
    the time. The exit code is 126 where it cannot be started and 124 where it did not answer in
    time; ``stderr`` says so.
    """
    with _memory_file("stdout") as out, _memory_file("stderr") as err:
        try:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return subprocess.CompletedProcess(
                argv, 126, "", f"{argv[0]} cannot start: {error.strerror}"
            )
        with process:
            try:
                code = process.wait(max(0.1, limit_s))
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    return subprocess.CompletedProcess(
                        argv, 124, "", f"it did not answer within {limit_s:g} s"
                    )
                raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(argv, code, out.read(), err.read())


def _memory_file(name: str) -> TextIO:
    return open(os.memfd_create(name), "w+", encoding="utf-8", errors="replace")
