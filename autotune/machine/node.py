"""The card of this machine: what ``--hw local`` stands for."""

from __future__ import annotations

import platform
import re
from collections import Counter
from pathlib import Path

from autotune.errors import BadInput
from autotune.machine.gpu import ROOT, Cpu, Gpu, cpu, gpus, is_kind, memory_bytes
from autotune.space.cards import HardwareCard
from autotune.space.library import LOCAL, Library

_GENERATIONS = {
    r"\b(gb[23]00|b[123]00)\b": "blackwell",
    r"\brtx (50\d0|pro \d+)\b": "rtx_blackwell",
    r"\b(gh200|h[128]00|h20)\b": "hopper",
    r"\b(l4|l20|l40s?|ada|rtx 40\d0)\b": "ada",
    r"\b(a100|a800|a[1234]0g?|rtx (30\d0|a\d000))\b": "ampere",
    r"\bmi35\d": "cdna4",
    r"\bmi3[02]\d": "cdna3",
    r"\bmi2\d\d": "cdna2",
}
"""Product names to the generation's name, as the packaged cards and the engines' rules write it."""
_SAME_MEMORY = 0.1
"""Data sheets count memory in powers of ten or of two and drivers keep some: so much apart is the same board."""
_ANY_GPU = {"bandwidth_tb_s": 1.0, "bf16_tflops": 200.0, "fp8_tflops": 200.0, "link_gb_s": 64.0}
_ANY_SHARES = {"achieved_bandwidth": 0.6, "achieved_flops": 0.4}


def node(name: str, library: Library, root: Path = ROOT) -> HardwareCard:
    """Return the card of a ``--hw`` name, where ``local`` is this machine; raises `UnknownName`."""
    return local_node(library, root) if name.lower() == LOCAL else library.node(name)


def check_gpus(asked: int | None, hardware: HardwareCard) -> int:
    """Return the number of GPUs to use, all of the node by default; raises `BadInput` outside 1 to the node's count."""
    gpus = hardware.gpus if asked is None else asked
    if not 0 < gpus <= hardware.gpus:
        raise BadInput(f"--gpus {gpus}: nodes of {hardware.name} have 1 to {hardware.gpus} GPUs")
    return gpus


def local_node(library: Library | None = None, root: Path = ROOT) -> HardwareCard:
    """Describe this machine, whatever it has; ``source`` says which of its figures are read and which assumed.

    GPUs of a known kind: that kind's card with this machine's count, and its memory where it differs. Other GPUs:
    their count and memory, and rates that are the same for all. No GPU: the processor as one device. Of GPUs of several
    kinds only those of the most frequent kind count. Raises `BadInput` when a GPU's memory cannot be read.
    """
    found = gpus(root)
    if not found:
        return _without_gpu(cpu(root), memory_bytes(root))
    name, _ = Counter(gpu.name for gpu in found).most_common(1)[0]
    alike = [gpu for gpu in found if gpu.name == name]
    cards = [card for card in (library or Library()).hardware.values() if is_kind(name, card.name)]
    if not cards:
        return _unknown(alike)
    # The H100 PCIe's name holds the H100's.
    card = max(cards, key=lambda card: len(card.name))
    read_gb = alike[0].memory_total_bytes / 1e9
    differs = read_gb > 0 and abs(read_gb / card.memory_gb - 1) > _SAME_MEMORY
    memory = {"memory_gb": round(read_gb, 1), "driver_memory_gb": None} if differs else {}
    source = f"this machine: {len(alike)} x {alike[0].name}; figures of a GPU: {card.source}"
    if differs:
        source += f"; memory as the driver says instead of {card.memory_gb:g} GB"
    return card.model_copy(update={"gpus": len(alike), "source": source, **memory})


def _unknown(alike: list[Gpu]) -> HardwareCard:
    first = alike[0]
    if not first.memory_total_bytes:
        raise BadInput(
            f"--hw local: the memory of {first.name} cannot be read (is the driver's library NVML there?); "
            "describe the node in a YAML file and pass its path, e.g. --hw ./my-node.yaml"
        )
    return HardwareCard(
        name=LOCAL,
        vendor=first.vendor,
        generation=generation_of(first.name),
        gpus=len(alike),
        memory_gb=round(first.memory_total_bytes / 1e9, 1),
        **_ANY_GPU,
        **_ANY_SHARES,
        source=f"this machine: {len(alike)} x {first.name}, count and memory as the driver says; rates are "
        "placeholders for any GPU that is not described here: predictions mean little, measurements do not use them",
    )


def generation_of(product: str) -> str:
    """Name a GPU's generation by its product's name; ``unknown`` where that does not tell."""
    return next((name for pattern, name in _GENERATIONS.items() if re.search(pattern, product.lower())), "unknown")


def _without_gpu(processor: Cpu, memory: int) -> HardwareCard:
    if not memory:
        raise BadInput("--hw local: /proc/meminfo cannot be read; describe the node in a YAML file instead")
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
        **_ANY_SHARES,
        source=f"this machine, no GPU: {processor.model}, {processor.cores} cores, {processor.clock_ghz:.1f} GHz; "
        "memory as the kernel says; bandwidth by a rule of thumb (10 GB/s per core, at most 200), peak by cores x "
        "clock x vector width, shares assumed; one device, so its link is its memory",
    )
