"""Shared memory, limits of a process, and disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from autotune.doctor.finding import PROCESS, TARGETS, Check, Finding, Host, missing, ok, warning
from autotune.machine.resources import disk_free_bytes, existing_folder, shared_memory_bytes
from autotune.serving.docker_run import models_folder

_NCCL = "NCCL documentation, Troubleshooting, Sharing Data"
SHARED_MEMORY_BYTES = 2**30
OPEN_FILES = 65535
HOME_NEEDS, HOME_WANTS = 10**9, 10 * 10**9
"""Bytes of a study: a log, results and requests per launch. An engine may print a gigabyte."""
CACHES_WANT = 20 * 10**9
"""Bytes for compiled kernels; a model's weights come on top."""


def shared_memory(host: Host) -> Iterator[Finding]:
    """Ranks of one server talk through it; a container's 64 MB are used up at the first large model."""
    size = shared_memory_bytes(host.root)
    if size >= SHARED_MEMORY_BYTES:
        yield ok(f"/dev/shm has {size / 1e9:.1f} GB")
    else:
        to_do = "sudo mount -o remount,size=16G /dev/shm; in a container start it with --ipc=host or --shm-size=16g"
        yield warning(f"/dev/shm has {size / 1e6:.0f} MB, less than 1 GiB: servers on several GPUs end at start", to_do)


def open_files(host: Host) -> Iterator[Finding]:
    """One per request in flight, in the tuner and in the server; the tuner raises the soft limit by itself."""
    hard = host.open_files.hard
    if hard is None or hard >= OPEN_FILES:
        yield ok(f"up to {hard or 'any number of'} open files")
    else:
        to_do = (
            f"raise the hard limit: a line '* hard nofile {OPEN_FILES}' in /etc/security/limits.conf, or LimitNOFILE="
        )
        yield warning(f"at most {hard} open files; vLLM wants {OPEN_FILES}", to_do)


def locked_memory(host: Host) -> Iterator[Finding]:
    """Transfers between GPUs pin memory."""
    soft = host.locked_memory.soft
    if len(host.gpus) < 2:
        return
    if soft is None:
        yield ok("memory may be locked without limit")
    else:
        to_do = "ulimit -l unlimited, or a line '* - memlock unlimited' in /etc/security/limits.conf"
        yield warning(f"at most {soft / 1e6:.0f} MB may be locked; NCCL and RCCL may fail to register buffers", to_do)


def home(host: Host) -> Iterator[Finding]:
    """Studies, logs and the MLflow database."""
    free = disk_free_bytes(host.home)
    said = f"{free / 1e9:.0f} GB free for {host.home}"
    if not os.access(existing_folder(host.home), os.W_OK | os.X_OK):
        yield missing(f"{host.home} cannot be written", "choose another folder with --home DIR")
    elif free < HOME_NEEDS:
        yield missing(f"{said}, less than a study needs (1 GB)", "free some, or choose another folder with --home DIR")
    elif free < HOME_WANTS:
        yield warning(f"{said}; long studies with much log need more (10 GB)", "free some, or use --home DIR")
    else:
        yield ok(said)


def caches(host: Host) -> Iterator[Finding]:
    """Weights that engines download, kernels that they compile."""
    folder = Path(models_folder(host.environment))
    free = disk_free_bytes(folder)
    said = f"{free / 1e9:.0f} GB free for models and compiled kernels in {folder}"
    if free < CACHES_WANT:
        to_do = "free some, or set HF_HOME to a folder on a larger disk (671 billion FP8 weights take 690 GB)"
        yield warning(said, to_do)
    else:
        yield ok(said)


CHECKS = (
    Check("shared memory", (PROCESS,), shared_memory, _NCCL),
    Check("open files", (PROCESS,), open_files, "vllm/utils/system_utils.py set_ulimit (0.32)"),
    Check("locked memory", (PROCESS,), locked_memory, _NCCL),
    Check("disk for studies", TARGETS, home, "docs/files.md"),
    Check("disk for caches", TARGETS, caches, "huggingface_hub documentation, Environment variables, HF_HOME"),
)
