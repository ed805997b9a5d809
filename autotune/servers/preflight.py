"""Checks of the node before and after a launch: it can be measured, and the launch left nothing
behind.

Problems here say nothing about a configuration. Only processes that the launch started are ever
ended.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from autotune.base import frozen
from autotune.engines import Failure, FailureKind
from autotune.engines.library import server_environment
from autotune.engines.machine import (
    Gpu,
    disk_free_bytes,
    existing_folder,
    gpus,
    open_file_limit,
    power_of,
)

from .processes import read_process
from .visible import VisibleGpus, visible_gpus

_RESETS = {"nvidia": "nvidia-smi --gpu-reset -i {index}", "amd": "rocm-smi --gpureset -d {index}"}
IDLE_BYTES = 2 * 10**9
"""Most used bytes of an idle GPU: a driver holds some hundred MB, a server at least several GB."""


OPEN_FILES = 4096
"""Least hard limit of open files."""


def too_few_files(needed: int = OPEN_FILES) -> str:
    """Explain that the hard limit of open files is too low for a server; empty if it is not."""
    hard = open_file_limit()
    if hard is None or hard >= needed:
        return ""
    return (
        f"A server may open {hard} files here but needs {needed}, at least one per request; raise "
        f"the limit with `ulimit -Hn {needed}`."
    )


def cache_places() -> dict[str, Path]:
    """Return the folders in which servers of this machine keep compiled kernels, by variable."""
    return {
        place.variable: Path(os.path.expanduser(os.environ.get(place.variable) or place.folder))
        for place in server_environment().places
    }


@frozen
class Node:
    """State of this machine that launches need.

    Attributes:
        gpus: reads the GPUs as they are now.
        count: a server takes so many of them, the first that the environment leaves visible.
        disk_bytes: free at least where a launch leaves its log, its results and compiled kernels.
        caches: folders of these, by the variables that name them.
        open_files: a socket for each request among them.
        settle_s: given to a driver to take back the memory of a process that has ended.
        pause: waits so many seconds between two readings of its memory.
        power: makes what reads the power of some GPUs.
    """

    gpus: Callable[[], Sequence[Gpu]] = gpus
    count: int = 0
    disk_bytes: int = 10**9
    open_files: int = OPEN_FILES
    caches: Mapping[str, Path] = {}
    settle_s: float = 60.0
    pause: Callable[[float], None] = time.sleep
    power: Callable[[Sequence[Gpu]], Callable[[], float | None] | None] = power_of

    def unfit(self, study: Path) -> Failure | None:
        """Check GPUs, limits and the disk of the study's folder; a failure if no server can be
        launched."""
        lasting = too_few_files(self.open_files) or self._hidden()
        if not study.is_dir():
            lasting = f"The folder {study} and its measurements were deleted."
        if lasting:
            return Failure(FailureKind.INFRASTRUCTURE, lasting, lasting=True)
        problems = [problem for gpu in self._used_gpus() if (problem := why_busy(gpu))]
        problems = [*self._full_disks(study), *problems]
        return Failure(FailureKind.INFRASTRUCTURE, " ".join(problems)) if problems else None

    def _full_disks(self, study: Path) -> Iterator[str]:
        """Describe each file system that a launch writes to and that has no room."""
        seen = set[int]()
        for variable, folder in {"": study, **self.caches}.items():
            device = existing_folder(folder).stat().st_dev
            free = disk_free_bytes(folder)
            if device not in seen and free < self.disk_bytes:
                where = f"{folder} ({variable})" if variable else str(folder)
                yield (
                    f"Only {_gb(free)} are free in {where}, {_gb(self.disk_bytes)} are needed for a "
                    "launch; free disk space there."
                )
            seen.add(device)

    def used(self) -> Mapping[int, int]:
        """Return used memory in bytes by GPU index, if the driver reports it; the argument of
        `left_behind`."""
        return {
            gpu.index: gpu.memory_used_bytes for gpu in self._used_gpus() if gpu.memory_total_bytes
        }

    def meter(self, count: int) -> Callable[[], float | None] | None:
        """Return a function that reads the power of the first GPUs of this number; None if
        unknown."""
        used = self._used_gpus()
        return self.power(used[:count]) if 0 < count <= len(used) <= self.count else None

    def left_behind(self, before: Mapping[int, int]) -> str:
        """Describe the remains of a launch on the GPUs after the driver's release time; empty for
        none."""
        deadline = time.monotonic() + self.settle_s
        while (held := self._held(before)) and time.monotonic() < deadline:
            self.pause(min(1.0, self.settle_s))
        gone = [
            f"GPU {index} was present before the launch, but its driver no longer reports it."
            for index in sorted(set(before) - self.used().keys())
        ]
        return " ".join(
            gone
            + [
                f"{_name(gpu)} still holds {_gb(gpu.memory_used_bytes)} ({_gb(before[gpu.index])} "
                f"before) {self.settle_s:g} s after the server has ended, {_holders(gpu)}. "
                f"{_way_out(gpu)}"
                for gpu in held
            ]
        )

    def _held(self, before: Mapping[int, int]) -> list[Gpu]:
        return [
            gpu
            for gpu in [gpu for gpu in self._used_gpus() if gpu.index in before]
            if gpu.memory_used_bytes > before[gpu.index] + IDLE_BYTES
        ]

    def _used_gpus(self) -> list[Gpu]:
        present = list(self.gpus())
        visible = self._visible(present)
        if visible is None:
            return present[: self.count]
        # Named by UUID: any may be the one, so all must be idle.
        return present if visible.indices is None else _shown(visible, present)[: self.count]

    def _visible(self, present: Sequence[Gpu]) -> VisibleGpus | None:
        return visible_gpus(present[0].vendor) if present and self.count else None

    def _hidden(self) -> str:
        """Explain that the environment leaves too few GPUs visible; empty if it leaves enough."""
        present = list(self.gpus())
        visible = self._visible(present)
        if visible is None:
            return ""
        count = len(visible.words if visible.indices is None else _shown(visible, present))
        if count >= self.count:
            return ""
        return (
            f"{visible.source} leaves {count} GPUs visible, but {self.count} are needed; name as "
            "many, by number or UUID, or unset it."
        )


def _shown(visible: VisibleGpus, present: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that indices name, up to the first that is not there."""
    by_index = {gpu.index: gpu for gpu in present}
    return [by_index[i] for i in takewhile(by_index.__contains__, visible.indices or ())]


def why_busy(gpu: Gpu) -> str:
    """Report a busy GPU and its processes; empty if it is idle."""
    if not gpu.busy_pids and gpu.memory_used_bytes <= IDLE_BYTES:
        return ""
    return (
        f"{_name(gpu)} is not idle: {_gb(gpu.memory_used_bytes)} of {_gb(gpu.memory_total_bytes)} "
        f"are in use, {_holders(gpu)}. {_way_out(gpu)}"
    )


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})"


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _holders(gpu: Gpu) -> str:
    processes = [(pid, read_process(pid)) for pid in gpu.busy_pids]
    names = ", ".join(
        f"{pid} {process.name if process else ''}".rstrip() for pid, process in processes
    )
    if not names:
        return "by no visible process"
    return f"by process {names}" if len(gpu.busy_pids) == 1 else f"by processes {names}"


def _way_out(gpu: Gpu) -> str:
    if gpu.busy_pids:
        return "End these processes; autotune only ends processes that it started."
    reset = _RESETS.get(gpu.vendor, "").format(index=gpu.index)
    reset = f"reset it ({reset})" if reset else "reset it"
    return f"A process of a container may hold it, or the driver: {reset}, or restart the node."
