"""Which GPUs this machine has, read from the kernel: no vendor's library is needed to ask."""

from __future__ import annotations

from pathlib import Path


def present(root: Path = Path("/")) -> list[str]:
    """The GPUs' product names, one entry per GPU; empty where there are none.

    NVIDIA's driver lists them under ``/proc/driver/nvidia/gpus`` (driver README, "The /proc interface"), AMD's names
    its cards in ``/sys/class/drm/card*/device/product_name`` (kernel documentation, amdgpu, "Board information").
    """
    names = []
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = _read(information).splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    for product in sorted((root / "sys/class/drm").glob("card*/device/product_name")):
        names += [line.strip() for line in _read(product).splitlines()[:1] if line.strip()]
    return names


def has(hardware: str, count: int, root: Path = Path("/")) -> bool:
    """Whether this machine has so many GPUs of a kind, e.g. ``h200``; case does not matter."""
    return sum(hardware.lower() in name.lower() for name in present(root)) >= count


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
