"""A Gaussian process over the enumerated candidates, averaged over samples of its hyper-parameters.

The score (a logarithm) of candidate x is modelled as ``c + w·prior(x) + s·Σ v·deviation(x) + f(x) + noise``: one of the
priors, or none, with what its uncertain figures do (v standard normal, one for each draw of them). The kernel of f is a
sum over knobs (each knob adds its part: learned from few launches) plus a Matérn 5/2 kernel over all of them (knobs
interact), with a scale of its own for every knob. (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapters 2, 4, 5.)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from scipy.linalg import solve_triangular

from autotune.arrays import Floats, Ints
from autotune.search.gp.encoding import ENGINE
from autotune.search.gp.hyperparameters import Hyperparameters, HyperPrior, sample
from autotune.search.gp.kernels import Kernels

_INTERCEPT_SD = 1.0
_LEARNED_FROM = 60
"""Launches that the hyper-parameters are learned from: the best, and the latest."""
_BLOCK = 4_000_000
"""Numbers in a table of candidates, launches and samples that is held at a time."""
_FEW = 3


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the covariance of some candidates with others is made of.

    Attributes:
        distances, effects: shape ``(knobs, rows, others)``.
        physics: shape ``(alternatives, rows, others)``.
        scale, other_scale: shapes ``(alternatives, rows)`` and ``(alternatives, others)``.
    """

    distances: Floats
    effects: Floats
    physics: Floats
    scale: Floats
    other_scale: Floats

    def covariance(self, h: Hyperparameters) -> Floats:
        """Shape ``(sets, rows, others)``."""
        knobs, *shape = self.distances.shape
        flat = knobs, shape[0] * shape[1]
        r = np.sqrt(5.0 * (h.lengths**-2 @ self.distances.reshape(flat)))
        own = h.interaction[:, None] ** 2 * (1 + r + r**2 / 3) * np.exp(-r)
        own += h.effects**2 @ self.effects.reshape(flat)
        own = own.reshape(len(h), *shape)
        own *= self.scale[h.alternative][:, :, None] * self.other_scale[h.alternative][:, None, :]
        own += h.physics[:, None, None] ** 2 * self.physics[h.alternative]
        own += _INTERCEPT_SD**2
        return np.asarray(own, dtype=np.float64)


class Posterior:
    """The posterior after some measurements.

    Args:
        kernels: of the candidates.
        positions: the measured candidates, repeats allowed.
        scores: shape ``(len(positions),)``, natural-logarithm units.
        signed: the priors are about another metric, which may go with this one or against it.
        seed: of the samples of the hyper-parameters.

    Attributes:
        weights: shape ``(sets,)``: of each sample of the hyper-parameters.
        belief: shape ``(alternatives,)``: how likely each is after the launches; the last believes no prior.
    """

    def __init__(
        self,
        kernels: Kernels,
        positions: Sequence[int],
        scores: Sequence[float],
        signed: bool = False,
        seed: int = 0,
    ) -> None:
        self._kernels = kernels
        self._positions = np.array(list(positions), dtype=np.int64)
        self._y = np.asarray(scores, dtype=np.float64)
        names = [kernels.encoding.names[k] for k in kernels.encoding.varying]
        engine = names.index(ENGINE) if ENGINE in names else None
        chosen = _informative(self._y)
        rows, y = self._positions[chosen], self._y[chosen]
        tables = self._tables(rows, rows)

        def log_likelihood(hyper: Hyperparameters) -> Floats:
            """Of the launches, up to a constant."""
            _, alpha, chol, residual = self._solved(hyper, tables, rows, y)
            logs = np.log(np.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
            return np.asarray(-0.5 * np.einsum("sn,sn->s", alpha, residual) - logs, dtype=np.float64)

        shape = HyperPrior(len(names), engine, kernels.odds, signed)
        # Less than two launches say nothing of hyper-parameters.
        self._hyper, self.weights, self.belief = sample(shape, log_likelihood if len(self._y) > 1 else None, seed)
        self._fit()

    def _tables(self, rows: Ints, others: Ints) -> _Tables:
        kernels = self._kernels
        return _Tables(
            *kernels.between(rows, others),
            kernels.physics(rows, others),
            kernels.scale[:, rows],
            kernels.scale[:, others],
        )

    def _solved(
        self, hyper: Hyperparameters, tables: _Tables, rows: Ints, y: Floats
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Offsets, shape ``(sets,)``, what the launches pull, their Cholesky factors, and their scores' residuals."""
        k = tables.covariance(hyper)
        k[:, np.arange(len(y)), np.arange(len(y))] += hyper.noise[:, None] ** 2
        residual = y - hyper.weight[:, None] * self._kernels.means[hyper.alternative][:, rows]
        offset: Floats = residual.mean(axis=1) if len(y) else np.zeros(len(k))
        residual = residual - offset[:, None]
        alpha = np.asarray(np.linalg.solve(k, residual[:, :, None])[:, :, 0], dtype=np.float64)
        return offset, alpha, np.asarray(np.linalg.cholesky(k), dtype=np.float64), residual

    def _fit(self) -> None:
        tables = self._tables(self._positions, self._positions)
        self._offset, self._alpha, self._chol, _ = self._solved(self._hyper, tables, self._positions, self._y)

    def condition_on_pending(self, rows: Ints) -> Posterior:
        """The posterior if launches of these candidates, which run now, came out as predicted.

        The hyper-parameters stay: what is not known yet teaches nothing, it only keeps parallel launches apart.
        """
        other = copy(self)
        other._positions = np.concatenate([self._positions, rows])
        other._y = np.concatenate([self._y, self.mean(rows)])
        other._fit()
        return other

    def _only(self, chosen: Ints) -> Posterior:
        """With some of the samples."""
        other = copy(self)
        other.weights = self.weights[chosen] / self.weights[chosen].sum()
        other._hyper = Hyperparameters(*(getattr(self._hyper, one.name)[chosen] for one in fields(Hyperparameters)))
        other._offset, other._alpha, other._chol = self._offset[chosen], self._alpha[chosen], self._chol[chosen]
        return other

    def additive_mean(self) -> Floats:
        """Every candidate's mean without what knobs do together, shape ``(candidates,)``: cheap where they are many."""
        kernels, h, total = self._kernels, self._hyper, np.zeros(len(self._kernels.encoding))
        for i, weight in enumerate(self.weights):
            which = h.alternative[i]
            pull = self._alpha[i] * kernels.scale[which, self._positions]
            part = kernels.summed_effects(h.effects[i] ** 2, self._positions, pull) * kernels.scale[which]
            part += h.weight[i] * kernels.means[which]
            moved = kernels.deviations[which]
            part += h.physics[i] ** 2 * (moved @ (moved[self._positions].T @ self._alpha[i]))
            total += weight * part
        return total

    def predict(self, rows: Ints | None = None) -> list[tuple[float, Floats, Floats]]:
        """Per sample of the hyper-parameters its weight, means and standard deviations (without launch noise).

        Args:
            rows: positions of the candidates to predict; None = all.
        """
        chosen = np.arange(len(self._kernels.encoding)) if rows is None else rows
        sets = len(self.weights)
        means, sds = np.empty((2, sets, len(chosen)))
        size = max(1, _BLOCK // (sets * max(1, len(self._y))))
        for begin, end in pairwise([*range(0, len(chosen), size), len(chosen)]):
            block = chosen[begin:end]
            means[:, begin:end], white = self._conditioned(block)
            own = self._own_variance(block) - np.einsum("sij,sij->sj", white, white)
            sds[:, begin:end] = np.sqrt(np.maximum(own, 1e-10))
        return [(float(w), mean, sd) for w, mean, sd in zip(self.weights, means, sds, strict=True)]

    def _conditioned(self, rows: Ints) -> tuple[Floats, Floats]:
        """Means of candidates, and what launches tell of them, shape ``(sets, launches, rows)``: its squares leave."""
        h = self._hyper
        cross = self._tables(rows, self._positions).covariance(h)
        mean = self._offset[:, None] + h.weight[:, None] * self._kernels.means[h.alternative][:, rows]
        mean += np.einsum("sij,sj->si", cross, self._alpha)
        white = [
            solve_triangular(chol, one.T, lower=True, check_finite=False)
            for chol, one in zip(self._chol, cross, strict=True)
        ]
        return mean, np.array(white)

    def _own_variance(self, rows: Ints) -> Floats:
        """Before any launch, shape ``(sets, rows)``."""
        h, kernels = self._hyper, self._kernels
        own = (h.interaction**2 + (h.effects**2).sum(axis=1))[:, None] * kernels.scale[h.alternative][:, rows] ** 2
        physics = h.physics[:, None] ** 2 * kernels.physics_variance[h.alternative][:, rows]
        return np.asarray(own + physics + _INTERCEPT_SD**2, dtype=np.float64)

    def mean(self, rows: Ints | None = None) -> Floats:
        """The averaged posterior mean."""
        return np.asarray(sum(w * m for w, m, _ in self.predict(rows)), dtype=np.float64)

    def ucb(self, rows: Ints) -> Floats:
        """Mean plus standard deviation under a few samples of the hyper-parameters, the highest, shape ``(rows,)``."""
        few = self._only(np.sort(np.argsort(-self.weights, kind="stable")[:_FEW]))
        return np.asarray(np.max([mean + sd for _, mean, sd in few.predict(rows)], axis=0), dtype=np.float64)

    def joint(self, rows: Ints) -> tuple[Floats, Floats]:
        """Mean and covariance of some candidates' true scores, shapes ``(rows,)`` and ``(rows, rows)``.

        Those of the average over the hyper-parameters: where these disagree the covariance is wider.
        """
        parts, own = self._members(rows)
        mean = self.weights @ parts
        centred = parts - mean
        covariance = np.einsum("s,sij->ij", self.weights, own) + (self.weights * centred.T) @ centred
        return mean, np.asarray(covariance, dtype=np.float64)

    def _members(self, rows: Ints) -> tuple[Floats, Floats]:
        """Means and covariances under each sample, shapes ``(sets, rows)`` and ``(sets, rows, rows)``."""
        mean, white = self._conditioned(rows)
        return mean, self._tables(rows, rows).covariance(self._hyper) - np.einsum("sni,snj->sij", white, white)

    def draws(self, rows: Ints, count: int, seed: int) -> Floats:
        """Draws of candidates' true scores by what is likely, shape ``(count, rows)``."""
        generator = np.random.default_rng([seed, count])
        alternative = self._hyper.alternative
        odds = (
            self.weights
            * (self.belief / np.bincount(alternative, self.weights, len(self.belief)).clip(1e-12))[alternative]
        )
        mean, own = self._members(rows)
        own[:, np.arange(len(rows)), np.arange(len(rows))] += 1e-8
        factors = np.linalg.cholesky(own)
        normal = generator.standard_normal((count, len(rows)))
        chosen = generator.choice(len(odds), count, p=odds / odds.sum())
        found = np.empty_like(normal)
        for which in np.unique(chosen):
            found[chosen == which] = mean[which] + normal[chosen == which] @ factors[which].T
        return found

    def figures(self, alternative: int, logs: Floats) -> tuple[Floats, Floats, Floats]:
        """What the launches say of the figures behind an alternative's draws: shapes ``(figures,)``, logarithms.

        Args:
            logs: shape ``(figures, draws)``: what each draw adds to them.

        Returns:
            The shift, and the standard deviation before the launches and after them.
        """
        chosen = np.flatnonzero(self._hyper.alternative == alternative)
        own = (logs - logs.mean(axis=1, keepdims=True)) / np.sqrt(logs.shape[1] - 1)
        cross = own @ self._kernels.deviations[alternative][self._positions].T
        parts = []
        for i in chosen:
            scale = self._hyper.physics[i] ** 2
            white = solve_triangular(self._chol[i], scale * cross.T, lower=True, check_finite=False)
            before = scale * (own**2).sum(axis=1)
            parts.append((scale * cross @ self._alpha[i], before, before - (white**2).sum(axis=0)))
        shift, before, after = np.mean(parts, axis=0)
        return shift, np.sqrt(before), np.sqrt(np.maximum(after, 0.0))


def _informative(y: Floats) -> Ints:
    """The launches that hyper-parameters are learned from: all of them while there are few."""
    everything = np.arange(len(y))
    if len(y) <= _LEARNED_FROM:
        return everything
    best = np.argsort(-y, kind="stable")[: _LEARNED_FROM // 2]
    return np.union1d(best, np.setdiff1d(everything, best)[-(_LEARNED_FROM - len(best)) :])
