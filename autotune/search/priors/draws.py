"""Draws of the figures that the simulator is unsure of, each by the spread that the physics file states.

What a draw does to all candidates together says which of them stand and fall together: two that exchange tokens over
the same links are both slower than predicted where these are. And the launches say which draws are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats
from autotune.search.gp.kernels import UnsureFigure
from autotune.simulator.node.calibration import (
    Calibration,
    Factor,
    composed,
    factors_of,
    groups_of,
    packaged_physics,
)
from autotune.simulator.node.coefficients import speed_card
from autotune.space.cards import HardwareCard
from autotune.space.enumeration import Candidate

DRAWS = 32
MOST = 300
"""Candidates up to which draws are made: until the fast prediction takes all draws at once, more would take minutes."""
_LEARNED = 0.3
"""Of a factor's stated spread, what is left where measured rows have told of it."""
_SEED = 20
"""The same draws in every study: which candidates go together does not depend on its dice."""


@dataclass(frozen=True)
class Draws:
    """Factors on the figures of some engines, drawn.

    Attributes:
        engines: engine to its groups (`groups_of`).
        factors: which factors are drawn.
        logs: shape ``(draws, factors)``: their logarithms.
    """

    calibration: Calibration
    engines: dict[str, dict[str, str]]
    factors: tuple[Factor, ...]
    logs: Floats

    @classmethod
    def of(cls, calibration: Calibration, candidates: Sequence[Candidate], hardware: HardwareCard) -> Draws:
        """Draw the factors of the candidates' engines, the shared ones once for all of them."""
        physics = packaged_physics()
        versions = {one.configuration.engine: one.engine_version for one in candidates}
        engines = {name: groups_of(speed_card(name), versions[name], hardware) for name in sorted(versions)}
        factors = tuple(dict.fromkeys(one for groups in engines.values() for one in factors_of(physics, groups)))
        spreads = [physics.figures[one.figure].spread[one.level] for one in factors]
        left = [_LEARNED if calibration.knows(one) else 1.0 for one in factors]
        logs = np.random.default_rng(_SEED).standard_normal((DRAWS, len(factors)))
        return cls(calibration, engines, factors, logs * spreads * left)

    def of_means(self, means_of: Callable[[Calibration], Floats]) -> Floats:
        """What is predicted of every candidate under each draw, shape ``(draws, candidates)``."""
        return np.array([means_of(one) for one in self._calibrations()])

    def _calibrations(self) -> Iterator[Calibration]:
        for draw in self.logs:
            factors = {
                level: {group: dict(known) for group, known in groups.items()}
                for level, groups in self.calibration.factors.items()
            }
            for which, log in zip(self.factors, draw.tolist(), strict=True):
                known = factors.setdefault(which.level, {}).setdefault(which.group, {})
                known[which.figure] = self.calibration.factor(which) * math.exp(log)
            yield self.calibration.model_copy(update={"factors": factors})

    def figures(self) -> tuple[UnsureFigure, ...]:
        """Each engine's figures, and what the draws add to their logarithms."""
        physics, found = packaged_physics(), []
        for engine, groups in self.engines.items():
            values = composed(physics, self.calibration, groups)
            own = set(factors_of(physics, groups))
            for name, value in values.items():
                columns = [k for k, one in enumerate(self.factors) if one.figure == name and one in own]
                if columns:
                    found.append(UnsureFigure(name, engine, value, self.logs[:, columns].sum(axis=1)))
        return tuple(found)
