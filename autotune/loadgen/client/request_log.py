"""Log of a load in columns, one element per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.loadgen.client.outcomes import RequestOutcome
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
        outcomes = tuple(exchange.outcome for exchange in exchanges if exchange.outcome is not None)
        assert len(outcomes) == len(exchanges), "a load ends when all its requests have"
        ok = np.array([outcome.ok for outcome in outcomes], dtype=bool)
        usage = [exchange.usage or (None, None, None) for exchange in exchanges]
        counts = np.array(usage, dtype=np.float64).reshape(-1, 3)  # NaN where there is None
        times = [np.frombuffer(exchange.events.times_ns, dtype=np.int64) for exchange in exchanges]
        chunks = np.array([len(t) for t in times], dtype=np.int64)
        none = np.empty(0, dtype=np.int64)
        good = [t for t, fine in zip(times, ok, strict=True) if fine]
        records = RequestRecords(
            sent_s=np.array([exchange.sent_ns for exchange in exchanges]) / 1e9,
            first_token_s=np.array([t[0] if len(t) else np.nan for t in times]) / 1e9,
            finished_s=np.array([exchange.finished_ns for exchange in exchanges]) / 1e9,
            input_tokens=counts[:, 0],
            output_tokens=counts[:, 1],
            ok=ok,
            itl_ms=np.concatenate([none, *(np.diff(t) for t in good)]) / 1e6,
            token_s=np.concatenate([none, *good]) / 1e9,
            # A chunk may carry several tokens and does not say how many: the request's tokens, spread evenly.
            token_n=np.repeat(counts[ok, 1] / np.maximum(chunks[ok], 1), chunks[ok]),
        )
        expected = np.array([exchange.expected_tokens for exchange in exchanges], dtype=np.int64)
        return cls(records, outcomes, np.array(retries, dtype=np.int64), send_delay_s, counts[:, 2], chunks, expected)

    @classmethod
    def merged(cls, logs: Sequence[RequestLog], places: Sequence[Ints] | None = None) -> RequestLog:
        """Join the logs of several workers; raw samples are joined, never statistics of them.

        Args:
            logs: by worker.
            places: of each worker's requests in the load, ascending; None: the first requests of all workers come
                first, then the second ones, as they were dealt.
        """
        places = places if places is not None else [np.arange(len(log)) for log in logs]
        workers = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
        dealt = np.lexsort((workers, np.concatenate(places)))
        outcomes = [outcome for log in logs for outcome in log.outcomes]
        records = [log.records for log in logs]
        columns = {name: _joined(records, name)[dealt] for name in COLUMNS}
        # The series hold the successful requests one after the other: of each, its chunks, or the gaps between them.
        chunks = np.where(_joined(records, "ok"), _joined(logs, "chunks"), 0)
        for name, lengths in zip(SERIES, (np.maximum(chunks - 1, 0), chunks, chunks), strict=True):
            pieces = np.split(_joined(records, name), np.cumsum(lengths)[:-1])
            columns[name] = np.concatenate([pieces[place] for place in dealt])
        others = ("retries", "send_delay_s", "cached_tokens", "chunks", "expected_tokens")
        return cls(
            RequestRecords(**columns),
            tuple(outcomes[place] for place in dealt),
            *(_joined(logs, name)[dealt] for name in others),
        )

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


def _joined(parts: Sequence[RequestLog] | Sequence[RequestRecords], name: str) -> Any:
    return np.concatenate([getattr(part, name) for part in parts])
