"""The hyper-parameters of the Gaussian process, and samples of their posterior.

With a handful of launches the likeliest hyper-parameters are often confidently wrong, so predictions are averaged over
samples. Each sample believes one of the alternatives: one of the priors, or none. All hyper-parameters are functions of
independent standard normal variables, so that elliptical slice sampling (Murray, Adams and MacKay, AISTATS 2010) moves
them without step sizes. The samples of an alternative are led from the prior to the posterior by tempering the
likelihood (sequential Monte Carlo: Del Moral, Doucet and Jasra, J. R. Statist. Soc. B, 2006), which gives the marginal
likelihood of the launches beside them: that decides between the alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Bools, Floats, Ints
from autotune.search.decide.estimate import LAUNCH_NOISE

# Natural-logarithm units: 0.1 is about 10 % of throughput. Of each pair: centre and spread of the logarithm.
_SCALE, _BELIEVED_SCALE = (math.log(1.3), 0.5), (math.log(0.6), 0.5)
"""Of all effects together: of the scores themselves, and of what a prior leaves."""
_EFFECT = (math.log(0.08), 1.2)
"""Standard deviation of what one knob does by itself. Wide: a few knobs decide and most do next to nothing."""
_LENGTH = (math.log(2.5), 1.2)
"""Length scale of one knob in what they do together, where its whole range is 1."""
_ALIKE = 0.7
"""Correlation of the two: a knob that does nothing by itself mostly does nothing together with others."""
_ENGINE = (math.log(0.3), 0.6)
"""The same of the engine, which always matters."""
_ENGINE_LENGTH = (math.log(3.0), 0.5)
"""Of the engine in the interaction: engines that differ in level are alike in what their knobs do."""
_INTERACTION = (math.log(0.4), 0.5)
"""Standard deviation of what knobs do together."""
_NOISE = (math.log(LAUNCH_NOISE), 0.4)
"""Standard deviation of one launch."""
_PHYSICS = (0.0, 0.5)
"""By how much the physics is further off, or less, than its figures' stated spreads make it."""
_TRUST = (0.9, 0.3)
"""Centre and spread of a prior's weight."""
_LEAST_TRUST, _MOST_TRUST = 0.1, 1.4
_PARTICLES, _MOVES, _KEPT = 16, 2, 12
_LEAST_SHARE = 0.02
"""An alternative that is less likely than this is left out of the average."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Draws of the Gaussian process's hyper-parameters, each a set.

    Attributes:
        alternative: shape ``(sets,)``: index of the prior that gives the mean, or of none.
        effects: shape ``(sets, knobs)``: standard deviation of each knob's own effect.
        lengths: shape ``(sets, knobs)``: length scales of the interaction.
        interaction: shape ``(sets,)``: standard deviation of the interaction.
        noise: shape ``(sets,)``: standard deviation of one launch.
        weight: shape ``(sets,)``: of the prior's mean.
        physics: shape ``(sets,)``: factor on the deviations of the prior's ensemble.
    """

    alternative: Ints
    effects: Floats
    lengths: Floats
    interaction: Floats
    noise: Floats
    weight: Floats
    physics: Floats

    def __len__(self) -> int:
        return len(self.alternative)


@dataclass(frozen=True, slots=True)
class HyperPrior:
    """What the hyper-parameters are of.

    Attributes:
        knobs: how many.
        engine: which of them is the engine; None where there is one engine only.
        odds: shape ``(alternatives,)``: of each before any launch.
        signed: whether a prior may count the other way round, as for a metric that it is not about.
    """

    knobs: int
    engine: int | None
    odds: Floats
    signed: bool = False

    @property
    def size(self) -> int:
        return 5 + 2 * self.knobs

    def hyper(self, z: Floats, alternative: Ints) -> Hyperparameters:
        """The hyper-parameters of standard normal variables, shape ``(sets, size)``."""
        d = self.knobs
        believed = (alternative < len(self.odds) - 1) & (not self.signed)
        scale = np.where(believed, _log_normal(z[:, 0], _BELIEVED_SCALE), _log_normal(z[:, 0], _SCALE))
        alone, together = z[:, 5 : 5 + d], z[:, 5 + d :]
        together = math.sqrt(1 - _ALIKE**2) * together - _ALIKE * alone
        effects, lengths = _log_normal(alone, _EFFECT), _log_normal(together, _LENGTH)
        if self.engine is not None:
            effects[:, self.engine] = _log_normal(alone[:, self.engine], _ENGINE)
            lengths[:, self.engine] = _log_normal(together[:, self.engine], _ENGINE_LENGTH)
        trust = z[:, 3] if self.signed else np.clip(_TRUST[0] + _TRUST[1] * z[:, 3], _LEAST_TRUST, _MOST_TRUST)
        return Hyperparameters(
            alternative=alternative,
            effects=scale[:, None] * effects,
            lengths=lengths,
            interaction=scale * _log_normal(z[:, 1], _INTERACTION),
            noise=_log_normal(z[:, 2], _NOISE),
            weight=trust,
            physics=_log_normal(z[:, 4], _PHYSICS),
        )


def _log_normal(z: Floats, prior: tuple[float, float]) -> Floats:
    return np.asarray(np.exp(prior[0] + prior[1] * z), dtype=np.float64)


def sample(
    prior: HyperPrior, log_likelihood: Callable[[Hyperparameters], Floats] | None, seed: int
) -> tuple[Hyperparameters, Floats, Floats]:
    """Samples of the posterior and their weights, always the same for the same arguments; and each alternative's odds.

    None is weighed as if no launch had spoken against it: where priors are right about the rest and wrong about the
    best, the launches that they choose do not show it.

    Args:
        log_likelihood: of the launches, shape ``(sets,)``; None: of the prior without any.
    """
    generator = np.random.default_rng([seed, prior.size])
    count = len(prior.odds)
    alternative = np.repeat(np.arange(count), _PARTICLES)
    # The same for all alternatives, which are to be compared.
    z = np.tile(generator.standard_normal((_PARTICLES, prior.size)), (count, 1))
    log_share = np.log(prior.odds)
    if log_likelihood is not None:
        z, evidence = _tempered(z, alternative, lambda z, which: log_likelihood(prior.hyper(z, which)), generator)
        log_share = log_share + evidence
    share = np.exp(log_share - log_share.max())
    odds = share / share.sum()
    share = odds.copy()
    share[-1] = max(share[-1], prior.odds[-1])
    share = np.where(share < _LEAST_SHARE, 0.0, share)
    share /= share.sum()
    kept, weights = [], []
    for which in np.flatnonzero(share):
        sets = max(2, round(_KEPT * share[which]))
        kept.append(which * _PARTICLES + np.linspace(0, _PARTICLES - 1, sets).round().astype(np.int64))
        weights.append(np.full(sets, share[which] / sets))
    rows = np.concatenate(kept)
    return prior.hyper(z[rows], alternative[rows]), np.concatenate(weights), odds


Likelihood = Callable[[Floats, Ints], Floats]


def _tempered(
    z: Floats, alternative: Ints, log_likelihood: Likelihood, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Lead samples of the prior to the posterior, alternative by alternative; also each one's log evidence."""
    count = alternative[-1] + 1
    level, heat, evidence = log_likelihood(z, alternative), np.zeros(count), np.zeros(count)
    while heat.min() < 1:
        chosen = []
        for which in range(count):
            own = slice(which * _PARTICLES, (which + 1) * _PARTICLES)
            step = _next_step(level[own], 1 - heat[which])
            odds = np.exp(step * (level[own] - level[own].max()))
            evidence[which] += step * level[own].max() + math.log(odds.mean())
            heat[which] += step
            # Systematic resampling.
            points = (np.arange(_PARTICLES) + generator.random()) / _PARTICLES
            chosen.append(own.start + np.searchsorted(np.cumsum(odds / odds.sum())[:-1], points))
        rows = np.concatenate(chosen)
        z, level = z[rows], level[rows]
        for _ in range(_MOVES):
            z, level = _moved(z, level, alternative, heat[alternative], log_likelihood, generator)
    return z, evidence


def _next_step(level: Floats, most: float) -> float:
    """By how much the likelihood may count more, so that half of the samples still do."""

    def effective(step: float) -> float:
        odds = np.exp(step * (level - level.max()))
        return float(odds.sum() ** 2 / (odds**2).sum())

    if effective(most) >= _PARTICLES / 2:
        return most
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= _PARTICLES / 2 else (low, middle)
    return high


def _moved(
    z: Floats,
    level: Floats,
    alternative: Ints,
    heat: Floats,
    log_likelihood: Likelihood,
    generator: np.random.Generator,
) -> tuple[Floats, Floats]:
    """One step of every sample along an ellipse through it and a draw from the prior."""
    draw = generator.standard_normal(z.shape)
    threshold = heat * level + np.log(1.0 - generator.random(len(z)))
    angle = generator.random(len(z)) * 2 * math.pi
    low, high = angle - 2 * math.pi, angle.copy()
    new, new_level = z.copy(), level.copy()
    rows = np.arange(len(z))
    while len(rows):
        other = z[rows] * np.cos(angle[rows, None]) + draw[rows] * np.sin(angle[rows, None])
        found = log_likelihood(other, alternative[rows])
        accepted: Bools = heat[rows] * found > threshold[rows]
        new[rows[accepted]], new_level[rows[accepted]] = other[accepted], found[accepted]
        rows = rows[~accepted & (high[rows] - low[rows] > 1e-9)]
        low, high = np.where(angle < 0, angle, low), np.where(angle < 0, high, angle)
        angle = low + generator.random(len(z)) * (high - low)
    return new, new_level
