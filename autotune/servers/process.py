"""Servers as processes of this machine, each under a watchdog, and the launcher that starts
them."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar

from autotune.base import BadInput, Environment, frozen
from autotune.base.child import IMPORT_FOLDER, wait_or_kill
from autotune.engines import Command, EngineCard, Failure, FailureKind
from autotune.engines.library import server_environment, shared_files

from . import ShutdownTimeouts, StopReport
from .command import (
    absolute_paths,
    api_key_of,
    find_program,
    inherited_secrets,
    masked,
    prepare_folder,
    resolve_references,
    with_serving,
)
from .locks import is_held
from .logs import (
    ENDING,
    Progress,
    heartbeats_of,
    known_failure,
    last_line,
    log_problem,
    patterns_of,
    unknown_exit,
)
from .memory_kills import MemoryKills
from .ports import LOOPBACK, PortLease, foreign_listener, is_free, lease_port
from .processes import MARKER, Membership, end
from .server import PATHS, Server, launch_each
from .watchdog import Request, finish_log, remove_temporary

_PORT_S = 2.0
_START_S = 30.0
_LONGEST_TMPDIR = 60
"""Longest TMPDIR: a socket's path has 107 bytes; vLLM's has a folder, a slash and a UUID (36)."""
_LOOK_AT_LOCK_S = 5.0  # Seconds between two looks at a lock that a start waits for
_MARGIN_S = 5.0  # Seconds for the watchdog to answer, and to end on request


class WatchdogClient:
    """A running watchdog and the first process that it started.

    Attributes:
        leader: the first process.
        lost: whether the watchdog has been killed; this and the next as far as `listen` has read.
        exit_code: how the first process ended (negative = by a signal).
        ended: how the watchdog ended everything; None when it has not, or did not report in time.

    Raises:
        BadInput: the program cannot be started, or the watchdog cannot.
    """

    def __init__(self, request: Request, pass_fds: Sequence[int] = ()) -> None:
        self._request = request
        self._received = b""
        self._refusal: str | None = None
        self.lost = False
        self.leader = 0
        self.exit_code: int | None = None
        self.ended: StopReport | None = None
        # Errors of the helper go to the server's log. It starts from this very
        # package, and without `site`, which it does not need.
        with Path(request.log).open("ab") as stream:
            self._helper = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", "autotune.servers.watchdog"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, "PYTHONPATH": IMPORT_FOLDER},
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        self.pid = self._helper.pid
        self._send(asdict(request))
        deadline = monotonic() + _START_S
        while (
            not (self.leader or self._refusal or self.lost)
            and (left_s := deadline - monotonic()) > 0
        ):
            self.listen(left_s)
        if not self.leader:
            self._collect()
            if self._refusal:
                raise BadInput(f"{request.argv[0]} cannot start: {self._refusal}")
            raise BadInput(f"the server's watchdog did not start; see {request.log}")

    def listen(self, seconds: float = 0.0) -> None:
        """Read the watchdog's messages, waiting for one up to this number of seconds."""
        assert self._helper.stdout is not None
        descriptor = self._helper.stdout.fileno()
        if self.lost or not select.select([descriptor], [], [], seconds)[0]:
            return
        data = os.read(descriptor, 65536)
        self.lost = not data
        *lines, self._received = (self._received + data).split(b"\n")
        for message in map(json.loads, lines):
            self.leader = message.get("started", self.leader)
            self._refusal = message.get("refused", self._refusal)
            self.exit_code = message.get("exited", self.exit_code)
            if "ended" in message:
                ended = message["ended"]
                self.ended = StopReport(
                    ended["seconds"], tuple(ended["signals"]), tuple(ended["survivors"])
                )

    def stop(self, timeouts: ShutdownTimeouts) -> StopReport:
        """Terminate all processes through the watchdog, or directly if the watchdog died or is too
        slow."""
        # A container is ended after the command that runs it.
        kills = 2 if self._request.docker else 1
        deadline = monotonic() + timeouts.terminate_s + timeouts.kill_s * kills + _MARGIN_S
        self._send({"stop": asdict(timeouts)})
        while self.ended is None and not self.lost and (left_s := deadline - monotonic()) > 0:
            self.listen(left_s)
        self._collect()
        # The first process is collected now, so that only the marker still tells ours from others.
        members = Membership(self._request.marker)
        if self.ended is not None and (self.ended.survivors or not members.alive()):
            return self.ended
        rest = end(members.alive, timeouts.terminate_s, timeouts.kill_s)
        if self.ended is not None:
            return replace(rest, signals=(*self.ended.signals, *rest.signals))
        finish_log(self._request)
        remove_temporary(self._request)
        return rest

    def _send(self, message: Mapping[str, object]) -> None:
        stdin = self._helper.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            self.lost = True

    def _collect(self) -> None:
        """Release the watchdog; when its pipe closes, it ends all remaining processes."""
        helper = self._helper
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        wait_or_kill(helper, _MARGIN_S)


class ProcessServer(Server):
    """A server that runs as a process group of this machine; it releases `lease` at its end.

    The kernel's counters are read below `root`.
    """

    root: ClassVar[Path] = Path("/")
    log: Path

    def __init__(
        self,
        request: Request,
        lease: PortLease,
        card: EngineCard,
        timeouts: ShutdownTimeouts,
        api_key: str | None,
    ) -> None:
        self._request = request
        self._lease = lease
        self._card = card
        self._timeouts = timeouts
        self._memory_kills = MemoryKills.read(self.root, contained=bool(request.docker))
        self._watchdog = WatchdogClient(request, [lock.fileno() for lock in lease.locks])
        self._members = Membership(request.marker, self._watchdog.leader, self._watchdog.pid)
        self._pids: tuple[int, ...] = (self._watchdog.leader,)
        self._failure: Failure | None = None
        self._report: StopReport | None = None
        self.url = f"http://{LOOPBACK}:{lease.port}"
        self.title = card.title
        self.health = card.serving.health
        self.api_key = api_key
        self.log = Path(request.log)
        self.log_offset = request.log_offset
        self._log_growth = Progress(
            self.log, self.log_offset, (self.health, *PATHS), heartbeats_of(card)
        )
        self._began_s = time.time()
        self._next_look_at_lock_s = 0.0
        self.secrets = frozenset(request.secrets)

    @property
    def pids(self) -> tuple[int, ...]:
        if self._report is None:
            self._pids = tuple(process.pid for process in self._members.alive()) or self._pids
        return self._pids

    def ended(self) -> Failure | None:
        return self.failure()

    def progress(self) -> int:
        return self._log_growth()

    def abandoned(self, silent_s: float) -> Failure | None:
        heartbeat, lock = self._log_growth.waiting or (None, "")
        limit_s = math.inf if heartbeat is None else heartbeat.abandoned_after_s or math.inf
        if silent_s < limit_s or monotonic() < self._next_look_at_lock_s:
            return None
        self._next_look_at_lock_s = monotonic() + _LOOK_AT_LOCK_S
        try:
            status = os.lstat(lock)
        except OSError:
            return None  # Released, or in a container
        # A holder of another user is not seen.
        if os.getuid() not in (0, status.st_uid) or is_held(lock, status):
            return None
        message = (
            f"{self.title} waits for the lock file {lock}, which no process holds: a process that was "
            "killed left it behind. Remove it."
        )
        lasting = status.st_mtime < self._began_s
        return Failure(FailureKind.INFRASTRUCTURE, message, lasting=lasting)

    def pause(self, seconds: float) -> None:
        self._watchdog.listen(seconds)

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """See `Server.failure`; None after `stop`, unless it had died before."""
        deadline = monotonic() + within_s
        while self._failure is None and self._report is None:
            self._watchdog.listen(max(0.0, deadline - monotonic()))
            self._failure = masked(self._cause(), self.secrets)
            if monotonic() >= deadline:
                break
        return self._failure

    def stop(self) -> StopReport:
        if self._report is None:
            began = monotonic()
            self._pids = self.pids
            self.failure()
            report = self._end()
            deadline = monotonic() + _PORT_S
            while not (port_free := is_free(self._lease.port)) and monotonic() < deadline:
                time.sleep(0.05)
            self._lease.close()
            self._report = replace(report, seconds=monotonic() - began, port_free=port_free)
        return self._report

    def _end(self) -> StopReport:
        return self._watchdog.stop(self._timeouts)

    def _cause(self) -> Failure | None:
        if self._watchdog.exit_code is not None:
            return self._explain_exit(self._watchdog.exit_code)
        if self._watchdog.lost:
            return Failure(
                FailureKind.INFRASTRUCTURE,
                "Another process killed the server's watchdog, and the kernel ended the server with it.",
            )
        # A server that serves may go on without its log; one that starts can no more be understood.
        return None if self.served or self.log.exists() else self._failure_in_log()

    def _failure_in_log(self, killed: bool = False) -> Failure | None:
        """Find the cause in the log, or the reason why the server could not write it.

        An error of a request, from which a server recovers, is no cause of a `killed` one's end.
        """
        patterns = patterns_of(self._card)
        if killed and self.served:
            patterns = patterns.strong()
        in_log = known_failure(self.log, patterns, self.log_offset, self.served)
        if in_log is None and (problem := log_problem(self.log)):
            message = f"The state of {self.title} is unknown: {problem}."
            return Failure(FailureKind.INFRASTRUCTURE, message)
        return in_log

    def _explain_exit(self, code: int) -> Failure:
        in_log = self._failure_in_log(killed=-code in ENDING)
        if in_log is not None:
            return in_log
        failure = unknown_exit(self.log, code, self.title, self.log_offset, self.served)
        # vLLM ends with 0 when the kernel has killed its engine (findings/).
        if code not in (0, -signal.SIGKILL) or not self._memory_kills.since:
            return failure
        return out_of_main_memory(
            self.title,
            f"the kernel ended {self._memory_kills.since} processes to free memory (oom_kill in "
            f"{self._memory_kills.path})",
            failure.log_excerpt,
        )

    def _port_conflict(self) -> Failure | None:
        if not foreign_listener(self._lease.port, lambda: self.pids):
            return None
        message = f"Another process listens on port {self._lease.port}, which was leased to this server; try again."
        return Failure(FailureKind.PORT, message)

    def _timeout(self, message: str) -> Failure:
        """Explain a hanging start by its log, if the log has the cause."""
        in_log = self._failure_in_log()
        if in_log is not None:
            return replace(in_log, message=f"{in_log.message} ({message})")
        last = last_line(self.log, self.log_offset)
        last_words = f"Its last line: {last}" if last else "Its log is empty."
        return Failure(FailureKind.TIMEOUT, f"{message} {last_words}", last, unexplained=True)


@frozen
class ProcessLauncher:
    """Start servers, each in its own process session, under a watchdog, on a leased loopback
    port.

    They inherit this process's environment; without `all_inherited` only what no study records.
    """

    timeouts: ShutdownTimeouts = field(default_factory=ShutdownTimeouts)
    environment: Environment = field(default_factory=dict, repr=False)
    ports: Sequence[int] | None = None
    all_inherited: bool = True
    server: ClassVar[type[ProcessServer]] = ProcessServer

    def launch(self, command: Command, folder: Path, card: EngineCard) -> Server:
        """Start the server of a command, as a person would type it, in a folder with its log; its
        address is replaced. Further servers get ``server-1`` … in it.

        Returns as soon as their processes run. Raises `BadInput`, with all servers ended: the
        program is not there, or the folder cannot be written.
        """
        return launch_each(command, folder, partial(self._launch_one, card=card))

    def _launch_one(self, command: Command, folder: Path, card: EngineCard) -> ProcessServer:
        command, secrets = resolve_references(command, os.environ)
        folder = folder.absolute()
        marker = uuid.uuid4().hex
        # setproctitle, with which engines name their workers, overwrites the environment block that
        # holds the marker, unless it is told not to (https://github.com/dvarrazzo/py-setproctitle,
        # SPT_NOENV).
        ours = {"SPT_NOENV": "1", MARKER: marker, **self.environment}
        inherited = server_environment().inheritable(os.environ, all_recorded=self.all_inherited)
        environment = {**inherited, **card.serving.environment, **command.env, **ours}
        front, argv, engine_environment = self._command(command, environment, folder, card)
        log = prepare_folder(folder, command.files)
        api_key = api_key_of(command.argv, engine_environment, card.serving)
        lease = lease_port(
            self.ports, [*card.serving.derived_ports, *card.serving.port_flags.values()]
        )
        temporary = os.path.join(tempfile.gettempdir(), f"autotune-{marker[:12]}")
        if front or "TMPDIR" in command.env or len(temporary) > _LONGEST_TMPDIR:
            temporary = ""
        else:
            environment["TMPDIR"] = temporary
        request = Request(
            argv=[*front, *with_serving(argv, card.serving, LOOPBACK, lease.port)],
            env=environment,
            folder=str(folder),
            log=str(log),
            log_offset=log.stat().st_size,
            marker=marker,
            tuner=os.getpid(),
            docker=front[0] if front else "",
            secrets=sorted(secrets | inherited_secrets(environment)),
            temporary=temporary,
            shared_memory=[
                one.pattern for one in (*card.serving.shared_memory, *shared_files().shared_memory)
            ],
            locks=[one.pattern for one in (*card.serving.locks, *shared_files().locks)],
        )
        try:
            return self.server(request, lease, card, self.timeouts, api_key)
        except BaseException:
            lease.close()
            raise

    def _command(
        self, command: Command, environment: Environment, folder: Path, card: EngineCard
    ) -> tuple[list[str], list[str], Environment]:
        """Return the words of the docker command, the engine's own command, and its variables;
        raises `BadInput`."""
        program = find_program(command.argv[0], environment, card.title)
        return [], [program, *absolute_paths(command.argv[1:], command.files)], environment


def out_of_main_memory(title: str, proof: str, log_excerpt: str = "") -> Failure:
    """Describe a server's end by a lack of the machine's memory, with its proof."""
    message = (
        f"{title} ended because the machine's memory was used up: {proof}. This is not GPU memory: "
        "use less main memory, or give the machine or its container more."
    )
    return Failure(FailureKind.OUT_OF_MEMORY, message, log_excerpt)
