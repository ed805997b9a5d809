"""A tuner that is interrupted while its server answers; a program, which a test sends SIGINT.

Arguments: the trial's folder, and what it does with the server, ``load`` or ``ask``. Prints the
signals that ended the server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autotune.engines.command import Command
from autotune.load import LoadOptions, measure
from autotune.load.client.target import Target
from autotune.load.workloads import load_workload
from autotune.servers.process import ProcessLauncher
from autotune.tuner.accuracy.asking import ask
from tests.servers.settings import CARD, PATIENT

SERVER = Path(__file__).with_name("open_streams.py")
REQUESTS = 3


def load(url: str) -> None:
    options = LoadOptions(vocabulary=1000, warm_up=False)
    measure(url, "tiny", load_workload(f"random:8:50:{REQUESTS}"), 1, options)


def question(url: str) -> None:
    bodies = [{"prompt": "Hello", "max_tokens": 50}] * REQUESTS
    ask(Target.parse(url), "tiny", bodies, REQUESTS)


DOING: dict[str, Callable[[str], None]] = {"load": load, "ask": question}


def main() -> None:
    folder, doing = sys.argv[1:]
    command = Command((sys.executable, str(SERVER)))
    server = ProcessLauncher().launch(command, Path(folder), CARD)
    try:
        with server:
            print(server.wait_ready(PATIENT) or "ready", flush=True)
            DOING[doing](server.url)
    except KeyboardInterrupt:
        print(*server.stop().signals, flush=True)


if __name__ == "__main__":
    main()
