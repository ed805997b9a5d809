"""Engines' stand-ins (`autotune emulate`): real processes and HTTP, at the times of the simulated node."""

from __future__ import annotations

import sys
from dataclasses import replace

import yaml

from autotune.backends import missing_files
from autotune.backends.servers import Launched, LaunchingBackend
from autotune.engines import Engine
from autotune.simulator.node.calibration import calibration_of
from autotune.space.library import Library
from autotune.space.schema import EngineCard
from autotune.study.options import RunOptions, VerifyOptions
from autotune.study.spec import StudySpec
from autotune.trial import Command, Evidence, Trial


class Emulator(LaunchingBackend):
    """See `autotune.backends.Backend`."""

    form = "emulator"
    evidence = Evidence.EMULATED
    startup_s = 1.0  # An emulated engine need not take a real one's minutes to load.

    def why_unavailable(self, kind: Engine, spec: StudySpec) -> str | None:
        return missing_files(kind, "emulator", ("simulation", "emulation"))

    def start_command(self, trial: Trial, card: EngineCard, run: Launched) -> Command:
        """Wrap an engine's command in ``autotune emulate``."""
        spec, command = run.spec, trial.command
        options = ["--hw", "hardware.yaml", "--calibration", "coefficients.yaml"]
        options += ["--gpus", str(spec.gpus // command.replicas)]
        options += ["--engine-version", trial.engine_version, "--startup-s", str(self.startup_s)]
        argv = (sys.executable, "-m", "autotune", "emulate", *options, "--", *command.argv)
        documents = {"hardware.yaml": spec.hardware, "coefficients.yaml": calibration_of(run.library)}
        texts = {n: yaml.safe_dump(d.model_dump(mode="json"), sort_keys=False) for n, d in documents.items()}
        # As the environment that a real engine would get: `emulate` corrects what stands in front of a typed command.
        return replace(command, argv=argv, files={**command.files, **texts})

    def announcement(self, spec: StudySpec, library: Library, options: RunOptions | VerifyOptions | None) -> str:
        return (
            "EMULATED: real processes and HTTP, but the engines are stand-ins at the times of a simulated "
            f"{spec.gpus}×{spec.hardware.name} node."
        )
