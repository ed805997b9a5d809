"""What the launch tests share: the stand-in's card, a way to launch it, and the search for what is
left alive."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.engines.command import Command
from autotune.engines.failure import FailureKind
from autotune.engines.machine import Gpu
from autotune.engines.schema import EngineCard
from autotune.engines.serving import Heartbeat, LockFile, LogPattern, Serving, SharedMemoryName
from autotune.servers import ShutdownTimeouts, StartupTimeouts
from autotune.servers.process import ProcessLauncher
from autotune.servers.server import Server
from tests.processes import alive

STAND_IN = Path(__file__).with_name("stand_in.py")
GRACE = ShutdownTimeouts(terminate_s=1.0, kill_s=10.0)
PATIENT = StartupTimeouts(total_s=60.0, silence_s=30.0)

CARD = EngineCard(
    engine="stand_in",
    title="Stand-in",
    program=["python3"],
    versions=["1.0"],
    on_node={},
    knobs={},
    serving=Serving(
        environment={"STAND_IN": "yes"},
        shared_memory=[
            SharedMemoryName(
                pattern="autotune-test-[0-9a-f]{32}", reason="--share-memory", source="stand_in.py"
            )
        ],
        locks=[LockFile(pattern=r"/\S+/jit/lock_\w+", reason="--lock", source="stand_in.py")],
        heartbeats=[
            Heartbeat(
                pattern=r"waits for (?P<lock>/\S+)",
                reason="--say",
                abandoned_after_s=0.3,
                source="stand_in.py",
            )
        ],
    ),
    failures=[
        LogPattern(
            pattern=r"error: unrecognized arguments: (?P<flags>.+)",
            kind=FailureKind.BAD_ARGUMENT,
            way_out="It does not know {flags}.",
            source="argparse",
        ),
        LogPattern(
            pattern=r"OutOfMemoryError: CUDA out of memory",
            kind=FailureKind.OUT_OF_MEMORY,
            way_out="Use more GPUs.",
            source="PyTorch",
        ),
        LogPattern(
            pattern=r"\[Errno 98\]|Address already in use",
            kind=FailureKind.PORT,
            way_out="Try again.",
            source="errno",
        ),
    ],
)


def stand_in(*options: str) -> Command:
    return Command((sys.executable, str(STAND_IN), *options))


def launch(folder: Path, *options: str, timeouts: ShutdownTimeouts = GRACE) -> Server:
    return ProcessLauncher(timeouts).launch(stand_in(*options), folder, CARD)


@dataclass(frozen=True)
class GpuFile:
    """GPUs as a JSON file lists them, which a test or its server may change at any time."""

    path: Path

    def __call__(self) -> list[Gpu]:
        rows = json.loads(self.path.read_text())
        return [Gpu(**{**row, "busy_pids": tuple(row["busy_pids"])}) for row in rows]

    def write(
        self, *used_gb: float, busy: Mapping[int, int] | None = None, vendor: str = "nvidia"
    ) -> GpuFile:
        """Say how much is in use on each GPU, and which process is busy on which."""
        pids = busy or {}
        rows = [
            asdict(
                Gpu(i, "H200", vendor, 141 * 10**9, int(gb * 1e9), (pids[i],) if i in pids else ())
            )
            for i, gb in enumerate(used_gb)
        ]
        self.path.write_text(json.dumps(rows))
        return self


def alive_with(token: str) -> list[int]:
    """Processes that live and have this text in their environment or arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if token.encode() in text and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def memory_of(server: Server) -> Path:
    """The file in ``/dev/shm`` of a stand-in that shares memory, as it says itself."""
    (path,) = re.findall(r"^shares (\S+)$", server.log.read_text(), re.MULTILINE)
    return Path(path)
