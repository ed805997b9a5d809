"""A Gaussian process over the enumerated candidates, averaged over samples of its hyper-parameters.

The score (a logarithm) of candidate x is modelled as ``c + w·prior(x) + s·Σ v·deviation(x) + f(x) +
noise``: one of the priors, or none, with what its uncertain figures do (v standard normal, one for
each draw of them). The kernel of f is a sum over knobs (each knob adds its part: learned from few
launches) plus a Matérn 5/2 kernel over all of them (knobs interact), with a scale of its own for
every knob. (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4,
5.)

With a handful of launches the likeliest hyper-parameters are often confidently wrong: hence the
average. Each sample believes one of the alternatives: one of the priors, or none. All
hyper-parameters are functions of independent standard normal variables, so that elliptical slice
sampling (Murray, Adams and MacKay, AISTATS 2010) moves them without step sizes. The samples of an
alternative are led from the prior to the posterior by tempering the likelihood (sequential Monte
Carlo: Del Moral, Doucet and Jasra, J. R. Statist. Soc. B, 2006), which gives the marginal
likelihood of the launches beside them: that decides between the alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import brentq

from autotune.base import frozen
from autotune.base.arrays import Bools, Floats, Ints, floats, ints

from ..spread import LAUNCH_NOISE, Effect
from .kernels import Kernels

# Natural-logarithm units: 0.1 is about 10 % of throughput. Of each pair: centre and spread of the
# logarithm.
_SCALE, _BELIEVED_SCALE = (math.log(1.3), 0.5), (math.log(0.6), 0.5)
"""Scale of all effects together: of the scores themselves, and of a prior's residual."""
_EFFECT = (math.log(0.08), 1.2)
"""Standard deviation of one knob's own effect. Wide: a few knobs decide and most have almost no
effect."""
_BESIDE = 0.4
"""Factor on the effect of a knob that varies only beside the product, and on its part in the
interaction: most do nothing, and nobody has searched them before."""
_LENGTH = (math.log(1.2), 1.2)
"""Length scale of one knob in the interaction, where its whole range is 1."""
_ALIKE = 0.7
"""Correlation of the two: a knob without an own effect mostly has no interaction."""
_ENGINE = (math.log(0.3), 0.6)
"""The same of the engine, which always matters."""
_ENGINE_LENGTH = (math.log(3.0), 0.5)
"""Length scale of the engine in the interaction: engines of different levels have similar knob
effects."""
_INTERACTION = (math.log(0.4), 0.5)
"""Standard deviation of the interaction of knobs."""
_NOISE = (math.log(LAUNCH_NOISE), 0.4)
"""Standard deviation of one launch."""
_PHYSICS = (0.0, 0.5)
"""Factor on the stated spreads of the physics' figures."""
_TRUST = (0.9, 0.3)
"""Centre and spread of a prior's weight."""
_LEAST_TRUST = 0.1
_MOST_TRUST = 1.4
_LEAST_SHARE = 0.02
"""An alternative less likely than this is left out of the average."""


class Sampling(NamedTuple):
    """Effort of sampling hyper-parameters: samples of each alternative, moves of each, and samples
    kept of all."""

    particles: int
    moves: int
    kept: int


QUICK, THOROUGH = Sampling(16, 3, 12), Sampling(64, 4, 48)
"""Effort for the choice of a launch; and where odds are stated, which are too sure after a quick
one."""


@frozen
class Hyperparameters:
    """Draws of the Gaussian process's hyper-parameters, each a set.

    Attributes:
        alternative: shape ``(sets,)``: index of the prior that gives the mean, or of none.
        effects, lengths: shape ``(sets, knobs)``: standard deviation of a knob's own effect, and
            its length scale in the interaction.
        interaction, noise: shape ``(sets,)``: standard deviations of the interaction and of one
            launch.
        weight, physics: shape ``(sets,)``: factors on the prior's mean, and on the deviations of
            its ensemble.
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


def _log_normal(z: Floats, prior: tuple[float, float]) -> Floats:
    return floats(np.exp(prior[0] + prior[1] * z))


@frozen
class HyperPrior:
    """Inputs of the hyper-parameters' prior.

    Attributes:
        engine: which of the knobs is the engine; None where there is one engine only.
        odds: shape ``(alternatives,)``: of each before any launch.
        signed: whether a prior may count the other way round, as for a metric that it is not about.
        beside: shape ``(knobs,)``, of the kernels; None: none.
    """

    knobs: int
    engine: int | None
    odds: Floats
    signed: bool = False
    beside: Bools | None = None

    @property
    def size(self) -> int:
        return 5 + 2 * self.knobs

    def hyper(self, z: Floats, alternative: Ints) -> Hyperparameters:
        """Return the hyper-parameters of standard normal variables, shape ``(sets, size)``."""
        d = self.knobs
        believed = (alternative < len(self.odds) - 1) & (not self.signed)
        scale = np.where(
            believed, _log_normal(z[:, 0], _BELIEVED_SCALE), _log_normal(z[:, 0], _SCALE)
        )
        alone = z[:, 5 : 5 + d]
        together = z[:, 5 + d :]
        together = math.sqrt(1 - _ALIKE**2) * together - _ALIKE * alone
        effects = _log_normal(alone, _EFFECT)
        lengths = _log_normal(together, _LENGTH)
        if self.beside is not None:
            effects[:, self.beside] *= _BESIDE
            lengths[:, self.beside] /= _BESIDE
        if self.engine is not None:
            effects[:, self.engine] = _log_normal(alone[:, self.engine], _ENGINE)
            lengths[:, self.engine] = _log_normal(together[:, self.engine], _ENGINE_LENGTH)
        trust = (
            z[:, 3]
            if self.signed
            else np.clip(_TRUST[0] + _TRUST[1] * z[:, 3], _LEAST_TRUST, _MOST_TRUST)
        )
        return Hyperparameters(
            alternative=alternative,
            effects=scale[:, None] * effects,
            lengths=lengths,
            interaction=scale * _log_normal(z[:, 1], _INTERACTION),
            noise=_log_normal(z[:, 2], _NOISE),
            weight=trust,
            physics=_log_normal(z[:, 4], _PHYSICS),
        )


def sample(
    prior: HyperPrior,
    log_likelihood: Callable[[Hyperparameters], Floats] | None,
    seed: int,
    effort: Sampling = QUICK,
) -> tuple[Hyperparameters, Floats, Floats]:
    """Return samples of the posterior and their weights, deterministic; and each alternative's
    odds.

    None is weighed as if no launch had spoken against it: where priors are right about the rest and
    wrong about the best, the launches that they choose do not show it. `log_likelihood` is of the
    launches, shape ``(sets,)``; None: of the prior without any.
    """
    generator = np.random.default_rng([seed, prior.size])
    count = len(prior.odds)
    alternative = np.repeat(np.arange(count), effort.particles)
    # The same for all alternatives, which are to be compared.
    z = np.tile(generator.standard_normal((effort.particles, prior.size)), (count, 1))
    log_share = np.log(prior.odds)
    if log_likelihood is not None:
        z, evidence = _tempered(
            z,
            alternative,
            lambda z, which: log_likelihood(prior.hyper(z, which)),
            generator,
            effort.moves,
        )
        log_share = log_share + evidence
    share = np.exp(log_share - log_share.max())
    odds = share / share.sum()
    share = odds.copy()
    share[-1] = max(share[-1], prior.odds[-1])
    share = np.where(share < _LEAST_SHARE, 0.0, share)
    share /= share.sum()
    kept = []
    weights = []
    for which in np.flatnonzero(share):
        sets = max(2, round(effort.kept * share[which]))
        kept.append(
            which * effort.particles
            + np.linspace(0, effort.particles - 1, sets).round().astype(np.int64)
        )
        weights.append(np.full(sets, share[which] / sets))
    rows = np.concatenate(kept)
    return prior.hyper(z[rows], alternative[rows]), np.concatenate(weights), odds


Likelihood = Callable[[Floats, Ints], Floats]


def _tempered(
    z: Floats,
    alternative: Ints,
    log_likelihood: Likelihood,
    generator: np.random.Generator,
    moves: int,
) -> tuple[Floats, Floats]:
    """Move samples of the prior to the posterior, for each alternative; also return each log
    evidence."""
    count = alternative[-1] + 1
    particles = len(z) // count
    level = log_likelihood(z, alternative)
    heat = np.zeros(count)
    evidence = np.zeros(count)
    while heat.min() < 1:
        chosen = []
        for which in range(count):
            own = slice(which * particles, (which + 1) * particles)
            step = _next_step(level[own], 1 - heat[which])
            odds = np.exp(step * (level[own] - level[own].max()))
            evidence[which] += step * level[own].max() + math.log(odds.mean())
            heat[which] += step
            # Systematic resampling.
            points = (np.arange(particles) + generator.random()) / particles
            chosen.append(own.start + np.searchsorted(np.cumsum(odds / odds.sum())[:-1], points))
        rows = np.concatenate(chosen)
        z = z[rows]
        level = level[rows]
        for _ in range(moves):
            z, level = _moved(z, level, alternative, heat[alternative], log_likelihood, generator)
    return z, evidence


def _next_step(level: Floats, most: float) -> float:
    """Return the increase of the likelihood's exponent at which half of the samples keep their
    weight."""

    def too_few(step: float) -> float:
        odds = np.exp(step * (level - level.max()))
        return len(level) / 2 - float(odds.sum() ** 2 / (odds**2).sum())

    return most if too_few(most) <= 0 else float(brentq(too_few, 0.0, most))


def _moved(
    z: Floats,
    level: Floats,
    alternative: Ints,
    heat: Floats,
    log_likelihood: Likelihood,
    dice: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Move every sample one step along an ellipse through it and a draw from the prior."""
    draw = dice.standard_normal(z.shape)
    threshold = heat * level + np.log(1.0 - dice.random(len(z)))
    angle = dice.random(len(z)) * 2 * math.pi
    low = angle - 2 * math.pi
    high = angle.copy()
    new = z.copy()
    new_level = level.copy()
    rows = np.arange(len(z))
    while len(rows):
        other = z[rows] * np.cos(angle[rows, None]) + draw[rows] * np.sin(angle[rows, None])
        found = log_likelihood(other, alternative[rows])
        accepted: Bools = heat[rows] * found > threshold[rows]
        new[rows[accepted]] = other[accepted]
        new_level[rows[accepted]] = found[accepted]
        rows = rows[~accepted & (high[rows] - low[rows] > 1e-9)]
        low = np.where(angle < 0, angle, low)
        high = np.where(angle < 0, high, angle)
        angle = low + dice.random(len(z)) * (high - low)
    return new, new_level


_FAR = 0.5
"""Most of the launches' mean difference from a prior's level that its figures are asked to explain;
the rest is common to all candidates, as where a table has other units."""
_LEARNED_FROM = 60
"""Launches used to learn the hyper-parameters: the best, and the latest."""
_BLOCK = 4_000_000
"""Numbers in a table of candidates, launches and samples that are held at a time."""
_FEW = 3


@frozen
class _Tables:
    """Components of the covariance of some candidates with others.

    Attributes:
        distances, effects: shape ``(knobs, rows, others)``.
        physics: shape ``(alternatives, rows, others)``.
        level_sds: shape ``(alternatives,)``.
    """

    distances: Floats
    effects: Floats
    physics: Floats
    level_sds: Floats

    def covariance(self, h: Hyperparameters) -> Floats:
        """Return the covariance, shape ``(sets, rows, others)``."""
        knobs, *shape = self.distances.shape
        flat = knobs, shape[0] * shape[1]
        # In place: these tables are most of what a suggestion costs.
        own = 5.0 * h.lengths**-2 @ self.distances.reshape(flat)
        np.sqrt(own, out=own)
        decay = np.exp(-own)
        own *= 1 + own / 3
        own += 1
        own *= decay
        own *= h.interaction[:, None] ** 2
        own += h.effects**2 @ self.effects.reshape(flat)
        own = own.reshape(len(h), *shape)
        for one, which, factor in zip(own, h.alternative, h.physics, strict=True):
            one += factor**2 * self.physics[which]
        own += self.level_sds[h.alternative, None, None] ** 2
        return floats(own)


Mixture = Sequence[tuple[float, Floats, Floats]]
"""Weights, means and standard deviations of a mixture."""


class Posterior:
    """The posterior after some measurements.

    Args:
        kernels: of the candidates.
        positions: the measured candidates, repeats allowed.
        scores: shape ``(len(positions),)``, natural-logarithm units.
        signed: the priors are about another metric, which may go with this one or against it.
        seed: of the samples of the hyper-parameters.
        extra_covariance: shape ``(len(positions), len(positions))``: covariance of what launches measure
            beside their candidates' scores, e.g. with random weights.
        effort: of the sampling.

    Attributes:
        weights: shape ``(sets,)``: of each sample of the hyper-parameters.
        belief: shape ``(alternatives,)``: how likely each is after the launches; the last believes
            no prior.
    """

    def __init__(
        self,
        kernels: Kernels,
        positions: Sequence[int],
        scores: Sequence[float],
        signed: bool = False,
        seed: int = 0,
        extra_covariance: Floats | None = None,
        effort: Sampling = QUICK,
    ) -> None:
        self._kernels = kernels
        self._positions = ints(list(positions))
        self._y = floats(scores)
        if extra_covariance is None:
            extra_covariance = np.zeros((len(self._y), len(self._y)))
        self._extra_covariance = extra_covariance
        self._means = kernels.means_after(self._positions)
        # Another metric has another level.
        self._levels = np.full_like(kernels.levels, np.nan) if signed else kernels.levels
        chosen = _informative(self._y)
        rows = self._positions[chosen]
        y = self._y[chosen]
        tables = self._tables(rows, rows)

        def log_likelihood(hyper: Hyperparameters) -> Floats:
            """Return the log likelihood of the launches, up to a constant."""
            _, alpha, chol, residual = self._solved(
                hyper, tables, rows, y, self._extra_covariance[np.ix_(chosen, chosen)]
            )
            logs = np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
            return floats(-0.5 * np.einsum("sn,sn->s", alpha, residual) - logs)

        engine = 0 if kernels.several_engines else None
        shape = HyperPrior(len(kernels.factors), engine, kernels.odds, signed, kernels.beside)
        # Less than two launches say nothing of hyper-parameters.
        self._hyper, self.weights, self.belief = sample(
            shape, log_likelihood if len(self._y) > 1 else None, seed, effort
        )
        self._fit()

    def _tables(self, rows: Ints, others: Ints) -> _Tables:
        physics = self._kernels.physics(rows, others)
        return _Tables(*self._kernels.between(rows, others), physics, self._kernels.level_sds)

    def _solved(
        self,
        hyper: Hyperparameters,
        tables: _Tables,
        rows: Ints,
        y: Floats,
        extra_covariance: Floats,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return offsets ``(sets,)``, the launches' weights, their Cholesky factors, and their
        scores' residuals."""
        k = tables.covariance(hyper) + extra_covariance
        k[:, np.arange(len(y)), np.arange(len(y))] += hyper.noise[:, None] ** 2
        residual = y - hyper.weight[:, None] * self._means[hyper.alternative][:, rows]
        offset = np.zeros(len(k))
        if len(y):
            # Leave the difference from a prior's level to its figures.
            offset = residual.mean(axis=1)
            off = offset - self._levels[hyper.alternative]
            offset = offset - np.nan_to_num(np.clip(off, -_FAR, _FAR))
        residual = residual - offset[:, None]
        alpha = floats(np.linalg.solve(k, residual[:, :, None])[:, :, 0])
        return offset, alpha, floats(np.linalg.cholesky(k)), residual

    def _fit(self) -> None:
        tables = self._tables(self._positions, self._positions)
        launches = self._positions, self._y, self._extra_covariance
        self._offset, self._alpha, self._chol, _ = self._solved(self._hyper, tables, *launches)

    def condition_on_pending(self, rows: Ints) -> Posterior:
        """Return the posterior as if running launches of these candidates ended as predicted.

        The hyper-parameters stay: what is not known yet teaches nothing, it only keeps parallel
        launches apart.
        """
        other = copy(self)
        other._positions = np.concatenate([self._positions, rows])
        other._y = np.concatenate([self._y, self.mean(rows)])
        other._extra_covariance = np.pad(self._extra_covariance, (0, len(rows)))
        other._fit()
        return other

    def _only(self, chosen: Ints) -> Posterior:
        """Return the posterior with some of the samples."""
        other = copy(self)
        other.weights = self.weights[chosen] / self.weights[chosen].sum()
        other._hyper = Hyperparameters(
            *(getattr(self._hyper, one.name)[chosen] for one in fields(Hyperparameters))
        )
        other._offset = self._offset[chosen]
        other._alpha = self._alpha[chosen]
        other._chol = self._chol[chosen]
        return other

    def without_priors(self) -> Posterior:
        """Return the samples without a prior: there always are some."""
        return self._only(
            np.flatnonzero(self._hyper.alternative == len(self._kernels.alternatives) - 1)
        )

    def additive_mean(self) -> Floats:
        """Return every candidate's mean without interactions, shape ``(candidates,)``: cheap for
        many candidates."""
        kernels = self._kernels
        h = self._hyper
        total = np.zeros(len(self._kernels.encoding))
        for i, weight in enumerate(self.weights):
            which = h.alternative[i]
            part = kernels.summed_effects(h.effects[i] ** 2, self._positions, self._alpha[i])
            part += h.weight[i] * self._means[which]
            moved = kernels.deviations[which]
            part += h.physics[i] ** 2 * (moved @ (moved[self._positions].T @ self._alpha[i]))
            total += weight * part
        return total

    def predict(self, rows: Ints) -> Mixture:
        """Return per sample of the hyper-parameters its weight, and means and standard deviations of
        candidates (without launch noise)."""
        sets = len(self.weights)
        means, sds = np.empty((2, sets, len(rows)))
        size = max(1, _BLOCK // (sets * max(1, len(self._y))))
        for begin, end in pairwise([*range(0, len(rows), size), len(rows)]):
            block = rows[begin:end]
            means[:, begin:end], white = self._means_and_reductions(block)
            own = self._own_variance(block) - np.einsum("sij,sij->sj", white, white)
            sds[:, begin:end] = np.sqrt(np.maximum(own, 1e-10))
        return [(float(w), mean, sd) for w, mean, sd in zip(self.weights, means, sds, strict=True)]

    def _means_and_reductions(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return means of candidates, and the variance reduction by launches, shape ``(sets,
        launches, rows)``."""
        h = self._hyper
        cross = self._tables(rows, self._positions).covariance(h)
        mean = self._offset[:, None] + h.weight[:, None] * self._means[h.alternative][:, rows]
        mean += np.einsum("sij,sj->si", cross, self._alpha)
        white = [
            solve_triangular(chol, one.T, lower=True, check_finite=False)
            for chol, one in zip(self._chol, cross, strict=True)
        ]
        return mean, np.array(white)

    def _own_variance(self, rows: Ints) -> Floats:
        """Return the prior variance, shape ``(sets, rows)``."""
        h = self._hyper
        kernels = self._kernels
        own = (h.interaction**2 + (h.effects**2).sum(axis=1))[:, None]
        physics = h.physics[:, None] ** 2 * kernels.physics_variance[h.alternative][:, rows]
        return floats(own + physics + kernels.level_sds[h.alternative, None] ** 2)

    @property
    def noise(self) -> float:
        """Return the standard deviation of one launch around the model."""
        return math.sqrt(float(self.weights @ self._hyper.noise**2))

    def mean(self, rows: Ints) -> Floats:
        """Return the averaged posterior mean."""
        return floats(sum(w * m for w, m, _ in self.predict(rows)))

    def ucb(self, rows: Ints) -> Floats:
        """Return the highest mean plus standard deviation of a few hyper-parameter samples, shape
        ``(rows,)``."""
        few = self._only(np.sort(np.argsort(-self.weights, kind="stable")[:_FEW]))
        return floats(np.max([mean + sd for _, mean, sd in few.predict(rows)], axis=0))

    def leads(self, leader: int, others: Sequence[int]) -> list[Effect]:
        """Return by how much a candidate's true score is above those of others: a part per
        sample."""
        rows = ints([leader, *others])
        means, white = self._means_and_reductions(rows)
        joint = self._tables(rows, rows).covariance(self._hyper) - np.einsum(
            "sni,snj->sij", white, white
        )
        own = np.diagonal(joint, axis1=1, axis2=2)
        sds = np.sqrt(np.maximum(own[:, :1] + own[:, 1:] - 2 * joint[:, 0, 1:], 0.0))
        leads = means[:, :1] - means[:, 1:]
        return [Effect(self.weights, *parts) for parts in zip(leads.T, sds.T, strict=True)]

    def figures(self, alternative: int, logs: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the launches' estimates of the figures behind an alternative's draws: logarithms,
        ``(figures,)``.

        Args:
            logs: shape ``(figures, draws)``: what each draw adds to them.

        Returns:
            The shift, and the standard deviation before the launches and after them.
        """
        chosen = np.flatnonzero(self._hyper.alternative == alternative)
        own = (logs - logs.mean(axis=1, keepdims=True)) / np.sqrt(logs.shape[1] - 1)
        cross = own @ self._kernels.deviations[alternative][self._positions, : logs.shape[1]].T
        parts = []
        for i in chosen:
            scale = self._hyper.physics[i] ** 2
            white = solve_triangular(self._chol[i], scale * cross.T, lower=True, check_finite=False)
            before = scale * (own**2).sum(axis=1)
            parts.append((scale * cross @ self._alpha[i], before, before - (white**2).sum(axis=0)))
        shift, before, after = np.mean(parts, axis=0)
        return shift, np.sqrt(before), np.sqrt(np.maximum(after, 0.0))


def _informative(y: Floats) -> Ints:
    """Return the launches used to learn hyper-parameters: all of them if there are few."""
    everything = np.arange(len(y))
    if len(y) <= _LEARNED_FROM:
        return everything
    best = np.argsort(-y, kind="stable")[: _LEARNED_FROM // 2]
    return np.union1d(best, np.setdiff1d(everything, best)[-(_LEARNED_FROM - len(best)) :])
