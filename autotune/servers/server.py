"""A server and its start, observed by progress: health check, served model, one generated token.

Beside it `Replicas`, several servers that share a load, and `ExternalServer`, which somebody else
runs: it is asked, loaded, and left alone.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Self

import httpx

from autotune.engines import Command, Failure, FailureKind
from autotune.load.client.stream import whole_answer
from autotune.load.client.target import Target
from autotune.load.server_client import ServerClient, http_client, served_models

from . import StartupTimeouts, StopReport
from .command import masked
from .visible import among_visible

_POLL_S = (0.05, 0.5)
"""First and longest pause between two polls; it grows because most starts take minutes."""
_ANSWER_S = 5.0
_EXTERNAL_ANSWER_S = 10.0
_MOST_BROKEN = 10  # Consecutive answers with a server error after which a start has failed
PATHS = ("/v1/models", "/v1/completions")
"""Requested paths in addition to the health check."""
_LATER = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY, httpx.codes.TOO_MANY_REQUESTS)


class Server(ABC):
    """One launched server. Leaving its ``with`` block stops it.

    Attributes:
        url: where it serves, without a trailing slash and without ``/v1``.
        model: the name under which the model is served; empty until `wait_ready` succeeded.
        title: the engine's, for messages.
        health: path of the health check.
        api_key: the bearer token that it wants of its clients; None when it wants none.
        secrets: values that it was given and may repeat, to be masked in whatever it prints.
        emulated: whether a server that we did not start says that it stands in for an engine.
        log: the file of what it prints; None when that is not ours to read.
        log_offset: bytes that the log held before this launch.
        generated: whether it has generated a token.
        served: whether it has been found ready.
    """

    url: str
    title: str
    health: str
    model: str = ""
    api_key: str | None = None
    secrets: frozenset[str] = frozenset()
    emulated: bool = False
    log: Path | None = None
    log_offset: int = 0
    generated = False
    served = False
    _broken_answers = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the server; after its end the last known ones. Empty for an external
        server."""
        return ()

    def wait_ready(self, timeouts: StartupTimeouts) -> Failure | None:
        """Wait until the server answers its health check and has generated a token; None on
        success."""
        return wait_all([self], timeouts)

    @property
    def target(self) -> Target:
        """Where requests are sent to, and with which key."""
        return Target.parse(self.url, self.api_key)

    def client(self) -> httpx.Client:
        """Make a client of this server."""
        return http_client(httpx.Client, self.target, _ANSWER_S)

    def look(self, client: httpx.Client, clock: Clock) -> Failure | None:
        """Check whether it is ready, and set `generated`; returns why it never will be."""
        problem = "" if self.generated else clock.problem(self.progress())
        failure = self.ended() or (self._timeout(f"{self.title} {problem}.") if problem else None)
        failure = failure or self.abandoned(clock.silent_s())
        if failure is not None or self.generated:
            return failure
        try:
            healthy = client.get(self.health, timeout=min(_ANSWER_S, clock.left_s())).is_success
        except httpx.TransportError:
            return None
        return self._port_conflict() or self._generate(client, clock.left_s()) if healthy else None

    @abstractmethod
    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Explain why the server died; None while it lives. Cheap: may be called between requests.

        `within_s` waits so long for its end, for a caller whose requests have just been cut off.
        """

    @abstractmethod
    def stop(self) -> StopReport:
        """End the server and prove that nothing is left; a second call returns the same report."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ended(self) -> Failure | None:
        """Explain why it has ended; None while it lives, if that is visible."""
        return None

    def progress(self) -> int:
        """Return a number that grows as the start advances, e.g. the bytes of its log."""
        return 0

    def abandoned(self, silent_s: float) -> Failure | None:
        """Explain what a start without progress for so long waits for in vain; None if it is not
        known to."""
        return None

    def pause(self, seconds: float) -> None:
        """Wait up to this number of seconds, or until an event of the server."""
        time.sleep(seconds)

    def _port_conflict(self) -> Failure | None:
        """Explain another process's answer on its port; None if it is the server itself."""
        return None

    def _timeout(self, message: str) -> Failure:
        return Failure(FailureKind.TIMEOUT, message)

    def _generate(self, client: httpx.Client, left_s: float) -> Failure | None:
        """Request one token, which proves that it serves; a failure for a permanent refusal."""
        try:
            model = (
                self.model
                or (served_models(client.get(PATHS[0], timeout=min(_ANSWER_S, left_s))) or [""])[0]
            )
            if not model:
                return None
            answer = client.post(
                "/v1/completions",
                json={"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0},
                timeout=left_s,
            )
        except httpx.TransportError:
            return None
        outcome, usage = whole_answer(answer.content)
        # A token's text may be empty.
        if answer.is_success and outcome.ok and (usage is None or usage[1] > 0):
            self.model = model
            self.generated = True
        broken = answer.is_server_error and answer.status_code != httpx.codes.SERVICE_UNAVAILABLE
        self._broken_answers = self._broken_answers + 1 if broken else 0
        refused = answer.is_client_error and answer.status_code not in _LATER
        if not refused and self._broken_answers < _MOST_BROKEN:
            return None
        reason = " ".join(answer.text.split())[:300]
        message = f"{self.title} is up but refuses a request for one token: HTTP {answer.status_code} {reason}"
        return Failure(FailureKind.LOAD_ERRORS, message, reason)


class Clock:
    """Time limits of a start: in total, and without progress."""

    def __init__(self, timeouts: StartupTimeouts, progress: int) -> None:
        self._timeouts = timeouts
        self._seen = progress
        self._began = self._last_progress = monotonic()

    def problem(self, progress: int) -> str:
        """Describe the exceeded time limit, after the server's title; empty for none."""
        now = monotonic()
        limits = self._timeouts
        if progress != self._seen:
            self._seen = progress
            self._last_progress = now
        if now - self._began > limits.total_s:
            return f"was not ready after {limits.total_s:g} s"
        if now - self._last_progress > limits.silence_s:
            return f"printed nothing for {limits.silence_s:g} s that was new, and was not ready"
        return ""

    def silent_s(self) -> float:
        """Return the seconds since the last progress."""
        return monotonic() - self._last_progress

    def left_s(self) -> float:
        """Return the time limit of an answer, at least a moment."""
        total_ends = self._began + self._timeouts.total_s
        silence_ends = self._last_progress + self._timeouts.silence_s
        return max(0.1, min(total_ends, silence_ends) - monotonic())


def wait_all(servers: Sequence[Server], timeouts: StartupTimeouts) -> Failure | None:
    """Wait until all servers are ready; returns why the first of them never will be, or None."""
    pause_s = _POLL_S[0]
    with ExitStack() as stack:
        starting = [
            (server, stack.enter_context(server.client()), Clock(timeouts, server.progress()))
            for server in servers
        ]
        while True:
            failures = [
                masked(failure, server.secrets)
                for server, client, clock in starting
                if (failure := server.look(client, clock))
            ]
            waiting = [server for server in servers if not server.generated]
            if failures or not waiting:
                break
            waiting[0].pause(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])
    # A first process that ended while its children answered is no server that can be relied on.
    failures = failures or [failure for server in servers if (failure := server.ended())]
    for server in servers:
        server.served = not failures
    return next(iter(failures), None)


class Replicas(Server):
    """Several servers of one launch: ready when all are, ended when one dies, and stopped together.

    To whoever loads them they are one server with several addresses, which `url` lists. What an
    engine says of itself is asked of the first one, whose folder and log are the launch's.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        first = servers[0]
        self._servers = servers
        self.url = ",".join(server.url for server in servers)
        self.title = first.title
        self.health = first.health
        self.api_key = first.api_key
        self.secrets = frozenset().union(*(server.secrets for server in servers))
        self.log = first.log
        self.log_offset = first.log_offset

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(pid for server in self._servers for pid in server.pids)

    def wait_ready(self, timeouts: StartupTimeouts) -> Failure | None:
        failure = wait_all(self._servers, timeouts)
        self.model = self._servers[0].model
        return failure

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Explain why the first dead server died."""
        deadline = monotonic() + within_s
        while True:
            for number, server in enumerate(self._servers):
                if failure := server.failure():
                    return replace(
                        failure,
                        message=f"Server {number} of {len(self._servers)}: {failure.message}",
                    )
            if monotonic() >= deadline:
                return None
            time.sleep(_POLL_S[0])

    def stop(self) -> StopReport:
        """Stop all at the same time; the report covers all of them."""
        with ThreadPoolExecutor(len(self._servers)) as pool:
            reports = list(pool.map(lambda server: server.stop(), self._servers))
        return StopReport(
            max(report.seconds for report in reports),
            tuple(dict.fromkeys(signal for report in reports for signal in report.signals)),
            tuple(survivor for report in reports for survivor in report.survivors),
            all(report.port_free for report in reports),
        )


def launch_each(
    command: Command, folder: Path, launch_one: Callable[[Command, Path], Server]
) -> Server:
    """Start each server of a command, the first one in a folder, others in ``server-1`` … in it.

    Where one cannot be started, the others are stopped.
    """
    if not command.servers:
        return launch_one(command, folder)
    servers = []
    try:
        for number, own in enumerate(command.servers):
            one = replace(command, env={**command.env, **among_visible(own)})
            place = folder / f"server-{number}" if number else folder
            servers.append(launch_one(one, place))
    except BaseException:
        if servers:
            Replicas(servers).stop()
        raise
    return Replicas(servers)


def connect(url: str, names: Sequence[str], api_key: str | None = None) -> ExternalServer:
    """Check that a server answers at the user's URL and serves the model of these names; raises
    `BadInput` if not."""
    target = Target.parse(url, api_key)
    with ServerClient(target, _EXTERNAL_ANSWER_S) as client:
        name, root = client.served_as(names)
        server = ExternalServer(target, name)
        server.root = root
        server.emulated = client.emulated()
        server.owner = client.owner()
        answer = client.get_json("/version")
        if isinstance(answer, dict):
            server.version = str(answer.get("version", ""))
    return server


class ExternalServer(Server):
    """A server known by its URL and the engine's name in its model list. `stop` leaves it running.

    `root` is the model behind the served name, and `version` the engine's, as far as the server
    tells them.
    """

    owner: str = ""
    root: str = ""
    version: str = ""
    # A gateway may have no health check, but it has served its models a moment ago.
    health = PATHS[0]

    def __init__(self, target: Target, model: str) -> None:
        self.url = self.title = target.url
        self.model = model
        self.api_key = target.api_key
        if target.api_key is not None:
            self.secrets = frozenset({target.api_key})

    def wait_ready(self, timeouts: StartupTimeouts) -> Failure | None:
        """Wait as `Server` does; without a log the shorter timeout applies."""
        return super().wait_ready(
            StartupTimeouts(min(timeouts.total_s, timeouts.silence_s), math.inf)
        )

    def failure(self, within_s: float = 0.0) -> Failure | None:
        """Send one request; a failure if it is not answered."""
        try:
            with self.client() as client:
                client.get(PATHS[0], timeout=max(_EXTERNAL_ANSWER_S, within_s))
        except httpx.TransportError as error:
            message = f"{self.url} no longer answers ({error or type(error).__name__})."
            return Failure(FailureKind.INFRASTRUCTURE, message)
        return None

    def stop(self) -> StopReport:
        """Leave the server running."""
        return StopReport()
