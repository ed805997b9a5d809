"""The kinds of faults: how each is injected, and by which words it is to be named.

A kind is a generator over a study that runs: it says at each step whether it has been injected, and
puts right what it did when it is closed, at the latest when the tuner has ended.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial

from faults_files import (
    full_disk,
    lock_mlflow,
    mlflow_down,
    mlflow_hangs,
    mlflow_is,
    read_only_disk,
    set_clock,
    slow_disk,
    spoil_file,
    spoil_mlflow,
    spoil_question,
    spoil_recommendation,
    spoil_results,
    wipe_mlflow,
)
from faults_machine import limit_memory_of, now, processes_of
from faults_study import FaultyStudy
from faults_values import Fault, Steps

Inject = Callable[[FaultyStudy, float], Steps]
BOTH = ("emulator", "simulator", "ray")
RAY = ("ray",)
EMULATOR = ("emulator",)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        words: a pattern of what names it, in what tuners say or in a row's failure; empty: there is
            nobody to say it.
        absorbed: whether the study may also pass over it without a word, as nothing is lost by it.
        needs: what the machine must be able to do, see `Machine.can`; empty: nothing.
        at_end: it comes after the end of the study.
        mlflow_server: the study sends its runs to a server.
        blameless: no configuration may count as failed for it.
    """

    inject: Inject
    words: str = ""
    absorbed: bool = False
    on: tuple[str, ...] = BOTH
    needs: str = ""
    at_end: bool = False
    mlflow_server: bool = False
    blameless: bool = False


def steps_of(fault: Fault, study: FaultyStudy) -> Steps:
    return KINDS[fault.kind].inject(study, fault.value)


# Processes


def signal_tuner(number: int, study: FaultyStudy, value: float) -> Steps:
    del value
    assert study.tuner is not None
    if study.tuner.poll() is None:
        os.kill(study.tuner.pid, number)
        yield True


def kill_part(part: str, study: FaultyStudy, value: float) -> Steps:
    """End a process that the tuner has started, a moment after it is there."""
    while not (found := study.processes(part)):
        yield False
    until = now() + value
    while now() < until:
        yield False
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            yield True


def suspend(study: FaultyStudy, value: float) -> Steps:
    """The machine stands still; for its processes 1 to 5 minutes pass."""
    assert study.tuner is not None
    if study.tuner.poll() is not None:
        return
    stopped = [study.tuner.pid, *processes_of(study.token)]
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    minutes = 60 * (1 + 4 * value)
    try:
        yield True
        study.machine.clocks.jump(minutes, minutes)
        yield from study.pause(0.3)
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def limit_memory(study: FaultyStudy, value: float) -> Steps:
    """An engine gets next to no more memory than it has."""
    while not (found := study.processes("emulate")):
        yield False
    until = now() + 4 * value
    while now() < until:
        yield False
    for pid in found:
        with suppress(OSError):
            limit_memory_of(pid, int(value * 2**22))
            yield True


def second_tuner(study: FaultyStudy, value: float) -> Steps:
    del value
    while not (study.study / "study.yaml").exists():
        yield False
    other = study.start(["resume", study.name])
    try:
        while other.poll() is None:
            yield False
        yield True
    finally:
        # Where the first has ended meanwhile, it would go on with the study.
        other.kill()


def hang_up(study: FaultyStudy, value: float) -> Steps:
    del value
    assert study.tuner is not None
    if study.tuner.terminal:
        study.on_terminal = False
        study.tuner.hang_up()
        yield True


# Engines


def engine(faults: str, study: FaultyStudy, value: float, lasts_s: float = 0.0) -> Steps:
    """The next engine that starts has a fault; where nothing more happens, so many seconds pass at
    once."""
    while study.engine_fault.exists():
        yield False
    draft = study.engine_fault.with_suffix(".draft")
    draft.write_text(faults.replace("VALUE", f"{value:.3f}"))
    draft.replace(study.engine_fault)
    try:
        while study.engine_fault.exists():
            yield False
        yield True
        if lasts_s:
            yield from passing(study, lasts_s)
    finally:
        study.engine_fault.unlink(missing_ok=True)


def bad_hour(study: FaultyStudy, value: float) -> Steps:
    """Every engine that starts crashes with unknown words, until the tuner has ended."""
    while True:
        yield from engine("words-unknown:VALUE", study, value)


def kill_under_load(study: FaultyStudy, value: float) -> Steps:
    """End the engine from outside once it has been ready and answers the load."""
    del value
    loads, emulates = "autotune.load.client.generator", "emulate"
    while True:
        commands = processes_of(study.token)
        if any(loads in command for command in commands.values()):
            break
        yield from study.pause(0.1, injected=False)
    for pid in (pid for pid, command in commands.items() if emulates in command):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            yield True


def passing(study: FaultyStudy, seconds: float) -> Steps:
    """Let time pass at once whenever the launch gets on no more, until it has ended."""
    reached = len(study.lines())
    while len(study.lines()) == reached:
        yield from study.pause(2.5)
        if len(study.lines()) == reached:
            study.machine.clocks.jump(seconds, seconds)


def thief(answers: bool, study: FaultyStudy, value: float) -> Steps:
    """Somebody else listens on the port of an engine that starts."""
    del value
    with ExitStack() as stack:
        listener = None
        while listener is None:
            yield False
            for command in processes_of(study.token).values():
                words = command.split()
                if "emulate" in words and "--port" in words:
                    with suppress(OSError):
                        address = ("127.0.0.1", int(words[words.index("--port") + 1]))
                        listener = stack.enter_context(socket.create_server(address, backlog=64))
        listener.setblocking(False)
        until = now() + 4
        while now() < until:
            with suppress(OSError):
                connection = stack.enter_context(listener.accept()[0])
                if answers:
                    connection.setblocking(True)
                    connection.recv(65536)
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
                    )
                    connection.close()
            yield True


# Ray


def kill_ray_worker(study: FaultyStudy, value: float) -> Steps:
    """End the process that runs a trial on a node."""
    assert study.nodes is not None
    until = now() + 3 * value
    while now() < until or not study.nodes.kill_worker():
        yield False
    yield True


def kill_raylet(study: FaultyStudy, value: float) -> Steps:
    """A node vanishes as by a power cut; it is there again when the tuner has ended."""
    assert study.nodes is not None
    name = study.nodes.names[int(value * len(study.nodes.names))]
    study.nodes.ask("remove", name)
    try:
        while True:
            yield True
    finally:
        study.nodes.ask("add", name)


MLFLOW = "MLflow at .* (does not answer|cannot be used|takes|refuse)"
ENGINE_DIES = r"illegal memory access|ended|died|exit"
KINDS: dict[str, Kind] = {
    "kill-tuner": Kind(partial(signal_tuner, signal.SIGKILL)),
    "interrupt-tuner": Kind(
        partial(signal_tuner, signal.SIGINT), r"stopped, \d+ launches are stored|interrupted"
    ),
    "terminate-tuner": Kind(
        partial(signal_tuner, signal.SIGTERM), r"stopped, \d+ launches are stored|interrupted"
    ),
    "terminal-vanishes": Kind(hang_up),
    "kill-watchdog": Kind(
        partial(kill_part, "autotune.servers.watchdog"),
        "process that watches over",
        on=EMULATOR,
        absorbed=True,
    ),
    "kill-load-worker": Kind(
        partial(kill_part, "autotune.load.client.generator"),
        "worker process",
        on=EMULATOR,
        absorbed=True,
    ),
    "kill-engine": Kind(
        partial(kill_part, "emulate"), "SIGKILL|signal 9|killed", on=EMULATOR, absorbed=True
    ),
    "kill-ray-worker": Kind(
        kill_ray_worker,
        "its process there, is gone|the process there, was gone",
        on=RAY,
        absorbed=True,
    ),
    "kill-raylet": Kind(kill_raylet, "node|vanished|gone", on=RAY, absorbed=True),
    "suspend": Kind(
        suspend, "stood still|client did not keep up|suspended", absorbed=True, needs="clock"
    ),
    "memory-limit": Kind(limit_memory, "[Mm]emory|ended|exit", absorbed=True, on=EMULATOR),
    "two-tuners": Kind(second_tuner, "another tuner .* works on the study"),
    "engine-dies-at-start": Kind(partial(engine, "die-at-start:VALUE"), ENGINE_DIES, on=EMULATOR),
    "engine-hangs-at-start": Kind(
        partial(engine, "hang-at-start:VALUE", lasts_s=300),
        "printed nothing for",
        on=EMULATOR,
        needs="clock",
    ),
    "engine-killed-under-load": Kind(
        kill_under_load, "SIGKILL, which autotune did not send", on=EMULATOR, blameless=True
    ),
    "engine-bad-hour": Kind(
        bad_hour, "launches in a row failed with the same words", on=EMULATOR, blameless=True
    ),
    "engine-files-gone": Kind(
        partial(engine, "files-gone:VALUE"), "missing", on=EMULATOR, blameless=True
    ),
    "engine-heartbeats": Kind(
        partial(engine, "hang-at-start:VALUE,heartbeat:0.2", lasts_s=300),
        "printed nothing for",
        on=EMULATOR,
        needs="clock",
        blameless=True,
    ),
    "engine-leaves-lock": Kind(
        partial(engine, "lock,hang-at-start:VALUE", lasts_s=300),
        "printed nothing for",
        on=EMULATOR,
        needs="clock",
        blameless=True,
    ),
    "engine-slow-start": Kind(partial(engine, "slow-start:3"), on=EMULATOR),
    "engine-late-bind": Kind(partial(engine, "late-bind:VALUE"), on=EMULATOR),
    "engine-dies-mid-load": Kind(partial(engine, "die-mid-load:20"), ENGINE_DIES, on=EMULATOR),
    "engine-answers-503": Kind(
        partial(engine, "unavailable-bursts:0.4"), "503", on=EMULATOR, absorbed=True
    ),
    "engine-answers-500": Kind(partial(engine, "error-mid-load:7"), "500", on=EMULATOR),
    "engine-closes-streams": Kind(partial(engine, "close-mid-stream:7"), "closed", on=EMULATOR),
    "engine-resets-streams": Kind(
        partial(engine, "reset-mid-stream:7"), "closed|reset", on=EMULATOR
    ),
    "engine-stalls": Kind(
        partial(engine, "stall-mid-stream:12", lasts_s=300),
        "stall|nothing came",
        on=EMULATOR,
        needs="clock",
    ),
    "engine-cuts-utf8": Kind(
        partial(engine, "cut-utf8:7"), "malformed|UTF-8|not the protocol", on=EMULATOR
    ),
    "engine-wrong-lengths": Kind(partial(engine, "wrong-lengths:2"), "tokens", on=EMULATOR),
    "engine-ignores-sigterm": Kind(partial(engine, "ignore-sigterm"), on=EMULATOR),
    "engine-forks-away": Kind(partial(engine, "fork-away:120"), on=EMULATOR),
    "engine-leaks": Kind(partial(engine, "leak:2,ignore-sigterm"), on=EMULATOR),
    "port-thief": Kind(
        partial(thief, False), "listens on port|address already in use|port", on=EMULATOR
    ),
    "port-thief-answers": Kind(
        partial(thief, True), "listens on port|address already in use|port", on=EMULATOR
    ),
    "disk-full": Kind(
        full_disk, "No space left|GB of disk|GB free|make room", absorbed=True, needs="disk"
    ),
    "disk-read-only": Kind(
        read_only_disk, "Read-only|read-only|readonly", absorbed=True, needs="disk"
    ),
    "disk-slow": Kind(slow_disk, needs="clock"),
    "clock-back": Kind(partial(set_clock, -1), needs="clock"),
    "clock-forward": Kind(partial(set_clock, 1), needs="clock"),
    "torn-results": Kind(spoil_results),
    "torn-journal": Kind(partial(spoil_file, "optuna.journal")),
    "torn-mlflow-json": Kind(partial(spoil_file, "mlflow.json")),
    "torn-lock": Kind(partial(spoil_file, "lock")),
    "torn-log": Kind(partial(spoil_file, "trials/0000/server.log"), on=EMULATOR),
    "torn-requests": Kind(
        partial(spoil_file, "trials/0000/random:64:8:16.requests.parquet"), on=EMULATOR
    ),
    "torn-resolved": Kind(partial(spoil_file, "trials/0000/resolved.json"), on=EMULATOR),
    "torn-study-yaml": Kind(spoil_question, "not a study's specification"),
    "torn-recommendation": Kind(
        spoil_recommendation, "not a recommendation; remove it", at_end=True
    ),
    "mlflow-wiped": Kind(wipe_mlflow, MLFLOW, absorbed=True),
    "mlflow-locked": Kind(lock_mlflow, MLFLOW, absorbed=True),
    "mlflow-spoilt": Kind(spoil_mlflow, "MLflow at .* cannot be used", absorbed=True),
    "mlflow-down": Kind(mlflow_down, MLFLOW, absorbed=True, mlflow_server=True),
    "mlflow-hangs": Kind(mlflow_hangs, MLFLOW, absorbed=True, mlflow_server=True),
    "mlflow-slow": Kind(
        partial(mlflow_is, "slow VALUE"), MLFLOW, absorbed=True, mlflow_server=True
    ),
    "mlflow-refuses": Kind(
        partial(mlflow_is, "403 Forbidden"), MLFLOW, absorbed=True, mlflow_server=True
    ),
    "mlflow-fails": Kind(
        partial(mlflow_is, "500 Internal Server Error"), MLFLOW, absorbed=True, mlflow_server=True
    ),
}
