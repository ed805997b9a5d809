"""The GPUs of this machine, whoever made them.

NVIDIA's are read through NVML (docs.nvidia.com/deploy/nvml-api), else from the driver's files in ``/proc``. The only
importer of pynvml, which only binds the driver's own library: without a driver there is nothing to bind.

AMD's are read from the files of the kernel's amdgpu and amdkfd drivers: no library is needed to ask. Sources: kernel
documentation, "GPU Product Information" and "Memory Info" of amdgpu; of the processes
drivers/gpu/drm/amd/amdkfd/kfd_process.c, of the firmware's versions drivers/gpu/drm/amd/amdgpu/amdgpu_ucode.c.
"""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path("/")
"""This machine itself; every other root is another one, laid out in a folder."""

CORE_GB_S = 10.0
SOCKET_GB_S = 200.0
_FLOPS_PER_CYCLE = {"amx_bf16": 2048, "avx512_bf16": 128, "avx512f": 64, "avx2": 32, "asimd": 16}
_GHZ = 2.0


def text(path: Path) -> str:
    """Read a file without white space around its content; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Read a file that holds one whole number, decimal or as ``0x…``; None when it does not."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor as the kernel describes it.

    Attributes:
        model: its name, else the kind of machine, e.g. ``aarch64``.
        cores: that this process may use.
        flags: instruction sets, in the kernel's names.
        clock_ghz: the highest, else that of the moment to a tenth; 2 where the kernel does not say.
    """

    model: str
    cores: int
    flags: frozenset[str]
    clock_ghz: float

    @property
    def bandwidth_gb_s(self) -> float:
        """Return the memory bandwidth by a rule of thumb: about 10 GB/s per core, at most 200 GB/s."""
        return min(self.cores * CORE_GB_S, SOCKET_GB_S)

    @property
    def tflops(self) -> float:
        """Return the peak of 16-bit matrix products: cores x clock x operations per cycle of the widest instructions.

        Two fused multiply-adds per cycle: 16 operations with 128 bits of float32, 32 with AVX2, 64 with AVX-512, 128
        with its bfloat16 dot product; 2048 with AMX tiles (Intel optimisation reference manual, chapter on AMX).
        """
        widest = next((count for flag, count in _FLOPS_PER_CYCLE.items() if flag in self.flags), 8)
        return self.cores * self.clock_ghz * widest / 1e3


def cpu(root: Path = ROOT) -> Cpu:
    """Read this machine's processor from ``/proc/cpuinfo`` (proc(5)): the first one's lines."""
    lines = [line.partition(":") for line in text(root / "proc/cpuinfo").split("\n\n")[0].splitlines()]
    first = {key.strip(): value.strip() for key, _, value in lines}
    highest_khz = number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    now_mhz = first.get("cpu MHz", "")
    now_ghz = round(float(now_mhz) / 1e3, 1) if re.fullmatch(r"\d+(?:\.\d+)?", now_mhz) else _GHZ
    return Cpu(
        model=first.get("model name") or platform.machine() or "unknown processor",
        cores=cores(root),
        flags=frozenset((first.get("flags") or first.get("Features") or "").split()),
        clock_ghz=highest_khz / 1e6 if highest_khz else now_ghz,
    )


def memory_bytes(root: Path = ROOT) -> int:
    """Read the main memory that processes here may have, less where a control group limits it; 0 = not known.

    Sources: proc(5) for ``MemTotal``; kernel documentation, "Control Group v2" (``memory.max``).
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    limits = [number(path) for path in _cgroup_files(root, "memory.max")]
    known = [int(match[1]) * 1024] if match else []
    return min([*known, *(limit for limit in limits if limit)], default=0)


def cores(root: Path = ROOT) -> int:
    """Count the processors that this process may use at a time: affinity and a control group's quota count."""
    listed = len(re.findall(r"^processor\s*:", text(root / "proc/cpuinfo"), re.MULTILINE))
    counts = [float(listed)] if listed else []
    if root == ROOT:
        counts.append(len(os.sched_getaffinity(0)))
    for path in _cgroup_files(root, "cpu.max"):
        words = text(path).split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]):
            counts.append(int(words[0]) / int(words[1]))
    return max(1, math.ceil(min(counts, default=1)))


def disk_free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary user may still write where a folder lies, or would lie once it is made."""
    return shutil.disk_usage(existing_folder(folder)).free


def existing_folder(folder: Path) -> Path:
    """Return a folder itself, else the nearest one above it that is there and may be seen by this user."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def shared_memory_bytes(root: Path = ROOT) -> int:
    """Return the size of ``/dev/shm``; 0 where there is none."""
    try:
        return shutil.disk_usage(root / "dev/shm").total
    except OSError:
        return 0


def open_file_limit() -> int | None:
    """Return the most files, sockets among them, that a process may have open; None: any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _cgroup_files(root: Path, name: str) -> list[Path]:
    """List this process's control group's files of a limit, and those around it; the tightest one counts."""
    lines = text(root / "proc/self/cgroup").splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    parts = [part for part in group.split("/") if part not in ("", "..")]
    paths = [(root / "sys/fs/cgroup").joinpath(*parts[:depth], name) for depth in range(len(parts), -1, -1)]
    return [path for path in paths if path.is_file()]


Vendor = Literal["nvidia", "amd"]

_NAMELESS = "NVIDIA GPU"
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")
_CARD = re.compile(r"card(\d+)")
_INSTINCT = {
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
    "0x74b5": "AMD Instinct MI300X VF",
}
"""PCI device ids (pci.ids), for cards whose board does not tell its name, as inside a virtual machine."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, at the moment it was asked.

    Attributes:
        index: its number among the vendor's GPUs, from 0, as the vendor's own tools count; settings that hide GPUs
            from a process (``CUDA_VISIBLE_DEVICES``) are not looked at.
        name: the product's, e.g. ``NVIDIA H200``.
        memory_total_bytes: as the driver says; 0 = it does not.
        memory_used_bytes: as the driver says, its own share included; 0 where the total is.
        busy_pids: the processes that compute on it, ascending, as far as the driver tells this user; from inside a
            container, those outside are often missing.
    """

    index: int
    name: str
    vendor: Vendor
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    busy_pids: tuple[int, ...] = ()


def gpus(root: Path = ROOT) -> tuple[Gpu, ...]:
    """List this machine's GPUs, NVIDIA's before AMD's; empty where there are none."""
    # NVML cannot be asked of a machine that is laid out in a folder. Both list in the order of the PCI bus.
    found = _from_nvml() if root == ROOT else None
    if found is None:
        # The driver's files hold names alone.
        infos = (text(path) for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")))
        models = [match[1].strip() for info in infos if (match := re.search(r"^Model:(.*)", info, re.MULTILINE))]
        found = [Gpu(index, name, "nvidia") for index, name in enumerate(models)]
    # AMD's by card number, without those that have no product name (graphics of a desktop).
    named = [(card, name) for card in _amd_cards(root) if (name := _amd_name(card))]
    for index, (card, name) in enumerate(named):
        total, used = number(card / "mem_info_vram_total"), number(card / "mem_info_vram_used")
        found.append(Gpu(index, name, "amd", total or 0, used or 0 if total else 0, _amd_pids(root, card)))
    return tuple(found)


def has(hardware: str, count: int, root: Path = ROOT) -> bool:
    """Return whether this machine has so many GPUs of a kind, e.g. ``h200``; case does not matter."""
    return sum(is_kind(gpu.name, hardware) for gpu in gpus(root)) >= count


def is_kind(product: str, hardware: str) -> bool:
    """Tell whether a product's name holds a kind of hardware: ``GH200`` is no ``h200``, ``RTX 4090`` is ``rtx4090``."""
    words = r"[\s-]?".join(map(re.escape, re.findall(r"[a-z]{3,}|[a-z]{,2}\d\w*", hardware.lower())))
    return re.search(rf"(?<![a-z0-9]){words}(?![a-z0-9])", product.lower()) is not None


def driver_version(vendor: Vendor, root: Path = ROOT) -> str | None:
    """Read the version of a vendor's kernel driver; None where it is not loaded or, as AMD's in-tree one, has none."""
    if vendor == "amd":
        return text(root / "sys/module/amdgpu/version") or None
    # NVIDIA's driver README, "The /proc interface".
    match = _VERSION.search(text(root / "proc/driver/nvidia/version").partition("\n")[0])
    return match[0] if match else None


def _from_nvml() -> list[Gpu] | None:
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


def _gpu_at(nvml: Any, index: int) -> Gpu:
    """Read one GPU. One that has fallen off the bus has no handle; it keeps its place and the others their numbers."""

    def ask(question: Callable[[Any], Any], *of: Any) -> Any:
        # A GPU may not know: one that is split into slices (MIG) tells nothing of its processes.
        try:
            return question(*of)
        except nvml.NVMLError:
            return None

    handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Gpu(index, _NAMELESS, "nvidia")
    name = ask(nvml.nvmlDeviceGetName, handle) or _NAMELESS
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    running = ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return Gpu(
        index,
        name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        "nvidia",
        int(memory.total) if memory else 0,
        int(memory.used) if memory else 0,
        tuple(sorted({int(process.pid) for process in running})),
    )


def mec_firmware(root: Path) -> tuple[int, ...]:
    """Read each GPU's version of compute microcode, in the order of `gpus`, as far as the driver shows it."""
    versions = [number(card / "fw_version/mec_fw_version") for card in _amd_cards(root) if _amd_name(card)]
    return tuple(version for version in versions if version is not None)


def _amd_cards(root: Path) -> list[Path]:
    """List the device folders; ``card0-DP-1`` and its like are connectors."""
    numbered = [(_CARD.fullmatch(path.name), path) for path in (root / "sys/class/drm").glob("card*")]
    return [path / "device" for _, path in sorted((int(match[1]), path) for match, path in numbered if match)]


def _amd_name(card: Path) -> str:
    return text(card / "product_name").partition("\n")[0].strip() or _INSTINCT.get(text(card / "device"), "")


def _amd_pids(root: Path, card: Path) -> tuple[int, ...]:
    """List the processes that hold memory of a card, by amdkfd's own number of it."""
    minors = {path.name.removeprefix("renderD") for path in (card / "drm").glob("renderD*")}
    kfd = root / "sys/class/kfd/kfd"
    pids: set[int] = set()
    for node in (kfd / "topology/nodes").glob("*"):
        properties = dict(line.split(maxsplit=1) for line in text(node / "properties").splitlines() if " " in line)
        if properties.get("drm_render_minor") in minors:
            holders = (kfd / "proc").glob(f"*/vram_{text(node / 'gpu_id')}")
            pids |= {int(path.parent.name) for path in holders if path.parent.name.isdecimal() and number(path)}
    return tuple(sorted(pids))
