"""The GPUs: whether they are there, driven, and idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autotune.doctor.finding import TARGETS, Answer, Check, Host, missing, ok, warning
from autotune.machine import driver_version

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_ACCELERATORS = ("0x0302", "0x1200")
"""PCI classes "3D controller" and "processing accelerator": what GPUs of a server say they are."""
_IDLE_SHARE = 0.02
"""Of the memory: what drivers keep of an idle GPU is well below, any engine's weights are above."""


def present(host: Host) -> Iterator[Answer]:
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


def _without(host: Host) -> Answer:
    vendor = next((name for vendor, name in _VENDORS.items() if _on_the_bus(host, vendor)), None)
    if vendor is None:
        return warning(
            "no GPU: only engines built for a CPU run here (--hw local)",
            "for a node with GPUs, tune on it, or predict it with --on simulator",
        )
    return missing(f"an {vendor} GPU is on the PCI bus, but no driver shows it", f"install and load {vendor}'s driver")


def _on_the_bus(host: Host, vendor: str) -> bool:
    for device in (host.root / "sys/bus/pci/devices").glob("*"):
        try:
            kind, maker = (device / "class").read_text(), (device / "vendor").read_text().strip()
        except OSError:
            continue
        if maker == vendor and kind.startswith(_ACCELERATORS):
            return True
    return False


def idle(host: Host) -> Iterator[Answer]:
    """Whoever else computes on a GPU, or holds its memory, changes every number measured on it."""
    told = [gpu for gpu in host.gpus if gpu.memory_total_bytes or gpu.busy_pids]
    for gpu in told:
        held = gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else 0.0
        if gpu.busy_pids or held > _IDLE_SHARE:
            pids = f", processes {', '.join(map(str, gpu.busy_pids))}" if gpu.busy_pids else ""
            said = f"GPU {gpu.index} is not idle: {held:.0%} of its memory is held{pids}"
            yield warning(said, "end what uses it, or wait for its end, before a study begins", str(gpu.index))
    if told and all(
        not gpu.busy_pids and gpu.memory_used_bytes <= _IDLE_SHARE * gpu.memory_total_bytes for gpu in told
    ):
        yield ok("nobody uses them")


CHECKS = (
    Check("GPUs", TARGETS, present, "NVML and /proc/driver/nvidia; amdgpu in /sys/class/drm"),
    Check("GPU idle", TARGETS, idle, "NVML; amdgpu and amdkfd in /sys/class"),
)
