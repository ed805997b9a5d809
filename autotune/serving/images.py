"""Which container image each engine of a study runs in, and which version of the engine that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packaging.version import InvalidVersion, Version

from autotune.engines import Engine, engine
from autotune.errors import BadInput
from autotune.serving.docker_engine import version_in
from autotune.serving.docker_run import newest_image
from autotune.space.cards import HardwareCard
from autotune.space.library import Library
from autotune.space.schema import EngineCard


def asked_images(texts: Sequence[str], on: str, library: Library) -> dict[str, str]:
    """The images of ``--image ENGINE=IMAGE``, by engine; raises `BadInput`."""
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
    """Engine to known version and image: the one that was asked for, else the newest that is known for the hardware.

    An engine without one is left out. Raises `BadInput` when an image does not tell its version.
    """
    chosen: dict[str, tuple[str, str]] = {}
    for card in cards:
        if card.engine in asked:
            image = asked[card.engine]
            version = known_version(engine(card.engine, library), _version_in(image, card))
            chosen[card.engine] = (version, image)
        elif (found := newest_image(card, hardware)) is not None:
            chosen[card.engine] = found
    return chosen


def _version_in(image: str, card: EngineCard) -> str:
    return version_in(image, card.installation.distributions or [card.engine])


def version_of(image: str, kind: Engine, hardware: HardwareCard) -> str:
    """The known version that stands for what an image of a study holds; raises `BadInput` when it does not tell."""
    newest = newest_image(kind.card, hardware)
    if newest is not None and newest[1] == image:
        return newest[0]
    return known_version(kind, _version_in(image, kind.card))


def known_version(kind: Engine, found: str) -> str:
    """The known version whose parser and rules stand for a version: the same, else the newest that is not newer."""
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
    """Why an engine without an image is left out."""
    return (
        f"no container image of {card.title} for {hardware.vendor} {hardware.generation} is known; name one with "
        f"--image {card.engine}=IMAGE"
    )
