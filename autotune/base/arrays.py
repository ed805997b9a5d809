"""Types of NumPy arrays, and rankings of values that are equal on all processors.

The last digits of an exponential depend on the processor's vector instructions. Candidates that are
equal but for these digits must come in the same order everywhere, or a study ends differently on
another machine.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_DIGITS = 6
"""Compared decimals of a value's share of the largest magnitude."""


def floats(values: ArrayLike) -> Floats:
    """Return values as an array of floating-point numbers; one that is such an array as it is."""
    return np.asarray(values, dtype=np.float64)


def ints(values: ArrayLike) -> Ints:
    """Return values, e.g. positions, as an array of integers; one that is such an array as it is."""
    return np.asarray(values, dtype=np.int64)


def argmax(values: Floats, seed: Sequence[int]) -> int:
    """Return the index of the largest value, ties broken at random."""
    compared = _rounded(values)
    return int(np.random.default_rng(list(seed)).choice(np.flatnonzero(compared == compared.max())))


def descending(values: Floats) -> Ints:
    """Return the indices from the largest value to the smallest, ties ascending; shape
    ``(values,)``."""
    return np.argsort(-_rounded(values), kind="stable")


def _rounded(values: Floats) -> Floats:
    largest = np.abs(values, where=np.isfinite(values), out=np.zeros(len(values))).max(initial=0.0)
    return floats(np.round(values / (largest or 1.0), _DIGITS))
