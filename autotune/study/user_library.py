"""The user's own files beside the packaged ones: spaces, and the simulator's coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import BadInput
from autotune.space.library import Library
from autotune.study.home import Home
from autotune.study.spec import StudySpec


def library_of(spec: StudySpec) -> Library:
    """The spaces of a study."""
    return library_for(Path(spec.space) if spec.space else None, spec.calibration)


def calibration_of_home(given: Path | None, home: Path) -> Path | None:
    """Find the coefficients: the file that was given, else what `autotune calibrate` left in the home folder."""
    left = Home(home).calibration
    return given or (left if left.is_file() else None)


def library_for(space: Path | None, calibration: Mapping[str, Any] | None = None) -> Library:
    """The packaged spaces, under a folder or an engine's file of the user's own.

    Args:
        calibration: the simulator's coefficients in place of the packaged ones.
    """
    if space is None:
        return Library(calibration=calibration)
    if not space.exists():
        raise BadInput(f"--space {space}: no such file or folder")
    if not space.is_dir():
        return Library(files=(space,), calibration=calibration)
    if not any(space.glob("*/*.yaml")):
        raise BadInput(f"--space {space}: no engines/*.yaml, models/*.yaml, hardware/*.yaml or workloads/*.yaml in it")
    return Library((space,), calibration=calibration)
