"""Any Optuna search space as an enumerated one: some levels of each parameter, all combinations or a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from autotune.arrays import Ints
from autotune.search.gp.encoding import Encoding
from autotune.search.gp.kernels import Kernels
from autotune.space.candidates import Candidate, CandidateSet
from autotune.trial import Configuration

LEVELS = 65
"""At most so many values of one parameter."""
COMBINATIONS = 2000
"""At most so many candidates."""


@dataclass(frozen=True)
class Discretised:
    """A search space at some levels.

    Attributes:
        levels: parameter to its values, ascending where they are numbers.
        codes: shape ``(candidates, parameters)``: index of each candidate's value among the levels.
    """

    distributions: Mapping[str, BaseDistribution]
    levels: Mapping[str, Sequence[Any]]
    codes: Ints

    @classmethod
    def of(
        cls, space: Mapping[str, BaseDistribution], tried: Sequence[Mapping[str, Any]], seed: Sequence[int]
    ) -> Discretised:
        """Make a space discrete.

        Args:
            tried: parameters that must be among the candidates, or what is nearest to them.
            seed: of the sample of combinations.
        """
        levels = {name: _levels(distribution) for name, distribution in space.items()}
        sizes = [len(values) for values in levels.values()]
        if math.prod(sizes) <= COMBINATIONS:
            codes = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
        else:
            codes = np.random.default_rng(list(seed)).integers(0, sizes, (COMBINATIONS, len(sizes)))
        there = [row for params in tried if (row := _codes(levels, space, params)) is not None]
        every = np.unique(np.concatenate([codes, np.array(there, dtype=np.int64).reshape(-1, len(sizes))]), axis=0)
        return cls(space, levels, every)

    @cached_property
    def kernels(self) -> Kernels:
        """The candidates for the process, without priors."""
        # Numbered, so that no parameter's name is taken for a knob that something is known of.
        items = [
            Candidate(
                Configuration(
                    "space", {f"{k}": _scalar(values[row[k]], row[k]) for k, values in enumerate(self.levels.values())}
                ),
                "",
            )
            for row in self.codes.tolist()
        ]
        return Kernels(Encoding(CandidateSet(tuple(items), 0)))

    def position(self, params: Mapping[str, Any]) -> int | None:
        """The candidate nearest to parameters; None where they do not belong to this space."""
        row = _codes(self.levels, self.distributions, params)
        return None if row is None else self._positions.get(tuple(row))

    @cached_property
    def _positions(self) -> dict[tuple[int, ...], int]:
        return {tuple(row): i for i, row in enumerate(self.codes.tolist())}

    def params(self, position: int) -> dict[str, Any]:
        """A candidate as Optuna's parameters."""
        row = self.codes[position]
        return {name: values[code] for (name, values), code in zip(self.levels.items(), row, strict=True)}


def _levels(distribution: BaseDistribution) -> Sequence[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        count = (distribution.high - distribution.low) // distribution.step + 1
        steps = np.unique(np.round(_spaced(0, count - 1, min(count, LEVELS), distribution)).astype(int))
        return [distribution.low + int(step) * distribution.step for step in steps]
    assert isinstance(distribution, FloatDistribution)
    if distribution.step is not None:
        count = math.floor((distribution.high - distribution.low) / distribution.step + 1e-9) + 1
        steps = np.unique(np.round(np.linspace(0, count - 1, min(count, LEVELS))).astype(int))
        return [min(distribution.low + float(step) * distribution.step, distribution.high) for step in steps]
    ends = distribution.low, distribution.high
    spaced = np.geomspace(*ends, LEVELS) if distribution.log else np.linspace(*ends, LEVELS)
    return [min(max(float(value), distribution.low), distribution.high) for value in spaced]


def _spaced(low: int, high: int, count: int, distribution: IntDistribution) -> Any:
    """Steps from low to high; of a logarithmic parameter so that the values' ratios are equal."""
    if not distribution.log:
        return np.linspace(low, high, count)
    return np.geomspace(distribution.low, distribution.high, count) - distribution.low


def _codes(
    levels: Mapping[str, Sequence[Any]], space: Mapping[str, BaseDistribution], params: Mapping[str, Any]
) -> list[int] | None:
    """The nearest level of each parameter; None where one is missing or lies outside."""
    found = []
    for name, values in levels.items():
        distribution = space[name]
        if name not in params or not distribution._contains(distribution.to_internal_repr(params[name])):
            return None
        if isinstance(distribution, CategoricalDistribution):
            found.append(int(distribution.to_internal_repr(params[name])))
        else:
            found.append(int(np.argmin(np.abs(np.array(values, dtype=float) - float(params[name])))))
    return found


def _scalar(value: Any, code: int) -> bool | int | float | str | None:
    """A value whose distance to others means something; of anything else only whether it is the same."""
    return value if isinstance(value, bool | int | float | str) or value is None else f"choice {code}"
