"""The candidates as numbers: knobs as choices, and how far apart two values of a knob are.

Distances carry the meaning of the values: sizes are compared by their logarithm, names are alike or
not, and a knob that the engine does not have (None) lies in the middle of the others with a small
distance to all of them. Each knob's values are points of a Euclidean space, so that kernels of their
distances are valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from autotune.arrays import Bools, Floats, Ints
from autotune.space.enumeration import CandidateSet
from autotune.trial import Scalar

ENGINE = "engine"
_ABSENCE = 0.3
"""Distance along its own axis of "not applicable" from any value, where a whole range of sizes is 1."""


class Encoding:
    """The candidates of a study as integer codes, one column per knob that differs among them.

    Attributes:
        names: the columns, ``engine`` first.
        choices: column to its values, in a fixed order; None = not applicable.
        codes: shape ``(candidates, columns)``: index into the column's choices.
        varying: the columns that have more than one choice.
        monotone_memory: the columns of which a larger value never needs less GPU memory.
        distances: per column the squared distances between its choices, shape ``(choices, choices)``.
    """

    def __init__(self, candidates: CandidateSet) -> None:
        configurations = [c.configuration for c in candidates.items]
        self.names = (ENGINE, *sorted({k for c in configurations for k in c.knobs} - {ENGINE}))
        columns = {
            name: [c.engine if name == ENGINE else c.knobs.get(name) for c in configurations] for name in self.names
        }
        self.choices: dict[str, tuple[Scalar, ...]] = {name: _choices(column) for name, column in columns.items()}
        self._lookup = {name: {value: i for i, value in enumerate(self.choices[name])} for name in self.names}
        codes = [[self._lookup[name][value] for value in columns[name]] for name in self.names]
        self.codes: Ints = np.array(codes, dtype=np.int64).T
        self.monotone_memory = candidates.monotone_memory
        self.varying = [k for k, name in enumerate(self.names) if len(self.choices[name]) > 1]
        self.distances = [squared_distances(self.choices[name]) for name in self.names]

    def __len__(self) -> int:
        return len(self.codes)

    def params(self, position: int) -> dict[str, Scalar]:
        """A candidate as Optuna's parameters: the engine and the knobs that it sets."""
        row = self.codes[position]
        values = {name: self.choices[name][code] for name, code in zip(self.names, row, strict=True)}
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def values(self) -> Mapping[str, tuple[Scalar, ...]]:
        """The values that candidates set, of each column that any of them sets."""
        values = {name: tuple(v for v in choices if v is not None) for name, choices in self.choices.items()}
        return {name: choices for name, choices in values.items() if choices}

    def nearest(self, params: Mapping[str, Scalar], allowed: Bools) -> int:
        """The allowed candidate nearest to parameters that need be no candidate; the first of equals.

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
    return tuple(sorted(unique, key=lambda v: (v is not None, isinstance(v, str), v if is_size(v) else 0.0, str(v))))


def is_size(value: Scalar) -> bool:
    """Whether a value is a number, so that more and less mean something."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def squared_distances(choices: Sequence[Scalar]) -> Floats:
    """Squared distances between a knob's values, shape ``(choices, choices)``; the largest is about 1."""
    present = [v for v in choices if v is not None]
    there = np.array([value is not None for value in choices])
    if present and all(is_size(v) for v in present):
        points = _sizes(present)
        between, from_middle = (points[:, None] - points[None, :]) ** 2, (points - points.mean()) ** 2
    else:
        # Names are the corners of a simplex with edges of 1: written down at once, a table may have thousands.
        between = 1.0 - np.eye(len(present))
        from_middle = np.full(len(present), 0.5 - 0.5 / max(1, len(present)))
    table = np.zeros((len(choices), len(choices)))
    table[np.ix_(there, there)] = between
    table[np.ix_(there, ~there)] = from_middle[:, None] + _ABSENCE**2
    table[np.ix_(~there, there)] = from_middle[None, :] + _ABSENCE**2
    return table


def _sizes(values: Sequence[Scalar]) -> Floats:
    numbers = np.array([float(v) for v in values if v is not None])
    logs = np.log2(numbers) if numbers.min() > 0 else np.sign(numbers) * np.log2(1 + np.abs(numbers))
    span = float(logs.max() - logs.min())
    scaled = (logs - logs.min()) / (span if math.isfinite(span) and span > 0 else 1.0)
    return np.asarray(scaled, dtype=np.float64)
