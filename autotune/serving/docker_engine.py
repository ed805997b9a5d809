"""Docker and its images: does the daemon answer, which image does an engine run in, which version does it hold.

By the docker command, whose options are the same for years and which knows contexts, logins and remote hosts. A session
with the daemon by a library would be one more dependency and one more way to log in.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from autotune.engines import Engine, engine
from autotune.engines.detect import VERSION_SCRIPT, told_version
from autotune.errors import BadInput
from autotune.notify import Notify, silent
from autotune.serving.docker_run import newest_image
from autotune.serving.processes import ask_docker
from autotune.space.cards import HardwareCard
from autotune.space.library import Library
from autotune.space.schema import EngineCard

_ANSWER_S = 30.0
_VERSION = re.compile(r"(?<![\w.])v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)*)(?![\d.])")
_NAMED_VERSION = re.compile(r"(?:^|[_-])(?:vllm|sglang|sgl|trtllm)[_-]?v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)*)")


def docker_program() -> str:
    """The path of the docker command; raises `BadInput` when there is none."""
    path = shutil.which("docker")
    if path is None:
        raise BadInput(
            "--on docker: 'docker' is not on the PATH; install Docker Engine, or run engines of this machine with --on "
            "process"
        )
    return os.path.abspath(path)


def server_version(program: str, environment: Mapping[str, str], limit_s: float) -> tuple[str, str]:
    """Ask the Docker daemon for its version; returns it, or the reason why there is none."""
    done = ask_docker(program, ["version", "--format", "{{.Server.Version}}"], environment, limit_s)
    version = done.stdout.strip()
    if done.returncode == 0 and version:
        return version, ""
    return "", _last_line(done.stderr) or (f"exit code {done.returncode}" if done.returncode else "it names no server")


def check_docker() -> str:
    """Ask the Docker daemon for its version; raises `BadInput`, with the way out, when it does not answer."""
    version, reason = server_version(docker_program(), os.environ, _ANSWER_S)
    if version:
        return version
    if "permission denied" in reason.lower():
        right = "run as a user of the group docker (sudo usermod -aG docker NAME), or set DOCKER_HOST"
    else:
        right = "start the daemon (sudo systemctl start docker), or set DOCKER_HOST to where it listens"
    raise BadInput(f"--on docker: Docker does not answer ({reason}); {right}")


def fetch_images(images: Sequence[str], notify: Notify) -> None:
    """Download the images that are not on this machine yet.

    Args:
        notify: called with each line that Docker prints of its progress.

    Raises:
        BadInput: Docker does not answer, or an image cannot be had.
    """
    check_docker()
    for image in dict.fromkeys(images):
        if _ask("image", "inspect", "--format", "{{.Id}}", image).returncode != 0:
            _pull(image, notify)


def _pull(image: str, notify: Notify) -> None:
    notify(f"pulling {image}, which may take many minutes")
    last = ""
    argv = [docker_program(), "pull", image]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
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
        raise BadInput(f"image {image} cannot be pulled ({last}); name another one with --image ENGINE=IMAGE")


def version_in(image: str, distributions: Sequence[str]) -> str:
    """Find the engine's version in an image: by its tag where that names one, else by its Python package.

    Args:
        distributions: names of Python packages that are the engine; the first that is installed counts.

    Raises:
        BadInput: neither names a version.
    """
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    # A tag may hold other versions too, of ROCm or Python: rocm7.0.0_vllm_0.11.2_20251210.
    match = _NAMED_VERSION.search(tag) or _VERSION.search(tag)
    if match:
        return match[1]
    fetch_images([image], silent)
    asking = ("--entrypoint", "python3", image, "-c", VERSION_SCRIPT, *distributions)
    done = _ask("run", "--rm", "--network", "none", *asking, limit_s=120.0)
    version = told_version(done.stdout)
    if version is None:
        why, wanted = _last_line(done.stderr) or f"exit code {done.returncode}", " or ".join(distributions)
        raise BadInput(
            f"--image {image}: its tag names no version, and it does not tell which {wanted} it holds ({why}); "
            "use a tag that names the version"
        )
    return version.partition("+")[0]


def _ask(*arguments: str, limit_s: float = _ANSWER_S) -> subprocess.CompletedProcess[str]:
    return ask_docker(docker_program(), arguments, os.environ, limit_s)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def asked_images(texts: Sequence[str], on: str, library: Library) -> dict[str, str]:
    """Parse ``--image ENGINE=IMAGE`` into images by engine; raises `BadInput`."""
    asked: dict[str, str] = {}
    for text in texts:
        name, equals, image = (part.strip() for part in text.partition("="))
        if not (name and equals and image) or any(sign.isspace() for sign in image):
            raise BadInput(f"--image {text!r}: write engine=image, e.g. sglang=lmsysorg/sglang:v0.5.6.post2")
        asked[library.engine(name).engine] = image
    if asked and on != "docker":
        raise BadInput(f"--image is for --on docker, and this study runs on {on}")
    return asked


def choose_images(
    asked: Mapping[str, str], cards: Iterable[EngineCard], hardware: HardwareCard, library: Library
) -> dict[str, tuple[str, str]]:
    """Choose version and image by engine: the image asked for, else the newest that is known for the hardware.

    An engine without an image is left out. Raises `BadInput` when an image names no version.
    """
    chosen: dict[str, tuple[str, str]] = {}
    for card in cards:
        if card.engine in asked:
            image = asked[card.engine]
            chosen[card.engine] = (version_of(image, engine(card.engine, library), hardware), image)
        elif (newest := newest_image(card, hardware)) is not None:
            chosen[card.engine] = newest
    return chosen


def version_of(image: str, kind: Engine, hardware: HardwareCard) -> str:
    """The known version of the engine in an image; raises `BadInput` when the image names none."""
    newest = newest_image(kind.card, hardware)
    if newest is not None and newest[1] == image:
        return newest[0]
    return known_version(kind, version_in(image, kind.card.installation.distributions or [kind.card.engine]))


def known_version(kind: Engine, found: str) -> str:
    """The known version whose parser and rules hold for a version: the same, else the nearest older one."""
    try:
        return kind.version(found)
    except BadInput:
        versions = kind.card.versions
    try:
        older = [version for version in versions if Version(version) <= Version(found)]
    except InvalidVersion:
        older = []
    return older[-1] if older else versions[0]


def no_image(card: EngineCard, hardware: HardwareCard) -> str:
    """Explain why an engine without an image is left out."""
    return (
        f"no container image of {card.title} for {hardware.vendor} {hardware.generation} is known; name one with "
        f"--image {card.engine}=IMAGE"
    )
