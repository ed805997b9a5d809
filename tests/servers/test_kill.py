"""`kill -9` of the tuner at many moments: nothing of it is alive 5 s later, and nobody else is
hurt."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.processes import until
from tests.servers.settings import STAND_IN, alive_with

TUNER = Path(__file__).with_name("tuner.py")

STAGES = ("launching", "launched", "ready")
HABITS = (
    [],
    ["--ignore-term"],
    ["--fork-away"],
    ["--fork-away", "--ignore-term"],
    ["--forget-environment", "TOKEN"],
    ["--leave-the-port"],
)
ALWAYS = [
    ("launching", 0.05, ["--ignore-term"]),
    ("launched", 0.10, ["--forget-environment", "TOKEN"]),
    ("ready", 0.00, ["--fork-away", "--ignore-term"]),
]
DRAW = random.Random(50)
MOMENTS = [
    *ALWAYS,
    *(
        pytest.param(
            DRAW.choice(STAGES),
            DRAW.uniform(0.0, 0.3),
            DRAW.choice(HABITS),
            marks=pytest.mark.slow,
            id=f"{i}",
        )
        for i in range(50)
    ),
]


@pytest.fixture
def bystander() -> Iterator[int]:
    """Somebody else's server with a command line like ours."""
    argv = [sys.executable, str(STAND_IN), "--silent", "--port", "20001"]
    with subprocess.Popen(argv, start_new_session=True) as process:
        yield process.pid
        assert process.poll() is None, "a bystander was ended"
        process.kill()


def wait_for(tuner: subprocess.Popen[str], stage: str) -> None:
    assert tuner.stdout is not None
    for line in tuner.stdout:
        if line.strip() == stage:
            return
        assert line.strip() != "failed"
    raise AssertionError(f"the tuner ended before it was {stage}")


@pytest.mark.parametrize(("stage", "delay_s", "options"), MOMENTS)
def test_nothing_survives_the_tuner(
    tmp_path: Path, bystander: int, stage: str, delay_s: float, options: list[str]
) -> None:
    token = uuid4().hex
    options = [token if option == "TOKEN" else option for option in options]
    argv = [sys.executable, str(TUNER), str(tmp_path), *options]
    with subprocess.Popen(
        argv,
        env={**os.environ, "LAUNCH_TEST": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tuner:
        wait_for(tuner, stage)
        with suppress(subprocess.TimeoutExpired):
            tuner.wait(delay_s)
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    assert until(lambda: alive_with(token) == [], deadline_s=5.0), alive_with(token)


def test_an_interrupted_tuner_stops_its_server(tmp_path: Path) -> None:
    token = uuid4().hex
    argv = [sys.executable, str(TUNER), str(tmp_path), "--fork-away"]
    with subprocess.Popen(
        argv,
        env={**os.environ, "LAUNCH_TEST": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as tuner:
        wait_for(tuner, "ready")
        tuner.send_signal(signal.SIGINT)
        _, said = tuner.communicate()
    assert "KeyboardInterrupt" in said
    assert alive_with(token) == []


FORKING = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.servers.settings import PATIENT, launch
server = launch(Path(sys.argv[2]))
assert server.wait_ready(PATIENT) is None
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_forked_child_of_the_tuner_does_not_hold_the_server(tmp_path: Path) -> None:
    """Such a child, e.g. a load worker, keeps the pipe to the watchdog open after the tuner's
    death."""
    token = uuid4().hex
    argv = [sys.executable, "-c", FORKING, str(TUNER.parents[2]), str(tmp_path)]
    with subprocess.Popen(
        argv,
        env={**os.environ, "LAUNCH_TEST": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tuner:
        wait_for(tuner, "ready")
        tuner.send_signal(signal.SIGKILL)
        assert until(lambda: len(alive_with(token)) == 1), alive_with(token)
    assert until(lambda: alive_with(token) == [])
