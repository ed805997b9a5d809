"""Health of the load client: whether it kept up, the first thing to distrust in a measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from autotune.arrays import Floats

_TICK_S = 0.02
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of the calling thread: ns on a CPU, ns runnable but not running, time slices (the kernel's sched-stats.rst)."""


_SPAN_S = 2.0
"""A shorter load is not judged: its samples are too few, and the burst in which all requests are sent would decide
alone."""
_SPAN_WITHOUT_BURST_S = 0.5
"""The same of a load whose streams begin one after the other."""

_LIMITS: tuple[tuple[str, float, str, str], ...] = (
    ("cpu_share", 0.9, "{:.0%}", "{} of a core"),
    ("run_delay_share", 0.25, "{:.0%}", "kept from running {} of the time"),
    ("loop_lag_p99_ms", 100.0, "{:.0f} ms", "event loop lag p99 {}"),
    ("send_delay_p99_ms", 100.0, "{:.0f} ms", "send delay p99 {}"),
)
"""Beyond any of these the client, not the server, may have set the numbers: figure, limit, its form, and the words.

``benchmarks/client_self_test.py`` compares them with the truth. On two cores shared with other work, 1,000 to 40,000
chunks per second, they detected every load whose p99 of TTFT was more than 20 ms late; biases of 10 to 20 ms passed in
3 of 16 loads. The run delay detected them: accurate loads had at most 15 %, others mostly over 20 %.
"""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Figures of the client during one load; of several workers, those of the worst; zeros when none reported.

    Attributes:
        span_s: how long the load was.
        cpu_share: of one core, by the thread that sends and reads.
        run_delay_share: of the load's time in which that thread could have run and was not let.
        loop_lag_p99_ms: by how much a timer of the event loop is late.
        send_delay_p99_ms: by how much requests with a planned time are late.
        reads: reads of sockets.
        chunks: events with text.
    """

    span_s: float = 0.0
    cpu_share: float = 0.0
    run_delay_share: float = 0.0
    loop_lag_p99_ms: float = 0.0
    send_delay_p99_ms: float = 0.0
    reads: int = 0
    chunks: int = 0

    @classmethod
    def of_all(cls, workers: Sequence[ClientHealth]) -> ClientHealth:
        """Each figure of the worst worker; reads and chunks of all together."""
        worst = {field.name: max(getattr(worker, field.name) for worker in workers) for field in fields(cls)}
        summed = {name: sum(getattr(worker, name) for worker in workers) for name in ("reads", "chunks")}
        return cls(**{**worst, **summed})

    @property
    def chunks_per_read(self) -> float:
        """Well above 1, chunks wait for us: one read finds several of them."""
        return self.chunks / self.reads if self.reads else 0.0

    def excess(self, burst: bool = True) -> str:
        """What is beyond the limits, in words; empty when the client kept up.

        Args:
            burst: whether all requests that may be in flight were sent at once.
        """
        if self.span_s < (_SPAN_S if burst else _SPAN_WITHOUT_BURST_S):
            return ""
        beyond = [
            f"{words.format(form.format(getattr(self, name)))} (limit {form.format(limit)})"
            for name, limit, form, words in _LIMITS
            if getattr(self, name) > limit
        ]
        return ", ".join(beyond)

    def to_json(self) -> dict[str, Any]:
        figures = {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return {**figures, "chunks_per_read": round(self.chunks_per_read, 3)}


class LoopMonitor:
    """Samples an event loop, and the thread that it runs on, from within while a load runs."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._began_s, self._cpu_s, self._waited_s = time.perf_counter(), time.thread_time(), _run_delay_s()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            due = time.perf_counter() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lags_s.append(max(time.perf_counter() - due, 0.0))

    def health(self, send_delay_s: Floats, reads: int, chunks: int) -> ClientHealth:
        """Figures of the samples so far."""
        span_s = time.perf_counter() - self._began_s
        return ClientHealth(
            span_s=span_s,
            cpu_share=(time.thread_time() - self._cpu_s) / span_s,
            run_delay_share=(_run_delay_s() - self._waited_s) / span_s,
            loop_lag_p99_ms=_p99(np.array(self._lags_s)) * 1e3,
            send_delay_p99_ms=_p99(send_delay_s) * 1e3,
            reads=reads,
            chunks=chunks,
        )


def _run_delay_s() -> float:
    """Seconds for which this thread was runnable and another one ran; 0 where the kernel does not count it."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _p99(values: Floats) -> float:
    return float(np.percentile(values, 99)) if len(values) else 0.0
