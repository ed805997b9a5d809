"""The GPUs: whether they are there, driven and idle, and what AMD advises for its nodes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from autotune.doctor.finding import PROCESS, TARGETS, Check, Finding, Host, missing, ok, warning
from autotune.machine.gpu import driver_version, mec_firmware
from autotune.machine.resources import number, text

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_ACCELERATORS = ("0x0302", "0x1200")
"""PCI classes "3D controller" and "processing accelerator": what GPUs of a server say they are."""
_IDLE_SHARE = 0.02
"""Of the memory: what drivers keep of an idle GPU is well below, any engine's weights are above."""
MEC_RECLAIMS = 177
"""From this version of the compute microcode on, MI300X gives scratch memory back without a crash."""
_TUNING = "https://rocm.docs.amd.com/en/latest/how-to/system-optimization/mi300x.html"


def present(host: Host) -> Iterator[Finding]:
    """What is there, by kind, with the driver."""
    for (name, vendor, total), count in Counter((g.name, g.vendor, g.memory_total_bytes) for g in host.gpus).items():
        driver = driver_version(vendor, host.root)
        with_driver = f", driver {driver}" if driver else ""
        if total:
            yield ok(f"{count} x {name}, {total / 1e9:.0f} GB each{with_driver}")
        else:
            lost = "its memory and processes cannot be asked for, so a trial cannot prove that it gave them back"
            to_do = "install the driver's library (libnvidia-ml.so.1) and pip install nvidia-ml-py"
            yield warning(f"{count} x {name}{with_driver}; {lost}", to_do)
    if not host.gpus:
        yield _without(host)


def _without(host: Host) -> Finding:
    vendor = next((name for vendor, name in _VENDORS.items() if _on_the_bus(host, vendor)), None)
    if vendor is None:
        return warning(
            "no GPU: only engines built for a CPU run here (--hw local)",
            "for a node with GPUs, tune on it, or predict it with --on simulator",
        )
    return missing(f"an {vendor} GPU is on the PCI bus, but no driver shows it", f"install and load {vendor}'s driver")


def _on_the_bus(host: Host, vendor: str) -> bool:
    devices = (host.root / "sys/bus/pci/devices").glob("*")
    return any(text(d / "vendor") == vendor and text(d / "class").startswith(_ACCELERATORS) for d in devices)


def idle(host: Host) -> Iterator[Finding]:
    """Whoever else computes on a GPU, or holds its memory, changes every number measured on it."""
    told = [gpu for gpu in host.gpus if gpu.memory_total_bytes or gpu.busy_pids]
    busy = [gpu for gpu in told if gpu.busy_pids or gpu.memory_used_bytes > _IDLE_SHARE * gpu.memory_total_bytes]
    for gpu in busy:
        held = gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else 0.0
        pids = f", processes {', '.join(map(str, gpu.busy_pids))}" if gpu.busy_pids else ""
        said = f"GPU {gpu.index} is not idle: {held:.0%} of its memory is held{pids}"
        yield warning(said, "end what uses it, or wait for its end, before a study begins", str(gpu.index))
    if told and not busy:
        yield ok("nobody uses them")


def amd_access(host: Host) -> Iterator[Finding]:
    """Engines open ``/dev/kfd`` and the cards under ``/dev/dri``."""
    if not host.gpus_of("amd"):
        return
    kfd = host.root / "dev/kfd"
    if not kfd.exists():
        yield missing("/dev/kfd is not there: amdkfd is not loaded, or this is a container without it", "load amdgpu")
    elif not os.access(kfd, os.R_OK | os.W_OK):
        to_do = "join the groups: sudo usermod -aG render,video $USER, and log in again"
        yield missing("/dev/kfd may not be opened by this user", to_do)
    else:
        yield ok("/dev/kfd can be opened")


def numa_balancing(host: Host) -> Iterator[Finding]:
    """The kernel moves pages between sockets to be near a thread, and GPUs wait for the pages meanwhile."""
    value = number(host.root / "proc/sys/kernel/numa_balancing")
    if not host.gpus_of("amd") or value is None:
        return
    if value == 0:
        yield ok("automatic NUMA balancing is off")
    else:
        to_do = "sudo sysctl kernel.numa_balancing=0, and the same line in /etc/sysctl.d/ to keep it"
        yield warning(f"automatic NUMA balancing is on ({value}); it makes MI300X nodes slower", to_do)


def scratch_reclaim(host: Host) -> Iterator[Finding]:
    """Old microcode of MI300X and scratch memory that is given back do not go together."""
    if not any("mi300" in gpu.name.lower() for gpu in host.gpus_of("amd")):
        return
    versions = mec_firmware(host.root)
    oldest = min(versions, default=None)
    if oldest is not None and oldest >= MEC_RECLAIMS:
        yield ok(f"MEC firmware {oldest}; HSA_NO_SCRATCH_RECLAIM is not needed")
    elif host.environment.get("HSA_NO_SCRATCH_RECLAIM") == "1":
        yield ok(f"MEC firmware {oldest or 'of unknown version'}, and HSA_NO_SCRATCH_RECLAIM=1 is set")
    else:
        seen = (
            f"MEC firmware {oldest} is older than {MEC_RECLAIMS}"
            if oldest
            else "the MEC firmware's version is not told"
        )
        said = (
            f"{seen}, and HSA_NO_SCRATCH_RECLAIM=1 is not set (autotune sets it for the vLLM and SGLang that it starts)"
        )
        yield warning(said, "update the firmware, or export HSA_NO_SCRATCH_RECLAIM=1 for what is started otherwise")


def iommu(host: Host) -> Iterator[Finding]:
    """Transfers between GPUs hang or crawl when each address is translated."""
    groups = host.root / "sys/kernel/iommu_groups"
    if len(host.gpus_of("amd")) < 2:
        return
    words = text(host.root / "proc/cmdline").split()
    if "iommu=pt" in words:
        yield ok("the kernel was started with iommu=pt")
    elif not groups.is_dir() or not any(groups.iterdir()):
        yield ok("there is no IOMMU in use")
    else:
        to_do = "add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub) and restart"
        yield warning("the IOMMU translates, as the kernel was started without iommu=pt", to_do)


CHECKS = (
    Check("GPUs", TARGETS, present, "NVML and /proc/driver/nvidia; amdgpu in /sys/class/drm"),
    Check("GPU idle", TARGETS, idle, "NVML; amdgpu and amdkfd in /sys/class"),
    Check("AMD devices", (PROCESS,), amd_access, "ROCm installation prerequisites, https://rocm.docs.amd.com"),
    Check("NUMA balancing", TARGETS, numa_balancing, _TUNING),
    Check(
        "scratch reclaim",
        TARGETS,
        scratch_reclaim,
        "ROCm 6.4.3 release notes, amdgpu driver updates; AMD's guide to vLLM benchmarks on MI300X",
    ),
    Check("IOMMU", TARGETS, iommu, _TUNING),
)
