"""Leases of ports: two tuners on one machine never get the same one.

A lease is a bound socket in Linux's abstract namespace, named after the port. Unlike a lock file it
lives exactly where ports live (one namespace per network namespace: containers that share ``/tmp``
but no network do not disturb each other, those that share the network do), belongs to no user, and
goes when the last process that holds it goes. The watchdog holds it too, so that a lease ends with
the server and not with a tuner that was killed.
"""

import errno
import os
import random
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from autotune.base import BadInput, frozen

LOOPBACK = "127.0.0.1"
RANGE = range(20000, 32000)
"""Port range below Linux's ephemeral ports (from 32768), which outgoing connections use."""


class NoFreePort(BadInput):
    """Every leasable port is in use."""


@frozen
class PortLease:
    """A port, and others at fixed distances, held until `close`."""

    port: int
    locks: tuple[socket.socket, ...]

    def close(self) -> None:
        """Release them; may be called again."""
        for lock in self.locks:
            lock.close()


def lease_port(ports: Iterable[int] | None = None, besides: Iterable[int] = ()) -> PortLease:
    """Lease the first free port, and others at fixed distances; raises `NoFreePort` for none."""
    distances = (0, *besides)
    if ports is None:
        # Use the system's randomness: tuners started together with one seed must not queue for the
        # same ports.
        start = random.SystemRandom().randrange(len(RANGE))
        ports = [*RANGE[start:], *RANGE[:start]]
    candidates = list(ports)
    for port in candidates:
        locks = _locks([port + distance for distance in distances])
        if locks is not None:
            return PortLease(port, locks)
    raise NoFreePort(
        f"none of {len(candidates)} ports ({min(candidates, default=0)} to "
        f"{max(candidates, default=0)}) is free; end the servers that hold them"
    )


def is_free(port: int) -> bool:
    """Return whether a server could listen on a loopback port now; lingering connections do not
    count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _locks(ports: Iterable[int]) -> tuple[socket.socket, ...] | None:
    """Lock ports that are free; None, with none of them locked, if one is not."""
    with ExitStack() as held:
        locks = []
        for port in ports:
            locks.append(held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
            try:
                locks[-1].bind(f"\0autotune-port-{port}")
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return None
                raise
            if not is_free(port):
                return None
        held.pop_all()
        return tuple(locks)


def foreign_listener(port: int, members: Callable[[], Iterable[int]]) -> bool:
    """Return whether a process other than these visibly listens on a port of this machine.

    Several processes may listen on one port (``SO_REUSEPORT``, which vLLM sets), and the answers of
    a foreign one would be taken for the server's.
    """
    listening = _listening(port)
    # Ask for the members afterwards: a worker that began to listen in between is among them.
    for pid in members():
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    listening -= set(
                        re.findall(r"^socket:\[(\d+)\]$", os.readlink(f"{folder}/{name}"))
                    )
        except PermissionError:
            return False
        except OSError:
            continue
    return bool(listening)


_LOCAL = ("00000000", "0100007F", "0" * 32, "0" * 24 + "01000000")
_LISTEN = "0A"


def _listening(port: int) -> set[str]:
    """List the inodes of sockets that listen on a port at a local or any address
    (``/proc/net/tcp``, proc(5))."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (Path("/proc/net") / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTEN and address in _LOCAL and int(number, 16) == port:
                inodes.add(fields[9])
    return inodes
