"""What this machine is: its GPUs, its processor, its memory, and the node that ``--hw local`` stands for.

    gpu         `Gpu`, `gpus`, `has`, `driver_version`
    nvidia      NVIDIA's GPUs, through NVML; the only importer of pynvml
    amd         AMD's GPUs, through sysfs
    cpu         the processor and its rough figures
    resources   memory, cores, disk, shared memory, limits of a process
    node        `local_node`, and `node`, which turns what ``--hw`` was given into a card

Nothing here needs a GPU, a driver or a vendor's library to be there: what is not there is not listed. ``root`` is where
``/proc``, ``/sys``, ``/dev`` and ``/etc`` are looked for, so that another machine can be laid out in a folder.
"""

from autotune.machine.cpu import Cpu, cpu
from autotune.machine.gpu import Gpu, driver_version, gpus, has
from autotune.machine.node import local_node, node
from autotune.machine.resources import (
    Limit,
    cores,
    disk_free_bytes,
    existing_folder,
    locked_memory_limit,
    memory_bytes,
    open_file_limit,
    shared_memory_bytes,
)

__all__ = [
    "Cpu",
    "Gpu",
    "Limit",
    "cores",
    "cpu",
    "disk_free_bytes",
    "driver_version",
    "existing_folder",
    "gpus",
    "has",
    "local_node",
    "locked_memory_limit",
    "memory_bytes",
    "node",
    "open_file_limit",
    "shared_memory_bytes",
]
