"""A server that waits for its clients when it is asked to end: ours leave first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import until
from tests.servers import interrupted

PROGRAM = Path(interrupted.__file__)


@pytest.mark.parametrize("doing", interrupted.DOING)
def test_an_interrupted_load_leaves_before_its_server_is_asked_to_end(
    tmp_path: Path, doing: str
) -> None:
    log = tmp_path / "server.log"
    everybody = f"{interrupted.REQUESTS} open"
    words = [sys.executable, str(PROGRAM), str(tmp_path), doing]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "ready\n"
        assert until(lambda: everybody in log.read_text())
        tuner.send_signal(signal.SIGINT)
        assert tuner.stdout.read() == "SIGTERM\n"
    assert log.read_text().endswith("the last client has left\n")
