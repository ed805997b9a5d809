"""Energy of a server's GPUs in the steady part of a load, integrated from the power that the driver reports.

Power is read and never capped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import perf_counter
from typing import NamedTuple

import numpy as np

from autotune.metrics.formulas import steady_part
from autotune.metrics.records import RequestRecords
from autotune.metrics.table import ENERGY
from autotune.trial import Metrics

PERIOD_S = 0.2
"""Between two readings; drivers refresh their own figures about ten times a second."""

ReadPower = Callable[[], float | None]
"""Reads the power of some GPUs, in W; None where it is not told now."""


class Energy(NamedTuple):
    """Energy, output tokens and seconds of the steady part of a load."""

    joules: float
    tokens: float
    seconds: float


class Meter:
    """Reads power while a load runs; use it as a context manager. Where nobody tells it, nothing is read."""

    def __init__(self, read: ReadPower | None) -> None:
        self._read, self._over = read or (lambda: None), Event()
        self._readings: list[tuple[float, float]] = []
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while (watts := self._read()) is not None:
            self._readings.append((perf_counter(), watts))
            if over:
                return
            over = self._over.wait(PERIOD_S)

    def of(self, records: RequestRecords) -> Energy | None:
        """Return what the steady part of a load took, by this machine's clock; None where readings do not cover it."""
        begin_s, end_s, _, tokens = steady_part(records)
        if len(self._readings) < 2 or not tokens:
            return None
        at_s, watts = np.array(self._readings).T
        joules = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * (watts[1:] + watts[:-1]) / 2)])
        first, last = np.interp([begin_s, end_s], at_s, joules, left=np.nan, right=np.nan).tolist()
        return Energy(last - first, tokens, end_s - begin_s) if last > first else None


def energy_metrics(loads: Sequence[Energy | None]) -> Metrics:
    """Return the metrics of some loads together; none unless the energy of all is known, rather than a zero."""
    known = [one for one in loads if one is not None]
    if not known or len(known) < len(loads):
        return {}
    joules, tokens, seconds = (sum(column) for column in zip(*known, strict=True))
    return dict(zip(ENERGY, (joules / tokens, joules / seconds), strict=False))
