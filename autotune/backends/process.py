"""Engines that are installed on this machine, as processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.backends.servers import Launched, LaunchingBackend
from autotune.engines import Engine
from autotune.engines.choose import from_here
from autotune.engines.detect import why_missing
from autotune.errors import BadInput
from autotune.serving.command import cache_variables
from autotune.space.cards import HardwareCard
from autotune.space.schema import EngineCard
from autotune.study.options import RunOptions
from autotune.study.spec import StudySpec
from autotune.trial import Command, Evidence, Trial


class Process(LaunchingBackend):
    """See `autotune.backends.Backend`."""

    form = "process"
    evidence = Evidence.MEASURED
    on_gpus = installed = True

    def check(self, options: RunOptions, hardware: HardwareCard) -> None:
        if options.model.startswith((".", "/", "~")) and not Path(options.model).expanduser().exists():
            raise BadInput(f"--model {options.model}: there is no such folder, and a server here could not read it")

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        if kind.name in spec.installed:
            return None
        return why_missing(kind.card) or f"{kind.card.title} was not installed when the study began"

    def typed_command(self, command: Command, kind: Engine) -> Command:
        return from_here(command, kind)

    def start_command(self, trial: Trial, card: EngineCard, run: Launched) -> Command:
        # Kernels belong to the engine that is there, not to the known version whose table stands for it.
        installed, command = run.spec.installed.get(card.engine), trial.command
        version = installed.version if installed else trial.engine_version
        # Not part of what is recommended: a person has caches of their own.
        caches = cache_variables(card.serving.caches, card.engine, version, run.spec.hardware.name, command.env)
        return replace(command, env={**caches, **command.env})
