"""The GPUs of this machine, whoever made them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.machine import amd, nvidia
from autotune.machine.files import ROOT

Vendor = Literal["nvidia", "amd"]


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
    memory_total_bytes: int
    memory_used_bytes: int
    busy_pids: tuple[int, ...]


def gpus(root: Path = ROOT) -> tuple[Gpu, ...]:
    """This machine's GPUs, NVIDIA's before AMD's; empty where there are none."""
    nvidias = (Gpu(index, device.name, "nvidia", *device[1:]) for index, device in enumerate(nvidia.devices(root)))
    amds = (Gpu(index, device.name, "amd", *device[1:]) for index, device in enumerate(amd.devices(root)))
    return (*nvidias, *amds)


def has(hardware: str, count: int, root: Path = ROOT) -> bool:
    """Whether this machine has so many GPUs of a kind, e.g. ``h200``; case does not matter."""
    return sum(is_kind(gpu.name, hardware) for gpu in gpus(root)) >= count


def is_kind(product: str, hardware: str) -> bool:
    """Whether a product's name holds a kind of hardware as a word: ``GH200`` is no ``h200``."""
    return re.search(rf"(?<![a-z0-9]){re.escape(hardware.lower())}(?![a-z0-9])", product.lower()) is not None


def driver_version(vendor: Vendor, root: Path = ROOT) -> str | None:
    """The version of a vendor's kernel driver; None where it is not loaded or, as AMD's in-tree one, has none."""
    return nvidia.driver_version(root) if vendor == "nvidia" else amd.driver_version(root)
