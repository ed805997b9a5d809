"""The fitted figures: what physics expects of each, and what the measured rows made of it.

A figure of an engine's version on a GPU is a product: what physics expects (``search_spaces/physics``) times the
factors of its groups (``search_spaces/calibrations``): all measured rows, the engine, the GPU's vendor, the era of its
software, and the engine in that era. A group without rows has the factor 1, so that an engine or a GPU that nobody
measured is still predicted: from what all the others have in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, ValidationError, model_validator

from autotune.arrays import Floats
from autotune.errors import BadInput, MalformedFile
from autotune.simulator.node.coefficients import Coefficients, Figures, SpeedCard, adjusted
from autotune.simulator.node.uncertainty import PredictionErrors
from autotune.space.cards import HardwareCard
from autotune.space.entry import Entry
from autotune.space.library import Library, kind_of, load, spaces_root
from autotune.trial import Scalar

OWN = "own"
"""What an engine does on a user's own node beyond what the shipped rows say of it."""

LEVELS = ("all", "engine", "vendor", "era", "engine_era", OWN)


class Figure(Entry):
    """What is expected of one figure before anything is measured.

    Attributes:
        typical: the middle of what is expected.
        spread: per level, the standard deviation of ln(factor) between its groups; a level without one has no factors.
    """

    typical: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(gt=0)
    spread: dict[str, float] = {}
    source: str


class Physics(Entry):
    """``search_spaces/physics/figures.yaml``."""

    figures: dict[str, Figure]


class Factor(NamedTuple):
    """Which factor: of which figure, on which of `LEVELS`, for which group."""

    level: str
    group: str
    figure: str


class Learned(Entry):
    """One source of measured rows: its name, how many points it gave, and what kind of evidence it is."""

    source: str
    points: int
    evidence: str


class Calibration(Entry):
    """``coefficients.yaml``: written by ``autotune calibrate``, never by hand.

    Attributes:
        fitted_to: where the measured points came from.
        factors: level -> group -> figure -> factor.
        deviations: the same to the standard deviation of ln(factor) that the rows left.
        errors: how far predictions lie from measurements, per engine and for what was never measured.
    """

    fitted_to: list[Learned]
    factors: dict[str, dict[str, dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]]]
    deviations: dict[str, dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]]] = {}
    errors: PredictionErrors

    @model_validator(mode="after")
    def _known(self) -> Calibration:
        figures = {name for groups in self.factors.values() for found in groups.values() for name in found}
        for kind, given, known in (("level", self.factors, LEVELS), ("figure", figures, Figures.model_fields)):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ValueError(f"unknown {kind} {unknown[0]!r}; known: {', '.join(known)}; calibrate anew")
        return self

    @property
    def told(self) -> str:
        """What it was fitted to, in words; what was not measured is named as that."""
        parts = (f"{one.source} ({one.points} points, {one.evidence})" for one in self.fitted_to)
        unmeasured = any(one.evidence != "measured" for one in self.fitted_to)
        warning = "; not all of that was measured: its intervals say nothing of a real node"
        return f"fitted to {', '.join(parts) or 'nothing'}{warning if unmeasured else ''}"

    def knows(self, which: Factor) -> bool:
        """Whether rows have told about a factor."""
        return which.figure in self.factors.get(which.level, {}).get(which.group, {})

    def factor(self, which: Factor) -> float:
        """A factor; 1 for a group without rows."""
        return self.factors.get(which.level, {}).get(which.group, {}).get(which.figure, 1.0)

    def deviation(self, which: Factor, physics: Physics) -> float:
        """Standard deviation of ln(factor): what the rows left of it, else what physics expects."""
        spread = physics.figures[which.figure].spread[which.level]
        left = self.deviations.get(which.level, {}).get(which.group, {})
        return min(spread, left.get(which.figure, spread))


def groups_of(card: SpeedCard, version: str, hardware: HardwareCard) -> dict[str, str]:
    """The groups that an engine's version on a node belongs to, by level.

    GPUs are grouped by vendor: what an H200 taught of kernels holds for an H100 too, and a GPU that was not measured
    must not look better than its sibling for having no factors.
    """
    era = card.era(version)
    groups = {"all": "all", "engine": card.engine, "vendor": hardware.vendor, OWN: f"{card.engine} {hardware.name}"}
    return groups if era is None else {**groups, "era": era, "engine_era": f"{card.engine} {era}"}


def factors_of(physics: Physics, groups: Mapping[str, str]) -> Iterator[Factor]:
    """The factors that a member of these groups is made of."""
    for name, figure in physics.figures.items():
        for level, group in groups.items():
            if figure.spread.get(level):
                yield Factor(level, group, name)


def drawn_factors(
    calibration: Calibration, groups: Iterable[Mapping[str, str]], draws: int, seed: int
) -> dict[Factor, Floats]:
    """By how much ln(factor) may be off, shape (draws,): normal, by what the rows left open, each factor by itself.

    Args:
        groups: of each engine (`groups_of`); what they share is drawn once for all of them.
    """
    physics = packaged_physics()
    factors = list(dict.fromkeys(which for members in groups for which in factors_of(physics, members)))
    normal = np.random.default_rng(seed).standard_normal((len(factors), draws))
    return {which: row * calibration.deviation(which, physics) for which, row in zip(factors, normal, strict=True)}


def composed(
    physics: Physics,
    calibration: Calibration,
    groups: Mapping[str, str],
    moved: Mapping[Factor, Floats] | None = None,
) -> dict[str, Any]:
    """The figures of a member of these groups, each within its range.

    Args:
        moved: by how much ln(factor) is off, shape (draws,); figures that it moves are arrays of that shape.
    """
    logs: dict[str, Any] = dict.fromkeys(physics.figures, 0.0)
    for which in factors_of(physics, groups):
        logs[which.figure] = logs[which.figure] + math.log(calibration.factor(which))
        if moved and which in moved:
            logs[which.figure] = logs[which.figure] + moved[which]
    found = {name: np.clip(f.typical * np.exp(logs[name]), f.low, f.high) for name, f in physics.figures.items()}
    return {name: value if isinstance(value, np.ndarray) else float(value) for name, value in found.items()}


def coefficients_of(
    card: SpeedCard,
    calibration: Calibration,
    version: str,
    knobs: Mapping[str, Scalar],
    scope: Mapping[str, Any],
    moved: Mapping[Factor, Floats] | None = None,
) -> Coefficients:
    """Everything that the arithmetic needs of an engine's version under these knobs.

    Args:
        scope: ``model``, ``hardware``, ``gpus``.
        moved: as of `composed`.
    """
    groups = groups_of(card, version, scope["hardware"])
    return adjusted(card, composed(packaged_physics(), calibration, groups, moved), version, knobs, scope)


@lru_cache(maxsize=1)
def packaged_physics() -> Physics:
    """What physics expects."""
    return load(spaces_root() / "physics" / "figures.yaml", Physics)


def packaged_calibration() -> Calibration:
    """What the shipped measurements made of the figures."""
    return read_calibration(spaces_root() / "calibrations" / "coefficients.yaml")


def calibration_of(library: Library) -> Calibration:
    """The calibration of a library: the study's, a file of the user's own, an overlay's, or the packaged one."""
    if library.calibration is not None:
        try:
            return Calibration.model_validate(library.calibration)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadInput(f"the study's calibration is malformed: {where}: {first['msg']}") from error
    own = library.own_files("calibrations")
    return read_calibration(own[-1] if own else next(library.paths("calibrations")))


def nothing_learned() -> Calibration:
    """Physics alone: every factor 1."""
    return Calibration(fitted_to=[], factors={}, errors=PredictionErrors())


@lru_cache(maxsize=16)
def read_calibration(path: Path) -> Calibration:
    """Read a ``coefficients.yaml``; raises `MalformedFile`."""
    return load(path, Calibration)


def calibration_in(path: Path | None) -> Calibration | None:
    """The simulator's coefficients in a file; None: the packaged ones. Raises `BadInput`."""
    if path is None:
        return None
    if kind_of(path) != "calibrations":
        raise MalformedFile(path, "is not what `autotune calibrate` writes: no 'fitted_to' in it")
    return load(path, Calibration)
