"""A Gaussian process over the enumerated candidates, averaged over its hyper-parameters.

The score (a logarithm) of candidate x is modelled as ``c + w·prior(x) + f(x) + noise``. The kernel of f is
a mixture of a sum over knobs (each knob adds its part: learned from few launches) and a product over
knobs (knobs interact). The weight w of the prior is learned: one family of models expects it near 1, the
other ignores the prior, and the marginal likelihood decides between them; so a wrong prior costs little.
Instead of one best set of hyper-parameters the predictions of the likeliest ones are averaged, because
with a handful of launches the best one is often confidently wrong (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapters 2 and 5).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dtrtrs
from threadpoolctl import ThreadpoolController

from autotune.search.encoding import Encoding

Floats = NDArray[np.float64]
Positions = Sequence[int]

# Natural-logarithm units: 0.1 is about 10 % of throughput.
_LENGTHS = (0.7, 1.4, 2.8)
_INTERACTIONS = (0.05, 0.2, 0.5)
"""Standard deviation of what knobs do together."""
_EFFECTS = (0.1, 0.3, 0.8)
"""Standard deviation of what one knob does by itself."""
_NOISES = ((0.01, 0.0), (0.03, 0.7), (0.1, 0.0))
"""Standard deviation of one launch and the log of its prior odds; 3 % is the usual figure between launches."""
_EFFECT_LENGTH = 0.5
"""Of a knob's own effect, where its whole range is 1."""
_INTERCEPT_SD = 1.0
_MEMBERS = 4
_MASS = 0.9


@dataclass(frozen=True, slots=True)
class Trust:
    """What is expected of the prior's weight: normal with this mean and spread; ``log_odds`` of this family."""

    mean: float
    sd: float
    log_odds: float = 0.0


TRUSTING = (Trust(1.0, 0.5, math.log(0.7)), Trust(0.0, 0.0, math.log(0.3)))
"""For the objective: the prior predicts it."""
IGNORING = (Trust(0.0, 0.0),)
"""For the objective, as if there were no prior."""
NEUTRAL = (Trust(0.0, 1.0), Trust(0.0, 0.0))
"""For another metric: the prior may have to do with it, in either direction."""


@dataclass(frozen=True, slots=True)
class _Setting:
    length: float
    interaction: float
    effect: float
    noise: float
    trust: Trust
    log_odds: float


@dataclass(frozen=True, slots=True)
class _Member:
    """One set of hyper-parameters, fitted."""

    setting: _Setting
    weight: float
    chol: Floats
    alpha: Floats


class Kernels:
    """Similarities of all candidates to those that were launched; computed once per launched candidate.

    Attributes:
        prior: shape ``(candidates,)``, centred and finite; zeros when there is none.
    """

    def __init__(self, encoding: Encoding, prior: Floats | None) -> None:
        self.encoding = encoding
        self.prior = _centred(prior, len(encoding))
        self._additive_tables = [np.exp(-d / (2 * _EFFECT_LENGTH**2)) for d in encoding.distances]
        self._columns: dict[int, tuple[Floats, Floats]] = {}

    @property
    def has_prior(self) -> bool:
        return bool(np.any(self.prior))

    def column(self, position: int) -> tuple[Floats, Floats]:
        """Squared distance over all knobs, and the sum of per-knob similarities, of every candidate to one of them."""
        if position not in self._columns:
            codes = self.encoding.codes
            distance = np.zeros(len(codes))
            additive = np.zeros(len(codes))
            for k in self.encoding.varying:
                table = self.encoding.distances[k]
                mine = codes[position, k]
                distance += table[:, mine][codes[:, k]]
                additive += self._additive_tables[k][:, mine][codes[:, k]]
            self._columns[position] = distance, additive
        return self._columns[position]

    def distance(self, positions: Positions, rows: NDArray[np.int64] | None = None) -> Floats:
        """Shape ``(rows or all candidates, positions)``."""
        return self._stack([self.column(p)[0] for p in positions], rows)

    def additive(self, positions: Positions, rows: NDArray[np.int64] | None = None) -> Floats:
        """Shape ``(rows or all candidates, positions)``."""
        return self._stack([self.column(p)[1] for p in positions], rows)

    def _stack(self, columns: list[Floats], rows: NDArray[np.int64] | None) -> Floats:
        if not columns:
            return np.zeros((len(self.encoding) if rows is None else len(rows), 0))
        return np.stack([c if rows is None else c[rows] for c in columns]).T


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """While it lasts, linear algebra runs on one thread.

    The matrices are small: on a busy machine threads wait for each other longer than they work. And sums do
    not depend on the number of cores, so that a study resumed elsewhere decides the same.
    """
    limits: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limits


def product_similarity(distance: Floats, length: float) -> Floats:
    """Matérn 5/2 in the Euclidean distance over all knobs, given its square."""
    r = np.sqrt(5.0 * distance) / length
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r), dtype=np.float64)


class Process:
    """The posterior after some measurements.

    Args:
        kernels: of the candidates.
        positions: the measured candidates, repeats allowed.
        scores: shape ``(len(positions),)``, natural-logarithm units.
        trusts: what is thought of the prior.
    """

    def __init__(
        self, kernels: Kernels, positions: Positions, scores: Sequence[float], trusts: tuple[Trust, ...] = TRUSTING
    ) -> None:
        self._kernels, self._positions = kernels, list(positions)
        trusts = trusts if kernels.has_prior else IGNORING
        y = np.asarray(scores, dtype=np.float64)
        self._rows = np.array(self._positions, dtype=np.int64)
        self._p = kernels.prior[self._rows]
        self._offset = {t: float(np.mean(y - t.mean * self._p)) if len(y) else 0.0 for t in trusts}
        self._members = self._fit(y, trusts)

    def _fit(self, y: Floats, trusts: tuple[Trust, ...]) -> list[_Member]:
        distance = self._kernels.distance(self._positions, self._rows)
        additive = self._kernels.additive(self._positions, self._rows)
        products = {length: product_similarity(distance, length) for length in _LENGTHS}
        members, logs = [], []
        for setting in _settings(trusts):
            k = _covariance(setting, products[setting.length], additive, self._p, self._p)
            k[np.diag_indices_from(k)] += setting.noise**2
            residual = y - setting.trust.mean * self._p - self._offset[setting.trust]
            chol, white, alpha = _solve(k, residual)
            logs.append(setting.log_odds - 0.5 * float(white @ white) - float(np.log(np.diag(chol)).sum()))
            members.append(_Member(setting, 0.0, chol, alpha))
        return _likeliest(members, np.array(logs))

    def predict(self, rows: NDArray[np.int64] | None = None) -> list[tuple[float, Floats, Floats]]:
        """Per kept set of hyper-parameters its weight, means and standard deviations (without launch noise).

        Args:
            rows: positions of the candidates to predict; None = all.
        """
        distance = self._kernels.distance(self._positions, rows)
        additive = self._kernels.additive(self._positions, rows)
        prior = self._kernels.prior if rows is None else self._kernels.prior[rows]
        products = {
            length: product_similarity(distance, length) for length in {m.setting.length for m in self._members}
        }
        return [(m.weight, *self._predict(m, products[m.setting.length], additive, prior)) for m in self._members]

    def _predict(self, member: _Member, product: Floats, additive: Floats, prior: Floats) -> tuple[Floats, Floats]:
        s = member.setting
        cross = _covariance(s, product, additive, prior, self._p)
        mean = s.trust.mean * prior + self._offset[s.trust] + cross @ member.alpha
        knobs = len(self._kernels.encoding.varying)
        own = s.interaction**2 + knobs * s.effect**2 + _INTERCEPT_SD**2 + s.trust.sd**2 * prior**2
        if len(self._positions):
            white = solve_triangular(member.chol, cross.T, lower=True, check_finite=False)
            own = own - np.einsum("ij,ij->j", white, white)
        return mean, np.sqrt(np.maximum(own, 1e-10))

    def mean(self, rows: NDArray[np.int64] | None = None) -> Floats:
        """The averaged posterior mean."""
        return np.asarray(sum(w * m for w, m, _ in self.predict(rows)), dtype=np.float64)

    def joint(self, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Mean and covariance of some candidates' true scores, shapes ``(rows,)`` and ``(rows, rows)``.

        Those of the average over the hyper-parameters: where these disagree the covariance is wider.
        """
        own = self._kernels.distance(rows.tolist(), rows), self._kernels.additive(rows.tolist(), rows)
        cross = self._kernels.distance(self._positions, rows), self._kernels.additive(self._positions, rows)
        parts = [(m.weight, *self._joint(m, rows, own, cross)) for m in self._members]
        mean = np.asarray(sum(w * mu for w, mu, _ in parts), dtype=np.float64)
        return mean, np.asarray(sum(w * (c + np.outer(mu - mean, mu - mean)) for w, mu, c in parts), dtype=np.float64)

    def _joint(
        self, member: _Member, rows: NDArray[np.int64], own: tuple[Floats, Floats], cross: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        s, prior = member.setting, self._kernels.prior[rows]
        known = _covariance(s, product_similarity(own[0], s.length), own[1], prior, prior)
        shared = _covariance(s, product_similarity(cross[0], s.length), cross[1], prior, self._p)
        mean = s.trust.mean * prior + self._offset[s.trust] + shared @ member.alpha
        if len(self._positions):
            white = solve_triangular(member.chol, shared.T, lower=True, check_finite=False)
            known = known - white.T @ white
        return mean, known


def _settings(trusts: tuple[Trust, ...]) -> list[_Setting]:
    grid = itertools.product(_LENGTHS, _INTERACTIONS, _EFFECTS, _NOISES, trusts)
    return [_Setting(length, inter, eff, noise, t, odds + t.log_odds) for length, inter, eff, (noise, odds), t in grid]


def _covariance(s: _Setting, product: Floats, additive: Floats, p: Floats, q: Floats) -> Floats:
    k = s.interaction**2 * product + s.effect**2 * additive + _INTERCEPT_SD**2
    if s.trust.sd:
        k += s.trust.sd**2 * np.outer(p, q)
    return np.asarray(k, dtype=np.float64)


def _solve(k: Floats, residual: Floats) -> tuple[Floats, Floats, Floats]:
    """Cholesky factor L of k, then L⁻¹r and k⁻¹r; straight to LAPACK, since it is called some hundred times."""
    if not len(residual):
        return np.zeros((0, 0)), residual, residual
    chol, problem = dpotrf(k, lower=1, clean=1)
    if problem:
        raise np.linalg.LinAlgError("the covariance of the launches is not positive definite")
    white, _ = dtrtrs(chol, residual, lower=1)
    alpha, _ = dtrtrs(chol, white, lower=1, trans=1)
    return chol, white, alpha


def _likeliest(members: list[_Member], logs: Floats) -> list[_Member]:
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    count = min(_MEMBERS, int(np.searchsorted(np.cumsum(weights[order]), _MASS)) + 1)
    total = float(weights[order[:count]].sum())
    kept = [(members[i], float(weights[i]) / total) for i in order[:count]]
    return [_Member(m.setting, weight, m.chol, m.alpha) for m, weight in kept]


def _centred(prior: Floats | None, count: int) -> Floats:
    """Where the prior is not known the lowest that is known stands: usually it means that nothing fits."""
    if prior is None:
        return np.zeros(count)
    if prior.shape != (count,):
        raise ValueError(f"the prior has shape {prior.shape}, expected ({count},)")
    known = np.isfinite(prior)
    if not known.any():
        return np.zeros(count)
    filled = np.where(known, prior, prior[known].min())
    return np.asarray(filled - filled.mean(), dtype=np.float64)
