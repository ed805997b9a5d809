"""Emulated servers that share a node: each shows that it serves, and sees whether another one does.

Two servers share a node where their working folders lie in one folder two levels up, as the trials of a study do. Each
holds a socket in Linux's abstract namespace, which goes with its process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from pathlib import Path

from autotune.simulator.emulator.engine import LiveEngine

_LOOK_S = 0.2
_SOCKETS = Path("/proc/net/unix")


async def slow_beside_others(engine: LiveEngine, share: float) -> None:
    """Have steps take so much longer while another server of the node serves, until this is cancelled; 0: never."""
    if not share:
        return
    node = hashlib.sha256(str(Path.cwd().parents[1:2]).encode()).hexdigest()[:12]
    prefix = f"autotune-emulated-{node}-"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as shown:
        shown.bind(f"\0{prefix}{os.getpid()}")
        while True:
            # Abstract names stand there with an @ for the zero byte (proc(5)).
            served = _SOCKETS.read_text().count(f"@{prefix}")
            engine.slowness = 1.0 + share * (served > 1)
            await asyncio.sleep(_LOOK_S)
