"""The server's life as a process: port, start, serving, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

import uvloop

from autotune.simulator.emulator.api import EngineApi, die_mid_load
from autotune.simulator.emulator.engine import LiveEngine
from autotune.simulator.emulator.http import HttpConnection
from autotune.simulator.emulator.launch import EmulatedLaunch
from autotune.simulator.emulator.startup import Died, Faults, Log, Startup, leave_a_grandchild

_BACKLOG = 4096
_GRACE_S = 1.0


def serve(launch: EmulatedLaunch, as_json: bool) -> int:
    """Start and serve until a signal ends it; returns the exit code.

    Args:
        as_json: print one object with the URL when it serves.
    """
    faults = Faults.asked(launch.asked.fault)
    if "ignore-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _raise_file_limit()
    log = Log(launch, launch.port, as_json)
    try:
        listener = None if "late-bind" in faults else _bind(launch, log)
        port = listener.getsockname()[1] if listener else launch.port
        log = Log(launch, port, as_json)
        Startup(launch, faults, log).run()
        if listener is not None and "fork-away" in faults:
            listener.listen(_BACKLOG)
            leave_a_grandchild(faults.get("fork-away", 0.0))
        return uvloop.run(_Serving(launch, faults, log, as_json).run(listener))
    except Died as death:
        return death.exit_code


def _bind(launch: EmulatedLaunch, log: Log) -> socket.socket:
    """Take the port; nobody can connect before the server listens."""
    family = socket.AF_INET6 if ":" in launch.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((launch.host, launch.port))
    except OSError as error:
        listener.close()
        log.lines([launch.card.port_taken], errno=error.errno, problem=os.strerror(error.errno or 0))
        raise Died(launch.card.crash.exit_code) from error
    return listener


def _raise_file_limit() -> None:
    """As many connections as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Serving:
    """The event loop's part."""

    def __init__(self, launch: EmulatedLaunch, faults: Faults, log: Log, as_json: bool) -> None:
        self._launch, self._faults, self._log, self._as_json = launch, faults, log, as_json
        self._connections: set[HttpConnection] = set()
        self._bug: BaseException | None = None

    async def run(self, listener: socket.socket | None) -> int:
        """Serve until a signal; raises what went wrong in a callback, as a server that goes on would only hang."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.set_exception_handler(lambda _, context: self._note_bug(context, stop))
        signals = (signal.SIGINT,) if "ignore-sigterm" in self._faults else (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, stop.set)
        launch = self._launch
        engine = LiveEngine(launch.server, launch.memory.capacity_tokens, launch.block_tokens, launch.asked.speed)
        api = EngineApi(launch, engine, self._faults)
        if listener is None:
            self._log.lines(launch.card.ready)
            await _either(stop, self._faults.get("late-bind", 0.0))
            listener = _bind(launch, self._log)
        server = await loop.create_server(
            lambda: HttpConnection(api, self._connections), sock=listener, backlog=_BACKLOG
        )
        self._announce(listener.getsockname()[1])
        dying = asyncio.ensure_future(self._die_mid_load(engine))
        # Nothing that exists now will become garbage: leave it out of every collection.
        gc.collect()
        gc.freeze()
        await stop.wait()
        dying.cancel()
        server.close()
        if self._bug is not None:
            raise self._bug
        return self._end()

    def _note_bug(self, context: dict[str, Any], stop: asyncio.Event) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            return
        self._bug = error
        stop.set()

    def _announce(self, port: int) -> None:
        if "late-bind" not in self._faults:
            self._log.lines(self._launch.card.ready)
        if self._as_json:
            url = f"http://{self._launch.host}:{port}"
            print(json.dumps({"url": url, "pid": os.getpid(), "models": self._launch.models}), flush=True)

    async def _die_mid_load(self, engine: LiveEngine) -> None:
        if "die-mid-load" in self._faults:
            await die_mid_load(engine, self._faults.get("die-mid-load", 0.0), self._die)

    def _die(self) -> None:
        death = self._log.crash("RuntimeError: CUDA error: an illegal memory access was encountered")
        sys.stdout.flush()
        os._exit(death.exit_code)

    def _end(self) -> int:
        """Close what is open; the exit code of a server that was asked to stop."""
        self._log.lines(self._launch.card.stopping)
        for connection in list(self._connections):
            connection.close()
        return 128 + signal.SIGTERM if self._launch.card.stop_signal else 0


async def _either(stop: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
