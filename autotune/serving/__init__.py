"""How a server comes to live and how it ends. The contract, and the launchers by name.

A launcher starts one server and gives back a `Server`; it knows neither the search nor the load. What the caller
does with one::

    with launcher_for("process").launch(command, folder, card) as server:
        failure = server.wait_ready()
        ...  # load it, asking `failure()` when requests fail
        report = server.stop()

Three kinds of outcome are kept apart:

* a configuration that cannot run is a *value*: `Server.wait_ready` and `Server.failure` give a `trial.Failure`;
* what the user has to put right (a program that is not there, a folder that cannot be written, a URL that does not
  answer, a model that is not served) raises `BadInput` from `Launcher.launch`, before anything was started;
* a server that cannot be ended, or whose port stays taken, is in `StopReport`, with `StopReport.failure` of kind
  ``infrastructure``: it says nothing about the configuration.

This module is imported by the watchdog's helper process, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from autotune.errors import UnknownName
from autotune.trial import Failure, FailureKind

if TYPE_CHECKING:
    from autotune.space.schema import EngineCard
    from autotune.trial import Command

__all__ = ["Grace", "Launcher", "Patience", "Server", "StopReport", "launcher_for"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a start may take. Progress counts, not age.

    Attributes:
        total_s: from launch to the first generated token, whatever the log says. A first start may compile kernels
            for 20 minutes and read 700 GB of weights.
        silence_s: without a new byte in the log. Loading prints each shard, compilation each stage.
    """

    total_s: float = 7200.0
    silence_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Grace:
    """How long processes are given to end: after SIGTERM, and after SIGKILL (a GPU driver can hold one back)."""

    terminate_s: float = 20.0
    kill_s: float = 10.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """What it took to end a server, and the proof that it is gone.

    Attributes:
        seconds: how long it took.
        signals: those that were needed, in order; empty when the server had ended by itself.
        survivors: processes of the launch that still live, as ``pid name (state)``.
        port_free: whether the server's port can be bound again.
    """

    seconds: float = 0.0
    signals: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    port_free: bool = True

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not self.survivors and self.port_free

    def left_behind(self) -> str:
        """Processes that could not be ended, in a sentence; empty when there are none."""
        if not self.survivors:
            return ""
        return (
            f"The server could not be stopped: {', '.join(self.survivors)} outlived SIGKILL after "
            f"{self.seconds:.0f} s. State D is a process held by the GPU driver: reset the GPU or restart the node."
        )

    def failure(self) -> Failure | None:
        """What is left, as an infrastructure failure; None when nothing is."""
        if self.survivors:
            return Failure(FailureKind.INFRASTRUCTURE, self.left_behind())
        if not self.port_free:
            return Failure(FailureKind.INFRASTRUCTURE, "The server is gone, but another process holds its port.")
        return None


class Server(Protocol):
    """One server that was launched. Leaving its ``with`` block stops it."""

    @property
    def url(self) -> str:
        """Where it serves, without a trailing slash and without ``/v1``."""
        ...

    @property
    def model(self) -> str:
        """The name under which the model is served; empty until `wait_ready` succeeded."""
        ...

    @property
    def api_key(self) -> str | None:
        """What it wants of its clients as a bearer token; None when it wants none."""
        ...

    @property
    def secrets(self) -> frozenset[str]:
        """Values that it was given and may repeat, to be masked in whatever it says."""
        ...

    @property
    def emulated(self) -> bool:
        """Whether a server that we did not start says that it stands in for an engine."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes; after the end those seen last. Empty for a server that somebody else runs."""
        ...

    @property
    def log(self) -> Path | None:
        """What it prints; None when it is not ours to read."""
        ...

    def wait_ready(self, patience: Patience = ...) -> Failure | None:
        """Wait until it answers its health check and has generated a token; None when it has."""
        ...

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Why it died; None while it lives. Cheap: may be asked between requests.

        Args:
            within_s: how long to wait for its end, for a caller whose requests have just been cut off.
        """
        ...

    def stop(self) -> StopReport:
        """End it and prove that nothing is left; asking again gives the same report."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Launcher(Protocol):
    """A way to get a server."""

    def launch(self, command: Command, folder: Path, card: EngineCard) -> Server:
        """Start the server of a command.

        Args:
            command: what a person would type; its address is replaced by a leased one.
            folder: the trial's folder, made when it is missing; the server's working folder, with its log.
            card: the engine's; its ``serving`` and ``failures`` sections are used.

        Raises:
            BadInput: the program is not there, the folder cannot be written, or the URL does not answer.
        """
        ...


def launcher_for(
    name: str,
    model: str | None = None,
    grace: Grace | None = None,
    api_key: str | None = None,
    environment: Mapping[str, str] | None = None,
    ports: Sequence[int] | None = None,
) -> Launcher:
    """The launcher of a name: ``process``, ``docker``, or ``external:URL`` for a server that somebody else runs.

    Args:
        model: the name under which an external server must serve the model; None: the first that it serves.
        grace: how long a process is given to end.
        api_key: what an external server wants of its clients.
        environment: of launched servers, besides the inherited one and the command's own.
        ports: those that launched servers may be given; None: `ports.RANGE`.
    """
    kind, _, rest = name.partition(":")
    # Imported here, because the watchdog imports this module and must start at once.
    if kind == "process" and not rest:
        from autotune.serving.process import ProcessLauncher

        return ProcessLauncher(grace or Grace(), environment or {}, ports)
    if kind == "docker" and not rest:
        from autotune.serving.docker import DockerLauncher

        return DockerLauncher(grace or Grace(), environment or {}, ports)
    if kind == "external" and rest:
        from autotune.serving.external import ExternalLauncher

        return ExternalLauncher(rest, model, api_key)
    raise UnknownName("launcher", name, _NAMES)


_NAMES: Sequence[str] = ("process", "docker", "external:URL")
