"""Fitted figures: their physical priors, and their posteriors from measured rows.

A figure of an engine's version on a GPU is a product: what physics expects
(``search_spaces/physics``) times the factors of its groups (``search_spaces/calibrations``): all
measured rows, the engine, the GPU's vendor, the era of its software, and the engine in that era. A
group without rows has the factor 1, so that an engine or a GPU that nobody measured is still
predicted: from what all the others have in common.

The errors that the calibration left say how sure a prediction is. ln(measured / predicted) is the
sum of three parts: one that all predictions of an engine under one load share (`group`), one of
each configuration alone (`row`), and one for each part that was never measured (`unseen`).
A comparison within an engine loses the shared part, one between engines keeps both: it is wider, as
it should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from operator import truediv
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AllowInfNan, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from autotune.base import (
    BadInput,
    FloatDict,
    Interval,
    Json,
    JsonObject,
    MalformedFile,
    StringDict,
    StringMap,
    Strings,
    frozen,
)
from autotune.base.arrays import Floats
from autotune.engines import Entry, HardwareCard, Knobs, Library, ModelCard
from autotune.engines.entry import spaces_root
from autotune.engines.expression import Namespace
from autotune.engines.library import kind_of, load
from autotune.engines.schema import holding
from autotune.load.metrics.table import HEADLINE

from .coefficients import Adjustment, Coefficients, Figures, speed_card

Z90 = 1.645
"""Standard deviations of a normal distribution that cover 90 % two-sided."""

_NEAR = math.log(2.0)
"""Factor in lengths and requests in flight within which a load counts as measured."""
_PRESSES = 0.02
"""Distance from a limit, as a share of it, within which a fitted figure presses on it."""
MEASURED_MIXERS = frozenset({"none", "attention", "latent", "delta"})
"""Kinds of layers that bundled rows have measured (`autotune.engines.layers`)."""
OWN = "own"
"""Level of an engine's deviation on a user's own node from the bundled rows."""
LEVELS = ("all", "engine", "vendor", "generation", "era", "engine_era", OWN)


class ErrorSpread(Entry):
    """Standard deviations of ln(measured / predicted): common to an engine's rows under one load,
    and per row."""

    group: NonNegativeFloat
    row: NonNegativeFloat


class Subject(Entry):
    """The engine, model and load of a measured row, or of a prediction."""

    engine: str
    version: str
    """Its first two numbers."""
    gpu: str
    model: str
    read: PositiveFloat
    written: PositiveFloat
    in_flight: PositiveFloat
    mixers: Strings = ()
    """Kinds of the model's layers beside `MEASURED_MIXERS`."""

    @property
    def load(self) -> tuple[float, float, float]:
        return self.read, self.written, self.in_flight

    def unseen(self, errors: PredictionErrors) -> Strings:
        """List engine, version, GPU, model, kinds of layers and workload, if no measured row is
        near.

        A model counts as measured where it was on this GPU, if anything was: its kernels may be
        others elsewhere.
        """
        here = [row for row in errors.covered if row.gpu == self.gpu]
        own = [row for row in errors.covered if row.engine == self.engine]
        missing = {
            "engine": not own,
            # A version of an engine that nobody measured adds nothing.
            "version": own and self.version not in {row.version for row in own},
            "gpu": not here,
            "model": self.model not in {row.model for row in here or errors.covered},
            "layers": {*self.mixers} - {kind for row in errors.covered for kind in row.mixers},
            "workload": not any(self._is_near(row) for row in own or errors.covered),
        }
        return tuple(name for name, lacks in missing.items() if lacks)

    def _is_near(self, other: Subject) -> bool:
        ratios = map(truediv, self.load, other.load)
        return all(abs(math.log(ratio)) <= _NEAR for ratio in ratios)


class PredictionErrors(Entry):
    """Prediction errors of the calibration: by engine ("any": another one) and metric; additions of
    `unseen`."""

    engines: dict[str, dict[str, ErrorSpread]] = {}
    unseen: FloatDict = {}
    covered: list[Subject] = []


UNKNOWN = ErrorSpread(group=0.5, row=0.2)
"""Error without a calibration: a factor of two and a half."""


def spread_of(errors: PredictionErrors, engine: str, metric: str) -> ErrorSpread:
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

    Shared errors cancel: the engine's part within one version, and the unknown part of a model, a
    GPU or a workload that is the same on both sides.
    """
    shared = [name for name in ("gpu", "model") if getattr(first, name) == getattr(second, name)]
    if first.load == second.load:
        shared.append("workload")
    both = first, second
    spreads = [spread_of(errors, one.engine, metric) for one in both]
    same_engine = (first.engine, first.version) == (second.engine, second.version)
    own = math.hypot(*(spread.row for spread in spreads))
    if same_engine and len(shared) == 3:
        return own
    if "model" in shared:
        shared.append("layers")
    unseen = [name for one in both for name in one.unseen(errors) if name not in shared]
    groups = [0.0] if same_engine else [spread.group for spread in spreads]
    return math.hypot(own, *groups, *(errors.unseen.get(name, 0.0) for name in unseen))


def interval90(value: float, deviation: float, launches: Interval = (0.0, 0.0)) -> Interval:
    """Return the 90 % prediction interval, which contains the launches' own interval.

    Both errors are independent, so the squares of their reaches add up.

    Args:
        deviation: standard deviation of the simulator's error, a logarithm.
        launches: how far the launches' 95 % interval reaches below and above, logarithms.
    """
    low, high = (math.hypot(Z90 * deviation, reach) for reach in launches)
    return value * math.exp(-low), value * math.exp(high)


class Figure(Entry):
    """Prior of one figure: its middle, and per level with factors the standard deviation of
    ln(factor)."""

    typical: NonNegativeFloat
    low: NonNegativeFloat
    high: PositiveFloat
    spread: FloatDict = {}
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


ByFactor = dict[str, dict[str, FloatDict]]
"""A number of each factor, by level, group and figure."""


def number_of(which: Factor, numbers: ByFactor, unknown: float) -> float:
    """Return a factor's number; `unknown` for a group without rows."""
    return numbers.get(which.level, {}).get(which.group, {}).get(which.figure, unknown)


class Calibration(Entry):
    """``coefficients.yaml``, as ``autotune calibrate`` writes it: by level, group and figure
    factors and deviations."""

    fitted_to: list[Learned]
    factors: dict[str, dict[str, dict[str, Annotated[PositiveFloat, AllowInfNan(False)]]]]
    deviations: dict[
        str, dict[str, dict[str, Annotated[NonNegativeFloat, AllowInfNan(False)]]]
    ] = {}
    errors: PredictionErrors

    @model_validator(mode="after")
    def _known(self) -> Calibration:
        figures = {
            name
            for groups in self.factors.values()
            for factors in groups.values()
            for name in factors
        }
        for kind, names, known in (
            ("level", self.factors.keys(), LEVELS),
            ("figure", figures, Figures.model_fields),
        ):
            if unknown := sorted(names - set(known)):
                raise ValueError(
                    f"unknown {kind} {unknown[0]!r}; known: {', '.join(known)}; calibrate again"
                )
        return self

    @property
    def fit_summary(self) -> str:
        """Describe the measurements of its fit; simulated ones are marked."""
        parts = (f"{one.source} ({one.points} points, {one.evidence})" for one in self.fitted_to)
        unmeasured = any(one.evidence != "measured" for one in self.fitted_to)
        warning = "; not all of it measured, so its intervals are not valid for a real node"
        return f"fitted to {', '.join(parts) or 'nothing'}{warning if unmeasured else ''}"

    def factor(self, which: Factor) -> float:
        """Return a factor; 1 for a group without rows."""
        return number_of(which, self.factors, 1.0)

    def deviation(self, which: Factor, physics: Physics) -> float:
        """Return the standard deviation of ln(factor): posterior if there are rows, else prior."""
        spread = physics.figures[which.figure].spread[which.level]
        return min(spread, number_of(which, self.deviations, spread))


def groups_of(setup: ServerSetup) -> StringDict:
    """Return the groups of an engine's version with a model on a node, by level.

    GPUs are grouped by vendor and generation: what an H200 taught of kernels holds for an H100 too,
    and a GPU that was not measured must not look better than its sibling for having no factors.
    """
    engine = setup.engine
    hardware = setup.hardware
    era = speed_card(engine).era(setup.version, setup.model)
    eras = {} if era is None else {"era": era, "engine_era": f"{engine} {era}"}
    return {
        "all": "all",
        "engine": engine,
        "vendor": hardware.vendor,
        "generation": hardware.generation,
        OWN: f"{engine} {hardware.name}",
        **eras,
    }


def factors_of(physics: Physics, groups: StringMap) -> Iterator[Factor]:
    """List the factors of a member of these groups."""
    for name, figure in physics.figures.items():
        for level, group in groups.items():
            if figure.spread.get(level):
                yield Factor(level, group, name)


def drawn_factors(
    calibration: Calibration, groups: Iterable[StringMap], draws: int, seed: int
) -> dict[Factor, Floats]:
    """Draw errors of ln(factor), shape (draws,): normal, independent, one draw for all groups with
    it."""
    physics = packaged_physics()
    factors = dict.fromkeys(which for members in groups for which in factors_of(physics, members))
    normal = np.random.default_rng(seed).standard_normal((len(factors), draws))
    return {
        which: row * calibration.deviation(which, physics)
        for which, row in zip(factors, normal, strict=True)
    }


def composed(
    physics: Physics,
    calibration: Calibration,
    groups: StringMap,
    moved: Mapping[Factor, Floats] | None = None,
) -> Json:
    """Return figures of a member of these groups, each in its range; arrays of draws if ln(factor)
    is `moved`."""
    logs: Json = dict.fromkeys(physics.figures, 0.0)
    for which in factors_of(physics, groups):
        logs[which.figure] += math.log(calibration.factor(which))
        if moved and which in moved:
            logs[which.figure] += moved[which]
    values: Json = {}
    for name, f in physics.figures.items():
        value = np.clip(f.typical * np.exp(logs[name]), f.low, f.high)
        values[name] = value if isinstance(value, np.ndarray) else float(value)
    return values


def pressing(calibration: Calibration, members: Iterable[StringMap]) -> list[str]:
    """Say of members of these groups which fitted figures lie within 2 % of a limit of theirs.

    What a fit wants beyond the limit it puts into other figures, which are then wrong.
    """
    physics = packaged_physics()
    found: dict[str, None] = {}
    for groups in members:
        for name, value in composed(physics, calibration, groups).items():
            figure = physics.figures[name]
            its = [
                group if level == group else f"{level} {group}"
                for level, group in groups.items()
                if number_of(Factor(level, group, name), calibration.factors, 0.0)
            ]
            for limit in (figure.low, figure.high) if its else ():
                if abs(value - limit) <= _PRESSES * limit:
                    found[f"{name} of {', '.join(its)} presses on its limit {limit:g}"] = None
    return list(found)


@frozen
class ServerSetup:
    """Settings of a simulated server, by effective knobs; the engine decides those that are None.

    `on_random`: tokens per step of a drafting server on random tokens; None: as on text. `replaced`:
    coefficients with other values than the engine's. Raises `BadInput` for a model that is not
    predicted.
    """

    engine: str
    version: str
    knobs: Knobs
    model: ModelCard
    hardware: HardwareCard
    gpus: int
    calibration: Calibration | None = None
    on_random: float | None = None
    replaced: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model.check_predicted()

    @property
    def scope(self) -> Json:
        """Return the names in a speed card's conditions in addition to the knobs."""
        return {"model": self.model, "hardware": self.hardware, "gpus": self.gpus}


def adjustments_of(setup: ServerSetup) -> list[Adjustment]:
    """List the adjustments of the engine's card that apply to a setup, in order."""
    scope = {**setup.scope, "knobs": Namespace(setup.knobs)}
    return holding(speed_card(setup.engine).adjustments, scope, setup.version)


def adjusted_coefficients(setup: ServerSetup, figures: JsonObject) -> Coefficients:
    """Return the card's behaviour and these figures (or draws of them), adjusted for a setup."""
    values = {**speed_card(setup.engine).base.model_dump(), **figures}
    for adjustment in adjustments_of(setup):
        values.update(adjustment.set)
        for name, factor in adjustment.multiply.items():
            values[name] = values[name] * factor
        for name, addend in adjustment.add.items():
            values[name] = values[name] + addend
    values |= setup.replaced
    drawn = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    calibrated = {name: float(value[0]) for name, value in drawn.items()}
    return Coefficients.model_validate(values | calibrated).model_copy(update=drawn)


def coefficients_of(
    setup: ServerSetup, moved: Mapping[Factor, Floats] | None = None
) -> Coefficients:
    """Return the coefficients of a setup; `moved` as of `composed`."""
    calibration = setup.calibration or packaged_calibration()
    figures = composed(packaged_physics(), calibration, groups_of(setup), moved)
    return adjusted_coefficients(setup, figures)


@cache
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
            where = ".".join(map(str, first["loc"]))
            raise BadInput(
                f"the study's calibration is malformed: {where}: {first['msg']}"
            ) from error
    own = library.own_files("calibrations")
    return read_calibration(own[-1] if own else next(library.paths("calibrations")))


def nothing_learned() -> Calibration:
    """Return physics without a fit: every factor 1."""
    return Calibration(fitted_to=[], factors={}, errors=PredictionErrors())


@cache
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
