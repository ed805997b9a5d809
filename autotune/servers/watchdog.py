"""Helper process that starts a server and ends it when the tuner asks or dies.

``python -m autotune.servers.watchdog``, started by `process.WatchdogClient`.

It is the server's parent, in a session of its own, and the kernel hands it every orphan of the
launch, so no member escapes it by forking away. The tuner holds a pipe to its standard input: a
line asks for something, the pipe's end means that the tuner is gone, by ``kill -9`` too. As a
forked child of the tuner could hold the pipe open, the tuner's own process is watched as well.
Should the watchdog itself be killed, the kernel kills the server's first process, and the tuner,
which reads the watchdog's standard output, ends the rest.

Tuner to watchdog, one JSON object per line: a `Request`, later ``{"stop": {"terminate_s": …,
"kill_s": …}}``. Watchdog to tuner: ``{"started": pid}`` or ``{"refused": reason}``, then
``{"exited": code}`` (negative = signal) when the first process ends, and ``{"ended": …}``, a
`StopReport`, as its last word. Before that it ends the server's container, where it has one,
removes the shared memory (`shared_memory`) and the temporary files that the server left, cuts a log
that is too long, and masks the secrets that stand in it. Standard library only: it starts with
every server and must never be the thing that is slow.

A server may print gigabytes. While it writes, the disk gets the middle of its log back and every
byte keeps its place: nothing stands between the server and its log. On a file system that cannot do
so (fallocate(2), ``FALLOC_FL_PUNCH_HOLE``) the log grows until the server has ended.
"""

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from autotune.base import FloatDict, StringDict, frozen
from autotune.base.child import adopt_orphans, die_with_parent

from . import StopReport
from .locks import LeftLocks
from .processes import Membership, end, process_table, remove_container
from .shared_memory import LeftMemory, kept_line

_TICK_S = 0.5
_LONGEST_LOOK_S = 60.0
"""Longest pause between looks at the server's shared memory: engines create theirs as they start."""
_ORPHAN_GRACE_S = (
    1.5  # Seconds for a server without a tuner: shorter, as its last requests are not needed
)
_KILL_S = 10.0
_MASK_BLOCK_BYTES = 2**20
_OPEN_FILES = 65535
"""Limit of open files: as vLLM and SGLang raise it (set_ulimit); some programs slow down with a
billion."""
_SHORTEST_SECRET = 4  # Least length of a masked secret: shorter values occur everywhere
END_BYTES = 32 * 2**20
"""Bytes stored of each end of a log: the start explains a failed start, the end a crash under
load."""
_LINE_BYTES = 2**16  # Bytes up to which a line stays whole at the cut of a log; a longer one is cut
_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_LIBC = ctypes.CDLL(None)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


@frozen
class Request:
    """The tuner's request to start a server.

    Attributes:
        env: the whole environment, the marker (`processes.MARKER`) included.
        log: where both output streams are appended, or standard error alone, behind `log_offset`
            bytes.
        tuner: process whose death ends the server.
        docker: path of the docker command, where it runs the server; empty for a process.
        secrets: values that the server was given, to be masked in its log.
        temporary: folder for its temporary files, made for it and removed when it has ended; empty:
            none.
        output: file for standard output; empty: the log.
        shared_memory: regular expressions of the names that the server gives to its files in
            ``/dev/shm``.
        locks: regular expressions of the paths of lock files that it may leave.
    """

    argv: list[str]
    env: StringDict
    folder: str
    log: str
    log_offset: int
    marker: str
    tuner: int
    docker: str = ""
    secrets: list[str] = field(default_factory=list, repr=False)
    temporary: str = ""
    output: str = ""
    shared_memory: list[str] = field(default_factory=list)
    locks: list[str] = field(default_factory=list)


class Watchdog:
    """Watch one server, from its start to the proof of its end."""

    def __init__(self, request: Request, received: bytes = b"") -> None:
        self._request = request
        self._input = received
        self._abandoned = False
        self._exit_code: int | None = None
        self._stop: FloatDict | None = None
        self._shared_memory = LeftMemory(request.shared_memory, request.argv, request.env)
        self._locks = LeftLocks(request.locks, bool(request.docker))
        self._look_s = (monotonic(), _TICK_S)
        # Becomes readable when a child ends.
        self._wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._abandon)
        self._leader = 0

    def run(self) -> None:
        """Start the server, watch it, end it, and report to the tuner."""
        request = self._request
        if os.getppid() != request.tuner:
            return
        try:
            self._leader = _start(request)
        except OSError as error:
            remove_temporary(request)
            _tell(refused=error.strerror or str(error))
            return
        _tell(started=self._leader)
        while self._stop is None and not self._abandoned:
            self._wait(_TICK_S)
            self._notice_exit()
            self._look()
        report = self._end()
        # First, as TMPDIR may lie in /dev/shm, too.
        remove_temporary(request)
        log = Path(request.log)
        append_line(log, kept_line(self._shared_memory.remove()))
        append_line(log, kept_line(self._locks.remove(log), "locks left behind"))
        # Collect all ended processes, the first one too: not every init does so at once.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        finish_log(request)
        _tell(ended=asdict(report))

    def _end(self) -> StopReport:
        request = self._request
        limits = self._stop or {}
        terminate_s = limits.get("terminate_s", _ORPHAN_GRACE_S)
        if self._abandoned:
            terminate_s = _ORPHAN_GRACE_S
        members = self._members()
        by_itself = self._exit_code
        self._look_at_files()
        kill_s = limits.get("kill_s", _KILL_S)
        report = end(members.alive, terminate_s, kill_s, self._pause)
        if not request.docker:
            return report
        # The docker command is ended; it has passed SIGTERM on to the container, but cannot pass on
        # SIGKILL.
        containers = remove_container(
            request.docker, request.marker, request.env, by_itself, kill_s
        )
        return replace(report, survivors=(*report.survivors, *containers))

    def _look(self) -> None:
        """Record the server's shared memory and locks: after its death the owner is unknown."""
        last_s, pause_s = self._look_s
        if monotonic() - last_s >= pause_s:
            self._look_at_files()
            self._look_s = (monotonic(), min(2 * pause_s, _LONGEST_LOOK_S))

    def _look_at_files(self) -> None:
        self._shared_memory.look(self._pids)
        self._locks.look(self._pids())

    def _pids(self) -> list[int]:
        return [process.pid for process in self._members().alive()]

    def _members(self) -> Membership:
        return Membership(self._request.marker, self._leader, os.getpid())

    def _pause(self, seconds: float) -> bool:
        """Wait; returns True if the tuner died while its server was being stopped."""
        deadline = monotonic() + seconds
        while not self._abandoned and (left_s := deadline - monotonic()) > 0:
            self._wait(left_s)
        if self._abandoned:
            time.sleep(max(0.0, deadline - monotonic()))
        self._notice_exit()
        # An abandoned server had its own, shorter grace from the start.
        return self._abandoned and self._stop is not None

    def _wait(self, seconds: float) -> None:
        ready, _, _ = select.select([sys.stdin.fileno(), self._wake], [], [], seconds)
        if self._wake in ready:
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            for process in process_table().values():
                if (
                    process.parent == os.getpid()
                    and process.pid != self._leader
                    and process.state == "Z"
                ):
                    with suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)
        if sys.stdin.fileno() in ready:
            data = os.read(sys.stdin.fileno(), 65536)
            self._abandoned = self._abandoned or not data
            *lines, self._input = (self._input + data).split(b"\n")
            for line in lines:
                self._stop = json.loads(line)["stop"]
        # The kernel gives an orphan another parent the moment its parent ends.
        self._abandoned = self._abandoned or os.getppid() != self._request.tuner
        free_middle(Path(self._request.log), self._request.log_offset)

    def _notice_exit(self) -> None:
        """Report once how the first process ended, without reaping it: its number must not be
        reused."""
        if self._exit_code is not None:
            return
        status = os.waitid(os.P_PID, self._leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is not None:
            self._exit_code = (
                status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
            )
            _tell(exited=self._exit_code)

    def _abandon(self, *_: object) -> None:
        self._abandoned = True


def _start(request: Request) -> int:
    """Start the server's first process in its own session; raises ``OSError``."""

    def before_exec() -> None:
        # Restore the signals that the watchdog ignores: ignored ones outlive exec.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        # Login shells allow 1024, and trtllm-serve raises no limit of its own: a thousand streams
        # would be too many.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        open_files = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < open_files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, hard))
        die_with_parent()

    adopt_orphans()
    if request.temporary:
        Path(request.temporary).mkdir(0o700, exist_ok=True)
    with (
        Path(request.log).open("ab") as log,
        Path(request.output or request.log).open("ab") as output,
    ):
        # One thread lives here, so a hook between fork and exec is safe.
        server = subprocess.Popen(
            request.argv,
            cwd=request.folder,
            env=request.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            start_new_session=True,
            preexec_fn=before_exec,
        )
    # From here on it is collected by number; Popen would complain of a child that it thinks
    # running.
    server.returncode = 0
    return server.pid


def remove_temporary(request: Request) -> None:
    """Remove the folder for a server's temporary files, which was made for it alone."""
    if request.temporary:
        shutil.rmtree(request.temporary, ignore_errors=True)


def append_line(log: Path, line: str) -> None:
    """Add a line of ours to a log, on a line of its own; nothing for an empty line or a log that is
    not writable."""
    if not line:
        return
    with suppress(OSError), log.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        is_complete = file.read() in (b"", b"\n")
        file.write(("" if is_complete else "\n").encode() + line.encode(errors="replace") + b"\n")


def finish_log(request: Request) -> None:
    """Cut a log that is no longer written if it is too long, and mask the secrets in this launch's
    part of it."""
    path = Path(request.log)
    cut_middle(path, request.log_offset)
    mask_file(path, request.secrets, request.log_offset)


def mask_file(path: Path, secrets: Iterable[str], offset: int = 0) -> None:
    """Overwrite each secret in a file from `offset` on in place, byte for byte; ignores a missing
    file."""
    values = sorted(
        {secret.encode() for secret in secrets if len(secret) >= _SHORTEST_SECRET},
        key=len,
        reverse=True,
    )
    if not values:
        return
    overlap = len(values[0]) - 1
    with suppress(OSError), path.open("r+b") as file:
        while True:
            file.seek(offset)
            block = file.read(_MASK_BLOCK_BYTES + overlap)
            masked = block
            for value in values:
                masked = masked.replace(value, b"REDACTED".ljust(len(value), b"*")[: len(value)])
            if masked != block:
                file.seek(offset)
                file.write(masked)
            if len(block) <= _MASK_BLOCK_BYTES:
                return
            offset += _MASK_BLOCK_BYTES


def free_middle(path: Path, offset: int = 0, end_bytes: int = END_BYTES) -> None:
    """Free the disk space of the middle of a log that a server writes; it then reads as zeros.

    The first `offset` bytes, which the log held before this launch, are left.
    """
    with suppress(OSError), path.open("r+b") as file:
        begin = offset + end_bytes
        stop = os.fstat(file.fileno()).st_size - end_bytes
        if stop > begin:
            _LIBC.fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, begin, stop - begin)


def cut_middle(path: Path, offset: int = 0, end_bytes: int = END_BYTES) -> None:
    """Replace a log's middle by one line after its last write."""
    with suppress(OSError), path.open("r+b") as file:
        cut = _cut(file, offset, end_bytes)
        if cut is not None:
            begin, rest = cut
            file.seek(begin)
            file.write(rest)
            file.truncate()


def read_ends(path: Path, end_bytes: int) -> bytes:
    """Read a log with one line in place of its middle; raises ``OSError``."""
    with path.open("rb") as file:
        cut = _cut(file, 0, end_bytes)
        file.seek(0)
        return file.read() if cut is None else file.read(cut[0]) + cut[1]


def _cut(file: BinaryIO, offset: int, end_bytes: int) -> tuple[int, bytes] | None:
    """Return where the middle begins, and a line about it with the end after it; None for a short
    log.

    The cut is between lines: a secret that is known by half could not be masked.
    """
    size = os.fstat(file.fileno()).st_size
    begin = offset + end_bytes
    resume = size - end_bytes
    if resume <= begin:
        return None
    near = min(_LINE_BYTES, end_bytes)
    file.seek(begin - near)
    begin -= len(file.read(near).rpartition(b"\n")[2])
    file.seek(resume)
    tail = file.read(end_bytes)
    first = tail[:near].find(b"\n") + 1 or near
    line = (
        f"[autotune: {resume + first - begin:,} bytes omitted between the first and the last "
        f"{end_bytes:,}]\n"
    )
    return begin, line.encode() + tail[first:]


def _tell(**message: object) -> None:
    with suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def main() -> None:
    """Read one `Request` and execute it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    received = b""
    while b"\n" not in received:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            return  # The tuner died before it had asked for anything.
        received += data
    line, _, rest = received.partition(b"\n")
    Watchdog(Request(**json.loads(line)), rest).run()


if __name__ == "__main__":
    main()
