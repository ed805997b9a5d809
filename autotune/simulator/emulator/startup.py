"""The start of a server as its log shows it: phases, shards, and the ways in which it fails."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TextIO

from autotune.errors import BadInput, UnknownName
from autotune.simulator.emulator.card import StartupPhase, filled
from autotune.simulator.emulator.launch import EmulatedLaunch
from autotune.space.expression import evaluate

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


def read_faults(option: str | None) -> dict[str, float]:
    """Read ``NAME[:VALUE],…`` of the option, else of the environment; raises `UnknownName` or `BadInput`."""
    text = option if option is not None else os.environ.get(VARIABLE, "")
    values: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, colon, value = part.partition(":")
        if name not in FAULTS:
            raise UnknownName("fault", name, FAULTS)
        try:
            values[name] = float(value) if colon else FAULTS[name][1]
        except ValueError as error:
            raise BadInput(f"--fault {part}: {FAULTS[name][0]}; {value!r} is not a number") from error
    return values


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


DIED = "RuntimeError: CUDA error: an illegal memory access was encountered"


class Died(Exception):
    """The server ends with this exit code; its log has been written."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


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


class Startup:
    """Goes through the card's phases in the time that the start takes; raises `Died` where it fails."""

    def __init__(self, launch: EmulatedLaunch, faults: Mapping[str, float], log: Log) -> None:
        self._launch, self._faults, self._log = launch, faults, log
        self._total_s = launch.startup_s * faults.get("slow-start", 1.0)
        self._begin_s = time.perf_counter()
        self._passed = 0.0

    def run(self) -> None:
        """Blocks until the server is ready to serve."""
        failure = self._launch.failure
        for phase in self._launch.card.startup:
            if phase.shard is not None and failure is not None and not self._launch.fails_late:
                raise self._log.crash(failure.log_excerpt or failure.message)
            self._phase(phase)
        if failure is not None:
            raise self._log.crash(failure.log_excerpt or failure.message)

    def _phase(self, phase: StartupPhase) -> None:
        begin = self._passed
        if not evaluate(phase.when, self._launch.scope):
            return
        self._log.lines(phase.lines)
        if phase.shard is not None:
            self._load(phase.shard, begin, phase.share)
        self._passed = begin + phase.share
        self._wait_until(self._passed)

    def _load(self, template: str, begin: float, share: float) -> None:
        """One progress line per shard, spread over the phase."""
        checkpoint_gb = self._launch.memory.weights * self._launch.server.gpus / 1e9
        shards = max(1, math.ceil(checkpoint_gb / self._launch.card.shard_gb))
        stop = {name: shards * self._faults.get(name, 2.0) for name in ("die-at-start", "hang-at-start")}
        for shard in range(shards + 1):
            self._wait_until(begin + share * shard / shards)
            passed_s = time.perf_counter() - self._begin_s
            facts = {"shard": shard, "shards": shards, "percent": f"{100 * shard // shards:3d}"}
            self._log.progress(template, **facts, passed=f"{passed_s:.0f}", rate=f"{shard / max(passed_s, 1e-3):.2f}")
            if shard >= stop["hang-at-start"]:
                while True:
                    time.sleep(3600)
            if shard >= stop["die-at-start"]:
                print(file=sys.stderr, flush=True)  # ends the line of the progress bar
                raise self._log.crash(DIED)
        print(file=sys.stderr, flush=True)  # ends the line of the progress bar

    def _wait_until(self, share: float) -> None:
        left_s = self._begin_s + share * self._total_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
