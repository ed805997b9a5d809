"""Kernel tables of the candidates, knob by knob, and their priors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from threadpoolctl import ThreadpoolController

from autotune.arrays import Floats, Ints
from autotune.search.gp.encoding import Encoding

_EFFECT_LENGTH = 0.5
"""Of a knob's own effect, where its whole range is 1."""
_DEPTH = 3.0
"""A prior's lowest values are cut off so far below its highest: what is twenty times slower is as good as lost."""
_LEAST_SCALE, _MOST_SCALE = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Prior:
    """One source's prediction of the objective for every candidate. It may be wrong: trust in it is learned.

    Attributes:
        name: of the source, for people, e.g. ``the simulator`` or ``study v32-night``.
        mean: shape ``(candidates,)``: natural logarithm of the objective, more is better. Only differences matter;
            not finite = not known.
        sd: shape ``(candidates,)``: standard deviation of ``ln(truth / prediction)`` of each candidate by itself,
            without what all candidates of an engine share; None = not known.
        p_starts: shape ``(candidates,)``: the probability that the configuration starts; None = nothing known.
        launch_s: shape ``(candidates,)``: seconds that a launch takes, its loads included; not finite, or None = not
            known.
    """

    name: str
    mean: Floats
    sd: Floats | None = None
    p_starts: Floats | None = None
    launch_s: Floats | None = None

    def __post_init__(self) -> None:
        shape = self.mean.shape
        if len(shape) != 1:
            raise ValueError(f"prior {self.name!r}: the mean has shape {shape}, expected one value per candidate")
        for what, values in (("sd", self.sd), ("p_starts", self.p_starts), ("launch_s", self.launch_s)):
            if values is not None and values.shape != shape:
                raise ValueError(f"prior {self.name!r}: {what} has shape {values.shape}, the mean has {shape}")


class Kernels:
    """Similarities of candidates, and the priors on them.

    Attributes:
        priors: shape ``(priors, candidates)``, centred and finite.
        prior_scale: shape ``(candidates,)``: standard deviation of the priors' errors, 1 where it is as usual.
        costs: shape ``(candidates,)``: what a launch costs, 1 where it costs as much as usual.
        p_starts: shape ``(candidates,)``: probability of starting, before any launch.
    """

    def __init__(self, encoding: Encoding, priors: Sequence[Prior] = ()) -> None:
        self.encoding, self._sources = encoding, priors
        for prior in priors:
            if prior.mean.shape != (len(encoding),):
                raise ValueError(f"the prior {prior.name!r} has shape {prior.mean.shape}, expected ({len(encoding)},)")
        centred = [c for c in (_centred(prior.mean) for prior in priors) if np.any(c)]
        self.priors: Floats = np.array(centred) if centred else np.zeros((0, len(encoding)))
        self.prior_scale = _prior_scale(priors, len(encoding))
        known = [prior.p_starts for prior in priors if prior.p_starts is not None]
        self.p_starts: Floats = np.clip(np.fmin.reduce([np.ones(len(encoding)), *known]), 0.0, 1.0)
        self.costs = _costs(priors, len(encoding))
        self.columns = np.ascontiguousarray(encoding.codes[:, encoding.varying])
        self._distances = [encoding.distances[k] for k in encoding.varying]
        self._effects = [np.exp(-d / (2 * _EFFECT_LENGTH**2)) for d in self._distances]

    @cached_property
    def without_prior(self) -> Kernels:
        """The same without priors on the score; probabilities of starting and costs stay."""
        return Kernels(self.encoding, [replace(p, mean=np.zeros_like(p.mean), sd=None) for p in self._sources])

    def between(self, rows: Ints, positions: Ints) -> tuple[Floats, Floats]:
        """Squared distances, and similarities of each knob's own effect; shapes ``(knobs, rows, positions)``."""
        distances, effects = (np.empty((len(self._effects), len(rows), len(positions))) for _ in range(2))
        for tables, found in (self._distances, distances), (self._effects, effects):
            for k, table in enumerate(tables):
                # Once per pair of values, then spread: a knob has few.
                found[k] = table[:, self.columns[positions, k]][self.columns[rows, k]]
        return distances, effects

    def summed_effects(self, variances: Floats, positions: Ints, pull: Floats) -> Floats:
        """What the knobs' own effects make of launches, for every candidate, shape ``(candidates,)``.

        Args:
            variances: shape ``(knobs,)``, of each knob's effect.
            pull: shape ``(len(positions),)``: how much each launch pulls, in score units over variance.
        """
        total = np.zeros(len(self.encoding))
        for k, table in enumerate(self._effects):
            total += (variances[k] * (table[:, self.columns[positions, k]] @ pull))[self.columns[:, k]]
        return total


def _centred(mean: Floats) -> Floats:
    """Centre a prior's mean; unknown values are the median of the known ones."""
    known = np.isfinite(mean)
    if not known.any():
        return np.zeros(len(mean))
    cut = np.maximum(mean, mean[known].max() - _DEPTH)
    filled = np.where(known, cut, float(np.median(cut[known])))
    return np.asarray(filled - filled.mean(), dtype=np.float64)


def _prior_scale(priors: Sequence[Prior], count: int) -> Floats:
    """The smallest standard deviation that a prior has for each candidate, over its median."""
    known = [prior.sd for prior in priors if prior.sd is not None and np.isfinite(prior.sd).any()]
    if not known or (middle := float(np.nanmedian(least := np.fmin.reduce(known)))) <= 0:
        return np.ones(count)
    relative = np.nan_to_num(least / middle, nan=_MOST_SCALE, posinf=_MOST_SCALE)
    return np.asarray(np.clip(relative, _LEAST_SCALE, _MOST_SCALE), dtype=np.float64)


def _costs(priors: Sequence[Prior], count: int) -> Floats:
    """Expected seconds of a launch over their median; within a factor of two, since seconds are guesses as well."""
    known = [prior.launch_s for prior in priors if prior.launch_s is not None]
    if not known or not np.isfinite(known[0]).any():
        return np.ones(count)
    relative = known[0] / np.nanmedian(known[0])
    return np.asarray(np.clip(np.nan_to_num(relative, nan=1.0), 0.5, 2.0), dtype=np.float64)


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
