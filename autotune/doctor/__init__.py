"""``autotune doctor``: what this machine still lacks for ``--on process`` and ``--on docker``.

What keeps every launch from working is *missing*; what makes launches slower or less sure, or only some of them
impossible, is a *warning*. The checks are in `autotune.doctor.checks`; here are their types.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from autotune.machine.gpu import Gpu, gpus
from autotune.machine.resources import open_file_limit
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
        open_files: see `open_file_limit`.
        timeout_s: how long a program that is asked may take to answer.
    """

    home: Path
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    library: Library = field(default_factory=Library)
    open_files: int | None = field(default_factory=open_file_limit)
    timeout_s: float = 10.0

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The machine's GPUs; read once, as the drivers take a while to answer."""
        return gpus(self.root)

    def gpus_of(self, vendor: str) -> list[Gpu]:
        """The GPUs of one vendor, ``nvidia`` or ``amd``."""
        return [gpu for gpu in self.gpus if gpu.vendor == vendor]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: a sentence, and what to do about it where it is not ok.

    Attributes:
        name: one of several things that the check looks at, e.g. an engine's; `Check.findings` puts its own before it.
        targets: values of ``--on`` that it matters for; the check's.
        source: who says that it matters; the check's.
    """

    name: str
    targets: tuple[str, ...]
    status: Status
    message: str
    to_do: str
    source: str = ""

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
    look: Callable[[Host], Iterable[Finding]]
    source: str

    def findings(self, host: Host) -> Iterator[Finding]:
        for finding in self.look(host):
            name = f"{self.name} {finding.name}".rstrip()
            yield replace(finding, name=name, targets=self.targets, source=self.source)


def ok(message: str, about: str = "") -> Finding:
    return Finding(about, (), Status.OK, message, "")


def warning(message: str, to_do: str, about: str = "") -> Finding:
    return Finding(about, (), Status.WARNING, message, to_do)


def missing(message: str, to_do: str, about: str = "") -> Finding:
    return Finding(about, (), Status.MISSING, message, to_do)
