"""The start of a server as its log shows it: phases, shards, and the ways in which it fails."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import chain
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import TextIO

from autotune.errors import BadInput, UnknownName
from autotune.simulator.emulator.card import filled
from autotune.simulator.emulator.launch import Died, EmulatedLaunch
from autotune.space.expression import evaluate

VARIABLE = "AUTOTUNE_EMULATE_FAULT"
LEAKED = "autotune-emulated-"
"""Shared memory that is left behind is called so, with the number of the process."""

FAULTS: Mapping[str, float] = {
    "die-at-start": 0.5,
    "hang-at-start": 0.5,
    "slow-start": 5,
    "late-bind": 2,
    "die-mid-load": 200,
    "unavailable-bursts": 2,
    "close-mid-stream": 10,
    "reset-mid-stream": 10,
    "stall-mid-stream": 10,
    "cut-utf8": 10,
    "wrong-lengths": 1,
    "error-mid-load": 10,
    "leak": 1,
    "flood": 100,
    "ignore-sigterm": 0,
    "fork-away": 300,
    "slow-beside-others": 0.1,
}
"""Name to the value when none is given; what happens, and the values' units, stand in ``docs/emulator.md``."""


def read_faults(option: str | None) -> dict[str, float]:
    """Read ``NAME[:VALUE],…`` of the option, else of the environment; raises `UnknownName` or `BadInput`.

    ``@FILE`` stands for what is in a file, which is removed: its faults are those of one server. No file: no faults.
    """
    text = option if option is not None else os.environ.get(VARIABLE, "")
    values: dict[str, float] = {}
    parts = [part.strip() for part in text.split(",")]
    for part in filter(None, chain.from_iterable(_expanded(part) for part in parts)):
        name, colon, value = part.partition(":")
        if name not in FAULTS:
            raise UnknownName("fault", name, FAULTS)
        try:
            values[name] = float(value) if colon else FAULTS[name]
        except ValueError as error:
            raise BadInput(f"--fault {part}: {value!r} is not a number; the default is {FAULTS[name]:g}") from error
    return values


def _expanded(part: str) -> list[str]:
    """The faults that one part of a list stands for: itself, or those of ``@FILE``, which is removed."""
    if not part.startswith("@"):
        return [part]
    path = Path(part[1:])
    try:
        faults = path.read_text(encoding="utf-8").split(",")
        path.unlink()
    except FileNotFoundError:
        return []
    return [fault.strip() for fault in faults]


def leak(megabytes: float) -> SharedMemory:
    """Leave a shared memory and a temporary file that nobody removes, as an engine does that is not asked to end."""
    # Not where `tempfile` remembers: a forked process has its parent's memory.
    os.close(tempfile.mkstemp(prefix="autotune-emulated-", dir=os.environ.get("TMPDIR"))[0])
    # The tracker would remove the memory when this process ends.
    memory = SharedMemory(f"{LEAKED}{os.getpid()}", create=True, size=max(1, int(megabytes * 2**20)))
    resource_tracker.unregister(f"/{memory.name}", "shared_memory")
    return memory


def fork_away(listener: socket.socket, lifetime_s: float) -> None:
    """Leave an orphan in a session of its own that holds the port and outlives this process.

    It ends by itself after `lifetime_s`, so that a test that fails leaves nothing for ever.
    """
    script = f"sleep {lifetime_s} & echo autotune emulate: fork-away left process $! >&2"
    subprocess.run(["sh", "-c", script], pass_fds=[listener.fileno()], start_new_session=True, check=True)


def flood(megabytes: float) -> None:
    """Have a child fill the log as fast as it can while this process serves, with so many MB."""
    line = "DEBUG emulated: a line that nobody wanted to read, and so the next one and the one after that"
    subprocess.run(["sh", "-c", f"yes '{line}' | head -c {int(megabytes * 1e6)} >&2 &"], check=True)


DIED = "RuntimeError: CUDA error: an illegal memory access was encountered"


class Log:
    """Writes the engine's log, with ``{time}`` and ``{date}`` of the moment.

    Args:
        to_stderr: keep stdout free; else the log goes where the engine's goes.
    """

    def __init__(self, launch: EmulatedLaunch, port: int, to_stderr: bool) -> None:
        given = {name: launch.parsed.args[name] for name in sorted(launch.parsed.given) if name in launch.parsed.args}
        self._card = launch.card
        self._facts: dict[str, object] = {
            **launch.resolved.effective.configuration.knobs,
            **{name: evaluate(text, launch.scope) for name, text in launch.card.facts.items()},
            "pid": os.getpid(),
            "model": launch.parsed.model,
            "version": launch.parsed.version,
            "host": launch.host,
            "port": port,
            "given": given,
            "context": launch.server.context_length,
            "tokens": f"{launch.memory.capacity_tokens:,}",
            "weights_gib": f"{launch.memory.weights / 2**30:.2f}",
            "kv_gib": f"{max(0.0, launch.memory.kv_cache) / 2**30:.2f}",
            "seconds": f"{launch.startup_s:.2f}",
        }
        self._stream: TextIO = sys.stderr if to_stderr or launch.card.stream == "stderr" else sys.stdout

    def lines(self, templates: Iterable[str], **more: object) -> None:
        """Write lines."""
        now = self._now(more)
        text = "".join(f"{filled(template, now)}\n" for template in templates)
        if text:
            print(text, end="", file=self._stream, flush=True)

    def progress(self, template: str, **more: object) -> None:
        """Write one state of a progress bar: it overwrites the one before on a terminal."""
        print("\r" + filled(template, self._now(more)), end="", file=sys.stderr, flush=True)

    def crash(self, message: str) -> Died:
        """Write the log of a server that dies of `message`: the telling line, then the engine's usual tail."""
        crash = self._card.crash
        self.lines([*crash.before, crash.telling, *crash.after], message=message)
        return Died(crash.exit_code)

    def _now(self, more: Mapping[str, object]) -> dict[str, object]:
        now = datetime.now()
        return {**self._facts, "time": f"{now:%H:%M:%S}", "date": f"{now:%m-%d}", "iso": f"{now:%Y-%m-%d}", **more}


def start(launch: EmulatedLaunch, faults: Mapping[str, float], log: Log) -> None:
    """Go through the card's phases in the time that the start takes; raises `Died` where it fails."""
    due_s, total_s = time.perf_counter(), launch.startup_s * faults.get("slow-start", 1.0)
    failure = launch.failure
    for phase in launch.card.startup:
        if phase.shard is not None and failure is not None and not launch.fails_late:
            break
        if not evaluate(phase.when, launch.scope):
            continue
        log.lines(phase.lines)
        if phase.shard is not None:
            _load(launch, faults, log, phase.shard, (due_s, phase.share * total_s))
        due_s += phase.share * total_s
        _wait_until(due_s)
    if failure is not None:
        raise log.crash(failure.log_excerpt or failure.message)


def _load(
    launch: EmulatedLaunch, faults: Mapping[str, float], log: Log, template: str, phase: tuple[float, float]
) -> None:
    """Write a progress line per shard, spread over the phase: its beginning and its length in seconds."""
    begin_s, length_s = phase
    checkpoint_gb = launch.memory.weights * launch.server.gpus / 1e9
    shards = max(1, math.ceil(checkpoint_gb / launch.card.shard_gb))
    for shard in range(shards + 1):
        _wait_until(begin_s + length_s * shard / shards)
        passed_s = time.perf_counter() - begin_s
        facts = {"shard": shard, "shards": shards, "percent": f"{100 * shard // shards:3d}"}
        log.progress(template, **facts, passed=f"{passed_s:.0f}", rate=f"{shard / max(passed_s, 1e-3):.2f}")
        while shard >= shards * faults.get("hang-at-start", math.inf):
            time.sleep(3600)
        if dies := shard >= shards * faults.get("die-at-start", math.inf):
            break
    print(file=sys.stderr, flush=True)  # ends the line of the progress bar
    if dies:
        raise log.crash(DIED)


def _wait_until(due_s: float) -> None:
    time.sleep(max(0.0, due_s - time.perf_counter()))
