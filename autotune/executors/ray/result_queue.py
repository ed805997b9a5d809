"""What brings results, log files and words from the nodes to the tuner, as they come.

Not Ray Tune's own results: it keeps the latest of every trial until the end, and a log of a real server is large.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from autotune.trial import TrialResult


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the person who watches."""

    text: str


@dataclass(frozen=True, slots=True)
class Began:
    """A trial has its GPUs."""

    key: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial has ended on its node.

    Attributes:
        key: of the task.
        result: what it came to; None where it raised.
        files: its folder, a compressed tar archive.
        problem: what was raised on purpose: nothing can be launched on that node.
        bug: the traceback of anything else that was raised.
    """

    key: str
    result: TrialResult | None = None
    files: bytes = b""
    problem: str = ""
    bug: str = ""


Item = Said | Began | Ended


class Courier:
    """An actor beside the tuner: nodes bring, the tuner takes."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._news = asyncio.Event()

    async def bring(self, item: Item) -> None:
        """Keep an item for the tuner."""
        self._items.append(item)
        self._news.set()

    async def take(self, wait_s: float) -> list[Item]:
        """All that was brought since the last time; waits for something at most so long."""
        # Asked first: with no time to wait, Python 3.11's wait_for gives up before it looks.
        if not self._news.is_set():
            try:
                await asyncio.wait_for(self._news.wait(), wait_s)
            except TimeoutError:
                return []
        items, self._items = self._items, []
        self._news.clear()
        return items


def hire(node_id: str) -> Any:
    """A courier on the tuner's own node; ends with the tuner."""
    actor = ray.remote(Courier).options(num_cpus=0, max_concurrency=1000, label_selector={"ray.io/node-id": node_id})
    return actor.remote()


def packed(folder: Path) -> bytes:
    """A folder's content; empty bytes for a folder that is not there. What cannot be read is left out."""
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
    """Write what `packed` read; raises ``OSError`` where there is no room."""
    if content:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter=_harmless)


def _harmless(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Without what a server may leave beside its log and is no file of ours: devices, links that lead elsewhere."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


__all__: Sequence[str] = ["Began", "Courier", "Ended", "Item", "Said", "hire", "packed", "unpack"]
