"""What AMD advises for its nodes. Nothing here concerns a machine without an AMD GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

from autotune.doctor.finding import PROCESS, TARGETS, Answer, Check, Host, missing, ok, warning
from autotune.machine.amd import mec_firmware
from autotune.machine.files import number, text

MEC_RECLAIMS = 177
"""From this version of the compute microcode on, MI300X gives scratch memory back without a crash."""
_TUNING = "https://rocm.docs.amd.com/en/latest/how-to/system-optimization/mi300x.html"


def access(host: Host) -> Iterator[Answer]:
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


def numa_balancing(host: Host) -> Iterator[Answer]:
    """The kernel moves pages between sockets to be near a thread, and GPUs wait for the pages meanwhile."""
    value = number(host.root / "proc/sys/kernel/numa_balancing")
    if not host.gpus_of("amd") or value is None:
        return
    if value == 0:
        yield ok("automatic NUMA balancing is off")
    else:
        to_do = "sudo sysctl kernel.numa_balancing=0, and the same line in /etc/sysctl.d/ to keep it"
        yield warning(f"automatic NUMA balancing is on ({value}); it makes MI300X nodes slower", to_do)


def scratch_reclaim(host: Host) -> Iterator[Answer]:
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


def iommu(host: Host) -> Iterator[Answer]:
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
    Check("AMD devices", (PROCESS,), access, "ROCm installation prerequisites, https://rocm.docs.amd.com"),
    Check("NUMA balancing", TARGETS, numa_balancing, _TUNING),
    Check(
        "scratch reclaim",
        TARGETS,
        scratch_reclaim,
        "ROCm 6.4.3 release notes, amdgpu driver updates; AMD's guide to vLLM benchmarks on MI300X",
    ),
    Check("IOMMU", TARGETS, iommu, _TUNING),
)
