"""A terminal with a person at it: what the command line shows there, and keys that are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import pyte

ROWS = 200
"""Enough for all that is printed, so that nothing scrolls away."""
_LATEST_S = 120.0


class Terminal:
    """A program in a pseudo-terminal of its own, and the screen that a person sees.

    Attributes:
        bytes_: all that was written to it.
    """

    def __init__(self, program: Sequence[str], columns: int, **variables: str) -> None:
        self.screen, self.bytes_ = pyte.Screen(columns, ROWS), b""
        self._stream = pyte.ByteStream(self.screen)
        self._main, terminal = pty.openpty()
        self.resize(columns)
        # What a terminal of this size need not be told.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        environment = {**inherited, "TERM": "xterm-256color", **variables}
        # Its controlling terminal, so that keys become signals.
        words = ["setsid", "--ctty", *program]
        self.process = subprocess.Popen(
            words, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
        )
        os.close(terminal)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)

    @property
    def lines(self) -> list[str]:
        """The screen's, to the last that is not empty."""
        # Not `Screen.display`, which takes a tenth of a second for so many rows.
        cells = [self.screen.buffer[y] for y in range(self.screen.cursor.y + 1)]
        rows = ["".join(row[x].data for x in range(self.screen.columns)) for row in cells]
        return "\n".join(row.rstrip() for row in rows).rstrip("\n").split("\n")

    def resize(self, columns: int) -> None:
        """Drag the window's edge."""
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.screen.resize(ROWS, columns)

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._main, key)

    def watch(self, until: Callable[[Sequence[str]], object] = lambda _: False) -> bool:
        """Watch until the lines are as they should be; returns False where the program has ended
        before."""
        deadline = time.monotonic() + _LATEST_S
        while not until(self.lines):
            assert time.monotonic() < deadline, "\n".join(self.lines)
            if select.select([self._main], [], [], 0.1)[0]:
                try:
                    part = os.read(self._main, 65536)
                except OSError:  # the terminal has no user any more
                    return False
                self.bytes_ += part
                self._stream.feed(part)
        return True


def row(lines: Sequence[str], label: str) -> str:
    """What stands in the block behind a label; empty where it has no such row."""
    return next((line[12:] for line in lines if line.startswith(f"{label:<12}")), "")
