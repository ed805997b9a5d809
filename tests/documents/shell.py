"""Runs documented scripts by bash as they stand, with a smaller budget, and ``autotune`` in a
process forked for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from tests.product.cli import finished_rows
from tests.product.processes import Started, warm

CLIENT = Path(__file__).with_name("client.py")
LAUNCHES = 3
"""A documented study has at most so many launches here."""


@dataclass(frozen=True)
class Ended:
    """What a script left: its exit status and all it wrote."""

    code: int
    written: str


@dataclass
class Shell:
    """Bash in a folder, with a home folder of its own.

    Attributes:
        folder: where scripts begin; ``bin`` in it is the first on the PATH.
        home: of autotune.
        port: a free one, for servers.
        commands: every command line of autotune that was run, with its exit status.
    """

    folder: Path
    home: Path
    port: int = field(default_factory=lambda: free_port())
    commands: list[tuple[list[str], int]] = field(default_factory=list)

    def run(self, script: str, interrupted: bool = False) -> Ended:
        """Run a script to its end.

        Args:
            interrupted: press Ctrl-C when the study has a finished launch.
        """
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        shim, real = programs / "autotune", Path(sys.executable).with_name("autotune")
        # Completion asks the installed program, by its name.
        client = f'exec "{sys.executable}" -S -E "{CLIENT}" "$@"'
        shim.write_text(
            f'#!/bin/sh\n[ -z "${{_AUTOTUNE_COMPLETE-}}" ] || exec "{real}"\n{client}\n'
        )
        shim.chmod(0o755)
        address = self.folder / "socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(address))
            listening.listen()
            Thread(target=self._serve, args=(listening, interrupted), daemon=True).start()
            environment = {
                **os.environ,
                "AUTOTUNE_HOME": str(self.home),
                "DOCUMENTS_SOCKET": str(address),
                "HOME": str(self.folder),
                "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            }
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                check=False,
            )
            # A listening socket that is closed in another thread keeps that one waiting.
            listening.shutdown(socket.SHUT_RDWR)
        address.unlink()
        return Ended(done.returncode, done.stdout)

    def _serve(self, listening: socket.socket, interrupted: bool) -> None:
        while True:
            try:
                channel, _ = listening.accept()
            except OSError:
                return
            with channel:
                message, (out, err), *_ = socket.recv_fds(channel, 1 << 17, 2)
                call: dict[str, Any] = json.loads(message)
                arguments = with_budget(call["arguments"])
                if arguments[:1] == ["run"] and "--study" in arguments:
                    # A page may make a study that other pages find there.
                    shutil.rmtree(self.study(arguments), ignore_errors=True)
                process = warm().start(
                    arguments, call["environment"], Path(call["folder"]), out, err
                )
                for descriptor in (out, err):
                    os.close(descriptor)
                if arguments[0] == "emulate":
                    self._stop_server(process)
                if interrupted:
                    self._interrupt(process, arguments)
                code = process.wait()
                self.commands.append((arguments, code))
                channel.send(str(code).encode())

    def _interrupt(self, process: Started, arguments: list[str]) -> None:
        while not finished_rows(self.home, self.study(arguments).name):
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            return
        process.send_signal(signal.SIGINT)

    def study(self, arguments: list[str]) -> Path:
        """Return the folder of the study that a command names."""
        return self.home / "studies" / arguments[arguments.index("--study") + 1]

    def _stop_server(self, process: Started) -> None:
        """Press Ctrl-C when the server listens."""
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                break
        process.send_signal(signal.SIGTERM)


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def with_budget(arguments: list[str]) -> list[str]:
    """Give ``autotune run`` at most `LAUNCHES` launches, unless it only answers from a table."""
    if arguments[:1] != ["run"] or any(word.startswith("replay:") for word in arguments):
        return arguments
    if "--launches" not in arguments:
        return [*arguments[:1], "--launches", str(LAUNCHES), *arguments[1:]]
    place = arguments.index("--launches") + 1
    return [*arguments[:place], str(min(LAUNCHES, int(arguments[place]))), *arguments[place + 1 :]]
