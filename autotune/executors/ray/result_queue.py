"""The queue from the nodes to the tuner: messages, results and the files of trials, as they come.

Not Ray Tune's own results: it keeps the latest of every trial until the end, and a log of a real server is large.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import platform
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from autotune.notify import Stage
from autotune.trial import TrialResult

TRIAL_FOLDER, TUNE_FOLDER = "autotune-trial", "autotune-ray"
"""How the names begin of the folders of running trials, and of those in which Ray Tune keeps its files."""


@dataclass(frozen=True, slots=True)
class Started:
    """A trial has its GPUs."""

    key: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial has ended on its node.

    Attributes:
        key: of the task.
        result: of the evaluation; None where it raised.
        files: its folder, a compressed tar archive.
        problem: the message of an error of ours: nothing can be launched on that node.
        bug: the traceback of any other error.
    """

    key: str
    result: TrialResult | None = None
    files: bytes = b""
    problem: str = ""
    bug: str = ""


Event = str | Stage | Started | Ended
"""A text is a line to show to a person."""


class ResultQueue:
    """An actor beside the tuner: nodes put events, the tuner gets them."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._not_empty = asyncio.Event()

    async def put(self, event: Event) -> None:
        self._events.append(event)
        self._not_empty.set()

    async def get(self, wait_s: float) -> list[Event]:
        """Remove and return all events; waits at most so long for one."""
        # Asked first: with no time to wait, Python 3.11's wait_for gives up before it looks.
        if not self._not_empty.is_set():
            try:
                await asyncio.wait_for(self._not_empty.wait(), wait_s)
            except TimeoutError:
                return []
        events, self._events = self._events, []
        self._not_empty.clear()
        return events


def create_queue(node_id: str) -> Any:
    """Create a `ResultQueue` actor on the tuner's own node; it ends with the tuner."""
    actor = ray.remote(ResultQueue)
    return actor.options(num_cpus=0, max_concurrency=1000, label_selector={"ray.io/node-id": node_id}).remote()


def own_folder(kind: str, name: str = "") -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder, and remove those that killed processes of this machine left.

    Several machines may share the folder for temporary files, so a machine looks only at its own.
    """
    prefix = f"{kind}-{_safe(platform.node())}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
    # A container's files may be another user's.
    return tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-{_safe(name)}-", ignore_cleanup_errors=True)


def _safe(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)


def pack(folder: Path) -> bytes:
    """Archive a folder; empty bytes for a folder that does not exist. What cannot be read is left out."""
    if not folder.is_dir():
        return b""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            # A container's server may leave files that only its user reads.
            with contextlib.suppress(PermissionError, FileNotFoundError):
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return stream.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Write what `pack` read; raises ``OSError`` where there is no room."""
    if content:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter=_harmless)


def _harmless(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out what a server may put beside its log: devices, and links that lead elsewhere."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None
