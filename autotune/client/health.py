"""Whether the client itself kept up: the first thing to distrust in a measurement."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TICK_S = 0.02
_MAX_LAG_MS = 100.0
_MAX_SEND_DELAY_MS = 100.0
_MAX_CPU_SHARE = 0.9
_MIN_SPAN_S = 2.0
"""Below it the samples are too few: the burst in which all requests are sent would decide alone."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How the client fared during one load.

    Attributes:
        span_s: how long the load was.
        cpu_share: CPU seconds per second of the thread that sends and reads.
        loop_lag_p99_ms: by how much a timer of the event loop was late.
        send_delay_p99_ms: by how much requests with a planned time were late.
        reads: reads of sockets.
        chunks: events with text.
    """

    span_s: float
    cpu_share: float
    loop_lag_p99_ms: float
    send_delay_p99_ms: float
    reads: int
    chunks: int

    @property
    def bound(self) -> bool:
        """Whether the client, not the server, may have set the numbers.

        The limits are plain choices, not calibrated: nine tenths of a core, or 100 ms of lag in one of a hundred
        samples. A load shorter than two seconds is not judged.
        """
        if self.span_s < _MIN_SPAN_S:
            return False
        return (
            self.cpu_share > _MAX_CPU_SHARE
            or self.loop_lag_p99_ms > _MAX_LAG_MS
            or self.send_delay_p99_ms > _MAX_SEND_DELAY_MS
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "cpu_share": round(self.cpu_share, 4),
            "loop_lag_p99_ms": round(self.loop_lag_p99_ms, 3),
            "send_delay_p99_ms": round(self.send_delay_p99_ms, 3),
            "socket_reads": self.reads,
            "chunks": self.chunks,
        }


class LoopMonitor:
    """Samples an event loop from within while a load runs on it."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._began_s, self._cpu_s = time.perf_counter(), time.thread_time()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lags_s.append(max(time.perf_counter() - due, 0.0))

    def health(self, send_delay_s: NDArray[np.float64], reads: int, chunks: int) -> ClientHealth:
        """The samples so far, in figures."""
        span_s = time.perf_counter() - self._began_s
        return ClientHealth(
            span_s=span_s,
            cpu_share=(time.thread_time() - self._cpu_s) / span_s,
            loop_lag_p99_ms=_p99(np.array(self._lags_s)) * 1e3,
            send_delay_p99_ms=_p99(send_delay_s) * 1e3,
            reads=reads,
            chunks=chunks,
        )


def _p99(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 99)) if len(values) else 0.0
