"""The recommended server in a container: what every format that runs an image writes down in its own way.

Images, devices, caches and where files lie are those of a launch by ``--on docker`` (`autotune.serving.docker_run`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.version import InvalidVersion, Version

from autotune.errors import BadInput
from autotune.outputs.export.winner import (
    Winner,
    asked_for,
    in_image,
    model_named,
    parsed_command,
    settings_without_secrets,
    text_of,
)
from autotune.serving import StartupTimeouts
from autotune.serving.command import with_serving
from autotune.serving.docker_run import docker_card, image_of, mounted_paths, own_entrypoint, volume_name
from autotune.trial import PORT, Evidence, reference_in

ANYWHERE = "0.0.0.0"
"""Its address there: a container's loopback is reached by nobody outside it."""
SHARED_MEMORY_GIB = 32
"""Of /dev/shm, where a container cannot have the host's: what SGLang's documentation gives ``docker run``
(https://docs.sglang.io, install with Docker: ``--shm-size 32g``); vLLM's and TensorRT-LLM's name less."""
NAME_LENGTH = 40
"""A dstack run's name has at most 41 characters; a DNS label, with an ending such as ``-cache``, at most 63."""

_START_MARGIN = 3.0
"""A start may take so much longer than the slowest seen: a cold page cache, a slower disk, kernels still to compile."""
_LEAST_START_S = 600.0
_MODELS = "HF_HOME"
_ROOM = 1.25
"""Of the volume over the weights: compiled kernels, tokenizer, a download's temporary files."""


@dataclass(frozen=True, slots=True)
class Container:
    """A server in a container. Secrets stand as ``${NAME}`` in `argv` and `env`.

    Attributes:
        name: a DNS label of at most `NAME_LENGTH` characters that begins with a letter.
        argv: the engine's command, listening on `ANYWHERE` and `PORT`.
        own_entrypoint: the image's own entry point runs these words; else it has to be set aside.
        env: the recommended variables but `gpu_choice`, which choose among a node's GPUs, and this machine's caches.
        files: name to content of files in the working folder.
        mounts: files and folders of the host that the command names.
        caches: folders that should outlive the container, to a volume's name that tells image and GPU.
        health: the path that answers 200 when the server is ready.
        model: an id at Hugging Face, or an absolute path; `served` is the name in requests.
        weights: the host's Hugging Face cache as the recommended variables name it; None: they do not.
        storage_gib: of the caches, in whole tens; room for the weights unless they are mounted.
    """

    winner: Winner
    name: str
    image: str
    argv: tuple[str, ...]
    own_entrypoint: bool
    env: Mapping[str, str]
    gpu_choice: Mapping[str, str]
    files: Mapping[str, str]
    mounts: tuple[str, ...]
    caches: Mapping[str, str]
    health: str
    start_limit_s: int
    start_limit_source: str
    model: str
    served: str
    revision: str | None
    weights: str | None
    storage_gib: int

    @property
    def model_is_local(self) -> bool:
        """True if the model is a folder, not a name at Hugging Face."""
        return self.model.startswith("/")

    @property
    def vendor(self) -> str:
        """Vendor of the GPUs."""
        return self.winner.spec.hardware.vendor

    @property
    def plain_env(self) -> dict[str, str]:
        """Return the variables that are no secret."""
        return {name: value for name, value in self.env.items() if reference_in(value)[1] is None}

    @property
    def secrets(self) -> list[str]:
        """Return the variables from which the command's secrets come."""
        return asked_for(self.argv, self.env)


def container_of(winner: Winner) -> Container:
    """Return the winner in a container; raises `BadInput` when no image is known for it."""
    choice, hardware, kind = winner.choice, winner.spec.hardware, winner.engine
    argv, parsed, image = in_image(winner), parsed_command(choice, kind), _image(winner)
    model = model_named(argv, kind) or winner.spec.model.id
    if model.startswith("."):
        raise BadInput(f"the model {model!r} is no folder seen from here; export from where the study was made")
    env = settings_without_secrets(choice.env)
    weights = env.pop(_MODELS, None)
    # What exists here of the paths that the command names, and a model's folder, which may lie on another machine.
    mounts, is_local = mounted_paths(argv), model.startswith("/")
    if is_local and not any(PurePosixPath(model).is_relative_to(path) for path in mounts):
        mounts.append(model)
    limit_s, limit_source = start_limit_s(winner)
    return Container(
        winner=winner,
        name=name_of(choice.engine, winner.recommendation.model),
        image=image,
        # What a launch needs besides, to be measured, is no part of the recommendation.
        argv=with_serving(
            argv, kind.card.serving.model_copy(update={"arguments": [], "port_flags": {}}), ANYWHERE, PORT
        ),
        own_entrypoint=own_entrypoint(kind.card, hardware, image),
        env={name: value for name, value in env.items() if not chooses_gpus(name)},
        gpu_choice={name: value for name, value in env.items() if chooses_gpus(name)},
        files=choice.files,
        mounts=tuple(sorted(mounts)),
        caches={folder: volume_name(image, hardware.name, folder) for folder in docker_card().caches},
        health=kind.card.serving.health,
        start_limit_s=limit_s,
        start_limit_source=limit_source,
        model=model,
        served=text_of(parsed, "served_model_name") or model,
        revision=text_of(parsed, "revision"),
        weights=weights if weights and weights.startswith("/") else None,
        storage_gib=10 * max(2, 0 if is_local else math.ceil(_ROOM * winner.spec.model.weights_gb * 1e9 / 2**30 / 10)),
    )


def chooses_gpus(variable: str) -> bool:
    """Return whether a variable chooses among a machine's GPUs by number, as ``CUDA_VISIBLE_DEVICES``."""
    return variable.endswith("_VISIBLE_DEVICES")


def name_of(engine_name: str, model: str) -> str:
    """Return a name that Kubernetes, Compose and dstack all take, e.g. ``vllm-deepseek-v3-2``."""
    last = model.rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", f"{engine_name}-{last}".lower()).strip("-")
    return (name if name[:1].isalpha() else f"server-{name}")[:NAME_LENGTH].rstrip("-")


def start_limit_s(winner: Winner) -> tuple[int, str]:
    """Return the time limit of a start, in seconds, and in words the source of the figure."""
    evidence = winner.recommendation.origin
    if not winner.ready_s or evidence is Evidence.EMULATED:
        limit_s = math.ceil(StartupTimeouts().total_s)
        why = "its starts were EMULATED, and loaded no weights" if winner.ready_s else "the study tells of no start"
        return limit_s, f"a start may take {limit_s} s, as long as autotune waits for one: {why}"
    slowest_s = max(winner.ready_s)
    limit_s = math.ceil(max(_LEAST_START_S, _START_MARGIN * slowest_s))
    kind = "measured" if evidence is Evidence.MEASURED else evidence.value.upper()
    said = f"the slowest of {len(winner.ready_s)} {kind} starts took {slowest_s:.0f} s"
    return limit_s, f"a start may take {limit_s} s: {said}; cold disks and caches may take {_START_MARGIN:.0f} times it"


def _image(winner: Winner) -> str:
    choice, hardware, card = winner.choice, winner.spec.hardware, winner.engine.card
    if winner.image is not None:
        if not winner.image or any(sign.isspace() for sign in winner.image):
            raise BadInput(f"--image {winner.image!r}: write an image with its tag, e.g. vllm/vllm-openai:v0.32.0")
        return winner.image
    if choice.container:
        return choice.container[-1]
    try:
        version = Version(choice.engine_version).public
        known = image_of(card, hardware, version)
    except InvalidVersion:
        version, known = choice.engine_version, None
    if known is None:
        raise BadInput(
            f"no container image of {card.title} {version} for {hardware.vendor} {hardware.generation} is known; "
            "name one with --image IMAGE"
        )
    return known.image.replace("{version}", version)
