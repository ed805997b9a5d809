"""Faults of disks, clocks, files and MLflow; see `faults_kinds`."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

from faults_study import FaultyStudy
from faults_values import Steps

# Disks and clocks


def full_disk(study: FaultyStudy, value: float) -> Steps:
    """So little room is left that it ends at one of the next files."""
    with study.machine.room(int(value**2 * 300_000)):
        yield from study.pause(3.0)


def read_only_disk(study: FaultyStudy, value: float) -> Steps:
    folders = [study.home, study.study, study.study / "trials"]
    while True:
        try:
            with study.machine.read_only(folders[int(value * len(folders))]):
                yield from study.pause(3.0)
                return
        except subprocess.CalledProcessError:  # something was just being written
            yield False


def slow_disk(study: FaultyStudy, value: float) -> Steps:
    with study.machine.clocks.slow_disk(0.05 + 0.5 * value):
        yield from study.pause(4.0)


def set_clock(direction: int, study: FaultyStudy, value: float) -> Steps:
    """By a minute to a year."""
    study.machine.clocks.jump(wall_s=direction * 60 * (365 * 24 * 60) ** value)
    yield True


# Files


def spoil(path: Path, value: float) -> None:
    """Cut off, overwrite, or fill with zeros the end of a file."""
    draw = random.Random(value)
    content = path.read_bytes()
    size = draw.randint(1, max(1, min(400, len(content))))
    kept, tail = content[:-size], content[-size:]
    how = draw.randrange(4)
    ends = [
        b"",
        bytes(size),
        bytes(byte ^ 0xFF for byte in tail),
        tail + bytes(draw.randrange(256) for _ in range(40)),
    ]
    path.write_bytes(kept + ends[how])


def spoil_file(name: str, study: FaultyStudy, value: float) -> Steps:
    """The machine goes down, and the end of a file is not what was written."""
    path = study.study / name
    # Another fault may have made the folder read-only: it comes when that is over.
    while not (path.exists() and path.stat().st_size and os.access(path, os.W_OK)):
        yield False
    study.kill_tuner()
    study.reads_kept()
    spoil(path, value)
    yield True


def spoil_results(study: FaultyStudy, value: float) -> Steps:
    """What was written last did not reach the disk whole: that launch is made again."""
    while not (study.lines() and os.access(study.results, os.W_OK)):
        yield False
    study.kill_tuner()
    study.reads_kept()
    content = study.results.read_bytes()
    draw = random.Random(value)
    start = content.rstrip().rfind(b"\n") + 1
    cut = draw.randint(start, len(content) - 2)
    ends = [
        b"",
        bytes(len(content) - cut),
        bytes(draw.randrange(256) for _ in range(len(content) - cut)),
    ]
    study.results.write_bytes(content[:cut] + ends[draw.randrange(3)])
    study.forgets_last()
    yield True


def spoil_question(study: FaultyStudy, value: float) -> Steps:
    """``study.yaml`` is spoilt, and put back once that has been said."""
    path = study.study / "study.yaml"
    while not (path.exists() and os.access(path, os.W_OK)):
        yield False
    study.kill_tuner()
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    path.write_bytes(content[: int(value * len(content) * 0.9)])
    study.start(["resume", study.name]).wait(60)
    path.write_bytes(content)
    os.utime(path, ns=(written, written))
    yield True


def spoil_recommendation(study: FaultyStudy, value: float) -> Steps:
    """The answer is spoilt, and removed once that has been said."""
    path = study.study / "recommendation.json"
    content = path.read_bytes()
    path.write_bytes(content[: int(value * len(content) * 0.9)])
    study.start(["resume", study.name]).wait(60)
    path.unlink()
    yield True


# MLflow


def wipe_mlflow(study: FaultyStudy, value: float) -> Steps:
    del value
    while not (study.home / "mlflow.db").exists():
        yield False
    (study.home / "mlflow.db").unlink()
    yield True


def lock_mlflow(study: FaultyStudy, value: float) -> Steps:
    """Somebody else holds the database."""
    with closing(sqlite3.connect(study.home / "mlflow.db", timeout=1)) as database:
        while True:
            try:
                database.execute("begin exclusive")
                break
            except sqlite3.Error:
                yield False
        yield from study.pause(1 + 7 * value)
        database.rollback()


def spoil_mlflow(study: FaultyStudy, value: float) -> Steps:
    path = study.home / "mlflow.db"
    while not path.exists() or path.stat().st_size <= 4096:
        yield False
    content = bytearray(path.read_bytes())
    at = int(value * (len(content) - 4096))
    content[at : at + 4096] = bytes(4096)
    path.write_bytes(content)
    yield True


def mlflow_down(study: FaultyStudy, value: float) -> Steps:
    server = study.mlflow_server
    server.stop()
    try:
        yield from study.pause(0.5 + 5 * value)
    finally:
        server.start()


def mlflow_hangs(study: FaultyStudy, value: float) -> Steps:
    while not (pid := study.mlflow_server.pid):
        yield False
    os.kill(pid, signal.SIGSTOP)
    try:
        yield from study.pause(0.5 + 5 * value)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def mlflow_is(mode: str, study: FaultyStudy, value: float) -> Steps:
    server = study.mlflow_server
    server.be(mode.replace("VALUE", f"{value:.3f}"))
    try:
        yield from study.pause(0.5 + 5 * value)
    finally:
        server.be("")
