"""A tuner that launches one stand-in and then waits for its end; a program for tests that kill it.

Arguments: the trial's folder, then the stand-in's options. Says on standard output how far it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autotune.servers.server import Server
from tests.servers.settings import PATIENT, launch


def tune(launch: Callable[..., Server]) -> None:
    folder, *options = sys.argv[1:]
    print("launching", flush=True)
    with launch(Path(folder), *options) as server:
        print("launched", flush=True)
        failure = server.wait_ready(PATIENT)
        print("failed" if failure else "ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    tune(launch)
