"""Answers what an engine asks of the GPUs of a node: torch, NVML, amdsmi and the drivers'
command-line tools.

These are the only functions that are replaced. What an engine concludes from the answers is its own
code.
"""

from __future__ import annotations

import os
import stat
import sys
import types
from pathlib import Path
from typing import Any

FACTS = {
    # node or generation: capability, multiprocessors, threads of a warp, bytes of shared memory
    "hopper": ((9, 0), 132, 32, 232448),
    "b300": ((10, 3), 148, 32, 232448),
    "blackwell": ((10, 0), 148, 32, 232448),
    "rtx_blackwell": ((12, 0), 188, 32, 101376),
    "ada": ((8, 9), 142, 32, 101376),
    "cdna3": ((9, 4), 304, 64, 65536),
    "cdna4": ((9, 5), 256, 64, 163840),
}
"""Sources: CUDA C programming guide (compute capabilities); data sheets of H200, B200, B300, RTX
PRO 6000, L40S, MI300X and MI355X."""
AMD = {"cdna3": ("gfx942", "0x74a1"), "cdna4": ("gfx950", "0x75a3")}
"""Generation to what its compiler and its driver call a GPU."""


class Node:
    """The GPUs of one of our hardware cards.

    Args:
        card: ``name``, ``vendor``, ``generation``, ``gpus``, ``memory_bytes`` of one GPU as its
            driver tells them.
    """

    def __init__(self, card: dict[str, Any]) -> None:
        self.name: str = card["name"]
        self.amd = card["vendor"] == "amd"
        self.gpus: int = card["gpus"]
        self.memory: int = card["memory_bytes"]
        self.capability, self.processors, self.warp, self.shared = FACTS.get(
            self.name, FACTS[card["generation"]]
        )
        self.title = (
            f"AMD Instinct {self.name.upper()}" if self.amd else f"NVIDIA {self.name.upper()}"
        )
        self.gfx, self.device_id = AMD.get(card["generation"], ("", ""))
        self.architecture = f"{self.gfx}:sramecc+:xnack-" if self.amd else ""

    def properties(self) -> Any:
        """What ``torch.cuda.get_device_properties`` gives."""
        return types.SimpleNamespace(
            name=self.title,
            total_memory=self.memory,
            major=self.capability[0],
            minor=self.capability[1],
            multi_processor_count=self.processors,
            warp_size=self.warp,
            gcnArchName=self.architecture,
            uuid="GPU-0",
            is_integrated=False,
            L2_cache_size=50 * 2**20,
            shared_memory_per_block_optin=self.shared,
            shared_memory_per_multiprocessor=self.shared,
        )


def answer(node: Node, folder: Path) -> None:
    """Answer for a node's GPUs in this process; the drivers' tools are written to a folder on
    ``PATH``."""
    _torch(node)
    _tools(node, folder)
    if node.amd:
        _amdsmi(node)


def _torch(node: Node) -> None:
    import torch

    torch.version.cuda, torch.version.hip = (None, "7.2.0") if node.amd else ("13.0", None)
    torch._C._cuda_getDeviceCount = lambda: node.gpus
    torch._C._cuda_getCurrentRawStream = lambda device=0: 0
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda._is_compiled = lambda: True
    cuda.is_initialized = lambda: False
    cuda.device_count = cuda._device_count_nvml = lambda: node.gpus
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda device=0: node.properties()
    cuda.get_device_capability = lambda device=None: node.capability
    cuda.get_device_name = lambda device=0: node.title
    cuda.mem_get_info = lambda device=0: (node.memory, node.memory)
    allocate = torch.empty

    def empty(*size: Any, device: Any = None, **options: Any) -> Any:
        """Give a tensor without memory where one on a GPU is wanted, as some kernels' modules do
        when imported."""
        return allocate(
            *size, device="meta" if str(device).startswith("cuda") else device, **options
        )

    torch.empty = empty


def _tools(node: Node, folder: Path) -> None:
    """Write ``nvidia-smi`` or ``rocminfo``, which SGLang reads the memory from."""
    if node.amd:
        size = node.memory // 1024
        lines = [
            f"Name: {node.gfx}",
            "Pool 1",
            "Segment: GLOBAL",
            f"Size: {size}({size:#x}) KB",
        ] * node.gpus
        script = "cat <<'END'\n" + "\n".join(lines) + "\nEND\n"
        tool = "rocminfo"
    else:
        capability = ".".join(map(str, node.capability))
        one = f'case "$*" in *memory.total*) echo {node.memory >> 20};; *compute_cap*) echo {capability};; esac\n'
        script, tool = one * node.gpus, "nvidia-smi"
    path = folder / tool
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def nvml(node: Node, module: Any) -> None:
    """Answer the questions to NVML, in the engine's own copy of its bindings."""
    memory = types.SimpleNamespace(total=node.memory, used=0, free=node.memory)
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: node.gpus
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetCudaComputeCapability = lambda handle: node.capability
    module.nvmlDeviceGetName = lambda handle: node.title
    module.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    module.nvmlDeviceGetMemoryInfo = lambda handle: memory
    module.nvmlDeviceGetP2PStatus = lambda one, other, index: module.NVML_P2P_STATUS_OK


def triton_driver(node: Node) -> None:
    """Answer what triton asks of the GPU when kernels are defined."""
    import triton
    from triton.backends.compiler import GPUTarget

    number = 10 * node.capability[0] + node.capability[1]
    target = (
        GPUTarget("hip", node.gfx, node.warp) if node.amd else GPUTarget("cuda", number, node.warp)
    )
    told = {
        "max_shared_mem": node.shared,
        "multiprocessor_count": node.processors,
        "warpSize": node.warp,
    }
    driver = types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        utils=types.SimpleNamespace(get_device_properties=lambda device: told),
    )
    triton.runtime.driver.set_active(driver)


def _amdsmi(node: Node) -> None:
    module: Any = types.ModuleType("amdsmi")
    module.__file__ = "/nowhere/amdsmi.py"
    module.AmdSmiException = type("AmdSmiException", (Exception,), {})
    module.amdsmi_init = module.amdsmi_shut_down = lambda *args: None
    module.amdsmi_get_processor_handles = lambda: list(range(node.gpus))
    module.amdsmi_topo_get_link_type = lambda one, other: {"hops": 1, "type": 2}
    module.AmdSmiMemoryType = types.SimpleNamespace(VRAM=0)
    module.amdsmi_get_gpu_memory_total = lambda handle, kind: node.memory
    told = {
        "market_name": node.title,
        "device_id": node.device_id,
        "asic_serial": "0",
        "target_graphics_version": node.gfx,
    }
    module.amdsmi_get_gpu_asic_info = lambda handle: dict(told)
    module.amdsmi_get_gpu_device_uuid = lambda handle: f"GPU-{handle}"
    sys.modules["amdsmi"] = module
