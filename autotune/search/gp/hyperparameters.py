"""The hyper-parameters of the Gaussian process, and samples of their posterior.

With a handful of launches the likeliest hyper-parameters are often confidently wrong, so predictions are averaged over
samples. All hyper-parameters are functions of independent standard normal variables, which makes elliptical slice
sampling (Murray, Adams and MacKay, AISTATS 2010) the natural sampler: no step sizes, no gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats
from autotune.search.decide.estimate import LAUNCH_NOISE

# Natural-logarithm units: 0.1 is about 10 % of throughput.
_SCALE = (0.0, 0.5)
"""Of all effects together: centre and spread of its logarithm; likewise below."""
_EFFECT = (math.log(0.08), 1.2)
"""Standard deviation of what one knob does by itself. Wide: a few knobs decide and most do next to nothing."""
_LENGTH = (math.log(2.5), 1.2)
"""Length scale of one knob in what they do together, where its whole range is 1."""
_ALIKE = 0.7
"""Correlation of the two: a knob that does nothing by itself mostly does nothing together with others."""
_ENGINE = (math.log(0.3), 0.6)
"""The same of the engine, which always matters."""
_ENGINE_ERROR = (math.log(0.5), 0.4)
"""The same where priors are heard: they may be wrong about all of an engine."""
_ENGINE_LENGTH = (math.log(3.0), 0.5)
"""Of the engine in the interaction: engines that differ in level are alike in what their knobs do."""
_INTERACTION = (math.log(0.4), 0.5)
"""Standard deviation of what knobs do together."""
_NOISE = (math.log(LAUNCH_NOISE), 0.4)
"""Standard deviation of one launch."""
_TRUST = (0.8, 0.5)
"""Of a prior's weight: below 0 it is ignored. About one prior in twenty is worth nothing."""
_MOST_TRUST = 1.5
_BURN_IN, _KEPT, _APART = 60, 10, 6


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """One set of hyper-parameters.

    Attributes:
        effects: shape ``(knobs,)``: standard deviation of each knob's own effect.
        lengths: shape ``(knobs,)``: length scales of the interaction.
        interaction: standard deviation of the interaction.
        noise: standard deviation of one launch.
        weights: shape ``(priors,)``.
    """

    effects: Floats
    lengths: Floats
    interaction: float
    noise: float
    weights: Floats


@dataclass(frozen=True, slots=True)
class HyperPrior:
    """What the hyper-parameters are of.

    Attributes:
        knobs: how many.
        engine: which of them is the engine; None where there is one engine only.
        priors: how many.
        signed: whether a prior may count the other way round, as for a metric that it is not about.
    """

    knobs: int
    engine: int | None
    priors: int
    signed: bool = False

    @property
    def size(self) -> int:
        return 3 + 2 * self.knobs + self.priors

    def hyper(self, z: Floats) -> Hyperparameters:
        """The hyper-parameters of standard normal variables, shape ``(size,)``."""
        d = self.knobs
        scale = _log_normal(z[0], _SCALE)
        alone, together = z[3 : 3 + d], z[3 + d : 3 + 2 * d]
        together = math.sqrt(1 - _ALIKE**2) * together - _ALIKE * alone
        effects, lengths = _log_normal(alone, _EFFECT), _log_normal(together, _LENGTH)
        if self.engine is not None:
            effects[self.engine] = _log_normal(alone[self.engine], _ENGINE_ERROR if self.priors else _ENGINE)
            lengths[self.engine] = _log_normal(together[self.engine], _ENGINE_LENGTH)
        trust = z[3 + 2 * d :]
        weights = trust if self.signed else np.clip(_TRUST[0] + _TRUST[1] * trust, 0.0, _MOST_TRUST)
        return Hyperparameters(
            effects=scale * effects,
            lengths=lengths,
            interaction=float(scale * _log_normal(z[1], _INTERACTION)),
            noise=float(_log_normal(z[2], _NOISE)),
            weights=np.asarray(weights / max(1, self.priors) ** 0.5, dtype=np.float64),
        )


def _log_normal(z: Floats, prior: tuple[float, float]) -> Floats:
    return np.asarray(np.exp(prior[0] + prior[1] * z), dtype=np.float64)


def sample(
    prior: HyperPrior, log_likelihood: Callable[[Hyperparameters], float] | None, seed: int
) -> list[Hyperparameters]:
    """Samples of the posterior, always the same for the same arguments; of the prior without a likelihood."""
    generator = np.random.default_rng([seed, prior.size])
    if log_likelihood is None:
        return [prior.hyper(generator.standard_normal(prior.size)) for _ in range(_KEPT)]
    z = np.zeros(prior.size)
    level = log_likelihood(prior.hyper(z))
    kept = []
    for step in range(_BURN_IN + _KEPT * _APART):
        z, level = _slice(z, level, lambda other: log_likelihood(prior.hyper(other)), generator)
        if step >= _BURN_IN and (step - _BURN_IN) % _APART == _APART - 1:
            kept.append(prior.hyper(z))
    return kept


def _slice(
    z: Floats, level: float, log_likelihood: Callable[[Floats], float], generator: np.random.Generator
) -> tuple[Floats, float]:
    """One step along an ellipse through the current point and a draw from the prior."""
    draw = generator.standard_normal(len(z))
    threshold = level + math.log(1.0 - generator.random())
    angle = generator.random() * 2 * math.pi
    low, high = angle - 2 * math.pi, angle
    while True:
        other = z * math.cos(angle) + draw * math.sin(angle)
        found = log_likelihood(other)
        if found > threshold:
            return other, found
        if high - low < 1e-9:
            return z, level
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = low + generator.random() * (high - low)
