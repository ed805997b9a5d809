"""Servers in containers, by the docker command in the foreground.

``docker run`` stands for its container: it prints what the engine prints, passes signals on, and ends with the engine's
exit code. So it is watched like any other first process, and the watchdog ends what a kill of the docker command leaves
running: the container, which is the daemon's child and not ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import BadInput
from autotune.serving import Grace
from autotune.serving.command import environment_of, prepare_folder, with_serving
from autotune.serving.docker_engine import docker_program
from autotune.serving.docker_run import PLACE, RUN, docker_card, models_folder
from autotune.serving.logs import Signs, known_failure, unknown_exit
from autotune.serving.ports import LOOPBACK, PortLease, lease_port
from autotune.serving.process import Origin, ProcessServer
from autotune.serving.processes import Ending, descendants, process_table
from autotune.serving.removal import DOCKER_FAILED, LABEL, Contained, remove_container
from autotune.serving.secrets import api_key_of, filled, secret_values
from autotune.serving.watchdog import Request
from autotune.serving.watchdog_client import Guard
from autotune.space.schema import EngineCard
from autotune.trial import Command, Failure, FailureKind

_NOT_THE_ENGINE = (DOCKER_FAILED, 126, 127)
"""Exit codes of ``docker run`` when Docker failed, at the start or later, and when a program cannot be run or is not
there ("Exit status" of its documentation). A shell that is an image's entry point says the last two in the same way."""
_INSPECT_S = 10.0


@dataclass(frozen=True, slots=True)
class DockerLauncher:
    """Starts each server by ``docker run`` under a watchdog, on the host's network and a leased loopback port.

    Attributes:
        environment: what servers get besides the command's own; may hold secrets, so it goes in by name.
        ports: those to choose from.
    """

    grace: Grace = field(default_factory=Grace)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: Sequence[int] | None = None

    def launch(self, command: Command, folder: Path, card: EngineCard) -> ContainerServer:
        """See `Launcher.launch`; returns as soon as the docker command runs.

        Args:
            command: with its container, see `docker_run.in_container`.
        """
        marker, docker = uuid.uuid4().hex, docker_program()
        asked, command = command, filled(command, os.environ)
        environment = {**environment_of(command, card.serving, marker), **self.environment}
        folder = folder.absolute()
        log = prepare_folder(folder, command.files)
        _make_models_folder({**os.environ, **command.env})
        secrets = secret_values(asked, command, environment)
        key = api_key_of(command.argv, self._inside(command), card.serving)
        origin = Origin(card, log, log.stat().st_size, marker, self.grace, frozenset(secrets), key)
        lease = lease_port(self.ports)
        try:
            engine = with_serving(command.argv, card.serving, LOOPBACK, lease.port)
            argv = [docker, *self._run_words(command, marker, folder, card), *engine]
            place = (environment, str(folder), str(log), marker)
            request = Request(argv, *place, os.getpid(), docker, sorted(secrets))
            return ContainerServer(Guard(request, [lease.lock.fileno()]), lease, origin, request)
        except BaseException:
            lease.release()
            raise

    def _inside(self, command: Command) -> dict[str, str]:
        """The variables that the container has, as far as they come from here."""
        passed = {name: os.environ[name] for name in docker_card().variables if name in os.environ}
        return {**passed, **self.environment, **command.env}

    def _run_words(self, command: Command, marker: str, folder: Path, card: EngineCard) -> Iterator[str]:
        """``run …`` as it is launched: kept after its end, so that it can be asked how it ended; findable; in place."""
        yield from ("run", "--name", container_name(marker), "--label", f"{LABEL}={marker}")
        for name, value in card.serving.environment.items():
            yield from ("--env", f"{name}={value}")
        for name in self.environment:
            yield from ("--env", name)
        mounts = {f"./{name}:{PLACE}/{name}:ro": f"{folder / name}:{PLACE}/{name}:ro" for name in command.files}
        yield from (mounts.get(word, word) for word in command.container[len(RUN) :])


def _make_models_folder(environment: Mapping[str, str]) -> None:
    """Docker would make a missing folder as root."""
    folder = Path(models_folder(environment))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"the folder of the models {folder} cannot be made ({error.strerror}); set HF_HOME to a folder that can be "
            "written"
        ) from error


def container_name(marker: str) -> str:
    """How a launch's container is called."""
    return f"autotune-{marker[:16]}"


class ContainerServer(ProcessServer):
    """A server in a container of this machine's Docker; see `Server`."""

    def __init__(self, guard: Guard, lease: PortLease, origin: Origin, request: Request) -> None:
        super().__init__(guard, lease, origin)
        self._request = request
        self._first = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The docker command's, and the container's where this machine sees them."""
        if self._report is None:
            self._pids = (*super().pids, *self._inside())
        return self._pids

    def _inside(self) -> list[int]:
        self._look()
        table = process_table()
        return sorted({self._first, *descendants(table, [self._first])}) if self._first in table else []

    def _look(self) -> None:
        self._first = self._first or int(self._state("{{.State.Pid}}") or 0)

    def _state(self, form: str) -> str:
        """What ``docker inspect`` says of the container; empty when it says nothing."""
        argv = [self._request.docker, "inspect", "--type", "container", "--format", form]
        try:
            done = subprocess.run(
                [*argv, container_name(self._origin.marker)],
                env=self._request.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INSPECT_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    def _stranger(self) -> Failure | None:
        # A daemon elsewhere (another machine, a virtual one) does not show its processes: nothing can be said then.
        return super()._stranger() if self._inside() else None

    def _cause(self) -> Failure | None:
        # Whether it has ever been there cannot be asked any more once the daemon is gone.
        if self._guard.exit_code is None:
            self._look()
        return super()._cause()

    def _explain_exit(self, code: int) -> Failure:
        origin, state = self._origin, json.loads(self._state("{{json .State}}") or "{}")
        if code in _NOT_THE_ENGINE:
            return self._docker_failure(code, str(state.get("StartedAt", "0001")))
        if state.get("OOMKilled"):
            message = (
                f"{origin.card.title} ended because its container used up the machine's memory (OOMKilled, exit code "
                f"{code}). Not the GPU's memory: keep less in main memory, or give the machine or Docker more."
            )
            return Failure(FailureKind.OUT_OF_MEMORY, message)
        # The shell's way to say that a signal ended it.
        signal_or_code = 128 - code if 128 < code < 192 else code
        return super()._explain_exit(signal_or_code)

    def _docker_failure(self, code: int, started_at: str) -> Failure:
        origin = self._origin
        known = known_failure(origin.log, Signs(docker_card().failures), origin.log_offset)
        if known is not None:
            return known
        if self._first or not started_at.startswith("0001"):
            told = unknown_exit(origin.log, code, "The container", origin.log_offset)
            return Failure(FailureKind.INFRASTRUCTURE, told.message, told.log_excerpt)
        told = unknown_exit(origin.log, code, "Docker", origin.log_offset)
        message = f"The container did not start. {told.message}"
        return Failure(FailureKind.INFRASTRUCTURE, message, told.log_excerpt)

    def _end(self) -> Ending:
        ending = super()._end()
        # The watchdog does not know that there was a container, which a daemon that is gone for now may have left.
        in_doubt = self._guard.exit_code == DOCKER_FAILED and self._first > 0 and not ending.survivors
        if self._guard.ended is not None and not in_doubt:
            return ending
        contained = Contained(self._request.docker, self._request.marker, self._request.env)
        left = remove_container(contained, None, self._origin.grace.kill_s)
        return Ending(ending.seconds, ending.signals, (*ending.survivors, *left))
