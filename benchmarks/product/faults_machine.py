"""What a campaign of faults does to this machine: its clocks, its disk, and processes of its own.
Linux.

Real faults where they can be had without harm to others: a disk is a memory file system of the
campaign's own mount namespace, which needs root; clocks and a slow disk are put in by
`faults_clock.c` before the C library, which needs a compiler. What this machine cannot do is
missing from `Machine.can`, and the campaign says so.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import mmap
import os
import pty
import resource
import runpy
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from autotune.base.child import adopt_orphans

TOKEN = "FAULTS_STUDY"
"""Environment variable by which everything that a study's tuners start is found again."""
_SOURCE = Path(__file__).with_name("faults_clock.c")
_LOADED = "FAULTS_CLOCK"
_ROOM = "4g"
_MODULES = [
    *("autotune.cli.main", "autotune.run", "autotune.cli.studies", "autotune.cli.tuning"),
    *("autotune.tuner.backends.simulator", "autotune.tuner.backends.servers"),
    *("autotune.outputs.report.draw", "autotune.outputs.report.render"),
    *(
        "autotune.outputs.tracking.runs",
        "pyarrow.parquet",
        "scipy.stats",
        "mlflow.store.tracking.sqlalchemy_store",
    ),
]
"""What a tuner loads; a campaign loads it once."""

TUNERS: set[int] = set()


def now() -> float:
    """Seconds on a clock that no fault moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clocks:
    """The clocks and the disk of all that the campaign starts; see `faults_clock.c`."""

    def __init__(self, path: str | None) -> None:
        self._page: mmap.mmap | None = None
        if path is not None:
            with open(path, "r+b") as file:
                self._page = mmap.mmap(file.fileno(), 24)
        self._values = [0, 0, 0]

    def reset(self) -> None:
        self._set(0, 0, 0)

    def jump(self, wall_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        """Set the wall clock forward or back, and the monotonic one forward."""
        wall, monotonic, fsync = self._values
        self._set(wall + int(wall_s * 1e9), monotonic + int(monotonic_s * 1e9), fsync)

    @contextmanager
    def slow_disk(self, seconds: float) -> Iterator[None]:
        """Every fsync takes so much longer."""
        self._set(*self._values[:2], int(seconds * 1e6))
        try:
            yield
        finally:
            self._set(*self._values[:2], 0)

    def _set(self, *values: int) -> None:
        self._values = list(values)
        if self._page is not None:
            self._page[:] = struct.pack("qqq", *values)


@dataclass
class Machine:
    """The campaign's machine.

    Attributes:
        folder: of the campaign; on a disk of its own where ``disk`` is in `can`.
        can: ``disk``: fill it up and make it read-only; ``clock``: set clocks, make the disk slow.
    """

    folder: Path
    clocks: Clocks
    can: frozenset[str]

    @contextmanager
    def room(self, left_bytes: int) -> Iterator[None]:
        """The disk has only so much room left."""
        for last in (False,) * 9 + (True,):
            used = shutil.disk_usage(self.folder).used
            # Less than is used is refused, and the study goes on writing.
            if _mount("-o", f"remount,size={used + left_bytes}", self.folder, check=last):
                break
        try:
            yield
        finally:
            _mount("-o", f"remount,size={_ROOM}", self.folder)

    @contextmanager
    def read_only(self, folder: Path) -> Iterator[None]:
        """Nothing below a folder can be opened for writing; what is open stays so."""
        _mount("--bind", folder, folder)
        try:
            _mount("-o", "remount,bind,ro", folder)
            yield
        finally:
            # It has gone already where a folder above it was made writable again.
            subprocess.run(["umount", "--lazy", folder], capture_output=True)


def _mount(*words: str | Path, check: bool = True) -> bool:
    return subprocess.run(["mount", *words], check=check, capture_output=True).returncode == 0


def prepare(folder: Path) -> Machine:
    """Start this program again in a mount namespace and with the clocks in our hands, then load a
    tuner's modules."""
    folder.mkdir(parents=True, exist_ok=True)
    if "FAULTS_BEGUN" not in os.environ:
        _begin_again(folder)
    can = set()
    if os.environ["FAULTS_BEGUN"] == "mounts":
        _mount("-t", "tmpfs", "-o", f"size={_ROOM}", "faults", folder)
        can.add("disk")
    if _LOADED in os.environ:
        can.add("clock")
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return Machine(folder, Clocks(os.environ.get(_LOADED)), frozenset(can))


def _begin_again(folder: Path) -> NoReturn:
    environment = {**os.environ, "FAULTS_BEGUN": "plain", "HF_HUB_OFFLINE": "1"}
    # Servers start three times as fast with what Python keeps of their modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, *sys.argv]
    unshare = ["unshare", "--mount", "--propagation", "private"]
    with suppress(OSError):
        if not subprocess.run(
            [*unshare, "mount", "-t", "tmpfs", "probe", folder], capture_output=True
        ).returncode:
            environment["FAULTS_BEGUN"], words = "mounts", [*unshare, *words]
    with suppress(OSError, subprocess.CalledProcessError):
        # Kept for as long as the machine is up: processes of the campaign have it in memory.
        library = (
            Path(tempfile.gettempdir())
            / f"faults-clock-{os.getuid()}-{int(_SOURCE.stat().st_mtime)}.so"
        )
        if not library.exists():
            draft = library.with_suffix(f".{os.getpid()}")
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O2", "-o", draft, _SOURCE, "-ldl"], check=True
            )
            draft.replace(library)
        page = os.memfd_create("clock")
        os.write(page, bytes(24))
        os.set_inheritable(page, True)
        environment |= {_LOADED: f"/proc/{os.getpid()}/fd/{page}", "LD_PRELOAD": str(library)}
    sys.stdout.flush()
    os.execvpe(words[0], words, environment)


@dataclass
class Tuner:
    """A command line in a process of its own, forked from one that has its modules loaded.

    Args:
        arguments: of ``autotune``.
        said: file that takes what it says.
        terminal: whether it runs on a terminal; see `hang_up`.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    said: Path
    terminal: bool = False
    pid: int = 0
    code: int | None = None
    _master: int = field(default=-1, repr=False)

    def __post_init__(self) -> None:
        self._master, slave = pty.openpty() if self.terminal else (-1, -1)
        self.pid = os.fork()
        if not self.pid:
            self._become(slave)
        TUNERS.add(self.pid)
        if self.terminal:
            os.close(slave)
            os.set_blocking(self._master, False)

    def _become(self, slave: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            output = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            if self.terminal:
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
                os.close(self._master)
                output = slave
            for standard in (1, 2):
                os.dup2(output, standard)
            os.dup2(slave if self.terminal else os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.clear()
            os.environ.update(self.environment)
            sys.argv = ["autotune", *self.arguments]
            runpy.run_module("autotune", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                threading._shutdown()  # type: ignore[attr-defined]
                atexit._run_exitfuncs()
                sys.stdout.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.terminal:
            self._drain()
        if self.code is None:
            with suppress(ChildProcessError):
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if ended else None
            if self.code is not None:
                self.hang_up()
        return self.code

    def _drain(self) -> None:
        while self._master >= 0:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            with self.said.open("ab") as file:
                file.write(data)

    def hang_up(self) -> None:
        """Let its terminal vanish."""
        if self._master >= 0:
            self._drain()
            os.close(self._master)
            self._master = -1

    def wait(self, seconds: float) -> int | None:
        """The exit code, None when it still runs after so many seconds."""
        until = now() + seconds
        while self.poll() is None and now() < until:
            time.sleep(0.02)
        return self.code

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(20.0)


def limit_memory_of(pid: int, more_bytes: int) -> None:
    """A process gets no more memory than so much more than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


def processes_of(token: str) -> dict[int, str]:
    """The command lines of living processes that were started with a token in their environment, by
    number."""
    mark, found = f"{TOKEN}={token}".encode(), {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with suppress(OSError):
            folder = Path("/proc", entry)
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(entry)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def reap() -> None:
    """Collect the orphans that have ended; the tuners collect themselves."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) not in TUNERS and _is_our_zombie(entry):
            with suppress(ChildProcessError):
                os.waitpid(int(entry), os.WNOHANG)


def _is_our_zombie(pid: str) -> bool:
    with suppress(OSError):
        state, parent = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[:2]
        return state == "Z" and int(parent) == os.getpid()
    return False
