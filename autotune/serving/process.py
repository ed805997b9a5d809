"""Servers as processes of this machine."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from autotune import redact
from autotune.serving import Grace, Patience, StopReport
from autotune.serving.command import anchored, environment_of, find_program, prepare_folder, with_serving
from autotune.serving.logs import Progress, known_failure, last_line, patterns_of, trouble_with, unknown_exit
from autotune.serving.masking import mask_file
from autotune.serving.ports import LOOPBACK, PortLease, is_free, lease_port, strangers_on
from autotune.serving.processes import Ending, Membership, end
from autotune.serving.readiness import PATHS, Readiness, Watched, authorization
from autotune.serving.secrets import api_key_of, filled, secret_values
from autotune.serving.watchdog import Request
from autotune.serving.watchdog_client import Guard
from autotune.space.schema import EngineCard
from autotune.trial import Command, Failure, FailureKind

_PORT_S = 2.0


@dataclass(frozen=True, slots=True)
class ProcessLauncher:
    """Starts each server in a session of its own, under a watchdog, on a leased loopback port.

    Attributes:
        environment: what servers get besides the inherited environment and the command's own; may hold secrets.
        ports: those to choose from.
    """

    grace: Grace = field(default_factory=Grace)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: Sequence[int] | None = None

    def launch(self, command: Command, folder: Path, card: EngineCard) -> ProcessServer:
        """See `Launcher.launch`; returns as soon as the server's process runs."""
        marker = uuid.uuid4().hex
        asked, command = command, filled(command, os.environ)
        environment = {**environment_of(command, card.serving, marker), **self.environment}
        program = find_program(command.argv[0], environment, card.title)
        arguments = anchored(command.argv[1:], command.files)
        folder = folder.absolute()
        log = prepare_folder(folder, command.files)
        secrets = secret_values(asked, command, environment)
        key = api_key_of(command.argv, environment, card.serving)
        origin = Origin(card, log, log.stat().st_size, marker, self.grace, frozenset(secrets), key)
        lease = lease_port(self.ports)
        try:
            argv = with_serving((program, *arguments), card.serving, LOOPBACK, lease.port)
            request = Request(
                list(argv), environment, str(folder), str(log), marker, os.getpid(), secrets=sorted(secrets)
            )
            return ProcessServer(Guard(request, [lease.lock.fileno()]), lease, origin)
        except BaseException:
            lease.release()
            raise


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server comes from.

    Attributes:
        log_offset: bytes that the log held before this launch.
        marker: see `processes.MARKER`.
        secrets: values that its messages must not hold.
        api_key: what it wants of its clients.
    """

    card: EngineCard
    log: Path
    log_offset: int
    marker: str
    grace: Grace
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    api_key: str | None = field(default=None, repr=False)


class ProcessServer:
    """A server that runs as a process group of this machine; see `Server`."""

    emulated = False

    def __init__(self, guard: Guard, lease: PortLease, origin: Origin) -> None:
        self._guard, self._lease, self._origin = guard, lease, origin
        self._members = Membership(origin.marker, guard.leader, guard.pid)
        self._pids: tuple[int, ...] = (guard.leader,)
        self._failure: Failure | None = None
        self._report: StopReport | None = None
        self._model = ""
        self._served = False

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._lease.port}"

    @property
    def model(self) -> str:
        return self._model

    @property
    def api_key(self) -> str | None:
        return self._origin.api_key

    @property
    def secrets(self) -> frozenset[str]:
        return self._origin.secrets

    @property
    def pids(self) -> tuple[int, ...]:
        if self._report is None:
            alive = tuple(process.pid for process in self._members.alive())
            self._pids = alive or self._pids
        return self._pids

    @property
    def log(self) -> Path:
        return self._origin.log

    def wait_ready(self, patience: Patience = Patience()) -> Failure | None:  # noqa: B008
        """See `Server.wait_ready`. A start that hangs is explained by its log, where the log knows the cause."""
        card = self._origin.card
        progress = Progress(self._origin.log, self._origin.log_offset, (card.serving.health, *PATHS))
        watched = Watched(card.title, card.serving.health, self.failure, progress, self._guard.listen, self._stranger)
        with httpx.Client(base_url=self.url, headers=authorization(self.api_key), trust_env=False) as client:
            readiness = Readiness(client, watched, patience)
            failure = readiness.wait()
        self._model, self._served = readiness.model, failure is None
        if failure is not None and failure.kind is FailureKind.TIMEOUT:
            failure = self._explain_hang(failure)
        return self._masked(failure)

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """See `Server.failure`; None after `stop`, unless it had died before."""
        deadline = time.monotonic() + within_s
        while self._failure is None and self._report is None:
            self._guard.listen(max(0.0, deadline - time.monotonic()))
            self._failure = self._masked(self._cause())
            if time.monotonic() >= deadline:
                break
        return self._failure

    def stop(self) -> StopReport:
        """See `Server.stop`."""
        if self._report is None:
            began = time.monotonic()
            self._pids = self.pids
            self.failure()
            ending = self._end()
            port_free = self._port_is_free()
            self._lease.release()
            self._report = StopReport(time.monotonic() - began, ending.signals, ending.survivors, port_free)
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self) -> Ending:
        """Ask the watchdog; look again without it, and do what it left or could not do because it was killed."""
        grace = self._origin.grace
        ending = self._guard.stop(grace)
        # The first process is collected now, so that only the marker still tells ours from others.
        members = Membership(self._origin.marker)
        if ending is not None and (ending.survivors or not members.alive()):
            return ending
        rest = end(members.alive, grace.terminate_s, grace.kill_s)
        if ending is None:
            mask_file(self._origin.log, self._origin.secrets, self._origin.log_offset)
        return Ending(rest.seconds, (*(ending.signals if ending else ()), *rest.signals), rest.survivors)

    def _port_is_free(self) -> bool:
        deadline = time.monotonic() + _PORT_S
        while not (free := is_free(self._lease.port)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return free

    def _cause(self) -> Failure | None:
        if self._guard.exit_code is not None:
            return self._explain_exit(self._guard.exit_code)
        if self._guard.lost:
            message = (
                "Somebody ended the process that watches over the server, and the kernel ended the server with it."
            )
            return Failure(FailureKind.INFRASTRUCTURE, message)
        # A server that serves may go on without its log; one that starts can no more be understood.
        return None if self._served or self._origin.log.exists() else self._told()

    def _told(self) -> Failure | None:
        """What its log says, or what kept it from saying anything."""
        origin = self._origin
        known = known_failure(origin.log, patterns_of(origin.card), origin.log_offset, self._served)
        if known is None and (trouble := trouble_with(origin.log)):
            message = f"Nobody can tell what {origin.card.title} did: {trouble}."
            return Failure(FailureKind.INFRASTRUCTURE, message)
        return known

    def _explain_exit(self, code: int) -> Failure:
        origin = self._origin
        return self._told() or unknown_exit(origin.log, code, origin.card.title, origin.log_offset)

    def _masked(self, failure: Failure | None) -> Failure | None:
        """A failure quotes the log, where a server may have repeated what it was given."""
        if failure is None:
            return None
        secrets = self._origin.secrets
        said, line = redact.text(failure.message, secrets), redact.text(failure.log_excerpt, secrets)
        return replace(failure, message=said, log_excerpt=line)

    def _stranger(self) -> Failure | None:
        if not strangers_on(self._lease.port, lambda: self.pids):
            return None
        message = f"Another process listens on port {self._lease.port}, which was leased to this server; try again."
        return Failure(FailureKind.PORT, message)

    def _explain_hang(self, failure: Failure) -> Failure:
        origin = self._origin
        known = self._told()
        if known is not None:
            return replace(known, message=f"{known.message} ({failure.message})")
        last = last_line(origin.log, origin.log_offset)
        said = f"Its last line: {last}" if last else "Its log is empty."
        return Failure(failure.kind, f"{failure.message} {said}", last)
