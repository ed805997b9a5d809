"""The tuner's side of the watchdog: start it, read its messages, have it end the server."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from autotune.child import IMPORT_FOLDER
from autotune.errors import BadInput
from autotune.serving import ShutdownTimeouts, StopReport
from autotune.serving.watchdog import Request

_START_S = 30.0
_MARGIN_S = 5.0


class WatchdogClient:
    """A running watchdog and the first process of its server.

    Args:
        pass_fds: descriptors that it keeps open as long as it lives.

    Raises:
        BadInput: the program cannot be started, or the watchdog cannot.
    """

    def __init__(self, request: Request, pass_fds: Sequence[int] = ()) -> None:
        self._received = b""
        self._in_container = bool(request.docker)
        self.lost = False
        """Whether the watchdog has been killed, as far as `listen` has read."""
        self.leader = 0
        """The server's first process."""
        self._refusal: str | None = None
        self.exit_code: int | None = None
        """How the server's first process ended (negative = by a signal), as far as `listen` has read."""
        self.ended: StopReport | None = None
        """How the watchdog ended everything; None when it has not, or did not report in time."""
        # What would go wrong in the helper stands in the server's log. It starts from this very package, and without
        # `site`, which it does not need.
        with Path(request.log).open("ab") as stream:
            self._helper = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", "autotune.serving.watchdog"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, "PYTHONPATH": IMPORT_FOLDER},
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        self.pid = self._helper.pid
        self._send(asdict(request))
        deadline = time.monotonic() + _START_S
        while not (self.leader or self._refusal or self.lost) and (left_s := deadline - time.monotonic()) > 0:
            self.listen(left_s)
        if not self.leader:
            self._collect()
            if self._refusal:
                raise BadInput(f"{request.argv[0]} cannot be started: {self._refusal}")
            raise BadInput(f"the process that watches over the server did not start; {request.log} says why")

    def listen(self, seconds: float = 0.0) -> None:
        """Read the watchdog's messages, waiting for one up to so many seconds."""
        assert self._helper.stdout is not None
        descriptor = self._helper.stdout.fileno()
        if self.lost or not select.select([descriptor], [], [], seconds)[0]:
            return
        data = os.read(descriptor, 65536)
        self.lost = not data
        *lines, self._received = (self._received + data).split(b"\n")
        for message in map(json.loads, lines):
            self.leader = message.get("started", self.leader)
            self._refusal = message.get("refused", self._refusal)
            self.exit_code = message.get("exited", self.exit_code)
            if "ended" in message:
                ended = message["ended"]
                self.ended = StopReport(ended["seconds"], tuple(ended["signals"]), tuple(ended["survivors"]))

    def stop(self, timeouts: ShutdownTimeouts) -> StopReport | None:
        """Have everything ended; None when the watchdog was lost or too slow, so that the caller has to do it."""
        # A container is ended after the command that runs it.
        deadline = time.monotonic() + timeouts.terminate_s + timeouts.kill_s * (1 + self._in_container) + _MARGIN_S
        self._send({"stop": {"terminate_s": timeouts.terminate_s, "kill_s": timeouts.kill_s}})
        while self.ended is None and not self.lost and (left_s := deadline - time.monotonic()) > 0:
            self.listen(left_s)
        self._collect()
        return self.ended

    def _send(self, message: Mapping[str, object]) -> None:
        assert self._helper.stdin is not None
        try:
            self._helper.stdin.write(json.dumps(message).encode() + b"\n")
            self._helper.stdin.flush()
        except BrokenPipeError:
            self.lost = True

    def _collect(self) -> None:
        """Let the watchdog go; its pipe's end makes it end whatever is left."""
        for pipe in (self._helper.stdin, self._helper.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._helper.wait(_MARGIN_S)
        except subprocess.TimeoutExpired:
            self._helper.kill()
            self._helper.wait()
