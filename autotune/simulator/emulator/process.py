"""The server's life as a process: port, start, serving, signals, exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import uvloop

from autotune.errors import BadInput
from autotune.simulator.emulator.answers import AnswerSettings
from autotune.simulator.emulator.api import EngineApi
from autotune.simulator.emulator.completions import ANSWER_TOKENS
from autotune.simulator.emulator.engine import LiveEngine
from autotune.simulator.emulator.http import HttpConnection
from autotune.simulator.emulator.launch import Died, EmulatedLaunch, Emulation, prepare_launch
from autotune.simulator.emulator.neighbours import slow_beside_others
from autotune.simulator.emulator.startup import DIED, Log, flood, fork_away, leak, read_faults, start
from autotune.space.library import Library

_BACKLOG = 4096


def emulate(asked: Emulation, library: Library, as_json: bool = False) -> int:
    """Start the server and serve until SIGTERM or SIGINT; returns the exit code that the engine would end with.

    Args:
        as_json: print one object with the URL when it serves.

    Raises:
        BadInput: for what no engine decides: an unknown model, fault or engine version.
    """
    if not (asked.speed > 0 and math.isfinite(asked.speed)):
        raise BadInput(f"--speed {asked.speed:g}: must be above 0 and finite, e.g. 10 for ten times as fast")
    if asked.startup_s is not None and not math.isfinite(asked.startup_s):
        raise BadInput(f"--startup-s {asked.startup_s:g}: must be a number of seconds, 0 or more")
    AnswerSettings.read(asked.answers)
    try:
        return _serve(prepare_launch(asked, library), read_faults(asked.fault), as_json)
    except Died as death:
        return death.exit_code


def _serve(launch: EmulatedLaunch, faults: Mapping[str, float], as_json: bool) -> int:
    if "ignore-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # As many connections as the system allows.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Held as long as the process lives.
    leaked = leak(faults["leak"]) if "leak" in faults else None
    log = Log(launch, launch.port, as_json)
    listener = None if "late-bind" in faults else _bind(launch, log)
    if listener is not None:
        log = Log(launch, listener.getsockname()[1], as_json)
    start(launch, faults, log)
    if "flood" in faults:
        flood(faults["flood"])
    if listener is not None and "fork-away" in faults:
        listener.listen(_BACKLOG)
        fork_away(listener, faults["fork-away"])
    try:
        return uvloop.run(_until_stopped(launch, faults, log, as_json, listener))
    finally:
        if leaked is not None:
            leaked.close()


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


async def _until_stopped(
    launch: EmulatedLaunch, faults: Mapping[str, float], log: Log, as_json: bool, listener: socket.socket | None
) -> int:
    """Serve until a signal; raises what went wrong in a callback, as a server that goes on would only hang."""
    loop, stop, bugs = asyncio.get_running_loop(), asyncio.Event(), list[BaseException]()

    def note_bug(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):
            bugs.append(error)
            stop.set()

    loop.set_exception_handler(note_bug)
    for number in (signal.SIGINT,) if "ignore-sigterm" in faults else (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    engine = LiveEngine(
        launch.server,
        launch.memory.capacity_tokens,
        launch.block_tokens,
        launch.asked.speed,
        answer=ANSWER_TOKENS,
    )
    if listener is None:
        log.lines(launch.card.ready)
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), faults.get("late-bind", 0.0))
        listener = _bind(launch, log)
    api, connections = EngineApi(launch, engine, faults), set[HttpConnection]()
    server = await loop.create_server(lambda: HttpConnection(api, connections), sock=listener, backlog=_BACKLOG)
    if "late-bind" not in faults:
        log.lines(launch.card.ready)
    if as_json:
        url = f"http://{launch.host}:{listener.getsockname()[1]}"
        print(json.dumps({"url": url, "pid": os.getpid(), "models": launch.models}), flush=True)
    troubles = (
        _die_mid_load(engine, faults.get("die-mid-load"), log),
        slow_beside_others(engine, faults.get("slow-beside-others", 0.0)),
    )
    tasks = [asyncio.ensure_future(trouble) for trouble in troubles]
    # Nothing that exists now will become garbage: leave it out of every collection.
    gc.collect()
    gc.freeze()
    await stop.wait()
    for task in tasks:
        task.cancel()
    server.close()
    if bugs:
        raise bugs[0]
    log.lines(launch.card.stopping)
    for connection in tuple(connections):
        connection.close()
    return 128 + signal.SIGTERM if launch.card.stop_signal else 0


async def _die_mid_load(engine: LiveEngine, tokens: float | None, log: Log) -> None:
    """End the process once so many tokens were generated; None: never."""
    if tokens is None:
        return
    while engine.generated_tokens < tokens:
        await asyncio.sleep(0.002)
    death = log.crash(DIED)
    sys.stdout.flush()
    os._exit(death.exit_code)
