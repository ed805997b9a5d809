"""How sure a prediction is: intervals from the errors that the calibration left.

ln(measured / predicted) is taken to be the sum of three parts: one that all predictions of an engine under one load
share (`group`), one of each configuration alone (`row`), and more for what was never measured (`unseen`). A comparison
within an engine loses the shared part, one between engines keeps both: it is wider, as it should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import Field

from autotune.metrics.formulas import HEADLINE
from autotune.space.entry import Entry

Z90 = 1.645
"""Standard deviations of a normal distribution that hold 90 % on both sides."""

_NEAR = math.log(2.0)
"""Loads within a factor of 2 in lengths and requests in flight count as one that was measured."""


class ErrorSpread(Entry):
    """Standard deviations of ln(measured / predicted).

    Attributes:
        group: of what all configurations of an engine under one load share.
        row: of what each configuration has for itself, the noise of one run included.
    """

    group: float = Field(ge=0)
    row: float = Field(ge=0)


class Covered(Entry):
    """What was measured: a prediction near it is not `unseen`.

    Attributes:
        read, written: mean tokens per request.
        in_flight: requests in flight at most.
    """

    engine: str
    version: str = Field(description="its first two numbers")
    gpu: str
    model: str
    read: float = Field(gt=0)
    written: float = Field(gt=0)
    in_flight: float = Field(gt=0)


class PredictionErrors(Entry):
    """What the calibration left.

    Attributes:
        engines: engine -> metric -> spread; "any" is for an engine that was not measured.
        unseen: ``engine``, ``version``, ``gpu``, ``model``, ``workload`` -> standard deviation that is added for it.
    """

    engines: dict[str, dict[str, ErrorSpread]] = {}
    unseen: dict[str, float] = {}
    covered: list[Covered] = []


@dataclass(frozen=True, slots=True)
class Subject:
    """What a prediction is of: for `Covered`, see there."""

    engine: str
    version: str
    gpu: str
    model: str
    read: float
    written: float
    in_flight: float

    def unseen(self, errors: PredictionErrors) -> tuple[str, ...]:
        """Which of engine, version, GPU, model and workload no measured row is near to.

        A model counts as measured where it was on this GPU, if anything was: its kernels may be others elsewhere.
        """
        here = [covered for covered in errors.covered if covered.gpu == self.gpu]
        versions = {covered.version for covered in errors.covered if covered.engine == self.engine}
        missing = [] if versions else ["engine"]
        # Of an engine that nobody measured that says it all.
        missing += ["version"] if versions and self.version not in versions else []
        missing += [] if here else ["gpu"]
        missing += [] if any(covered.model == self.model for covered in here or errors.covered) else ["model"]
        mine = [covered for covered in errors.covered if covered.engine == self.engine or "engine" in missing]
        lengths = ("read", "written", "in_flight")
        ratios = ([max(getattr(self, name), 1e-9) / getattr(covered, name) for name in lengths] for covered in mine)
        if not any(all(abs(math.log(ratio)) <= _NEAR for ratio in each) for each in ratios):
            missing.append("workload")
        return tuple(missing)


UNKNOWN = ErrorSpread(group=0.5, row=0.2)
"""Without a calibration: a factor of two and a half."""


def spread_of(errors: PredictionErrors, engine: str, metric: str = HEADLINE) -> ErrorSpread:
    """The spread of an engine's predictions of a metric; without a calibration, a factor of two and a half."""
    known = errors.engines.get(engine) or errors.engines.get("any") or {}
    return known.get(metric) or known.get(HEADLINE) or UNKNOWN


def sigma(errors: PredictionErrors, subject: Subject, metric: str = HEADLINE) -> float:
    """Standard deviation of ln(measured / predicted) of one prediction."""
    spread = spread_of(errors, subject.engine, metric)
    variance = spread.group**2 + spread.row**2
    return math.sqrt(variance + sum(errors.unseen.get(name, 0.0) ** 2 for name in subject.unseen(errors)))


def sigma_of_ratio(errors: PredictionErrors, first: Subject, second: Subject, metric: str = HEADLINE) -> float:
    """Standard deviation of ln(measured ratio / predicted ratio) of two predictions under one load.

    What both share cancels: within one version of an engine its part, and what is not known of a model, a GPU or a
    workload that is the same on both sides.
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


def interval90(value: float, deviation: float) -> tuple[float, float]:
    """The ends between which nine of ten measurements should lie."""
    return value * math.exp(-Z90 * deviation), value * math.exp(Z90 * deviation)
