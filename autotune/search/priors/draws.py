"""Draws of the figures that the simulator is unsure of, each by what is left open of it.

What a draw does to all candidates together says which of them stand and fall together: two that exchange tokens over
the same links are both slower than predicted where these are. And the launches say which draws are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from packaging.version import InvalidVersion

from autotune.arrays import Floats
from autotune.errors import UnknownName
from autotune.search.gp.kernels import UnsureFigure
from autotune.simulator.node.calibration import (
    Calibration,
    Factor,
    composed,
    drawn_factors,
    factors_of,
    groups_of,
    packaged_physics,
)
from autotune.simulator.node.coefficients import speed_card
from autotune.space.cards import HardwareCard
from autotune.space.enumeration import Candidate

DRAWS = 32
MOST = 200_000
"""Candidates that are drawn, those with the best means: 32 draws of each are 51 MB. The others are taken to move as the
middle one does."""
_SEED = 20
"""The same draws in every study: which candidates go together does not depend on its dice."""


@dataclass(frozen=True)
class Draws:
    """Factors on the figures of some engines, drawn.

    Attributes:
        engines: engine to its groups (`groups_of`).
        moved: what each factor's logarithm is off by, shape ``(draws,)``.
    """

    calibration: Calibration
    engines: dict[str, dict[str, str]]
    moved: dict[Factor, Floats]

    @classmethod
    def of(cls, calibration: Calibration, candidates: Sequence[Candidate], hardware: HardwareCard) -> Draws:
        """Draw the calibration factors of the candidates' engines, a factor that engines share once for all."""
        versions = {one.configuration.engine: one.engine_version for one in candidates}
        engines: dict[str, dict[str, str]] = {}
        for name in sorted(versions):
            with suppress(UnknownName, InvalidVersion):  # No speed figures, or an unknown version: not predicted.
                engines[name] = groups_of(speed_card(name), versions[name], hardware)
        return cls(calibration, engines, drawn_factors(calibration, engines.values(), DRAWS, _SEED))

    def figures(self) -> tuple[UnsureFigure, ...]:
        """Each engine's figures, and what the draws add to their logarithms."""
        physics, found = packaged_physics(), []
        for engine, groups in self.engines.items():
            own = list(factors_of(physics, groups))
            for name, value in composed(physics, self.calibration, groups).items():
                rows = [self.moved[which] for which in own if which.figure == name]
                if rows:
                    found.append(UnsureFigure(name, engine, value, sum(rows[1:], rows[0])))
        return tuple(found)
