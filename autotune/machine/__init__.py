"""This machine: its GPUs, its processor, its memory, and the node that ``--hw local`` stands for.

    gpu     `Gpu`, `gpus`, `has`, `driver_version`; the only importer of pynvml; processor, memory, disk, limits
    node    `local_node`, and `node`, which turns what ``--hw`` was given into a card

Nothing here needs a GPU, a driver or a vendor's library: what is not there is not listed.
"""
