"""Ending the container of one launch. It is no child of ours: only the Docker daemon can end it.

Chosen by the label that its launch gave it, a value that no other container has; never by name or image. The watchdog
imports this: standard library only.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

LABEL = "autotune.serving"
DOCKER_FAILED = 125
"""Exit code of ``docker run`` when Docker itself failed."""
_POLL_S = 0.1
_SETTLE_S = 0.3
"""The daemon may still be at work on a request whose client has just been killed."""


@dataclass(frozen=True, slots=True)
class Contained:
    """The container of one launch, as whoever has to end it knows it.

    Attributes:
        docker: path of the docker command.
        environment: of the docker command; says where the daemon is.
    """

    docker: str
    marker: str
    environment: Mapping[str, str]


def remove_container(launch: Contained, exit_code: int | None, limit_s: float) -> tuple[str, ...]:
    """End and remove the containers of a launch.

    Args:
        exit_code: with which its docker command ended by itself; None when it had to be ended.

    Returns:
        What is left after `limit_s` seconds; empty = nothing. One entry also when Docker does not answer.
    """
    deadline = time.monotonic() + limit_s
    # What has ended by itself has no request under way.
    was_empty = exit_code is not None
    seen = False
    while True:
        found = containers(launch, max(1.0, deadline - time.monotonic()))
        if found == [] and was_empty:
            return ()
        seen = seen or bool(found)
        if time.monotonic() >= deadline:
            if found is None and exit_code == DOCKER_FAILED and not seen:
                return ()  # A daemon that has not answered for so long did not answer at the start either.
            return ("its container (Docker does not answer)",) if found is None else _named(found)
        if found:
            _ask([launch.docker, "rm", "--force", "--volumes", *found], launch, deadline - time.monotonic())
        was_empty = found == []
        time.sleep(_SETTLE_S if was_empty else _POLL_S)


def containers(launch: Contained, limit_s: float) -> list[str] | None:
    """The ids of a launch's containers, also of those that have ended; None when Docker does not answer."""
    listing = [launch.docker, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={launch.marker}"]
    said = _ask(listing, launch, limit_s)
    return None if said is None else said.split()


def _named(found: list[str]) -> tuple[str, ...]:
    return tuple(f"container {identity[:12]}" for identity in found)


def _ask(argv: list[str], launch: Contained, limit_s: float) -> str | None:
    """What a command printed; None when it failed or did not answer in time."""
    try:
        done = subprocess.run(
            argv,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=max(0.1, limit_s),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
