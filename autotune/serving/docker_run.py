"""An engine's command in a container: the words ``docker run … IMAGE`` in front of it.

They are what a person would type, and what rows, reports and ``serve.sh`` show. What only a launch needs (a name, a
label, an address) is added by `autotune.serving.docker`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml

from autotune.serving.command import absolute_paths
from autotune.space.cards import HardwareCard
from autotune.space.entry import Entry, in_range
from autotune.space.schema import EngineCard
from autotune.space.serving import ContainerImage, LogPattern
from autotune.study.home import expanded
from autotune.trial import Command, referenced

DOCKER_RUN = ("docker", "run", "--rm")
"""How every command in a container begins."""
FILES_FOLDER = "/autotune"
"""The container's folder of a command's own files; its working folder, where there are any."""


class DockerCard(Entry):
    """``autotune/serving/docker.yaml``.

    Attributes:
        devices: by the hardware's vendor.
        caches: folders of the container that outlive it.
        models: where the host's Hugging Face cache lies in the container.
        failures: what the docker command itself prints.
    """

    options: list[list[str]]
    devices: dict[str, list[list[str]]]
    variables: list[str]
    caches: list[str]
    models: str
    failures: list[LogPattern]


@cache
def docker_card() -> DockerCard:
    """The packaged card."""
    text = files("autotune.serving").joinpath("docker.yaml").read_text(encoding="utf-8")
    return DockerCard.model_validate(yaml.safe_load(text))


def image_of(card: EngineCard, hardware: HardwareCard, version: str) -> ContainerImage | None:
    """The image that holds a version of an engine for this hardware; None where none is known."""
    return next((entry for entry in _fitting(card, hardware) if in_range(version, entry.versions)), None)


def _fitting(card: EngineCard, hardware: HardwareCard) -> list[ContainerImage]:
    return [e for e in card.images if e.vendor == hardware.vendor and e.generation in (None, hardware.generation)]


def newest_image(card: EngineCard, hardware: HardwareCard) -> tuple[str, str] | None:
    """The newest known version that has an image, and the image's name; None where there is none."""
    for version in reversed(card.versions):
        entry = image_of(card, hardware, version)
        if entry is not None:
            return version, entry.image.replace("{version}", version)
    return None


def in_container(command: Command, image: str, card: EngineCard, hardware: HardwareCard) -> Command:
    """Put a command into a container of an image.

    Paths of this machine that it names are mounted at the same place, read-only; so are its own files.
    """
    docker = docker_card()
    argv = (command.argv[0], *absolute_paths(command.argv[1:], command.files))
    options = [word for option in (*docker.options, *docker.devices[hardware.vendor]) for word in option]
    mounts = [f"{volume_name(image, hardware.name, cache_)}:{cache_}" for cache_ in docker.caches]
    mounts.append(f"{models_folder({**os.environ, **command.env})}:{docker.models}")
    mounts += [f"{path}:{path}:ro" for path in mounted_paths(argv)]
    mounts += [f"./{name}:{FILES_FOLDER}/{name}:ro" for name in command.files]
    # The command's own HF_HOME is a folder of this machine, which lies elsewhere in the container.
    # A secret by name alone, as docker takes its value from its own environment.
    given = ((name, value) for name, value in command.env.items() if name != "HF_HOME")
    own = [name if referenced(value) else f"{name}={value}" for name, value in given]
    settings = [f"HF_HOME={docker.models}", *docker.variables, *own]
    place = ["--workdir", FILES_FOLDER] if command.files else []
    entry = [] if own_entrypoint(card, hardware, image) else ["--entrypoint="]
    words = [*_each("--volume", mounts), *_each("--env", dict.fromkeys(settings)), *place, *entry, image]
    return Command(argv, command.env, command.files, (*DOCKER_RUN, *options, *words))


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def own_entrypoint(card: EngineCard, hardware: HardwareCard, image: str) -> bool:
    """Whether an image starts the engine by itself; as the first known image does, for one of the user's own."""

    def repository(name: str) -> str:
        head, slash, tail = name.partition("@")[0].rpartition("/")
        return f"{head}{slash}{tail.partition(':')[0]}"

    entries = _fitting(card, hardware) or card.images
    same = [e for e in entries if repository(e.image) == repository(image)]
    return next((e.own_entrypoint for e in (*same, *entries)), True)


def volume_name(image: str, hardware: str, folder: str) -> str:
    """Name the volume of a cache folder: per image (engine and version) and GPU, as kernels are."""
    return "autotune-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{image}-{hardware}{folder}".replace("/.", "-"))


def models_folder(environment: Mapping[str, str]) -> str:
    """The Hugging Face cache of this machine's user, as huggingface_hub finds it.

    Raises `BadInput` for a user without a home.
    """
    if environment.get("HF_HOME"):
        return environment["HF_HOME"]
    cache = environment.get("XDG_CACHE_HOME") or expanded(environment.get("HOME", "~"), "HF_HOME") / ".cache"
    return str(Path(cache) / "huggingface")


def mounted_paths(argv: Sequence[str]) -> list[str]:
    """The folders and files of this machine that a command's arguments name, each once, none inside another.

    Of a snapshot in the Hugging Face cache, the model's folder: the snapshot holds links into it.
    """
    named = [Path(value) for word in argv[1:] for value in (word, word.partition("=")[2])]
    # Not by the path's own method, which raises for a folder that may not be looked into.
    present = [path for path in named if path.is_absolute() and os.path.exists(path)]
    paths = sorted({str(path.parents[1] if path.parent.name == "snapshots" else path) for path in present})
    return [path for path in paths if not any(Path(other) in Path(path).parents for other in paths)]
