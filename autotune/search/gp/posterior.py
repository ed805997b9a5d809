"""A Gaussian process over the enumerated candidates, averaged over samples of its hyper-parameters.

The score (a logarithm) of candidate x is modelled as ``c + Σ w·prior(x) + f(x) + noise``. The kernel of f is a sum
over knobs (each knob adds its part: learned from few launches) plus a Matérn 5/2 kernel over all of them (knobs
interact), with a scale of its own for every knob. Trust w in each prior is learned like the rest: priors that
mislead lose their weight. (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4, 5.)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dtrtrs

from autotune.arrays import Floats, Ints
from autotune.search.gp.encoding import ENGINE
from autotune.search.gp.hyperparameters import Hyperparameters, HyperPrior, sample
from autotune.search.gp.kernels import Kernels

_INTERCEPT_SD = 1.0
_LEARNED_FROM = 100
"""Launches that the hyper-parameters are learned from: the best, and the latest."""
_BLOCK = 4096
"""Candidates that are predicted at a time: memory stays small."""
_FEW = 3


class Trust(Enum):
    """How the priors' weights are learned."""

    OBJECTIVE = "they are about this score"
    OTHER = "they are about another metric, which may go with this one or against it"
    NONE = "they are left out"


@dataclass(frozen=True, slots=True)
class _Member:
    """One set of hyper-parameters, fitted: Cholesky factor of the launches' covariance, and what it makes of them."""

    hyper: Hyperparameters
    offset: float
    chol: Floats
    alpha: Floats


class Posterior:
    """The posterior after some measurements.

    Args:
        kernels: of the candidates.
        positions: the measured candidates, repeats allowed.
        scores: shape ``(len(positions),)``, natural-logarithm units.
        trust: what is thought of the priors.
        seed: of the samples of the hyper-parameters.
    """

    def __init__(
        self,
        kernels: Kernels,
        positions: Sequence[int],
        scores: Sequence[float],
        trust: Trust = Trust.OBJECTIVE,
        seed: int = 0,
    ) -> None:
        self._kernels = kernels
        self._positions = np.array(list(positions), dtype=np.int64)
        self._y = np.asarray(scores, dtype=np.float64)
        self._priors = kernels.priors if trust is not Trust.NONE else kernels.priors[:0]
        varying = kernels.encoding.varying
        names = [kernels.encoding.names[k] for k in varying]
        engine = names.index(ENGINE) if ENGINE in names else None
        shape = HyperPrior(len(varying), engine, len(self._priors), trust is Trust.OTHER)
        learned = self._data(_informative(self._y))
        # Less than two launches say nothing of hyper-parameters.
        hypers = sample(shape, learned.log_likelihood if len(self._y) > 1 else None, seed)
        self._members = self._fitted(hypers)

    def _data(self, launches: Ints) -> _Data:
        rows, kernels = self._positions[launches], self._kernels
        return _Data(self._y[launches], self._priors[:, rows], *kernels.between(rows, rows), kernels.prior_scale[rows])

    def _fitted(self, hypers: Sequence[Hyperparameters]) -> list[_Member]:
        data = self._data(np.arange(len(self._y)))
        return [data.fitted(hyper) for hyper in hypers]

    def condition_on_pending(self, rows: Ints) -> Posterior:
        """The posterior if launches of these candidates, which run now, came out as predicted.

        The hyper-parameters stay: what is not known yet teaches nothing, it only keeps parallel launches apart.
        """
        other = copy(self)
        other._positions = np.concatenate([self._positions, rows])
        other._y = np.concatenate([self._y, self.mean(rows)])
        other._members = other._fitted([member.hyper for member in self._members])
        return other

    def additive_mean(self) -> Floats:
        """Every candidate's mean without what knobs do together, shape ``(candidates,)``: cheap where they are many."""
        total = np.zeros(len(self._kernels.encoding))
        for member in self._members:
            total += member.hyper.weights @ self._priors
            pull = member.alpha * self._kernels.prior_scale[self._positions]
            total += self._kernels.summed_effects(member.hyper.effects**2, self._positions, pull)
        return np.asarray(total / len(self._members), dtype=np.float64)

    def predict(self, rows: Ints | None = None) -> list[tuple[float, Floats, Floats]]:
        """Per sample of the hyper-parameters its weight, means and standard deviations (without launch noise).

        Args:
            rows: positions of the candidates to predict; None = all.
        """
        chosen = np.arange(len(self._kernels.encoding)) if rows is None else rows
        means, sds = np.empty((2, len(self._members), len(chosen)))
        for begin in range(0, len(chosen), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            part, scale = chosen[block], self._kernels.prior_scale[chosen[block]]
            tables = self._kernels.between(part, self._positions)
            for i, member in enumerate(self._members):
                means[i, block], white = self._conditioned(member, part, tables)
                own = (member.hyper.interaction**2 + float((member.hyper.effects**2).sum())) * scale**2
                own = own + _INTERCEPT_SD**2 - np.einsum("ij,ij->j", white, white)
                sds[i, block] = np.sqrt(np.maximum(own, 1e-10))
        return [(1 / len(self._members), means[i], sds[i]) for i in range(len(self._members))]

    def _conditioned(self, member: _Member, rows: Ints, tables: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """Means of candidates, and what the launches tell of them, shape ``(launches, rows)``: its squares leave."""
        h, scale = member.hyper, self._kernels.prior_scale
        cross = _covariance(h, *tables, scale[rows], scale[self._positions])
        mean = member.offset + h.weights @ self._priors[:, rows] + cross @ member.alpha
        return mean, solve_triangular(member.chol, cross.T, lower=True, check_finite=False)

    def mean(self, rows: Ints | None = None) -> Floats:
        """The averaged posterior mean."""
        return np.asarray(sum(w * m for w, m, _ in self.predict(rows)), dtype=np.float64)

    def ucb(self, rows: Ints) -> Floats:
        """Mean plus standard deviation under a few samples of the hyper-parameters, the highest, shape ``(rows,)``."""
        few = copy(self)
        few._members = self._members[-_FEW:]
        return np.asarray(np.max([mean + sd for _, mean, sd in few.predict(rows)], axis=0), dtype=np.float64)

    def joint(self, rows: Ints) -> tuple[Floats, Floats]:
        """Mean and covariance of some candidates' true scores, shapes ``(rows,)`` and ``(rows, rows)``.

        Those of the average over the hyper-parameters: where these disagree the covariance is wider.
        """
        scale = self._kernels.prior_scale[rows]
        own, cross = self._kernels.between(rows, rows), self._kernels.between(rows, self._positions)
        parts, covariances = [], []
        for member in self._members:
            mean, white = self._conditioned(member, rows, cross)
            parts.append(mean)
            covariances.append(_covariance(member.hyper, *own, scale, scale) - white.T @ white)
        means = np.array(parts)
        centred = means - means.mean(axis=0)
        covariance = sum(covariances) / len(parts) + centred.T @ centred / len(parts)
        return means.mean(axis=0), np.asarray(covariance, dtype=np.float64)

    @property
    def trust(self) -> Floats:
        """The learned weight of each prior, shape ``(priors,)``."""
        return np.asarray(np.mean([member.hyper.weights for member in self._members], axis=0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Data:
    """The launches as the likelihood needs them."""

    y: Floats
    priors: Floats
    distances: Floats
    effects: Floats
    prior_scale: Floats

    def log_likelihood(self, hyper: Hyperparameters) -> float:
        """Of the launches, up to a constant."""
        _, white, chol = self._whitened(hyper)
        return -0.5 * float(white @ white) - float(np.log(chol.diagonal()).sum())

    def fitted(self, hyper: Hyperparameters) -> _Member:
        if not len(self.y):
            return _Member(hyper, 0.0, np.zeros((0, 0)), self.y)
        offset, white, chol = self._whitened(hyper)
        alpha, _ = dtrtrs(chol, white, lower=1, trans=1)
        return _Member(hyper, offset, chol, alpha)

    def _whitened(self, hyper: Hyperparameters) -> tuple[float, Floats, Floats]:
        k = _covariance(hyper, self.distances, self.effects, self.prior_scale, self.prior_scale)
        k.flat[:: len(k) + 1] += hyper.noise**2
        residual = self.y - hyper.weights @ self.priors
        offset = float(residual.mean())
        # Straight to LAPACK: this is called some hundred times per suggestion.
        chol, problem = dpotrf(k, lower=1, clean=1)
        if problem:
            raise np.linalg.LinAlgError("the covariance of the launches is not positive definite")
        white, _ = dtrtrs(chol, residual - offset, lower=1)
        return offset, white, chol


def _covariance(h: Hyperparameters, distances: Floats, effects: Floats, scale: Floats, other_scale: Floats) -> Floats:
    """Shape ``(rows, positions)`` from shapes ``(knobs, rows, positions)``."""
    shape = distances.shape[1:]
    flat = len(distances), shape[0] * shape[1]
    r = np.sqrt(5.0 * (h.lengths**-2 @ distances.reshape(flat)))
    together = h.interaction**2 * (1 + r + r**2 / 3) * np.exp(-r)
    alone = h.effects**2 @ effects.reshape(flat)
    return np.asarray(
        (together + alone).reshape(shape) * (scale[:, None] * other_scale) + _INTERCEPT_SD**2, dtype=np.float64
    )


def _informative(y: Floats) -> Ints:
    """The launches that hyper-parameters are learned from: all of them while there are few."""
    everything = np.arange(len(y))
    if len(y) <= _LEARNED_FROM:
        return everything
    best = np.argsort(-y, kind="stable")[: _LEARNED_FROM // 2]
    return np.union1d(best, np.setdiff1d(everything, best)[-(_LEARNED_FROM - len(best)) :])
