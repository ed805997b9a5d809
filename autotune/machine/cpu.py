"""The processor, and how fast it may be at most: rough figures, for a machine without a GPU."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from autotune.machine.files import ROOT, number, text
from autotune.machine.resources import cores

CORE_GB_S = 10.0
SOCKET_GB_S = 200.0
_FLOPS_PER_CYCLE = {"amx_bf16": 2048, "avx512_bf16": 128, "avx512f": 64, "avx2": 32, "asimd": 16}
_GHZ = 2.0


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
        """Memory bandwidth by a rule of thumb: about 10 GB/s per core, at most 200 GB/s."""
        return min(self.cores * CORE_GB_S, SOCKET_GB_S)

    @property
    def tflops(self) -> float:
        """Peak of 16-bit matrix products: cores x clock x operations per cycle of the widest instruction set.

        Two fused multiply-adds per cycle: 16 operations with 128 bits of float32, 32 with AVX2, 64 with AVX-512, 128
        with its bfloat16 dot product; 2048 with AMX tiles (Intel optimisation reference manual, chapter on AMX).
        """
        widest = next((count for flag, count in _FLOPS_PER_CYCLE.items() if flag in self.flags), 8)
        return self.cores * self.clock_ghz * widest / 1e3


def cpu(root: Path = ROOT) -> Cpu:
    """This machine's processor, from ``/proc/cpuinfo`` (proc(5)): the first one's lines."""
    lines = [line.partition(":") for line in text(root / "proc/cpuinfo").split("\n\n")[0].splitlines()]
    first = {key.strip(): value.strip() for key, _, value in lines}
    return Cpu(
        model=first.get("model name") or platform.machine() or "unknown processor",
        cores=cores(root),
        flags=frozenset((first.get("flags") or first.get("Features") or "").split()),
        clock_ghz=_clock_ghz(root, first.get("cpu MHz", "")),
    )


def _clock_ghz(root: Path, now_mhz: str) -> float:
    highest_khz = number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if highest_khz:
        return highest_khz / 1e6
    return round(float(now_mhz) / 1e3, 1) if re.fullmatch(r"\d+(?:\.\d+)?", now_mhz) else _GHZ
