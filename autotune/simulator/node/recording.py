"""Keeps when tokens came, compactly: one entry per step instead of one per token."""

from __future__ import annotations

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.loadgen.requests import Requests
from autotune.metrics.records import RequestRecords

Ids = Ints


class Recorder:
    """What a client would have seen of one load point."""

    def __init__(self, requests: Requests) -> None:
        n = len(requests.input_tokens)
        self._requests = requests
        self._sent, self._first, self._finished = np.zeros(n), np.full(n, np.nan), np.zeros(n)
        self._last = np.zeros(n)
        self._gaps: list[Floats] = []
        self._times: list[Floats] = []
        self._counts: list[Floats] = []

    def sent(self, request: int, at_s: float) -> None:
        """A request was sent."""
        self._sent[request] = at_s

    def first(self, ids: Ids, at_s: float) -> None:
        """The prompts of these were computed; each one's token is its first, or one more after a preemption."""
        new = np.isnan(self._first[ids])
        self._first[ids[new]] = at_s
        self._gaps.append(at_s - self._last[ids[~new]])
        self._last[ids] = at_s
        self._tokens(np.array([at_s]), np.array([float(len(ids))]))

    def step(self, ids: Ids, at_s: float, gain: float) -> None:
        """Each of these sequences got `gain` tokens in one chunk."""
        if len(ids):
            self._gaps.append(at_s - self._last[ids])
            self._last[ids] = at_s
            self._tokens(np.array([at_s]), np.array([gain * len(ids)]))

    def stretch(self, ids: Ids, times: Floats, gain: float) -> None:
        """Several steps of one batch, one after the other; times of their tokens in s, shape (steps,)."""
        self._gaps.append(times[0] - self._last[ids])
        self._gaps.append(np.repeat(times[1:] - times[:-1], len(ids)))
        self._last[ids] = times[-1]
        self._tokens(times, np.full(len(times), gain * len(ids)))

    def finished(self, ids: Ids, at_s: float, overshoot: float) -> None:
        """These requests ended; so many tokens that speculation made beyond their ends are thrown away."""
        self._finished[ids] = at_s
        if overshoot > 0:
            self._tokens(np.array([at_s]), np.array([-overshoot]))

    def _tokens(self, times: Floats, counts: Floats) -> None:
        self._times.append(times)
        self._counts.append(counts)

    def records(self) -> RequestRecords:
        """Everything, as the metrics want it."""
        return RequestRecords(
            sent_s=self._sent,
            first_token_s=self._first,
            finished_s=self._finished,
            input_tokens=self._requests.input_tokens.astype(np.float64),
            output_tokens=self._requests.output_tokens.astype(np.float64),
            ok=np.ones(len(self._sent), dtype=bool),
            itl_ms=np.concatenate(self._gaps) * 1e3 if self._gaps else np.empty(0),
            token_s=np.concatenate(self._times),
            token_n=np.concatenate(self._counts),
        )
