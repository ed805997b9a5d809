"""Types of NumPy arrays, and rankings of their values that no processor changes.

The last digits of an exponential depend on the processor's vector instructions. Candidates that are equal but for these
digits must come in the same order everywhere, or a study ends differently on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_DIGITS = 6
"""Values are compared by so many decimals of their share of the largest magnitude."""


def argmax(values: Floats, seed: Sequence[int]) -> int:
    """The index of the largest value, ties broken at random."""
    compared = _rounded(values)
    return int(np.random.default_rng(list(seed)).choice(np.flatnonzero(compared == compared.max())))


def descending(values: Floats, seed: Sequence[int] | None = None) -> Ints:
    """The indices from the largest value to the smallest, shape ``(values,)``; ties ascending, or at random.

    Args:
        seed: of the order of ties; None: by index.
    """
    count = len(values)
    order = np.arange(count) if seed is None else np.random.default_rng(list(seed)).permutation(count)
    return np.asarray(np.lexsort((order, -_rounded(values))), dtype=np.int64)


def _rounded(values: Floats) -> Floats:
    largest = np.abs(values, where=np.isfinite(values), out=np.zeros(len(values))).max(initial=0.0)
    return np.asarray(np.round(values / (largest or 1.0), _DIGITS), dtype=np.float64)
