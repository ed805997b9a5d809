"""Engines in containers of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.backends.servers import LaunchingBackend
from autotune.engines import Engine
from autotune.errors import BadInput
from autotune.notify import Notify
from autotune.serving.docker import DockerLauncher
from autotune.serving.docker_run import (
    asked_images,
    choose_images,
    fetch_images,
    image_of_version,
    in_container,
    no_image,
    version_of,
)
from autotune.space.cards import HardwareCard
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.study.spec import StudySpec
from autotune.trial import Command, Evidence


class Docker(LaunchingBackend):
    """See `autotune.backends.Backend`."""

    form = "docker"
    evidence = Evidence.MEASURED
    on_gpus = contained = True
    launcher = DockerLauncher

    def images(
        self,
        texts: Sequence[str],
        cards: Sequence[EngineCard],
        versions: Mapping[str, str],
        hardware: HardwareCard,
        library: Library,
    ) -> dict[str, tuple[str, str]]:
        asked = asked_images(texts, library)
        for name, version in versions.items():
            if name not in asked:
                asked[name] = image_of_version(library.engine(name), hardware, version)
        return choose_images(asked, cards, hardware, library)

    def version_of(self, kind: Engine, spec: StudySpec) -> str:
        image = spec.images.get(kind.name)
        return kind.version() if image is None else version_of(image, kind, spec.hardware)

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        return None if kind.name in spec.images else no_image(kind.card, spec.hardware)

    def place(self, command: Command, card: EngineCard, spec: StudySpec) -> Command:
        image = spec.images.get(card.engine)
        if image is None:
            raise BadInput(no_image(card, spec.hardware))
        return in_container(command, image, card, spec.hardware)

    def fetch(self, spec: StudySpec, engines: Sequence[str], notify: Notify) -> None:
        fetch_images([spec.images[name] for name in engines], notify)
