"""Covariances of the candidates of a Gaussian process, and the prior predictions of their scores.

`Encoding` encodes candidates as integers. A knob's values are points of a Euclidean space, so that
kernels of their distances are positive semi-definite: sizes lie on a line by their logarithm, names
have equal distances from each other, and None, of a knob that the engine does not have, has a small
distance from all values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from functools import cache, cached_property
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from autotune.base import frozen
from autotune.base.arrays import Bools, Floats, Ints, floats, ints
from autotune.engines import CandidateSet, Scalar
from autotune.engines.entry import spaces_file

ENGINE = "engine"
LAYOUT = frozenset[str](spaces_file("layout.yaml")["knobs"])
"""Knobs that divide a model among the GPUs."""
_ABSENCE = 0.3
"""Distance of None from the values' own space; the range of a size is 1."""


class Encoding:
    """Candidates of a study as integer codes, one column per knob that varies.

    Attributes:
        names: the columns, ``engine`` first.
        choices: column to its values, in a fixed order; None = not applicable.
        codes: shape ``(candidates, columns)``: index into the column's choices.
        varying: the columns that have more than one choice.
        monotone_memory: the columns of which a larger value never needs less GPU memory.
        distances: per column the squared distances between its choices, shape ``(choices,
            choices)``.
    """

    def __init__(self, candidates: CandidateSet) -> None:
        configurations = [c.configuration for c in candidates.items]
        self.names = (ENGINE, *sorted({k for c in configurations for k in c.knobs} - {ENGINE}))
        columns = {
            name: [c.engine if name == ENGINE else c.knobs.get(name) for c in configurations]
            for name in self.names
        }
        self.choices: dict[str, tuple[Scalar, ...]] = {
            name: _choices(column) for name, column in columns.items()
        }
        self._lookup = {
            name: {value: i for i, value in enumerate(self.choices[name])} for name in self.names
        }
        codes = [[self._lookup[name][value] for value in columns[name]] for name in self.names]
        self.codes: Ints = ints(codes).T
        self.monotone_memory = candidates.monotone_memory
        self.varying = [k for k, name in enumerate(self.names) if len(self.choices[name]) > 1]
        self.distances = [squared_distances(self.choices[name]) for name in self.names]

    def __len__(self) -> int:
        return len(self.codes)

    def params(self, position: int) -> dict[str, Scalar]:
        """Return a candidate as Optuna's parameters: the engine and the knobs that it sets."""
        row = self.codes[position]
        return {
            name: value
            for name, code in zip(self.names, row, strict=True)
            if (value := self.choices[name][code]) is not None
        }

    @cached_property
    def values(self) -> Mapping[str, tuple[Scalar, ...]]:
        """Return the candidates' values of each column that at least one of them sets."""
        return {
            name: values
            for name, choices in self.choices.items()
            if (values := tuple(v for v in choices if v is not None))
        }

    def nearest(self, params: Mapping[str, Scalar], allowed: Bools) -> int:
        """Return the allowed candidate nearest to parameters, which need not be a candidate; the
        first of equals.

        Raises:
            ValueError: no candidate is allowed.
            KeyError: no candidate has such a value.
        """
        if not allowed.any():
            raise ValueError("no candidate is allowed")
        codes = [self._lookup[name][params.get(name)] for name in self.names]
        total = np.zeros(len(self))
        for column, table in enumerate(self.distances):
            total += table[:, codes[column]][self.codes[:, column]]
        return int(np.argmin(np.where(allowed, total, np.inf)))


def _choices(column: Sequence[Scalar]) -> tuple[Scalar, ...]:
    unique = dict.fromkeys(column)
    return tuple(
        sorted(
            unique,
            key=lambda v: (v is not None, isinstance(v, str), v if is_size(v) else 0.0, str(v)),
        )
    )


def is_size(value: Scalar) -> bool:
    """Return whether a value is an ordered number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def squared_distances(choices: Sequence[Scalar]) -> Floats:
    """Return squared distances between a knob's values, shape ``(choices, choices)``; the largest
    is about 1."""
    present = [v for v in choices if v is not None]
    there = np.array([value is not None for value in choices])
    if present and all(is_size(v) for v in present):
        points = _sizes(present)
        between = (points[:, None] - points[None, :]) ** 2
        from_middle = (points - points.mean()) ** 2
    else:
        # Names are the corners of a simplex with edges of 1: written down at once, a table may have
        # thousands.
        between = 1.0 - np.eye(len(present))
        from_middle = np.full(len(present), 0.5 - 0.5 / max(1, len(present)))
    table = np.zeros((len(choices), len(choices)))
    table[np.ix_(there, there)] = between
    table[np.ix_(there, ~there)] = from_middle[:, None] + _ABSENCE**2
    table[np.ix_(~there, there)] = from_middle[None, :] + _ABSENCE**2
    return table


def _sizes(values: Sequence[Scalar]) -> Floats:
    numbers = np.array([float(v) for v in values if v is not None])
    logs = (
        np.log2(numbers) if numbers.min() > 0 else np.sign(numbers) * np.log2(1 + np.abs(numbers))
    )
    span = float(logs.max() - logs.min())
    scaled = (logs - logs.min()) / (span if math.isfinite(span) and span > 0 else 1.0)
    return floats(scaled)


_EFFECT_LENGTH = 0.5
"""Length scale of a knob's main effect; the range of a knob is 1."""
_OF_ITS_OWN = 0.4
"""Share of the variance of a value's effect that is independent of the other values' effects."""
_ACROSS_ENGINES = 0.3
"""Correlation of a value's effect between engines, which are separate programs."""
_DEPTH = 3.0
"""Largest difference from a prior's highest mean, a logarithm; lower means are raised to it."""
_LEVEL_SD, _ANY_LEVEL_SD = 0.3, 1.0
"""Standard deviation of an offset that all candidates share: from the mean of a prior of this node,
beyond the uncertainty of its figures (`benchmarks/node/taught.py`), and from the mean of the
launches."""
_PART_SD = 0.3
"""Standard deviation of an offset that the candidates without a prediction share."""
_NO_PRIOR = 0.4
"""Probability before any launch that no prior is useful."""


@frozen
class UnsureFigure:
    """An uncertain figure of a source about an engine.

    Attributes:
        logs: shape ``(draws,)``: what each draw adds to the figure's logarithm.
        published: the measurement that it comes from, in words; empty for none.
    """

    name: str
    engine: str
    value: float
    logs: Floats
    published: str = ""


@frozen
class Prior:
    """Prediction of the objective for every candidate by one source.

    Attributes:
        name: of the source, for people, e.g. ``the simulator`` or ``study v32-night``.
        mean: shape ``(candidates,)``: natural logarithm of the objective if the candidate starts,
            more is better. Only differences count; not finite = not predicted.
        p_starts: shape ``(candidates,)``: the probability that the configuration starts; None =
            nothing known.
        doubts: the expected cause of each candidate's failure, in a word, empty for none; launches
            correct `p_starts` for each engine and word. None = not known.
        launch_s: shape ``(candidates,)``: seconds that a launch takes, its loads included; not
            finite, or None = not known.
        draws: shape ``(draws, candidates)``: the mean with each draw of the source's uncertain
            figures; their covariance is the covariance of the candidates' errors. None = not known.
        figures: those figures.
        limit_ratios: shape ``(SLOs, candidates)``: ln(metric / limit) of each limited metric; NaN = not
            known. None = no metric is predicted.
        effect_errors: knob to the standard deviation of the error of its values' predicted effects,
            each value of an engine's knob has one error in all candidates.
    """

    name: str
    mean: Floats
    p_starts: Floats | None = None
    doubts: tuple[str, ...] | None = None
    launch_s: Floats | None = None
    draws: Floats | None = None
    figures: tuple[UnsureFigure, ...] = ()
    limit_ratios: Floats | None = None
    effect_errors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.mean.shape
        if len(shape) != 1:
            raise ValueError(
                f"prior {self.name!r}: the mean has shape {shape}, expected one value per candidate"
            )
        for values in (self.p_starts, self.launch_s):
            if values is not None and values.shape != shape:
                raise ValueError(
                    f"prior {self.name!r}: one figure has shape {values.shape}, the mean has {shape}"
                )

    def at(self, place: int) -> Prior:
        """Return this prior of one candidate: arrays of length 1, draws of shape ``(draws, 1)``."""
        rows = slice(place, place + 1)
        drawn, limit_ratios = self.draws, self.limit_ratios
        return Prior(
            self.name,
            self.mean[rows],
            None if self.p_starts is None else self.p_starts[rows],
            None if self.doubts is None else self.doubts[rows],
            None if self.launch_s is None else self.launch_s[rows],
            None if drawn is None else drawn[:, rows],
            self.figures,
            None if limit_ratios is None else limit_ratios[:, rows],
            self.effect_errors,
        )


def joined(first: Prior, more: Sequence[Prior | None]) -> Prior:
    """Return a prior of candidates and of further ones, one each; None: without a prediction."""

    def with_more(name: str, unknown: float) -> Any:
        known = getattr(first, name)
        if known is None or not more:
            return known
        rest = [None if one is None else getattr(one, name) for one in more]
        empty = np.full((*known.shape[:-1], 1), unknown)
        return np.concatenate([known, *(empty if one is None else one for one in rest)], axis=-1)

    figures = [*first.figures, *(f for one in more if one for f in one.figures)]
    doubts = first.doubts
    if doubts is not None:
        doubts += tuple(one.doubts[0] if one and one.doubts else "" for one in more)
    return Prior(
        first.name,
        with_more("mean", math.nan),
        with_more("p_starts", 1.0),
        doubts,
        with_more("launch_s", math.nan),
        with_more("draws", math.nan),
        tuple(
            {(figure.engine, figure.name, figure.published): figure for figure in figures}.values()
        ),
        with_more("limit_ratios", math.nan),
        first.effect_errors,
    )


class Kernels:
    """Covariances of candidates, and the alternative models: one for each prior, one without.

    Attributes:
        alternatives: the priors' names, the most probable first, and ``none``.
        odds: shape ``(alternatives,)``: the probability of each, before any launch.
        means: shape ``(alternatives, candidates)``, centred and finite; 0 without a prior.
        levels, level_sds: shape ``(alternatives,)``: the average that centring took away, and its
            standard deviation; NaN: the launches' average, of a prior without draws.
        figures: of each alternative, its source's uncertain figures.
        deviations: of each alternative, shape ``(candidates, draws)``: a factor of the covariance
            of its errors.
        physics_variance: shape ``(alternatives, candidates)``: the variances of these errors.
        costs: shape ``(candidates,)``: seconds of a launch over their median.
        p_starts: shape ``(candidates,)``: probability of starting, before any launch.
        doubts: shape ``(candidates,)``: codes of engine and expected cause of failure.
        limit_ratios: of the first prior that has it, see `Prior`; None: none has.
        several_engines: the first of the knobs that vary is the engine.
        codes: shape ``(knobs, candidates)``: of the knobs that vary.
        factors: shape ``(factors, candidates)``: codes of what has an effect: these knobs, and behind
            them the layout (`LAYOUT`) where several of its knobs vary.
        beside: shape ``(factors,)``: those with one value among the first `product` candidates.

    Args:
        product: number of candidates of the enumerated product; those behind it were added during
            the study. None: all are of the product.
    """

    def __init__(
        self, encoding: Encoding, priors: Sequence[Prior] = (), product: int | None = None
    ) -> None:
        self.encoding = encoding
        count = len(encoding)
        for prior in priors:
            if prior.mean.shape != (count,):
                raise ValueError(
                    f"the prior {prior.name!r} has shape {prior.mean.shape}, expected ({count},)"
                )
        # A constant prior carries no information.
        informative = [prior for prior in priors if np.any(_centred(prior.mean))]
        self.alternatives = (*(prior.name for prior in informative), "none")
        earlier = sum(prior.draws is None for prior in informative)
        self.odds = _odds(earlier, len(informative))
        self.means: Floats = np.array(
            [*(_centred(prior.mean) for prior in informative), np.zeros(count)]
        )
        self._unknown: list[Bools] = [
            *(~np.isfinite(prior.mean) for prior in informative),
            np.zeros(count, dtype=np.bool_),
        ]
        self.figures = (*(prior.figures for prior in informative), ())
        levels = [
            math.nan if one.draws is None else float(_filled(one.mean).mean())
            for one in informative
        ]
        self.levels: Floats = np.array([*levels, math.nan])
        self.level_sds: Floats = np.where(np.isnan(self.levels), _ANY_LEVEL_SD, _LEVEL_SD)
        errors = [_effect_errors(prior, encoding) for prior in informative]
        # Without a prior these effects are as uncertain.
        errors.append(max(errors, key=np.size, default=np.zeros((count, 0))))
        draws = [*(prior.draws for prior in informative), None]
        drawn = [
            np.hstack([_deviations(one, count), error])
            for one, error in zip(draws, errors, strict=True)
        ]
        # Candidates without a prediction share an offset: a further column.
        parts = [_PART_SD * unknown[:, None] for unknown in self._unknown]
        self.deviations = [
            np.hstack(both) if both[1].any() else both[0] for both in zip(drawn, parts, strict=True)
        ]
        self.physics_variance: Floats = np.array([(one**2).sum(axis=1) for one in self.deviations])
        known = [prior.p_starts for prior in priors if prior.p_starts is not None]
        self.p_starts: Floats = np.clip(np.fmin.reduce([np.ones(count), *known]), 0.0, 1.0)
        words = next((prior.doubts for prior in priors if prior.doubts is not None), ("",) * count)
        engines = encoding.codes[:, 0].tolist()
        groups = {
            pair: code for code, pair in enumerate(dict.fromkeys(zip(engines, words, strict=True)))
        }
        self.doubts: Ints = ints([groups[pair] for pair in zip(engines, words, strict=True)])
        self.costs = _costs(priors, count)
        self.limit_ratios = next(
            (prior.limit_ratios for prior in priors if prior.limit_ratios is not None), None
        )
        self.codes = np.ascontiguousarray(encoding.codes[:, encoding.varying].T)
        self.factors = self.codes
        self.several_engines = 0 in encoding.varying  # the first column
        self._distances = [encoding.distances[k] for k in encoding.varying]
        self._effects = [_correlations(one) for one in self._distances]
        self._add_layout([i for i, k in enumerate(encoding.varying) if encoding.names[k] in LAYOUT])
        first = self.factors[:, :product]
        self.beside: Bools = (first == first[:, :1]).all(axis=1)

    def _add_layout(self, knobs: Sequence[int]) -> None:
        """Add the values of some knobs together as one factor, if there are several."""
        if len(knobs) < 2:
            return
        layouts, codes = np.unique(self.codes[knobs], axis=1, return_inverse=True)
        squares = [
            self._distances[knob][np.ix_(own, own)]
            for knob, own in zip(knobs, layouts, strict=True)
        ]
        self._distances.append(floats(np.mean(squares, axis=0)))
        self._effects.append(_correlations(floats(np.sum(squares, axis=0))))
        self.factors = np.vstack([self.codes, codes])

    def means_after(self, launched: Ints) -> Floats:
        """Return `means`; candidates without a prediction get the average of the launched ones."""
        found = self.means.copy()
        for mean, unknown in zip(found, self._unknown, strict=True):
            known = launched[~unknown[launched]]
            if len(known):
                mean[unknown] = mean[known].mean()
        return found

    def physics(self, rows: Ints, positions: Ints) -> Floats:
        """Return covariances of the priors' errors, shape ``(alternatives, rows, positions)``."""
        return np.array([one[rows] @ one[positions].T for one in self.deviations])

    def between(self, rows: Ints, positions: Ints) -> tuple[Floats, Floats]:
        """Return squared distances, and correlations of each factor's main effect; shapes
        ``(factors, rows, positions)``."""
        distances, effects = (
            np.empty((len(self._effects), len(rows), len(positions))) for _ in range(2)
        )
        for tables, found in (self._distances, distances), (self._effects, effects):
            for k, table in enumerate(tables):
                # Once per pair of values, then spread: a knob has few.
                found[k] = table[:, self.factors[k, positions]][self.factors[k, rows]]
        if self.several_engines:
            effects[1:] *= _alike(self.codes[0, rows], self.codes[0, positions])
        return distances, effects

    def summed_effects(self, variances: Floats, positions: Ints, alpha: Floats) -> Floats:
        """Return the posterior mean of the sum of main effects, shape ``(candidates,)``.

        Args:
            variances: shape ``(factors,)``: of each factor's main effect.
            alpha: shape ``(len(positions),)``: the inverse covariance of the launches times their
                residuals.
        """
        total = np.zeros(len(self.encoding))
        for k, table in enumerate(self._effects):
            reach = table[:, self.factors[k, positions]]
            if self.several_engines and k:
                engines = np.arange(self.codes[0].max() + 1)
                by_engine = (_alike(engines, self.codes[0, positions]) * alpha) @ reach.T
                total += variances[k] * by_engine[self.codes[0], self.factors[k]]
            else:
                total += np.take(variances[k] * (reach @ alpha), self.factors[k])
        return total


def _correlations(squares: Floats) -> Floats:
    """Return the correlations of a factor's effects by squared distances of its values."""
    smooth = np.exp(-squares / (2 * _EFFECT_LENGTH**2))
    return floats((1 - _OF_ITS_OWN) * smooth + _OF_ITS_OWN * np.eye(len(smooth)))


def _alike(engines: Ints, others: Ints) -> Floats:
    """Return the correlation of a value's effects in pairs of engines, shape ``(engines,
    others)``."""
    return np.where(engines[:, None] == others, 1.0, _ACROSS_ENGINES)


def _filled(mean: Floats) -> Floats:
    """Limit a prior's lowest means; those that are not predicted become the median of the rest."""
    known = np.isfinite(mean)
    if not known.any():
        return np.zeros(len(mean))
    cut = np.maximum(mean, mean[known].max() - _DEPTH)
    return floats(np.where(known, cut, float(np.median(cut[known]))))


def _centred(mean: Floats) -> Floats:
    filled = _filled(mean)
    return floats(filled - filled.mean())


def _odds(earlier: int, priors: int) -> Floats:
    """Return the odds of each prior and of none: each of the earlier studies, which come first, has
    twice the odds of the next; the predictions behind them have equal odds."""
    halving = 0.5 ** np.minimum(np.arange(priors), earlier)
    return np.append((1 - _NO_PRIOR) * halving / halving.sum(), _NO_PRIOR) if priors else np.ones(1)


def _deviations(draws: Floats | None, count: int) -> Floats:
    """Return each draw's difference from the draws' mean, shape ``(candidates, draws)``, scaled so
    that products of rows are covariances."""
    if draws is None or len(draws) < 2:
        return np.zeros((count, 0))
    filled = np.array([_filled(one) for one in draws])
    return np.ascontiguousarray((filled - filled.mean(axis=0)).T / math.sqrt(len(draws) - 1))


def _effect_errors(prior: Prior, encoding: Encoding) -> Floats:
    """Return the standard deviations of the errors of effects, shape ``(candidates, values)``: a
    column for each value of a knob of which the candidates of an engine have several."""
    found = [np.zeros((len(encoding), 0))]
    for name in sorted(prior.effect_errors.keys() & set(encoding.names)):
        own = encoding.codes[:, [0, encoding.names.index(name)]]
        values = np.unique(own, axis=0)
        several = values[np.bincount(values[:, 0])[values[:, 0]] > 1]
        found.append(prior.effect_errors[name] * (own[:, None] == several).all(axis=2))
    return np.hstack(found)


def _costs(priors: Sequence[Prior], count: int) -> Floats:
    """Return expected seconds of a launch over their median; within a factor of two, as they are
    estimates."""
    known = [prior.launch_s for prior in priors if prior.launch_s is not None]
    if not known or not np.isfinite(known[0]).any():
        return np.ones(count)
    relative = known[0] / np.nanmedian(known[0])
    return floats(np.clip(np.nan_to_num(relative, nan=1.0), 0.5, 2.0))


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Run linear algebra on one thread inside the context.

    The matrices are small: on a busy machine threads wait for each other longer than they work. And
    sums do not depend on the number of cores, so that a study resumed elsewhere decides the same.
    """
    limits: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limits
