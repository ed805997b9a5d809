"""Greedy requests to a server that does not answer, and Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from threading import Semaphore

from tests.load.server import Server

ASKS = """
import sys
from autotune.tuner.accuracy.asking import ask
from autotune.load.client.target import Target

try:
    ask(Target.parse(sys.argv[1]), "m", [{"prompt": str(i)} for i in range(5)], 2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.read()
"""


def test_ctrl_c_ends_a_check_that_waits_and_closes_its_connections() -> None:
    asked, closed = Semaphore(0), Semaphore(0)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.release()
        await reader.read()
        closed.release()

    # Nothing of it ends before the 900 s that an answer may take, unless the signal ends it.
    with (
        Server(talk=silent) as server,
        subprocess.Popen(
            [sys.executable, "-c", ASKS, server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            asked.acquire()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        for _ in range(2):
            closed.acquire()
        assert process.poll() is None, "it lives, so it was not its end that closed them"
        process.stdin.close()
        assert process.wait() == 0
    assert server.connections == 2
