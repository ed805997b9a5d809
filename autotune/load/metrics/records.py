"""Records of requests, one element per request, and their latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from autotune.base import FloatDict, Json, frozen
from autotune.base.arrays import Bools, Floats

COLUMNS = ("sent_s", "first_token_s", "finished_s", "input_tokens", "output_tokens", "ok")
_TIMES = ("sent_s", "first_token_s", "finished_s", "token_s")
SERIES = ("itl_ms", "token_s", "token_n")


def _empty() -> Floats:
    return np.empty(0)


@frozen
class RequestRecords:
    """Requests of a client, one element for each; times in seconds on one clock.

    Attributes:
        sent_s, first_token_s, finished_s: of the request, its first token and its last one, shape
            (n,).
        input_tokens, output_tokens: of the prompt, and generated, shape (n,).
        ok: whether it succeeded, shape (n,); a failed request counts in ``failed`` only.
        itl_ms: all gaps between consecutive chunks of successful requests, in any order, shape
            (m,).
        token_s: times at which output tokens came, shape (k,); empty = all at `finished_s` (not
            streamed).
        token_n: how many came then, shape (k,).
    """

    sent_s: Floats
    first_token_s: Floats
    finished_s: Floats
    input_tokens: Floats
    output_tokens: Floats
    ok: Bools
    itl_ms: Floats = field(default_factory=_empty)
    token_s: Floats = field(default_factory=_empty)
    token_n: Floats = field(default_factory=_empty)

    def __len__(self) -> int:
        return len(self.sent_s)

    @classmethod
    def empty(cls) -> RequestRecords:
        """Return a run without requests."""
        return cls(_empty(), _empty(), _empty(), _empty(), _empty(), ok=np.empty(0, dtype=np.bool_))

    @property
    def duration_s(self) -> float:
        """Return the seconds from the first request sent to the last one finished; 0 for none."""
        return float(self.finished_s.max() - self.sent_s.min()) if len(self) else 0.0

    def successful(self) -> RequestRecords:
        """Return only the successful requests; the series already hold only these."""
        return replace(self, **{name: getattr(self, name)[self.ok] for name in COLUMNS})

    def in_order_of_sending(self) -> RequestRecords:
        """Return the requests in the order in which they were sent; the series stay as they are."""
        order = np.argsort(self.sent_s, kind="stable")
        return replace(self, **{name: getattr(self, name)[order] for name in COLUMNS})

    def faster(self, factor: float) -> RequestRecords:
        """Return the same run with all times divided by a factor."""
        return replace(self, **{name: getattr(self, name) / factor for name in (*_TIMES, "itl_ms")})

    @classmethod
    def one_after_another(cls, runs: Sequence[RequestRecords]) -> RequestRecords:
        """Return several runs on one server, such as the load points of a sweep, as one run without
        pauses."""
        shifted = []
        clock_s = 0.0
        for run in runs:
            if len(run):
                shift_s = clock_s - float(run.sent_s.min())
                shifted.append(
                    replace(run, **{name: getattr(run, name) + shift_s for name in _TIMES})
                )
                clock_s = float(shifted[-1].finished_s.max())
        return cls(**_joined(shifted)) if shifted else cls.empty()

    @classmethod
    def side_by_side(cls, runs: Sequence[RequestRecords]) -> RequestRecords:
        """Join concurrent runs, such as those of several servers, as one run; in the order of
        sending."""
        if len(runs) == 1:
            return runs[0]
        joined = _joined(runs)
        for clock, names in (("sent_s", COLUMNS), ("token_s", ("token_s", "token_n"))):
            order = np.argsort(joined[clock], kind="stable")
            joined |= {name: joined[name][order] for name in names}
        return cls(**joined)


def _joined(runs: Sequence[RequestRecords]) -> Json:
    return {
        name: np.concatenate([getattr(run, name) for run in runs]) for name in (*COLUMNS, *SERIES)
    }


QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Statistic to its quantile, interpolated linearly."""

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def tpot_ms(records: RequestRecords) -> Floats:
    """Return time per output token after the first, per request; 0 for a single token, shape
    (n,)."""
    gaps = np.maximum(records.output_tokens - 1, 1)
    return np.where(
        records.output_tokens > 1, (records.finished_s - records.first_token_s) / gaps * 1e3, 0.0
    )


def latencies(done: RequestRecords) -> dict[str, Floats]:
    """Return every sample of each latency of successful requests; a single token has no TPOT."""
    return {
        "ttft": (done.first_token_s - done.sent_s) * 1e3,
        "tpot": tpot_ms(done)[done.output_tokens > 1],
        "itl": done.itl_ms,
        "e2el": (done.finished_s - done.sent_s) * 1e3,
    }


def statistics(name: str, values: Floats) -> FloatDict:
    """Return all `STATISTICS` of a latency's samples under their names, e.g. ``p99_ttft_ms``; 0
    without samples."""
    values = values if len(values) else np.zeros(1)
    median, *upper = np.percentile(values, (50, 90, 95, 99)).tolist()
    figures = (float(np.mean(values)), median, float(np.std(values)), *upper)
    return {
        f"{statistic}_{name}_ms": value
        for statistic, value in zip(STATISTICS, figures, strict=True)
    }


def token_series(done: RequestRecords) -> tuple[Floats, Floats]:
    """Return times and counts of output tokens, two columns of shape (k,); at a request's end if
    not streamed."""
    if len(done.token_s):
        return done.token_s, done.token_n
    return done.finished_s, done.output_tokens
