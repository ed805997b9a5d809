"""Processes and container of one launch: find them all, and end them. Linux, standard library only.

A process belongs to a launch by any of three signs, each of which another program can lose but not
all three:

* the marker, a unique value of `MARKER` in the environment that it was started with (kept through
  ``setsid`` and double forks; lost when a program overwrites its environment block to change its
  title);
* the session or group of the launch's first process (kept when the environment is overwritten; lost
  by ``setsid``);
* descent from the watchdog, to which the kernel gives every orphan of the launch
  (`PR_SET_CHILD_SUBREAPER`).

A container is no child of ours: only the Docker daemon can end it. It is found by the label that
its launch gave it, a value that no other container has. Nothing is ever chosen by its name.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

from autotune.base import Environment, Strings, by_key, frozen, run_program

from . import StopReport

MARKER = "AUTOTUNE_LAUNCH"
"""Environment variable that every process of a launch inherits."""

LABEL = "autotune.serving"
DOCKER_FAILED = 125
"""Exit code of ``docker run`` when Docker itself failed."""
_DOCKER_POLL_S = 0.1
_SETTLE_S = 0.3  # Seconds in which the daemon may still process a request of a killed client

_PROC = Path("/proc")
_POLL_S = 0.05


@frozen
class Process:
    """One line of the process table.

    Attributes:
        state: ``R``, ``S``, ``D`` (cannot be killed until a driver answers), ``Z`` (ended, not yet
            collected) …
        threads: a ``Z`` with more than one thread still lives: only its first thread has ended.
    """

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    threads: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX" or self.threads > 1

    def __str__(self) -> str:
        return f"{self.pid} {self.name} ({self.state})"


@frozen
class Membership:
    """Signs of a process that belongs to one launch.

    Attributes:
        marker: the value of `MARKER`.
        leader: the launch's first process, which leads its session; 0 = do not look at sessions.
            Only valid while that process is not collected, as its number could be another's
            afterwards.
        ancestor: the watchdog; 0 = do not look at descent.
    """

    marker: str
    leader: int = 0
    ancestor: int = 0

    def alive(self) -> list[Process]:
        """List the living members, without the watchdog and the caller."""
        table = process_table()
        members = (
            {pid for pid in table if self.leader in (table[pid].session, table[pid].group)}
            if self.leader
            else set()
        )
        members |= {pid for pid in table if pid not in members and is_marked(pid, self.marker)}
        roots = {*members, self.ancestor} if self.ancestor else members
        members |= descendants(table, roots)
        return [
            table[pid] for pid in sorted(members - {self.ancestor, os.getpid()}) if table[pid].alive
        ]


def all_pids() -> set[int]:
    """List every process of the machine."""
    return {int(entry) for entry in os.listdir(_PROC) if entry.isdecimal()}


def process_table() -> dict[int, Process]:
    """Read every process of the machine, by its number."""
    processes = map(read_process, all_pids())
    return {process.pid: process for process in processes if process is not None}


Identity = tuple[int, int]
"""Device and inode: a name may be given to another file, these may not while the file exists."""


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def open_files(pids: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield each open file of processes (proc(5)): its link in ``/proc``, and its path; none of
    other users' processes."""
    for pid in pids:
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                link = f"/proc/{pid}/fd/{number}"
                with suppress(OSError):
                    yield link, os.readlink(link)


def read_process(pid: int) -> Process | None:
    """Read one process; None if it is gone. The name is in parentheses and may hold any
    character."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    state, parent, group, session, threads = fields[0], *(int(fields[i]) for i in (1, 2, 3, 17))
    return Process(pid, name, state, parent, group, session, threads)


def is_marked(pid: int, marker: str) -> bool:
    """Return whether a process was started with this marker; False for other users', which are not
    readable."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{MARKER}={marker}".encode() in environment.split(b"\0")


def descendants(table: dict[int, Process], roots: Collection[int]) -> set[int]:
    """Find the children of these processes, their children, and so on."""
    children = by_key((process.parent, process.pid) for process in table.values())
    reached: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in reached:
                reached.add(child)
                waiting.append(child)
    return reached


def end(
    alive: Callable[[], list[Process]],
    terminate_s: float,
    kill_s: float,
    pause: Callable[[float], object] = time.sleep,
) -> StopReport:
    """Send each living member SIGTERM, wait, then SIGKILL; `pause` returns True if there is no time
    for grace."""
    began = monotonic()
    signals = []
    living = alive()
    for number, limit_s in ((signal.SIGTERM, terminate_s), (signal.SIGKILL, kill_s)):
        if not living:
            break
        signals.append(number.name)
        deadline = monotonic() + limit_s
        signalled = set()
        while living:
            for process in living:
                if process.pid not in signalled:
                    signalled.add(process.pid)
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, number)
            hurry = pause(_POLL_S)
            living = alive()
            if monotonic() >= deadline or (hurry and number is signal.SIGTERM):
                break
    return StopReport(
        monotonic() - began, tuple(signals), tuple(str(process) for process in living)
    )


def remove_container(
    docker: str, marker: str, environment: Environment, exit_code: int | None, limit_s: float
) -> Strings:
    """End and remove the containers of a launch, in `limit_s` seconds; returns the remaining ones.

    The environment says where the daemon is. `exit_code` is that of the launch's docker command,
    None where that had to be ended. A Docker that does not answer is one entry.
    """
    deadline = monotonic() + limit_s
    listing = ["ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={marker}"]
    # A docker command that ended by itself has no request under way.
    was_empty = exit_code is not None
    was_listed = False
    while True:
        listed = run_program([docker, *listing], max(1.0, deadline - monotonic()), environment)
        ids = None if listed.returncode else listed.stdout.split()
        if ids == [] and was_empty:
            return ()
        was_listed = was_listed or bool(ids)
        if monotonic() >= deadline:
            if ids is None and exit_code == DOCKER_FAILED and not was_listed:
                # A daemon that is silent for so long did not answer at the start either.
                return ()
            names = (f"container {identity[:12]}" for identity in ids or ())
            return ("its container (Docker does not answer)",) if ids is None else tuple(names)
        if ids:
            run_program(
                [docker, "rm", "--force", "--volumes", *ids],
                deadline - monotonic(),
                environment,
            )
        was_empty = ids == []
        time.sleep(_SETTLE_S if was_empty else _DOCKER_POLL_S)
