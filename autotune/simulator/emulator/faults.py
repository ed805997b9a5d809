"""What goes wrong on request, for tests of those who start and load servers.

``NAME`` or ``NAME:VALUE``, several separated by commas; from ``--fault`` and the variable ``AUTOTUNE_EMULATE_FAULT``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.errors import BadInput, UnknownName

VARIABLE = "AUTOTUNE_EMULATE_FAULT"

FAULTS: Mapping[str, tuple[str, float]] = {
    "die-at-start": ("a traceback and exit code 1 after so large a share of the shards", 0.5),
    "hang-at-start": ("silent for ever after so large a share of the shards", 0.5),
    "die-mid-load": ("a traceback and exit code 1 after so many generated tokens", 200),
    "unavailable-bursts": ("503 to everything for a quarter of every so many seconds", 2),
    "close-mid-stream": ("every so many-th stream is closed after three tokens", 10),
    "ignore-sigterm": ("SIGTERM does nothing", 0),
    "fork-away": ("a process of its own session holds the port for at most so many seconds", 300),
    "late-bind": ("ready by its log, but nobody listens for so many seconds", 2),
    "slow-start": ("the start takes so many times as long", 5),
}
"""Name to what happens and the value when none is given."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults that were asked for, by name."""

    values: Mapping[str, float] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, otherwise: float) -> float:
        """A fault's value; `otherwise` when it was not asked for."""
        return self.values.get(name, otherwise)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read ``NAME[:VALUE],…``; raises `UnknownName` or `BadInput`."""
        values: dict[str, float] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, colon, value = part.partition(":")
            if name not in FAULTS:
                raise UnknownName("fault", name, FAULTS)
            try:
                values[name] = float(value) if colon else FAULTS[name][1]
            except ValueError as error:
                raise BadInput(f"--fault {part}: {FAULTS[name][0]}; {value!r} is not a number") from error
        return cls(values)

    @classmethod
    def asked(cls, option: str | None) -> Faults:
        """What the option says, else what the environment says."""
        return cls.parse(option if option is not None else os.environ.get(VARIABLE, ""))


def leave_a_grandchild(lifetime_s: float) -> int:
    """Start a process in a session of its own that inherits the open sockets and outlives us; returns its pid.

    It ends by itself after `lifetime_s`, so that a test that fails leaves nothing for ever.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild:
            os.write(writer, str(grandchild).encode())
            os._exit(0)
        os.close(reader)
        os.close(writer)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(lifetime_s)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        pid = int(pipe.read())
    print(f"autotune emulate: fork-away left process {pid}", file=sys.stderr, flush=True)
    return pid
