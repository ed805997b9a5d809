"""The typed options of ``autotune run``, ``verify``, ``simulate``, ``emulate``, ``bench`` and
``calibrate``.

A field is an option of the command line if ``options.yaml`` has its flag, help and group; name,
type and default are the field's. `autotune.cli.shared.options_of` makes click's options of them,
and `command_line` asks a study's question again by them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from autotune.base import JsonObject, StringDict, frozen
from autotune.base.files import beside
from autotune.engines import parse_yaml
from autotune.engines.command import plain, referenced

if TYPE_CHECKING:
    from .spec import StudySpec

_DATA = parse_yaml(beside(__file__, "options.yaml"))
GROUPS: Sequence[str] = [one["group"] for one in _DATA["groups"]]
"""Headings of ``autotune run --help``, in their order."""


@frozen
class Option:
    """A field's declaration as an option of the command line.

    Attributes:
        least, most: bounds of a number.
        existing: True if a path must name a file that is there.
        needs: ``launch``: means nothing where a file answers; ``search``: nor where a bundle does.
        again: whether a study asks for it again: it does not if other options imply it.
        row: heading and form of its row in a report's table of what was asked; empty: it has none
            of its own.
    """

    flag: str
    help: str
    group: str = ""
    least: int | None = None
    most: int | None = None
    existing: bool = False
    needs: Literal["launch", "search"] | None = None
    again: bool = True
    row: Sequence[str] = ()


def declared_options(kind: type) -> list[tuple[Field[Any], Option]]:
    """List the fields of a dataclass that are options, with their declarations."""
    own = _DATA[kind.__name__]
    return [(one, Option(**own[one.name])) for one in fields(kind) if one.name in own]


@frozen
class RunOptions:
    """Options of ``autotune run``; `given` names the typed ones, default values included."""

    model: str = ""
    hardware: str = ""
    gpus: int | None = None
    engines: Sequence[str] = ()
    model_id: str | None = None
    workloads: Sequence[str] = ()
    window: str | None = None
    traffic: Mapping[str, JsonObject] = {}
    final_workload: str | None = None
    speedup: float | None = None
    output_len: int | None = None
    objective: str | None = None
    weights: str | None = None
    pareto: str | None = None
    slos: Sequence[str] = ()
    find_load: Literal["concurrency", "rate"] | None = None
    goodput: Sequence[str] = ()
    baseline: str | None = None
    accuracy: str | None = None
    ladder: str | None = None
    gpu_hour_price: float | None = None
    pins: Sequence[str] = ()
    drop: Sequence[str] = ()
    engine_args: Sequence[str] = ()
    env: Sequence[str] = ()
    clean_env: bool = False
    min_context: int | None = None
    allow: Sequence[
        Literal["shorter-context", "no-prefix-caching", "lossy", "coarse-streaming"]
    ] = ()
    space: Path | None = None
    sampler: str = "gp"
    sources: Sequence[str] = ()
    screen: Literal["auto", "off"] = "auto"
    explain: Literal["model", "measured"] = "model"
    launches: int = 30
    hours: float | None = None
    seed: int = 0
    noise: float | None = None
    on: str = "auto"
    executor: str = "local"
    engine_bins: Sequence[str] = ()
    images: Sequence[str] = ()
    api_key_env: str | None = None
    api_key_file: str | None = None
    hf_token_file: str | None = None
    calibration: Path | None = None
    study: str | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    given: frozenset[str] = frozenset()

    def needing(self, *needs: str) -> list[str]:
        """List the flags of typed options that need a launch, or a search."""
        return [
            typed.flag
            for one, typed in declared_options(RunOptions)
            if typed.needs in needs and self.says(one.name)
        ]

    def says(self, name: str) -> bool:
        """Return whether an option was typed, or differs from its default."""
        own = next(one for one in fields(self) if one.name == name)
        return name in self.given or getattr(self, name) not in (own.default, ())


_ASKED: Mapping[str, Callable[[StudySpec], object]] = {
    "model": lambda spec: spec.model.id,
    "hardware": lambda spec: spec.hardware.name,
    "engines": lambda spec: [one.name for one in spec.engines],
    "goodput": lambda spec: [f"{n}:{typed_word(limit)}" for n, limit in spec.goodput.items()],
    "baseline": lambda spec: (
        f"recipe:{spec.recipe}" if spec.baseline and spec.recipe else spec.baseline
    ),
    "screen": lambda spec: "auto" if spec.screened else "off" if spec.may_screen else None,
    "explain": lambda spec: None if spec.explain == "model" else spec.explain,
    "engine_bins": lambda spec: {
        name: one.program[0]
        for name, one in spec.installed.items()
        if os.path.isabs(one.program[0])
    },
}
"""Options whose value in a study is not the field of the same name: how to get it."""


def typed_word(value: object) -> str:
    """Format a value as typed: a number in its shortest form."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "" if value is None else plain(value)


def command_line(spec: StudySpec, unused: Sequence[str] = ()) -> str:
    """Return the ``autotune run`` or ``autotune verify`` command of a study, secrets included.

    Args:
        unused: options that mean nothing where it runs, see `Backend.unused_options`.
    """
    inherited = {n: value for n, value in (spec.inherited or {}).items() if not referenced(value)}
    words = [f"{name}={shlex.quote(value)}" for name, value in inherited.items()]
    words.append(
        "autotune run" if spec.verifies is None else f"autotune verify {spec.verifies.study}"
    )
    lines = [" ".join(words)]
    for one, declared in declared_options(RunOptions if spec.verifies is None else VerifyOptions):
        for value in _typed(one, declared, spec) if one.name not in unused else ():
            lines.append(f"{declared.flag} {shlex.quote(value)}")
    return " \\\n  ".join(lines)


def rows_of(spec: StudySpec) -> StringDict:
    """Return the report rows of set options, by heading."""
    asked = (
        (declared.row, _typed(one, declared, spec))
        for one, declared in declared_options(RunOptions)
    )
    return {row[0]: row[1].format(*values) for row, values in asked if row and values}


def _typed(one: Field[Any], declared: Option, spec: StudySpec) -> list[str]:
    """Return the values of an option in a repeated study, one for each time it is typed."""
    value = _ASKED.get(one.name, attrgetter(one.name))(spec) if declared.again else None
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = [f"{name}={typed_word(each)}" for name, each in value.items()]
    if not isinstance(value, list | tuple):
        return [typed_word(value)]
    words = [typed_word(each) for each in value]
    if one.default == () or not words:
        return words
    return [",".join(words)]


@frozen
class VerifyOptions:
    """The typed options of ``autotune verify``; its study has the others."""

    study: str
    on: str | None = None
    top: int = 3
    launches: int | None = None
    engine_bins: Sequence[str] = ()
    images: Sequence[str] = ()


@frozen
class RegressOptions:
    """The typed options of ``autotune regress``; its study has the others."""

    study: str
    engines: Sequence[str] = ()
    engine_bins: Sequence[str] = ()
    images: Sequence[str] = ()
    old_engine_bins: Sequence[str] = ()
    old_images: Sequence[str] = ()
    with_baseline: bool = False
    margin: float = 5.0
    launches: int | None = None
    on: str | None = None
    calibration: Path | None = None


@frozen
class EngineOptions:
    """The typed options of a command that takes an engine's command line."""

    hardware: str
    engine_command: Sequence[str]
    gpus: int | None = None
    engine_version: str | None = None
    model_id: str | None = None
    calibration: Path | None = None


@frozen
class SimulateOptions(EngineOptions):
    """The typed options of ``autotune simulate``, some of them those of ``run``."""

    workload: str = "sharegpt"
    output_len: int | None = None
    window: str | None = None
    concurrency: int | None = None
    find_load: Literal["concurrency", "rate"] | None = None
    slos: Sequence[str] = ()
    replicas: int = 1
    gpu_hour_price: float | None = None
    seed: int = 0
    versus: str | None = None


@frozen
class EmulateOptions(EngineOptions):
    """The typed options of ``autotune emulate``."""

    host: str | None = None
    port: int | None = None
    speed: float = 1.0
    startup_s: float | None = None
    fault: str | None = None
    answers: str | None = None


@frozen
class CalibrateOptions:
    """The typed options of ``autotune calibrate``."""

    files: Sequence[Path] = ()
    studies: Sequence[str] = ()
    command: str | None = None
    hardware: str | None = None
    engine_version: str | None = None
    start: Literal["shipped", "physics"] = "shipped"
    output: Path | None = None
    cross_validate: bool = False
    allow_unmeasured: bool = False
    compare: bool = False
