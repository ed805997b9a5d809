"""Bias of a load client: the paced server as a child process, and what a client saw against what
was written."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
from paced_server import read_truth

from autotune.base.arrays import Ints
from autotune.load.client.messages import RequestLog
from autotune.load.client.target import Target

Emission = Literal["even", "lockstep"]
Times = Ints

_SERVER = Path(__file__).with_name("paced_server.py")
_TRUTH_S = 60.0
"""For the truth to be handed over: 16 MB per two million tokens."""


class PacedServer:
    """`paced_server` in a process of its own; use it as a context manager.

    Args:
        rate: tokens per second, all streams together.
        streams: how many streams the rate is meant for.
        core: the core that it may run on; None = any.
    """

    def __init__(
        self, rate: float, streams: int, emission: Emission, core: int | None = None
    ) -> None:
        self._command = [sys.executable, str(_SERVER), "--rate", str(rate)]
        self._command += [
            "--streams",
            str(streams),
            *(["--lockstep"] if emission == "lockstep" else []),
        ]
        self._command += [] if core is None else ["--core", str(core)]

    def __enter__(self) -> PacedServer:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the paced server ended with code {self._process.wait()} before it listened"
            )
        self.target = Target("http", "127.0.0.1", int(line))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes its standard input, which ends it

    @property
    def pid(self) -> int:
        return self._process.pid

    def truth(self) -> list[Times]:
        """When the tokens of each request since the last call were written, see `read_truth`."""
        connection = http.client.HTTPConnection(
            self.target.host, self.target.port, timeout=_TRUTH_S
        )
        try:
            connection.request("GET", "/truth")
            return read_truth(connection.getresponse().read())
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw, one entry per request that it holds for whole, in any order; times as in
    `read_truth`.

    Attributes:
        numbers: which request of the truth it is.
        times: when each of its tokens came.
    """

    numbers: Sequence[int]
    times: Sequence[Times]

    @classmethod
    def of(cls, log: RequestLog) -> Seen:
        """From the log of a load; the server tells the number as ``cached_tokens``."""
        ok = log.records.ok
        times = np.round(log.records.token_s * 1e9).astype(np.int64)
        ends = np.cumsum(log.chunks[ok])
        return cls(log.cached_tokens[ok].astype(int).tolist(), np.split(times, ends)[: len(ends)])


@dataclass(frozen=True, slots=True)
class Bias:
    """A client's figures against the truth: seen minus true, over the requests that both know
    whole.

    Attributes:
        requests: how many those are.
        rate: tokens per second of all streams at the pace that the server really kept.
        ttft_p50_ms, ttft_p99_ms: by how much first tokens were seen late.
        itl_p99_ms, true_itl_p99_ms: 99th percentile of all gaps, as seen and as written.
        tpot: mean time per output token, relative: 0.01 = 1 % too long.
    """

    requests: int
    rate: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    true_itl_p99_ms: float
    tpot: float

    @property
    def itl(self) -> float:
        """The 99th percentile of the gaps, relative: 0.1 = 10 % too long."""
        return self.itl_p99_ms / self.true_itl_p99_ms - 1 if self.true_itl_p99_ms else np.inf

    @classmethod
    def between(cls, seen: Seen, truth: Sequence[Times]) -> Bias | None:
        """None when there is no request of at least two tokens that both know whole."""
        known = [
            (times, truth[number]) for number, times in zip(seen.numbers, seen.times, strict=True)
        ]
        pairs = [(times, true) for times, true in known if len(times) == len(true) > 1]
        if not pairs:
            return None
        late_ms = [(times[0] - true[0]) / 1e6 for times, true in pairs]
        seen_s, true_s = (
            np.array([(t[-1] - t[0]) / 1e9 for t in side]) for side in zip(*pairs, strict=True)
        )
        gaps = np.array([len(true) - 1 for _, true in pairs])
        p50, p99 = np.percentile(late_ms, (50, 99))
        return cls(
            requests=len(pairs),
            rate=float((gaps / true_s).sum()),
            ttft_p50_ms=float(p50),
            ttft_p99_ms=float(p99),
            itl_p99_ms=_p99_gap_ms([times for times, _ in pairs]),
            true_itl_p99_ms=_p99_gap_ms([true for _, true in pairs]),
            tpot=float((seen_s / gaps).mean() / (true_s / gaps).mean() - 1),
        )


def _p99_gap_ms(times: Sequence[Times]) -> float:
    return float(np.percentile(np.concatenate([np.diff(t) for t in times]), 99)) / 1e6
