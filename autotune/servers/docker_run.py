"""An engine's image, and its command in a container: the words ``docker run … IMAGE`` before the
command.

They are what a person would type, and what rows, reports and ``serve.sh`` show. What only a launch
needs (a name, a label, an address) is added by `autotune.servers.docker`.

Docker and its images are asked by the docker command, whose options are the same for years and
which knows contexts, logins and remote hosts. A session with the daemon by a library would be one
more dependency and one more way to log in.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from glob import glob
from pathlib import Path
from typing import Literal

import yaml

from autotune.base import (
    BadInput,
    Environment,
    Notify,
    StringDict,
    beside,
    expanded,
    run_program,
    silent,
)
from autotune.engines import Command, Engine, EngineCard, Entry, HardwareCard, Library
from autotune.engines.command import referenced
from autotune.engines.entry import Sourced, first_for
from autotune.engines.installed import VERSION_SCRIPT, parsed_version
from autotune.engines.serving import ContainerImage, LogPattern

from .command import absolute_paths

DOCKER_RUN = ("docker", "run", "--rm")
"""First words of every command in a container."""
FILES_FOLDER = "/autotune"
"""The container's folder for a command's files; its working folder if there are any."""
_ANSWER_S = 30.0
_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)*)(?![\d.])")
_NAMED_VERSION = re.compile(
    r"(?:^|[_-])(?:vllm|sglang|sgl|trtllm)[_-]?v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)*)"
)


class NetworkDevice(Sourced):
    """A device used by commands whose words match `when`, and the docker options that pass it."""

    when: str
    device: str
    options: list[list[str]]


class DockerCard(Entry):
    """Schema of ``autotune/servers/docker.yaml``.

    Attributes:
        devices: by the hardware's vendor.
        networks: those that only some commands need.
        where_set: further variables, with the mode of the mount of the place that they name; empty:
            they name none.
        groups: by vendor, a pattern of the devices whose groups a launch passes.
        caches: folders of the container that outlive it.
        models: where the host's Hugging Face cache lies in the container.
        failures: messages of the docker command itself.
    """

    options: list[list[str]]
    devices: dict[str, list[list[str]]]
    networks: list[NetworkDevice]
    variables: list[str]
    where_set: dict[str, Literal["", "ro", "rw"]]
    groups: StringDict
    caches: list[str]
    models: str
    failures: list[LogPattern]


@cache
def docker_card() -> DockerCard:
    return DockerCard.model_validate(yaml.safe_load(beside(__file__, "docker.yaml")))


def image_of(card: EngineCard, hardware: HardwareCard, version: str) -> ContainerImage | None:
    """Return the image with a version of an engine for this hardware; None if none is known."""
    return first_for(_fitting(card, hardware), version)


def _fitting(card: EngineCard, hardware: HardwareCard) -> list[ContainerImage]:
    return [
        e
        for e in card.images
        if e.vendor == hardware.vendor and e.generation in (None, hardware.generation)
    ]


def newest_image(card: EngineCard, hardware: HardwareCard) -> tuple[str, str] | None:
    """Return the newest known release with an image, and its image; None if there is none."""
    for version in reversed(card.releases):
        if entry := image_of(card, hardware, version):
            return version, entry.image.replace("{version}", version)
    return None


def in_container(
    command: Command,
    image: str,
    card: EngineCard,
    hardware: HardwareCard,
    docker: DockerCard | None = None,
) -> Command:
    """Put a command into a container of an image; by default with the packaged options of ``docker
    run``.

    Paths of this machine that it names are mounted at the same place, read-only; so are its own
    files.
    """
    docker = docker or docker_card()
    argv = (command.argv[0], *absolute_paths(command.argv[1:], command.files))
    typed = " ".join(command.typed())
    options = [*docker.options, *docker.devices[hardware.vendor]]
    for network in docker.networks:
        if re.search(network.when, typed) and os.path.exists(network.device):
            options += network.options
    groups = {os.stat(path).st_gid for path in glob(docker.groups.get(hardware.vendor, ""))}
    options += [["--group-add", str(group)] for group in sorted(groups)]
    also = {
        name: f"{os.environ[name]}:{os.environ[name]}:{mode}" if mode else ""
        for name, mode in docker.where_set.items()
        if os.environ.get(name) and (not mode or os.path.exists(os.environ[name]))
    }
    mounts = [f"{volume_name(image, hardware.name, cache_)}:{cache_}" for cache_ in docker.caches]
    mounts.append(f"{models_folder({**os.environ, **command.env})}:{docker.models}")
    mounts += [f"{path}:{path}:ro" for path in mounted_paths(argv)]
    mounts += filter(None, also.values())
    mounts += [f"./{name}:{FILES_FOLDER}/{name}:ro" for name in command.files]
    settings = [f"HF_HOME={docker.models}", *docker.variables, *also]
    for name, value in command.env.items():
        # Drop the command's own HF_HOME: that folder of this machine lies elsewhere in the
        # container. Pass a secret by name alone: docker takes its value from its own environment.
        if name != "HF_HOME":
            settings.append(name if referenced(value) else f"{name}={value}")
    options += [["--volume", mount] for mount in mounts]
    options += [["--env", setting] for setting in dict.fromkeys(settings)]
    if command.files:
        options.append(["--workdir", FILES_FOLDER])
    if not own_entrypoint(card, hardware, image):
        options.append(["--entrypoint="])
    words = (word for option in options for word in option)
    return replace(command, argv=argv, container=(*DOCKER_RUN, *words, image))


def own_entrypoint(card: EngineCard, hardware: HardwareCard, image: str) -> bool:
    """Return whether an image starts the engine by itself; a user's own image is treated as the
    first known one."""

    def repository(name: str) -> str:
        head, slash, tail = name.partition("@")[0].rpartition("/")
        return f"{head}{slash}{tail.partition(':')[0]}"

    entries = _fitting(card, hardware) or card.images
    same = [e for e in entries if repository(e.image) == repository(image)]
    return next((e.own_entrypoint for e in (*same, *entries)), True)


def volume_name(image: str, hardware: str, folder: str) -> str:
    """Name the volume of a cache folder: per image (engine and version) and GPU, as kernels depend
    on both."""
    return "autotune-" + re.sub(
        r"[^A-Za-z0-9_.-]+", "-", f"{image}-{hardware}{folder}".replace("/.", "-")
    )


def models_folder(environment: Environment) -> str:
    """Locate the Hugging Face cache as huggingface_hub does; raises `BadInput` for a user without a
    home folder."""
    if environment.get("HF_HOME"):
        return environment["HF_HOME"]
    caches = environment.get("XDG_CACHE_HOME")
    home = environment.get("HOME", "~")
    return str(Path(caches or expanded(home, "HF_HOME") / ".cache", "huggingface"))


def mounted_paths(argv: Sequence[str]) -> list[str]:
    """List the folders and files of this machine in a command's arguments, each once, none inside
    another.

    A snapshot in the Hugging Face cache is listed as the model's folder: it holds links into that.
    """
    named = [Path(value) for word in argv[1:] for value in (word, word.partition("=")[2])]
    # The path's own method would raise for a folder without permission.
    paths = {
        path.parents[1] if path.parent.name == "snapshots" else path
        for path in named
        if path.is_absolute() and os.path.exists(path)
    }
    return sorted(str(path) for path in paths if paths.isdisjoint(path.parents))


def docker_program() -> str:
    """Locate the docker command; raises `BadInput` if there is none."""
    path = shutil.which("docker")
    if path is None:
        raise BadInput(
            "--on docker: 'docker' is not on the PATH; install Docker Engine, or run engines of "
            "this machine with --on process"
        )
    return os.path.abspath(path)


def server_version(program: str, environment: Environment, limit_s: float) -> tuple[str, str]:
    """Query the Docker daemon's version; returns it, or the reason why there is none."""
    done = run_program(
        [program, "version", "--format", "{{.Server.Version}}"], limit_s, environment
    )
    version = done.stdout.strip()
    if done.returncode == 0 and version:
        return version, ""
    return "", _last_line(done.stderr) or (
        f"exit code {done.returncode}" if done.returncode else "it names no server"
    )


ROOTLESS = (
    "this Docker runs rootless: --network host is RootlessKit's network there, not this machine's, so "
    "that no request would reach a server"
)
NOT_ROOTLESS = "use a daemon that runs as root (docker context use default, or unset DOCKER_HOST), or --on process"


def is_rootless(program: str, environment: Environment, limit_s: float) -> bool:
    """Ask whether the daemon runs without root (``docker info``); false if it does not say."""
    done = run_program([program, "info", "--format", "{{.SecurityOptions}}"], limit_s, environment)
    return done.returncode == 0 and "rootless" in done.stdout


def check_docker() -> str:
    """Query the Docker daemon's version; raises `BadInput`, with the remedy, if it does not
    answer."""
    program = docker_program()
    version, reason = server_version(program, os.environ, _ANSWER_S)
    if version and not is_rootless(program, os.environ, _ANSWER_S):
        return version
    if version:
        raise BadInput(f"--on docker: {ROOTLESS}; {NOT_ROOTLESS}")
    if "permission denied" in reason.lower():
        right = (
            "run as a user of the group docker (sudo usermod -aG docker NAME), or set DOCKER_HOST"
        )
    else:
        right = "start the daemon (sudo systemctl start docker), or set DOCKER_HOST to its address"
    raise BadInput(f"--on docker: Docker does not answer ({reason}); {right}")


def fetch_images(images: Sequence[str], notify: Notify) -> None:
    """Download missing images; `notify` gets Docker's lines. Raises `BadInput`."""
    check_docker()
    for image in dict.fromkeys(images):
        inspect = [docker_program(), "image", "inspect", "--format", "{{.Id}}", image]
        if run_program(inspect, _ANSWER_S).returncode == 0:
            continue
        notify(f"pulling {image}, which may take many minutes")
        last = ""
        with subprocess.Popen(
            [docker_program(), "pull", image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    last = line.strip() or last
                    notify(f"pulling {image}: {last}")
            except BaseException:
                process.terminate()
                raise
        if process.returncode != 0:
            raise BadInput(
                f"image {image} cannot be pulled ({last}); choose another one with --image "
                "ENGINE=IMAGE"
            )


def version_in_tag(image: str, *, named: bool = False) -> str | None:
    """Return the engine's version in an image's tag, where that must be `named` only one beside the
    engine's name; None for none."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    # A tag may hold other versions too, of ROCm or Python: rocm7.0.0_vllm_0.11.2_20251210.
    match = _NAMED_VERSION.search(tag) or (None if named else _VERSION.search(tag))
    return match[1] if match else None


def version_in(image: str, distributions: Sequence[str]) -> str:
    """Return the engine version of an image, by its tag, else by its installed packages; raises
    `BadInput` for none."""
    if tagged := version_in_tag(image):
        return tagged
    fetch_images([image], silent)
    asking = (*DOCKER_RUN[1:], "--network", "none", "--entrypoint", "python3")
    script = (image, "-c", VERSION_SCRIPT, *distributions)
    done = run_program([docker_program(), *asking, *script], 120.0)
    version = parsed_version(done.stdout)
    if version is None:
        why = _last_line(done.stderr) or f"exit code {done.returncode}"
        raise BadInput(
            f"--image {image}: its tag names no version, and its {' or '.join(distributions)} "
            "version is unknown "
            f"({why}); use a tag that names the version"
        )
    return version.partition("+")[0]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def asked_images(texts: Sequence[str], library: Library) -> StringDict:
    """Parse ``--image ENGINE=IMAGE`` into images by engine; raises `BadInput`."""
    asked = {}
    for text in texts:
        name, equals, image = (part.strip() for part in text.partition("="))
        if not (name and equals and image) or any(sign.isspace() for sign in image):
            raise BadInput(
                f"--image {text!r}: write engine=image, e.g. sglang=lmsysorg/sglang:v0.5.6.post2"
            )
        asked[library.engine(name).engine] = image
    return asked


def version_of(image: str, kind: Engine, hardware: HardwareCard) -> str:
    """Find the version of the engine in an image; raises `BadInput` if the image does not name
    it."""
    newest = newest_image(kind.card, hardware)
    if newest is not None and newest[1] == image:
        return newest[0]
    return kind.version(
        version_in(image, kind.card.installation.distributions or [kind.card.engine])
    )


def no_image(card: EngineCard, hardware: HardwareCard) -> str:
    """Explain why an engine without an image is excluded."""
    return (
        f"no container image of {card.title} for {hardware.vendor} {hardware.generation} is known; "
        f"name one with --image {card.engine}=IMAGE"
    )
