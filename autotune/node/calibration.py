"""Fitted figures: their physical priors, and their posteriors from measured rows.

A figure of an engine's version on a GPU is a product: what physics expects
(``search_spaces/physics``) times the factors of its groups (``search_spaces/calibrations``): all
measured rows, the engine, the GPU's vendor, the era of its software, and the engine in that era. A
group without rows has the factor 1, so that an engine or a GPU that nobody measured is still
predicted: from what all the others have in common.

How sure a prediction is, is told by the errors that the calibration left. ln(measured / predicted)
is taken to be the sum of three parts: one that all predictions of an engine under one load share
(`group`), one of each configuration alone (`row`), and more for what was never measured (`unseen`).
A comparison within an engine loses the shared part, one between engines keeps both: it is wider, as
it should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, ValidationError, model_validator

from autotune.base.arrays import Floats
from autotune.base.errors import BadInput, MalformedFile
from autotune.engines.cards import HardwareCard, ModelCard
from autotune.engines.command import Scalar
from autotune.engines.entry import Entry, spaces_root
from autotune.engines.library import Library, kind_of, load
from autotune.load.metrics.table import HEADLINE

from .coefficients import Coefficients, Figures, SpeedCard, adjusted

Z90 = 1.645
"""Standard deviations of a normal distribution that cover 90 % two-sided."""

_NEAR = math.log(2.0)
"""Factor in lengths and requests in flight within which a load counts as measured."""
OWN = "own"
"""Level of an engine's deviation on a user's own node from the bundled rows."""
LEVELS = ("all", "engine", "vendor", "era", "engine_era", OWN)


class ErrorSpread(Entry):
    """Standard deviations of ln(measured / predicted): common to an engine's rows under one load,
    and per row."""

    group: float = Field(ge=0)
    row: float = Field(ge=0)


class Subject(Entry):
    """The engine, model and load of a measured row, or of a prediction."""

    engine: str
    version: str = Field(description="its first two numbers")
    gpu: str
    model: str
    read: float = Field(gt=0)
    written: float = Field(gt=0)
    in_flight: float = Field(gt=0)

    def unseen(self, errors: PredictionErrors) -> tuple[str, ...]:
        """Return those of engine, version, GPU, model and workload without a nearby measured row.

        A model counts as measured where it was on this GPU, if anything was: its kernels may be
        others elsewhere.
        """
        here = [covered for covered in errors.covered if covered.gpu == self.gpu]
        versions = {covered.version for covered in errors.covered if covered.engine == self.engine}
        missing = [] if versions else ["engine"]
        # Of an engine that nobody measured that says it all.
        missing += ["version"] if versions and self.version not in versions else []
        missing += [] if here else ["gpu"]
        missing += (
            []
            if any(covered.model == self.model for covered in here or errors.covered)
            else ["model"]
        )
        mine = [
            covered
            for covered in errors.covered
            if covered.engine == self.engine or "engine" in missing
        ]
        lengths = ("read", "written", "in_flight")
        ratios = (
            [getattr(self, name) / getattr(covered, name) for name in lengths] for covered in mine
        )
        if not any(all(abs(math.log(ratio)) <= _NEAR for ratio in each) for each in ratios):
            missing.append("workload")
        return tuple(missing)


class PredictionErrors(Entry):
    """Prediction errors of the calibration: by engine ("any": another one) and metric; additions of
    `unseen`."""

    engines: dict[str, dict[str, ErrorSpread]] = {}
    unseen: dict[str, float] = {}
    covered: list[Subject] = []


UNKNOWN = ErrorSpread(group=0.5, row=0.2)
"""Error without a calibration: a factor of two and a half."""


def spread_of(errors: PredictionErrors, engine: str, metric: str = HEADLINE) -> ErrorSpread:
    known = errors.engines.get(engine) or errors.engines.get("any") or {}
    return known.get(metric) or known.get(HEADLINE) or UNKNOWN


def sigma(errors: PredictionErrors, subject: Subject, metric: str = HEADLINE) -> float:
    """Return the standard deviation of ln(measured / predicted) of one prediction."""
    spread = spread_of(errors, subject.engine, metric)
    variance = spread.group**2 + spread.row**2
    return math.sqrt(
        variance + sum(errors.unseen.get(name, 0.0) ** 2 for name in subject.unseen(errors))
    )


def sigma_of_ratio(
    errors: PredictionErrors, first: Subject, second: Subject, metric: str = HEADLINE
) -> float:
    """Return the standard deviation of ln(measured ratio / predicted ratio) of two predictions
    under one load.

    What both share cancels: within one version of an engine its part, and what is not known of a
    model, a GPU or a workload that is the same on both sides.
    """
    shared = [name for name in ("gpu", "model") if getattr(first, name) == getattr(second, name)]
    loads = [(one.read, one.written, one.in_flight) for one in (first, second)]
    shared += ["workload"] if loads[0] == loads[1] else []
    spreads = [spread_of(errors, one.engine, metric) for one in (first, second)]
    same_engine = (first.engine, first.version) == (second.engine, second.version)
    own = math.hypot(*(spread.row for spread in spreads))
    if same_engine and len(shared) == 3:
        return own
    apart = [name for one in (first, second) for name in one.unseen(errors) if name not in shared]
    groups = [0.0] if same_engine else [spread.group for spread in spreads]
    return math.hypot(own, *groups, *(errors.unseen.get(name, 0.0) for name in apart))


def interval90(
    value: float, deviation: float, launches: tuple[float, float] = (0.0, 0.0)
) -> tuple[float, float]:
    """Return the 90 % prediction interval; of what was launched it holds the launches' own
    interval.

    Both errors are independent, so the squares of what they reach add up.

    Args:
        deviation: standard deviation of the simulator's error, a logarithm.
        launches: how far the launches' 95 % interval reaches below and above, logarithms.
    """
    low, high = (math.hypot(Z90 * deviation, reach) for reach in launches)
    return value * math.exp(-low), value * math.exp(high)


class Figure(Entry):
    """Prior of one figure: its middle, and per level with factors the standard deviation of
    ln(factor)."""

    typical: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(gt=0)
    spread: dict[str, float] = {}
    source: str


class Physics(Entry):
    """``search_spaces/physics/figures.yaml``."""

    figures: dict[str, Figure]


class Factor(NamedTuple):
    """The factor of a figure on one of `LEVELS`, for a group."""

    level: str
    group: str
    figure: str


class Learned(Entry):
    """One source of measured rows, with its number of points and kind of evidence."""

    source: str
    points: int
    evidence: str


class Calibration(Entry):
    """``coefficients.yaml``, as ``autotune calibrate`` writes it: by level, group and figure
    factors and deviations."""

    fitted_to: list[Learned]
    factors: dict[str, dict[str, dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]]]
    deviations: dict[
        str, dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]]
    ] = {}
    errors: PredictionErrors

    @model_validator(mode="after")
    def _known(self) -> Calibration:
        figures = {
            name for groups in self.factors.values() for found in groups.values() for name in found
        }
        for kind, given, known in (
            ("level", self.factors, LEVELS),
            ("figure", figures, Figures.model_fields),
        ):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ValueError(
                    f"unknown {kind} {unknown[0]!r}; known: {', '.join(known)}; calibrate again"
                )
        return self

    @property
    def told(self) -> str:
        """Describe the measurements of its fit; simulated ones are marked."""
        parts = (f"{one.source} ({one.points} points, {one.evidence})" for one in self.fitted_to)
        unmeasured = any(one.evidence != "measured" for one in self.fitted_to)
        warning = "; not all of it measured, so its intervals are not valid for a real node"
        return f"fitted to {', '.join(parts) or 'nothing'}{warning if unmeasured else ''}"

    def factor(self, which: Factor) -> float:
        """Return a factor; 1 for a group without rows."""
        return self.factors.get(which.level, {}).get(which.group, {}).get(which.figure, 1.0)

    def deviation(self, which: Factor, physics: Physics) -> float:
        """Return the standard deviation of ln(factor): posterior if there are rows, else prior."""
        spread = physics.figures[which.figure].spread[which.level]
        left = self.deviations.get(which.level, {}).get(which.group, {})
        return min(spread, left.get(which.figure, spread))


def groups_of(
    card: SpeedCard, version: str, hardware: HardwareCard, model: ModelCard
) -> dict[str, str]:
    """Return the groups of an engine's version with a model on a node, by level.

    GPUs are grouped by vendor: what an H200 taught of kernels holds for an H100 too, and a GPU that
    was not measured must not look better than its sibling for having no factors.
    """
    era = card.era(version, model)
    groups = {
        "all": "all",
        "engine": card.engine,
        "vendor": hardware.vendor,
        OWN: f"{card.engine} {hardware.name}",
    }
    return groups if era is None else {**groups, "era": era, "engine_era": f"{card.engine} {era}"}


def factors_of(physics: Physics, groups: Mapping[str, str]) -> Iterator[Factor]:
    """List the factors of a member of these groups."""
    for name, figure in physics.figures.items():
        for level, group in groups.items():
            if figure.spread.get(level):
                yield Factor(level, group, name)


def drawn_factors(
    calibration: Calibration, groups: Iterable[Mapping[str, str]], draws: int, seed: int
) -> dict[Factor, Floats]:
    """Draw errors of ln(factor), shape (draws,): normal, independent, one draw for all groups with
    it."""
    physics = packaged_physics()
    factors = list(
        dict.fromkeys(which for members in groups for which in factors_of(physics, members))
    )
    normal = np.random.default_rng(seed).standard_normal((len(factors), draws))
    return {
        which: row * calibration.deviation(which, physics)
        for which, row in zip(factors, normal, strict=True)
    }


def composed(
    physics: Physics,
    calibration: Calibration,
    groups: Mapping[str, str],
    moved: Mapping[Factor, Floats] | None = None,
) -> dict[str, Any]:
    """Return figures of a member of these groups, each in its range; arrays of draws if ln(factor)
    is `moved`."""
    logs: dict[str, Any] = dict.fromkeys(physics.figures, 0.0)
    for which in factors_of(physics, groups):
        logs[which.figure] = logs[which.figure] + math.log(calibration.factor(which))
        if moved and which in moved:
            logs[which.figure] = logs[which.figure] + moved[which]
    found = {
        name: np.clip(f.typical * np.exp(logs[name]), f.low, f.high)
        for name, f in physics.figures.items()
    }
    return {
        name: value if isinstance(value, np.ndarray) else float(value)
        for name, value in found.items()
    }


def coefficients_of(
    card: SpeedCard,
    calibration: Calibration,
    version: str,
    knobs: Mapping[str, Scalar],
    scope: Mapping[str, Any],
    moved: Mapping[Factor, Floats] | None = None,
) -> Coefficients:
    """Return an engine version's coefficients; `scope` has model, hardware and gpus, `moved` as of
    `composed`."""
    groups = groups_of(card, version, scope["hardware"], scope["model"])
    return adjusted(
        card, composed(packaged_physics(), calibration, groups, moved), version, knobs, scope
    )


@lru_cache(maxsize=1)
def packaged_physics() -> Physics:
    return load(spaces_root() / "physics" / "figures.yaml", Physics)


def packaged_calibration() -> Calibration:
    return read_calibration(spaces_root() / "calibrations" / "coefficients.yaml")


def calibration_of(library: Library) -> Calibration:
    """Return the calibration of a library: the study's, a user's file, an overlay's, or the
    packaged one."""
    if library.calibration is not None:
        try:
            return Calibration.model_validate(library.calibration)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadInput(
                f"the study's calibration is malformed: {where}: {first['msg']}"
            ) from error
    own = library.own_files("calibrations")
    return read_calibration(own[-1] if own else next(library.paths("calibrations")))


def nothing_learned() -> Calibration:
    """Return physics without a fit: every factor 1."""
    return Calibration(fitted_to=[], factors={}, errors=PredictionErrors())


@lru_cache(maxsize=16)
def read_calibration(path: Path) -> Calibration:
    """Read a ``coefficients.yaml``; raises `MalformedFile`."""
    return load(path, Calibration)


def calibration_in(path: Path | None) -> Calibration | None:
    """Read a user's calibration file; None: the packaged one. Raises `BadInput`."""
    if path is None:
        return None
    if kind_of(path) != "calibrations":
        raise MalformedFile(path, "is not what `autotune calibrate` writes: no 'fitted_to' in it")
    return load(path, Calibration)
