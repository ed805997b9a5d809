"""dstack configurations: a service (`dstack apply` publishes it) and a task (the same server, its
port forwarded).

One run is one file. Fields: https://dstack.ai/docs/reference/dstack.yml/service and …/task;
resources, environment and instance volumes are described there too.
"""

from __future__ import annotations

import shlex
from typing import Any

from autotune.base.errors import BadInput
from autotune.engines.command import PORT, written
from autotune.engines.library import Library
from autotune.servers.docker_run import FILES_FOLDER, docker_card

from . import shell
from .winner import SHARED_MEMORY_GIB, Container, Winner, container_of, doubled, yaml_file

_TOKEN = "HF_TOKEN"
_INSTANCE = "/var/cache/autotune"
_IMAGE_GB = 100
"""Gigabytes for image and system on top of the weights: dstack's own default."""
_MEMORY_SHARE = 0.9
"""Required share of a GPU's data-sheet memory: providers round to powers of two, and the driver
reserves some."""


def service(winner: Winner) -> str:
    """Return ``service.dstack.yml``, which serves the model at dstack's own endpoint."""
    container = container_of(winner)
    probe = {"type": "http", "url": container.health, "interval": "30s", "timeout": "30s"}
    # Without probes of its own a service with a model is asked for a completion every time.
    more: dict[str, Any] = {"port": PORT, "model": container.served, "probes": [probe]}
    notes = [f"dstack waits for the start without a limit; {container.start_limit_source}"]
    if winner.replicas > 1:
        more["replicas"] = winner.replicas
        notes.append(
            "Replicas share a node if its fleet has blocks: set them to the node's GPUs over a replica's."
        )
    return _render(container, "service", more, notes)


def task(winner: Winner) -> str:
    """Return ``task.dstack.yml``; `dstack apply` forwards the port to this machine's loopback."""
    if winner.replicas > 1:
        raise BadInput(
            f"a dstack task is one server, but {winner.replicas} are recommended: use the format dstack"
        )
    return _render(container_of(winner), "task", {"ports": [PORT]}, [])


def _render(container: Container, kind: str, more: dict[str, Any], notes: list[str]) -> str:
    """Return a run whose shell commands replace the image's entry point; they also set values that
    hold a ``$``.

    Under ``env`` dstack's server replaces ``${{ }}`` and its runner ``${NAME}``; in commands
    ``dstack apply`` alone replaces, and takes ``$$`` for one ``$``
    (``dstack/_internal/utils/interpolator.py``).
    """
    secrets, models = list(dict.fromkeys((_TOKEN, *container.secrets))), docker_card().models
    plain = {"HF_HOME": models} | {
        name: value for name, value in container.env.items() if "$" not in value
    }
    settings = [f"{name}={_quoted(value)}" for name, value in container.env.items() if "$" in value]
    lines = [f"mkdir -p {FILES_FOLDER} && cd {FILES_FOLDER}"] if container.files else []
    lines += shell.writing(container.files)
    lines.append(
        " ".join(["exec env" if settings else "exec", *settings, *map(_quoted, container.argv)])
    )
    # Folders of the instance; where a backend has none, the run begins without them. Weights are
    # the same for all.
    kept = {f"{_INSTANCE}/{name}": folder for folder, name in container.caches.items()}
    kept[f"{_INSTANCE}/huggingface"] = models
    volumes = [
        {"instance_path": place, "path": folder, "optional": True} for place, folder in kept.items()
    ]
    document = {
        "type": kind,
        "name": container.name,
        "image": container.image,
        "env": [*secrets, *(f"{name}={value}" for name, value in plain.items())],
        "commands": [doubled(line) for line in lines],
        **more,
        "resources": _resources(container),
        "volumes": [
            *volumes,
            *({"instance_path": path, "path": path} for path in container.mounts),
        ],
    }
    about = [
        f"use: dstack apply --file {kind}.dstack.yml",
        f"that command reads from its environment: {', '.join(secrets)}; remove {_TOKEN} for an open model",
        *notes,
    ]
    return yaml_file(container.winner, about, document)


def _quoted(word: str) -> str:
    return written(word, shlex.quote, lambda variable: f'"${variable}"')


def _resources(container: Container) -> dict[str, Any]:
    hardware = container.winner.spec.hardware
    resources = {
        "shm_size": f"{SHARED_MEMORY_GIB}GB",
        "disk": f"{container.storage_gib + _IMAGE_GB}GB..",
    }
    if hardware.vendor == "cpu":
        return {"gpu": 0, **resources}
    gpu: dict[str, Any] = {"vendor": hardware.vendor}
    # The packaged cards are named as the GPUs are sold; a card of one's own may have any name.
    if hardware.name in Library().hardware:
        gpu["name"] = hardware.name.upper()
    gpu |= {
        "memory": f"{int(hardware.memory_gb * _MEMORY_SHARE)}GB..",
        "count": container.winner.gpus,
    }
    return {"gpu": gpu, **resources}
