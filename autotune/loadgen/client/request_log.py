"""Log of a load in columns, one element per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.loadgen.client.outcomes import RequestOutcome, tally
from autotune.loadgen.client.stream import Exchange
from autotune.metrics.records import COLUMNS, SERIES, RequestRecords


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Log of the requests of one load, or of one worker's part of it.

    Attributes:
        records: what the metrics are made of; times in seconds of ``CLOCK_MONOTONIC``, one clock for all
            processes of a machine. A request that failed has NaN where it knows nothing.
        outcomes: how each request ended, n entries.
        retries: connections that turned out stale before the request was answered, shape (n,).
        send_delay_s: how much later than planned each was sent, shape (n,); zeros in a closed loop.
        cached_tokens: prompt tokens that the server took from its cache, shape (n,); NaN where it does not tell.
        chunks: events with text, shape (n,).
        expected_tokens: how many tokens each answer was asked to have, shape (n,).
    """

    records: RequestRecords
    outcomes: tuple[RequestOutcome, ...]
    retries: Ints
    send_delay_s: Floats
    cached_tokens: Floats
    chunks: Ints
    expected_tokens: Ints

    def __len__(self) -> int:
        return len(self.outcomes)

    @classmethod
    def of(cls, exchanges: Sequence[Exchange], retries: Sequence[int], send_delay_s: Floats) -> RequestLog:
        """Build the columns from exchanges that have all ended."""
        outcomes = tuple(_outcome(exchange) for exchange in exchanges)
        ok = np.array([outcome.ok for outcome in outcomes], dtype=bool)
        counts = np.array([_counts(exchange) for exchange in exchanges], dtype=np.float64).reshape(-1, 3)
        times = [np.frombuffer(exchange.events.times_ns, dtype=np.int64) for exchange in exchanges]
        chunks = np.array([len(t) for t in times], dtype=np.int64)
        good = [t for t, fine in zip(times, ok, strict=True) if fine]
        records = RequestRecords(
            sent_s=np.array([exchange.sent_ns for exchange in exchanges]) / 1e9,
            first_token_s=np.array([t[0] if len(t) else np.nan for t in times]) / 1e9,
            finished_s=np.array([exchange.finished_ns for exchange in exchanges]) / 1e9,
            input_tokens=counts[:, 0],
            output_tokens=counts[:, 1],
            ok=ok,
            itl_ms=_joined([np.diff(t) for t in good]) / 1e6,
            token_s=_joined(good) / 1e9,
            # A chunk may carry several tokens and does not say how many: the request's tokens, spread evenly.
            token_n=np.repeat(counts[ok, 1] / np.maximum(chunks[ok], 1), chunks[ok]),
        )
        expected = np.array([exchange.expected_tokens for exchange in exchanges], dtype=np.int64)
        return cls(records, outcomes, np.array(retries, dtype=np.int64), send_delay_s, counts[:, 2], chunks, expected)

    @classmethod
    def merged(cls, logs: Sequence[RequestLog]) -> RequestLog:
        """Join the logs of several workers; raw samples are joined, never statistics of them.

        Args:
            logs: by worker; the first requests of all workers come first, then the second ones, as they were dealt.
        """
        places = np.concatenate([np.arange(len(log)) for log in logs])
        workers = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
        dealt = np.lexsort((workers, places))
        outcomes = [outcome for log in logs for outcome in log.outcomes]

        def joined(name: str) -> Ints:
            return np.concatenate([getattr(log, name) for log in logs])[dealt]

        return cls(
            _merged_records([log.records for log in logs], joined("chunks"), dealt),
            tuple(outcomes[place] for place in dealt),
            joined("retries"),
            joined("send_delay_s").astype(np.float64),
            joined("cached_tokens").astype(np.float64),
            joined("chunks"),
            joined("expected_tokens"),
        )

    @property
    def tally(self) -> dict[str, int]:
        """How many requests ended in which way."""
        return tally(self.outcomes)

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens per successful answer, and how many were asked for; zeros without any."""
        ok = self.records.ok
        count = max(int(ok.sum()), 1)
        return float(self.records.output_tokens[ok].sum()) / count, float(self.expected_tokens[ok].sum()) / count

    @property
    def length_error(self) -> float:
        """By what share the mean output length is off the one asked for, over successful requests; 0 without any."""
        written, expected = self.mean_lengths
        return abs(written / expected - 1) if expected else 0.0

    @property
    def cache_hit_rate(self) -> float | None:
        """Share of prompt tokens that came from the cache; None unless every answer tells."""
        ok = self.records.ok
        cached, read = self.cached_tokens[ok], self.records.input_tokens[ok]
        if not len(cached) or np.isnan(cached).any() or not read.sum():
            return None
        return float(cached.sum() / read.sum())


def _outcome(exchange: Exchange) -> RequestOutcome:
    assert exchange.outcome is not None, "a load ends when all its requests have"
    return exchange.outcome


def _counts(exchange: Exchange) -> tuple[float, float, float]:
    if exchange.usage is None:
        return np.nan, np.nan, np.nan
    read, written, cached = exchange.usage
    return read, written, np.nan if cached is None else cached


def _merged_records(records: Sequence[RequestRecords], chunks: Ints, dealt: Ints) -> RequestRecords:
    """The records in the order `dealt`, and the series of the successful ones with them.

    Args:
        chunks: of each request, in that order already.
    """
    ordered = {name: np.concatenate([getattr(r, name) for r in records])[dealt] for name in COLUMNS}
    # The series hold the successful requests one after the other: of each, its chunks, or the gaps between them.
    ok = ordered["ok"]
    tokens = np.where(ok, chunks, 0)
    for name, lengths in zip(SERIES, (np.maximum(tokens - 1, 0), tokens, tokens), strict=True):
        series = np.concatenate([getattr(r, name) for r in records])
        ordered[name] = series[_picks(lengths, dealt)]
    return RequestRecords(**ordered)


def _picks(lengths: Ints, dealt: Ints) -> Ints:
    """Indices that put the pieces of a series, `lengths` long, into the order `dealt`, shape (total,)."""
    before = np.empty_like(lengths)
    before[dealt] = lengths
    starts = (np.cumsum(before) - before)[dealt]
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
