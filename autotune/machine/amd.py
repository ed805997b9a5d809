"""AMD's GPUs, through the files of the kernel's amdgpu and amdkfd drivers: no library is needed to ask.

Sources: kernel documentation, "GPU Product Information" and "Memory Info" of amdgpu; of the processes
drivers/gpu/drm/amd/amdkfd/kfd_process.c, of the firmware's versions drivers/gpu/drm/amd/amdgpu/amdgpu_ucode.c.
"""

from __future__ import annotations

import re
from pathlib import Path

from autotune.machine.device import Device
from autotune.machine.files import number, text

_CARD = re.compile(r"card(\d+)")
_INSTINCT = {
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
    "0x74b5": "AMD Instinct MI300X VF",
}
"""PCI device ids (pci.ids), for cards whose board does not tell its name, as inside a virtual machine."""


def devices(root: Path) -> list[Device]:
    """In the order of the cards' numbers. A card without a product name (graphics of a desktop) is none of them."""
    named = [(card, _name(card)) for card in _cards(root)]
    return [_device(root, card, name) for card, name in named if name]


def driver_version(root: Path) -> str | None:
    """Of the driver that comes with ROCm; the kernel's own has no version."""
    return text(root / "sys/module/amdgpu/version") or None


def mec_firmware(root: Path) -> tuple[int, ...]:
    """The version of each GPU's compute microcode, in the order of `devices`, as far as the driver shows it."""
    versions = [number(card / "fw_version/mec_fw_version") for card in _cards(root) if _name(card)]
    return tuple(version for version in versions if version is not None)


def _cards(root: Path) -> list[Path]:
    """The device folders; ``card0-DP-1`` and its like are connectors."""
    numbered = [(_CARD.fullmatch(path.name), path) for path in (root / "sys/class/drm").glob("card*")]
    return [path / "device" for _, path in sorted((int(match[1]), path) for match, path in numbered if match)]


def _name(card: Path) -> str:
    return text(card / "product_name").partition("\n")[0].strip() or _INSTINCT.get(text(card / "device"), "")


def _device(root: Path, card: Path, name: str) -> Device:
    total, used = number(card / "mem_info_vram_total"), number(card / "mem_info_vram_used")
    return Device(name, total or 0, used or 0 if total else 0, _pids(root, card))


def _pids(root: Path, card: Path) -> tuple[int, ...]:
    """The processes that hold memory of a card, by amdkfd's own number of it."""
    minors = {path.name.removeprefix("renderD") for path in (card / "drm").glob("renderD*")}
    kfd = root / "sys/class/kfd/kfd"
    pids: set[int] = set()
    for node in (kfd / "topology/nodes").glob("*"):
        properties = dict(line.split(maxsplit=1) for line in text(node / "properties").splitlines() if " " in line)
        if properties.get("drm_render_minor") in minors:
            holders = (kfd / "proc").glob(f"*/vram_{text(node / 'gpu_id')}")
            pids |= {int(path.parent.name) for path in holders if path.parent.name.isdecimal() and number(path)}
    return tuple(sorted(pids))
