"""What is told of a load while it is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.metrics.records import RequestRecords


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is; all are counts since its start."""

    sent: int
    finished: int
    failed: int
    total: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker tells, a few times per second.

    Attributes:
        progress: of this worker's share.
        now_s: when it was told, in seconds of ``CLOCK_MONOTONIC``.
        rows: positions, within the share, of the requests that changed since the last report, shape (k,).
        columns: of each of them, shape (k, 7): when it was sent, when its first token came, when it finished (seconds
            of ``CLOCK_MONOTONIC``, NaN = not yet), its output tokens (NaN = not yet known), 1 if it succeeded,
            when its last event with a choice came, and how many events with text had come.
    """

    progress: Progress
    now_s: float
    rows: Ints
    columns: Floats


class Overview:
    """All workers' reports put together: the load as it stands.

    Args:
        requests: how many the load has.
        input_tokens: of each, shape (requests,).
        workers: how many share it; request i is number i // workers of worker i % workers.
    """

    def __init__(self, requests: int, input_tokens: Ints, workers: int) -> None:
        self._input_tokens, self._workers = input_tokens, workers
        self._columns = np.full((requests, 7), np.nan)
        self._progress = [Progress(0, 0, 0, 0, 0)] * workers
        self._told_s = [-np.inf] * workers
        self._total = requests

    def add(self, worker: int, report: Report) -> None:
        """What a worker tells replaces what was known of the same requests."""
        self._progress[worker], self._told_s[worker] = report.progress, report.now_s
        self._columns[report.rows * self._workers + worker] = report.columns

    @property
    def progress(self) -> Progress:
        """The sum over the workers."""
        told = self._progress
        return Progress(_sum(told, "sent"), _sum(told, "finished"), _sum(told, "failed"), self._total, self.chunks)

    @property
    def chunks(self) -> int:
        return _sum(self._progress, "chunks")

    @property
    def now_s(self) -> float:
        """Until when everything is known: the earliest of the workers' last reports; -inf before each has told."""
        return float(min(self._told_s))

    def heard_s(self) -> Floats:
        """When the last event of each request of the snapshot came, NaN before the first, shape (requests sent,)."""
        heard: Floats = self._columns[~np.isnan(self._columns[:, 0]), 5]
        return heard

    def snapshot(self) -> RequestRecords:
        """One element per request sent so far, NaN for what has not happened yet."""
        sent = ~np.isnan(self._columns[:, 0])
        columns = self._columns[sent]
        return RequestRecords(
            columns[:, 0],
            columns[:, 1],
            columns[:, 2],
            self._input_tokens[sent].astype(np.float64),
            columns[:, 3],
            ok=columns[:, 4] == 1.0,
        )


def _sum(told: Sequence[Progress], name: str) -> int:
    return sum(int(getattr(progress, name)) for progress in told)
