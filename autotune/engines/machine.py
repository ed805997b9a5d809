"""This machine: its processor, its memory, its GPUs of any vendor, and the card for ``--hw local``.

Nothing here needs a GPU, a driver or a vendor's library: what is not there is not listed.

NVIDIA's are read through NVML (docs.nvidia.com/deploy/nvml-api), else from the driver's files in
``/proc``. The only importer of pynvml, which only binds the driver's own library: without a driver
there is nothing to bind.

AMD's are read from the files of the kernel's amdgpu and amdkfd drivers: no library is needed to
ask. Sources: kernel documentation, "GPU Product Information" and "Memory Info" of amdgpu; of the
processes drivers/gpu/drm/amd/amdkfd/kfd_process.c.
"""

import math
import os
import platform
import re
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from autotune.base import BadInput, StringDict, frozen

from .cards import HardwareCard
from .entry import spaces_file
from .library import LOCAL, Library

ROOT = Path("/")
"""This machine; other roots are folders with the layout of another machine."""

_Answer = TypeVar("_Answer")
_POWER = ("power1_average", "power1_input")

CORE_GB_S = 10.0
SOCKET_GB_S = 200.0
_KNOWN = spaces_file("machine.yaml")
_GHZ = 2.0


def text(path: Path) -> str:
    """Read a file without surrounding white space; empty if it is not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Read a file with one whole number, decimal or as ``0x…``; None otherwise."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


@frozen
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
        """Return the memory bandwidth by a rule of thumb: about 10 GB/s per core, at most 200
        GB/s."""
        return min(self.cores * CORE_GB_S, SOCKET_GB_S)

    @property
    def tflops(self) -> float:
        """Return the peak of 16-bit matrix products: cores x clock x operations per cycle of the
        widest instructions."""
        counts = _KNOWN["flops_per_cycle"].items()
        widest: int = next((count for flag, count in counts if flag in self.flags), 8)
        return self.cores * self.clock_ghz * widest / 1e3


def cpu(root: Path = ROOT) -> Cpu:
    """Read this machine's processor from ``/proc/cpuinfo`` (proc(5)): the first one's lines."""
    processors = text(root / "proc/cpuinfo").split("\n\n")
    rows = (line.partition(":") for line in processors[0].splitlines())
    first = {key.strip(): value.strip() for key, _, value in rows}
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
    """Read the main memory available to processes, less under a control group's limit; 0 = unknown.

    Sources: proc(5) for ``MemTotal``; kernel documentation, "Control Group v2" (``memory.max``).
    """
    match = re.search(r"^MemTotal:\s+(\d+) kB", text(root / "proc/meminfo"), re.MULTILINE)
    limits = [number(path) for path in _cgroup_files(root, "memory.max")]
    known = [int(match[1]) * 1024] if match else []
    return min([*known, *(limit for limit in limits if limit)], default=0)


def cores(root: Path = ROOT) -> int:
    """Count the processors available to this process: affinity and a control group's quota
    apply."""
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
    """Return the bytes that an ordinary user may write at a folder's place, existing or not."""
    return shutil.disk_usage(existing_folder(folder)).free


def existing_folder(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists and is visible to this user."""
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))


def shared_memory_bytes(root: Path) -> int:
    """Return the size of ``/dev/shm``; 0 without one."""
    try:
        return shutil.disk_usage(root / "dev/shm").total
    except OSError:
        return 0


def open_file_limit() -> int | None:
    """Return the most files and sockets that a process may have open; None: any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def _cgroup_files(root: Path, name: str) -> list[Path]:
    """List the files of a limit in this process's control group and its parents; the tightest one
    applies."""
    lines = text(root / "proc/self/cgroup").splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    parts = [part for part in group.split("/") if part not in ("", "..")]
    paths = [
        (root / "sys/fs/cgroup").joinpath(*parts[:depth], name)
        for depth in range(len(parts), -1, -1)
    ]
    return [path for path in paths if path.is_file()]


Vendor = Literal["nvidia", "amd"]

_NAMELESS = "NVIDIA GPU"
_VERSION = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)?\b")


@frozen
class Gpu:
    """One GPU, at the moment of the query.

    Attributes:
        index: its number among the vendor's GPUs, from 0, as the vendor's own tools count; settings
            that hide GPUs from a process (``CUDA_VISIBLE_DEVICES``) are not looked at.
        name: the product's, e.g. ``NVIDIA H200``.
        memory_total_bytes: as the driver says; 0 = it does not.
        memory_used_bytes: as the driver says, its own share included; 0 where the total is.
        busy_pids: the processes that compute on it, ascending, as far as the driver tells this
            user; from inside a container, those outside are often missing.
    """

    index: int
    name: str
    vendor: Vendor
    memory_total_bytes: int = 0
    memory_used_bytes: int = 0
    busy_pids: tuple[int, ...] = ()


def gpus(root: Path = ROOT) -> tuple[Gpu, ...]:
    """List this machine's GPUs, NVIDIA's before AMD's."""
    # NVML cannot be asked of a machine that is laid out in a folder. Both list in the order of the
    # PCI bus.
    listed = None
    if root == ROOT:
        listed = _asked(lambda nvml: [_gpu_at(nvml, i) for i in range(nvml.nvmlDeviceGetCount())])
    if listed is None:
        # The driver's files hold names alone.
        models = [
            model
            for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
            for model in re.findall(r"^Model:\s*(.*\S)", text(path), re.MULTILINE)
        ]
        listed = [Gpu(index, name, "nvidia") for index, name in enumerate(models)]
    for index, card in enumerate(_amd_cards(root)):
        total = number(card / "mem_info_vram_total") or 0
        used = number(card / "mem_info_vram_used") if total else 0
        listed.append(Gpu(index, _amd_name(card), "amd", total, used or 0, _amd_pids(root, card)))
    return tuple(listed)


def has(hardware: str, count: int, root: Path = ROOT) -> bool:
    """Return whether this machine has at least this number of GPUs of a kind, e.g. ``h200``; case
    is ignored."""
    return sum(is_kind(gpu.name, hardware) for gpu in gpus(root)) >= count


def is_kind(product: str, hardware: str) -> bool:
    """Return whether a product is of a kind of hardware: ``GH200`` is no ``h200``, ``RTX 4090`` is
    ``rtx4090``."""
    words = r"[\s-]?".join(
        map(re.escape, re.findall(r"[a-z]{3,}|[a-z]{,2}\d\w*", hardware.lower()))
    )
    return re.search(rf"(?<![a-z0-9]){words}(?![a-z0-9])", product.lower()) is not None


def driver_version(vendor: Vendor, root: Path) -> str | None:
    """Read the version of a vendor's kernel driver; None if not loaded or, as AMD's in-tree one,
    without a version."""
    if vendor == "amd":
        return text(root / "sys/module/amdgpu/version") or None
    # NVIDIA's driver README, "The /proc interface".
    match = _VERSION.search(text(root / "proc/driver/nvidia/version").partition("\n")[0])
    return match[0] if match else None


def _asked(question: Callable[[Any], _Answer]) -> _Answer | None:
    """Query NVML; None if the library is not usable, or lacks the value."""
    try:
        import pynvml as nvml
    except ImportError:
        return None
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        try:
            return question(nvml)
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
    return None


def power_of(some: Sequence[Gpu], root: Path = ROOT) -> Callable[[], float | None] | None:
    """Return a function that reads the summed power of GPUs, in W; None if their driver does not
    report it.

    NVIDIA's ``nvmlDeviceGetPowerUsage`` (mW, the mean of a second on recent GPUs); of AMD's the
    hwmon file of amdgpu (``power1_average``, else ``power1_input``, in microwatts; kernel
    documentation, "HWMON Interfaces").
    """

    def read_nvml(nvml: Any) -> float:
        handles = (nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in some)
        return float(sum(map(nvml.nvmlDeviceGetPowerUsage, handles))) / 1e3

    cards = _amd_cards(root)

    def read_hwmon() -> float | None:
        files = [
            [path for name in _POWER for path in cards[gpu.index].glob(f"hwmon/*/{name}")]
            for gpu in some
        ]
        watts = [number(paths[0]) for paths in files if paths]
        known = [one for one in watts if one is not None]
        return sum(known) / 1e6 if len(known) == len(some) else None

    of_nvidia = all(gpu.vendor == "nvidia" for gpu in some)
    read = partial(_asked, read_nvml) if of_nvidia else read_hwmon
    return read if some and read() is not None else None


def _gpu_at(nvml: Any, index: int) -> Gpu:
    """Read one GPU. A GPU that fell off the bus has no handle; it keeps its index."""

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


def _amd_cards(root: Path) -> list[Path]:
    """List the device folders of cards with a product name, by number.

    ``card0-DP-1`` etc. are connectors; graphics of a desktop have no name.
    """
    numbers = (path.name.removeprefix("card") for path in (root / "sys/class/drm").glob("card*"))
    ordered = sorted((number for number in numbers if number.isdecimal()), key=int)
    devices = [root / f"sys/class/drm/card{number}/device" for number in ordered]
    return [device for device in devices if _amd_name(device)]


def _amd_name(card: Path) -> str:
    """Read a board's name; some do not report it, as in a virtual machine."""
    name = text(card / "product_name").partition("\n")[0].strip()
    return name or _nameless_boards().get(text(card / "device"), "")


@lru_cache(maxsize=1)
def _nameless_boards() -> StringDict:
    cards = Library().hardware.values()
    return {of: f"AMD Instinct {card.name.upper()}" for card in cards for of in card.pci_ids}


def _amd_pids(root: Path, card: Path) -> tuple[int, ...]:
    """List the processes that hold memory of a card, by amdkfd's number of it."""
    minors = {path.name.removeprefix("renderD") for path in (card / "drm").glob("renderD*")}
    kfd = root / "sys/class/kfd/kfd"
    pids: set[int] = set()
    for node in (kfd / "topology/nodes").glob("*"):
        properties = dict(
            line.split(maxsplit=1) for line in text(node / "properties").splitlines() if " " in line
        )
        if properties.get("drm_render_minor") in minors:
            holders = (kfd / "proc").glob(f"*/vram_{text(node / 'gpu_id')}")
            pids |= {
                int(path.parent.name)
                for path in holders
                if path.parent.name.isdecimal() and number(path)
            }
    return tuple(sorted(pids))


_SAME_MEMORY = 0.1
"""Data sheets count memory in powers of ten or two, and drivers reserve some: this difference is
the same board."""


def node(name: str, library: Library, root: Path = ROOT) -> HardwareCard:
    """Return the card of a ``--hw`` name, where ``local`` is this machine; raises `UnknownName`."""
    return local_node(library, root) if name.lower() == LOCAL else library.node(name)


def check_gpus(asked: int | None, hardware: HardwareCard) -> int:
    """Return the number of GPUs to use, all of the node by default; raises `BadInput` outside 1 to
    the node's count."""
    gpus = hardware.gpus if asked is None else asked
    if not 0 < gpus <= hardware.gpus:
        raise BadInput(f"--gpus {gpus}: nodes of {hardware.name} have 1 to {hardware.gpus} GPUs")
    return gpus


def local_node(library: Library | None = None, root: Path = ROOT) -> HardwareCard:
    """Describe this machine; ``source`` names the read and the assumed figures.

    GPUs of a known kind: that kind's card with this machine's count, and its memory where it
    differs. Other GPUs: their count and memory, and rates that are the same for all. No GPU: the
    processor as one device. Of GPUs of several kinds only those of the most frequent kind count.
    Raises `BadInput` when a GPU's memory cannot be read.
    """
    listed = gpus(root)
    if not listed:
        return _without_gpu(cpu(root), memory_bytes(root))
    name, _ = Counter(gpu.name for gpu in listed).most_common(1)[0]
    alike = [gpu for gpu in listed if gpu.name == name]
    cards = [card for card in (library or Library()).hardware.values() if is_kind(name, card.name)]
    if not cards:
        return _unknown(alike)
    # The H100 PCIe's name holds the H100's.
    card = max(cards, key=lambda card: len(card.name))
    read_gb = alike[0].memory_total_bytes / 1e9
    source = f"this machine: {len(alike)} x {alike[0].name}; a GPU's figures: {card.source}"
    own = {"gpus": len(alike), "source": source}
    if read_gb > 0 and abs(read_gb / card.memory_gb - 1) > _SAME_MEMORY:
        instead = f"; memory as reported by the driver instead of {card.memory_gb:g} GB"
        own |= {
            "source": source + instead,
            "memory_gb": round(read_gb, 1),
            "driver_memory_gb": None,
        }
    return card.model_copy(update=own)


def _unknown(alike: list[Gpu]) -> HardwareCard:
    first = alike[0]
    if not first.memory_total_bytes:
        raise BadInput(
            f"--hw local: the memory of {first.name} cannot be read (is the driver's library NVML installed?); "
            "describe the node in a YAML file and pass its path, e.g. --hw ./my-node.yaml"
        )
    return HardwareCard(
        name=LOCAL,
        vendor=first.vendor,
        generation=generation_of(first.name),
        gpus=len(alike),
        memory_gb=round(first.memory_total_bytes / 1e9, 1),
        **_KNOWN["unknown_gpu"],
        source=f"this machine: {len(alike)} x {first.name}, count and memory as reported by the driver; rates are "
        "placeholders for an unknown GPU: predictions mean little, measurements do not use them",
    )


def generation_of(product: str) -> str:
    """Return a GPU's generation by its product's name; ``unknown`` for other names."""
    known = _KNOWN["generations"].items()
    return str(next((n for p, n in known if re.search(p, product.lower())), "unknown"))


def _without_gpu(processor: Cpu, memory: int) -> HardwareCard:
    if not memory:
        raise BadInput(
            "--hw local: /proc/meminfo cannot be read; describe the node in a YAML file instead"
        )
    return HardwareCard(
        name=LOCAL,
        vendor="cpu",
        generation=platform.machine().lower() or "unknown",
        gpus=1,
        memory_gb=round(memory / 1e9, 1),
        bandwidth_tb_s=processor.bandwidth_gb_s / 1e3,
        bf16_tflops=processor.tflops,
        fp8_tflops=processor.tflops,
        link_gb_s=processor.bandwidth_gb_s,
        **_KNOWN["shares"],
        source=f"this machine, no GPU: {processor.model}, {processor.cores} cores, {processor.clock_ghz:.1f} GHz; "
        "memory as reported by the kernel; bandwidth 10 GB/s per core by rule of thumb, at most 200, peak by cores x "
        "clock x vector width, shares assumed; one device, so its link is its memory",
    )
