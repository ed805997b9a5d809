"""A process that stands in for an engine on a node with GPUs: ``autotune emulate -- vllm serve …``.

    launch.py    the engine's command line, as the engine's version reads it
    startup.py   the log of a start, and the faults that are asked for
    process.py   port, signals, exit codes
    http.py      a lean HTTP server
    api.py       the engine's endpoints
    requests.py  bodies of requests, and what answers them
    engine.py    the simulated node by the wall clock, and its prefix caches by token ids
    card.py      the engines' dialects: search_spaces/<engine>/emulator.yaml

The HTTP server is our own small protocol on httptools and uvloop. With 1000 streams it sends 16,000 tokens/s with 14 %
of a core and 34,000 with 20 %, the engine's arithmetic included; uvicorn with starlette, doing nothing but pacing,
takes 24 % for 15,000 and 45 % for 30,000 (``benchmarks/emulator.py``, one run). An ASGI server would do, then; but the
emulator shares a machine of few cores with the client that is measured, so it should take as little as it can, and
faults such as a stream that breaks off are simpler below ASGI.

Its numbers are *emulated*: the times of the simulated node, through real processes, sockets and clients.
"""

from __future__ import annotations

import math
import sys

from autotune.errors import BadInput
from autotune.simulator.emulator.launch import CommandRefused, Emulation, prepare_launch
from autotune.space.library import Library

__all__ = ["Emulation", "emulate"]


def emulate(asked: Emulation, library: Library, as_json: bool = False) -> int:
    """Start the server and serve until SIGTERM or SIGINT; returns the exit code that the engine would end with.

    Raises `BadInput` for what no engine decides: an unknown model, fault or engine version.
    """
    from autotune.simulator.emulator.process import serve

    if not (asked.speed > 0 and math.isfinite(asked.speed)):
        raise BadInput(f"--speed {asked.speed:g}: must be above 0 and finite, e.g. 10 for ten times as fast")
    if asked.startup_s is not None and not math.isfinite(asked.startup_s):
        raise BadInput(f"--startup-s {asked.startup_s:g}: must be a number of seconds, 0 or more")
    try:
        launch = prepare_launch(asked, library)
    except CommandRefused as refused:
        print("\n".join(refused.lines()), file=sys.stderr)
        return refused.card.refusal.exit_code
    return serve(launch, as_json)
