"""Servers in containers, started with the docker command in the foreground.

``docker run`` stands for its container: it prints what the engine prints, passes signals on, and
ends with the engine's exit code. So it is watched like any other first process, and the watchdog
ends what a kill of the docker command leaves running: the container, which is the daemon's child
and not ours.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from autotune.base import BadInput, Environment, frozen, run_program
from autotune.engines import Command, EngineCard, Failure, FailureKind

from . import StopReport
from .docker_run import DOCKER_RUN, FILES_FOLDER, docker_card, docker_program, models_folder
from .logs import LogPatterns, known_failure, unknown_exit
from .process import ProcessLauncher, ProcessServer, out_of_main_memory
from .processes import DOCKER_FAILED, LABEL, MARKER, descendants, process_table, remove_container

_NOT_THE_ENGINE = (DOCKER_FAILED, 126, 127)
"""Exit codes of ``docker run`` when Docker failed, at the start or later, and when a program cannot
be run or is not there ("Exit status" of its documentation). A shell that is an image's entry point
says the last two in the same way."""
_INSPECT_S = 10.0


class ContainerServer(ProcessServer):
    """A server in a container of this machine's Docker."""

    _first_pid = 0
    """Process id of the container's first process; 0 until the daemon reports it."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the docker command, and of the container if this machine sees them."""
        if self._report is None:
            self._pids = (*super().pids, *self._container_pids())
        return self._pids

    def _container_pids(self) -> list[int]:
        self._find_first_process()
        table = process_table()
        return (
            sorted({self._first_pid, *descendants(table, [self._first_pid])})
            if self._first_pid in table
            else []
        )

    def _find_first_process(self) -> None:
        self._first_pid = self._first_pid or int(self._inspect("{{.State.Pid}}") or 0)

    def _inspect(self, form: str) -> str:
        """Return the answer of ``docker inspect``; empty for none."""
        request = self._request
        done = run_program(
            [
                request.docker,
                "inspect",
                "--type",
                "container",
                "--format",
                form,
                container_name(request.marker),
            ],
            _INSPECT_S,
            request.env,
        )
        return "" if done.returncode else done.stdout.strip()

    def _port_conflict(self) -> Failure | None:
        # A daemon elsewhere (another machine, a virtual one) does not show its processes: nothing
        # can be said then.
        return super()._port_conflict() if self._container_pids() else None

    def _cause(self) -> Failure | None:
        # Ask in time whether it ever ran: the daemon may be gone later.
        if self._watchdog.exit_code is None:
            self._find_first_process()
        return super()._cause()

    def _explain_exit(self, code: int) -> Failure:
        state = json.loads(self._inspect("{{json .State}}") or "{}")
        if code in _NOT_THE_ENGINE:
            in_log = known_failure(self.log, LogPatterns(docker_card().failures), self.log_offset)
            if in_log is not None:
                return in_log
            started = self._first_pid or not str(state.get("StartedAt", "0001")).startswith("0001")
            failure = unknown_exit(
                self.log, code, "The container" if started else "Docker", self.log_offset
            )
            message = (
                failure.message if started else f"The container did not start. {failure.message}"
            )
            return replace(failure, kind=FailureKind.INFRASTRUCTURE, message=message)
        if state.get("OOMKilled"):
            return out_of_main_memory(
                self.title, f"Docker says OOMKilled of its container (exit code {code})"
            )
        # Codes above 128 are a shell's form of signals.
        return super()._explain_exit(128 - code if 128 < code < 192 else code)

    def _end(self) -> StopReport:
        report = super()._end()
        request = self._request
        # Remove a container that the watchdog does not know of: a daemon that is gone for now may
        # have left it.
        in_doubt = (
            self._watchdog.exit_code == DOCKER_FAILED
            and self._first_pid > 0
            and not report.survivors
        )
        if self._watchdog.ended is not None and not in_doubt:
            return report
        containers = remove_container(
            request.docker, request.marker, request.env, None, self._timeouts.kill_s
        )
        return replace(report, survivors=(*report.survivors, *containers))


@frozen
class DockerLauncher(ProcessLauncher):
    """Start each server by ``docker run`` under a watchdog, on the host's network and a leased
    loopback port.

    Commands carry their container (`docker_run.in_container`). `environment` goes in by name: it
    may hold secrets.
    """

    server: ClassVar[type[ProcessServer]] = ContainerServer

    def _command(
        self, command: Command, environment: Environment, folder: Path, card: EngineCard
    ) -> tuple[list[str], list[str], Environment]:
        """Return ``docker run …`` with a name and a label, without ``--rm``: its end can be
        inspected afterwards."""
        models = Path(models_folder({**os.environ, **command.env}))
        try:
            models.mkdir(parents=True, exist_ok=True)  # Docker would make it as root.
        except OSError as error:
            raise BadInput(
                f"the folder of the models {models} cannot be created ({error.strerror}); set "
                "HF_HOME to a writable folder"
            ) from error
        marker = environment[MARKER]
        words = [docker_program(), "run", "--name", container_name(marker)]
        words += ["--label", f"{LABEL}={marker}"]
        settings = [f"{name}={value}" for name, value in card.serving.environment.items()]
        for setting in (*settings, *self.environment):
            words += ["--env", setting]
        mounts = {
            f"./{name}:{FILES_FOLDER}/{name}:ro": f"{folder / name}:{FILES_FOLDER}/{name}:ro"
            for name in command.files
        }
        words += [mounts.get(word, word) for word in command.container[len(DOCKER_RUN) :]]
        by_name = (*docker_card().variables, *docker_card().where_set)
        passed = {name: os.environ[name] for name in by_name if name in os.environ}
        return words, list(command.argv), {**passed, **self.environment, **command.env}


def container_name(marker: str) -> str:
    return f"autotune-{marker[:16]}"
