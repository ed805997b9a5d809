"""The types of a check: the host that it examines, its answer, and the finding that is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from autotune.machine.gpu import Gpu, gpus
from autotune.machine.resources import Limit, locked_memory_limit, open_file_limit
from autotune.space.library import Library

PROCESS, DOCKER = "process", "docker"
TARGETS = (PROCESS, DOCKER)
"""The places to launch in that are examined: the values of ``--on``."""


class Status(StrEnum):
    """``missing`` keeps a target from working at all."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True)
class Host:
    """The machine that is examined; the defaults are this one's.

    Attributes:
        home: where studies will lie.
        root: where ``/proc``, ``/sys``, ``/dev`` and ``/etc`` are looked for.
        environment: that servers would inherit.
        timeout_s: how long a program that is asked may take to answer.
    """

    home: Path
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    library: Library = field(default_factory=Library)
    open_files: Limit = field(default_factory=open_file_limit)
    locked_memory: Limit = field(default_factory=locked_memory_limit)
    timeout_s: float = 10.0

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The machine's GPUs; read once, as the drivers take a while to answer."""
        return gpus(self.root)

    def gpus_of(self, vendor: str) -> list[Gpu]:
        """The GPUs of one vendor, ``nvidia`` or ``amd``."""
        return [gpu for gpu in self.gpus if gpu.vendor == vendor]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one check: a sentence, and what to do about it where it is not ok.

    Attributes:
        about: one of several things that the check looks at, e.g. an engine's name.
    """

    status: Status
    message: str
    to_do: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """An `Answer` with its check's name, targets and source."""

    name: str
    targets: tuple[str, ...]
    status: Status
    message: str
    to_do: str
    source: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the machine: a function, and what it matters for.

    Attributes:
        targets: values of ``--on`` that it matters for.
        look: yields what it found; finds nothing where the check does not concern the host.
        source: who says that it matters.
    """

    name: str
    targets: tuple[str, ...]
    look: Callable[[Host], Iterable[Answer]]
    source: str

    def findings(self, host: Host) -> Iterator[Finding]:
        for a in self.look(host):
            name = f"{self.name} {a.about}".rstrip()
            yield Finding(name, self.targets, a.status, a.message, a.to_do, self.source)


def ok(message: str, about: str = "") -> Answer:
    return Answer(Status.OK, message, "", about)


def warning(message: str, to_do: str, about: str = "") -> Answer:
    return Answer(Status.WARNING, message, to_do, about)


def missing(message: str, to_do: str, about: str = "") -> Answer:
    return Answer(Status.MISSING, message, to_do, about)
