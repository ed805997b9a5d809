"""Several servers of one launch: ready when all are, over when one dies, and stopped together.

To whoever loads them they are one server with several addresses. What an engine says of itself is asked of the first
one, whose folder and log are the launch's; each other one has a folder of its own in that, ``server-1`` and so on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from autotune.errors import BadInput
from autotune.serving import StartupTimeouts, StopReport
from autotune.serving.preflight import VISIBLE
from autotune.serving.process import ProcessLauncher
from autotune.serving.server import Server, wait_all
from autotune.space.schema import EngineCard
from autotune.trial import Command, Failure

_POLL_S = 0.05


class Replicas(Server):
    """Servers that share a load; `url` has all their addresses."""

    def __init__(self, servers: Sequence[Server]) -> None:
        first, self._servers = servers[0], servers
        self.url = ",".join(server.url for server in servers)
        self.title, self.health, self.api_key = first.title, first.health, first.api_key
        self.secrets = frozenset().union(*(server.secrets for server in servers))
        self.log, self.log_offset = first.log, first.log_offset

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of all servers."""
        return tuple(pid for server in self._servers for pid in server.pids)

    def wait_ready(self, timeouts: StartupTimeouts = StartupTimeouts()) -> Failure | None:  # noqa: B008
        """See `Server.wait_ready`."""
        failure = wait_all(self._servers, timeouts)
        self.model = self._servers[0].model
        return failure

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Explain why the first of them that died did."""
        deadline = time.monotonic() + within_s
        while True:
            for number, server in enumerate(self._servers):
                if failure := server.failure():
                    return replace(failure, message=f"Server {number} of {len(self._servers)}: {failure.message}")
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)

    def stop(self) -> StopReport:
        """End all at the same time; nothing is left when nothing is left of any."""
        with ThreadPoolExecutor(len(self._servers)) as pool:
            reports = list(pool.map(lambda server: server.stop(), self._servers))
        return StopReport(
            max(report.seconds for report in reports),
            tuple(dict.fromkeys(signal for report in reports for signal in report.signals)),
            tuple(survivor for report in reports for survivor in report.survivors),
            all(report.port_free for report in reports),
        )


def launch_all(launcher: ProcessLauncher, command: Command, folder: Path, card: EngineCard) -> Server:
    """Start every server of a command; raises as `ProcessLauncher.launch` does, with none of them left."""
    if not command.servers:
        return launcher.launch(command, folder, card)
    servers: list[Server] = []
    try:
        for number, own in enumerate(command.servers):
            one = replace(command, env={**command.env, **among_visible(own)}, servers=())
            servers.append(launcher.launch(one, folder / f"server-{number}" if number else folder, card))
    except BaseException:
        if servers:
            Replicas(servers).stop()
        raise
    return Replicas(servers)


def among_visible(own: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Name a server's GPUs, counted from 0, as the machine does where this process may see some of them only."""
    variable = next((name for name in VISIBLE if environment.get(name)), None)
    if variable is None or not own:
        return dict(own)
    visible, (numbers,) = environment[variable].split(","), own.values()
    places = [int(number) for number in numbers.split(",")]
    if max(places) >= len(visible):
        raise BadInput(f"{variable}={environment[variable]} shows {len(visible)} GPUs, and GPU {max(places)} is needed")
    return {variable: ",".join(visible[place].strip() for place in places)}
