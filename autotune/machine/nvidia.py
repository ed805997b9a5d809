"""NVIDIA's GPUs, through NVML (docs.nvidia.com/deploy/nvml-api), else through the driver's files in ``/proc``.

The only importer of pynvml, which only binds the driver's own library: without a driver there is nothing to bind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from autotune.machine.resources import ROOT, text

_NAMELESS = "NVIDIA GPU"
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


class Device(NamedTuple):
    """What a vendor's driver tells of one GPU; figures are 0 and pids empty where they are not known."""

    name: str
    total_bytes: int = 0
    used_bytes: int = 0
    pids: tuple[int, ...] = ()


def devices(root: Path) -> list[Device]:
    """List the GPUs in the order of the PCI bus, as NVML does; of a machine laid out in a folder, by its files."""
    found = _from_nvml() if root == ROOT else None
    return _from_proc(root) if found is None else found


def driver_version(root: Path) -> str | None:
    """Read the driver's version from ``/proc/driver/nvidia/version`` (driver README, "The /proc interface")."""
    found = _VERSION.search(text(root / "proc/driver/nvidia/version").partition("\n")[0])
    return found[0] if found else None


def _from_proc(root: Path) -> list[Device]:
    """List the GPUs by the driver's files, which hold names alone."""
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        models = [line.partition(":")[2] for line in text(path).splitlines() if line.startswith("Model:")]
        found += [Device(model.strip()) for model in models[:1]]
    return found


def _from_nvml() -> list[Device] | None:
    """List the GPUs by NVML; None where the library cannot be used."""
    try:
        import pynvml as nvml
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return [_gpu_at(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu_at(nvml: Any, index: int) -> Device:
    """Read one GPU. One that has fallen off the bus has no handle; it keeps its place and the others their numbers."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return Device(_NAMELESS)
    return _device(nvml, handle)


def _device(nvml: Any, handle: Any) -> Device:
    def asked(question: Callable[[Any], Any]) -> Any:
        # A GPU may not know: one that is split into slices (MIG) tells nothing of its processes.
        try:
            return question(handle)
        except nvml.NVMLError:
            return None

    name = asked(nvml.nvmlDeviceGetName) or _NAMELESS
    memory = asked(nvml.nvmlDeviceGetMemoryInfo)
    running = asked(nvml.nvmlDeviceGetComputeRunningProcesses) or []
    return Device(
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        total_bytes=int(memory.total) if memory else 0,
        used_bytes=int(memory.used) if memory else 0,
        pids=tuple(sorted({int(process.pid) for process in running})),
    )
