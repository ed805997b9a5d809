"""Continuous batching in virtual time: which requests a step computes, and when their tokens come.

One instance runs one load point. Steps in which nothing but decoding happens are taken in stretches: until the
next request ends, arrives, or the KV pool is full, the batch stays the same and only its context grows, so the
step time is evaluated at both ends and taken as linear in between.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.load.metrics import RequestRecords
from autotune.load.workloads import Requests
from autotune.simulate.recording import Recorder
from autotune.simulate.replica import Chunk, Replica, Sequences
from autotune.simulate.server import Server
from autotune.simulate.steptime import RankBatch, StepTime

Ids = NDArray[np.int64]


class Batching:
    """A load point on a server.

    Args:
        capacity: tokens of KV per replica; the caller makes sure that every request fits.

    Attributes:
        preemptions: sequences that were thrown out of a full pool.
        peak_used: most tokens that were in a pool.
    """

    def __init__(self, server: Server, requests: Requests, capacity: int) -> None:
        self._server, self._requests = server, requests
        self._coefficients = server.coefficients
        self._time = StepTime(server)
        self._state = Sequences(requests)
        self._replicas = [Replica(server, self._state, capacity) for _ in range(server.data_parallel)]
        self._running: Ids = np.empty(0, dtype=np.int64)
        self._reading: deque[tuple[float, int]] = deque()  # (when the front end is done with it, request)
        self._next = self._done = 0
        self._now = self._front_s = self._last_freed_s = 0.0
        self._record = Recorder(requests)
        indexer = server.architecture.indexer
        self._top_k = float(indexer.top_k) if indexer else math.inf
        self._gain = server.tokens_per_step
        self.preemptions = 0
        self.peak_used = 0.0

    def run(self) -> RequestRecords:
        """Run until every request has ended."""
        while self._done < len(self._state):
            self._arrive()
            chunks = [replica.take_chunks() for replica in self._replicas]
            if any(chunks):
                self._mixed_step(chunks)
            elif len(self._running):
                self._decode_stretch()
            else:
                self._now = max(self._now, self._next_arrival_s())
        return self._record.records()

    @property
    def cache_hit_rate(self) -> float:
        """Prompt tokens taken from the prefix cache, as a share of all prompt tokens."""
        cached = sum(replica.cached_tokens for replica in self._replicas)
        return cached / float(self._requests.input_tokens.sum())

    # Arrival

    def _arrive(self) -> None:
        """Send what is due and hand to the replicas what the front end has read.

        A closed loop sends the next request when one ends. The front end (HTTP, tokeniser) is one process that reads
        requests one after the other.
        """
        while self._next_send_s() <= self._now:
            sent_s = max(self._next_send_s(), self._last_freed_s)
            self._record.sent(self._next, sent_s)
            self._front_s = max(self._front_s, sent_s) + self._coefficients.request_ms * 1e-3
            self._reading.append((self._front_s, self._next))
            self._next += 1
        while self._reading and self._reading[0][0] <= self._now:
            request = self._reading.popleft()[1]
            number = self._pick_replica(request)
            self._state.replica[request] = number
            self._replicas[number].add(request)

    def _next_send_s(self) -> float:
        """When the next request may be sent; infinite while the client keeps as many in flight as it may."""
        if self._next >= len(self._state) or self._next - self._done >= self._requests.concurrency:
            return math.inf
        return float(self._requests.send_s[self._next])

    def _next_arrival_s(self) -> float:
        """When the next request reaches a replica's queue, as far as it is known."""
        return self._reading[0][0] if self._reading else self._next_send_s()

    def _pick_replica(self, request: int) -> int:
        if self._coefficients.dispatch == "round_robin":
            return request % len(self._replicas)
        return min(range(len(self._replicas)), key=lambda number: self._replicas[number].in_flight)

    # Steps

    def _mixed_step(self, chunks: Sequence[Sequence[Chunk]]) -> None:
        """One step with prompt pieces on some replicas; with separate prefill these do not decode meanwhile."""
        self._make_room()
        ids = self._running
        if self._coefficients.prefill == "separate" and len(ids):
            busy = np.array([bool(pieces) for pieces in chunks])
            ids = ids[~busy[self._state.replica[ids]]]
        batches = self._batches(ids, chunks)
        self._now += self._time.seconds(batches, graph=self._fits_graph(batches))
        self._grow(ids, 1)
        self._record.step(ids, self._now, self._gain)
        started = [piece.request for pieces in chunks for piece in pieces if piece.last]
        for request in started:
            self._replicas[self._state.replica[request]].start(request)
            self._record.first(request, self._now)
        self._running = np.append(self._running, np.array(started, dtype=np.int64))
        self._finish()

    def _fits_graph(self, batches: Sequence[RankBatch]) -> bool:
        """Graphs hold steps of up to so many tokens per replica; separate prefill never runs in one."""
        if self._coefficients.prefill == "separate" and any(b.prefill_tokens for b in batches):
            return False
        queries = 1 + self._server.speculative_tokens
        return max(b.sequences * queries + b.prefill_tokens for b in batches) <= self._server.graph_batch * queries

    def _decode_stretch(self) -> None:
        """Decode until something changes."""
        self._make_room()
        ids = self._running
        steps = self._steps_until_change(ids)
        batches = self._batches(ids)
        graph = self._fits_graph(batches)
        first = self._time.seconds(batches, graph)
        until_s = self._next_arrival_s() - self._now
        if until_s < steps * first:
            steps = max(1, math.ceil(until_s / first))
        self._grow(ids, steps)
        last = self._time.seconds(self._batches(ids), graph) if steps > 1 else first
        durations = np.linspace(first, last, steps)
        self._record.stretch(ids, self._now, durations, self._gain)
        self._now += float(durations.sum())
        self._finish()

    def _steps_until_change(self, ids: Ids) -> int:
        """Steps until a sequence ends or a replica's pool is full."""
        left = float((self._state.output[ids] - self._state.written[ids]).min())
        room = min(replica.steps_until_full(self._gain) for replica in self._replicas)
        return max(1, math.floor(min(math.ceil(left / self._gain - 1e-9), room)))

    def _batches(self, ids: Ids, chunks: Sequence[Sequence[Chunk]] | None = None) -> list[RankBatch]:
        replicas = len(self._replicas)
        of, context = self._state.replica[ids], self._state.context[ids]
        counts = np.bincount(of, minlength=replicas).tolist()
        contexts = np.bincount(of, weights=context, minlength=replicas).tolist()
        kept = np.bincount(of, weights=np.minimum(context, self._top_k), minlength=replicas).tolist()
        pieces = chunks or [[]] * replicas
        return [RankBatch(counts[i], contexts[i], kept[i], *self._prefill_sums(pieces[i])) for i in range(replicas)]

    def _prefill_sums(self, pieces: Sequence[Chunk]) -> tuple[int, float, float, int]:
        """Tokens, attended pairs, pairs kept by sparse attention, and prompts that end, of a replica's pieces."""
        tokens, pairs, kept = 0, 0.0, 0.0
        for piece in pieces:
            end = piece.start + piece.tokens
            tokens += piece.tokens
            pairs += (end**2 - piece.start**2) / 2
            kept += _kept(end, self._top_k) - _kept(piece.start, self._top_k)
        return tokens, pairs, kept, sum(piece.last for piece in pieces)

    # State changes

    def _grow(self, ids: Ids, steps: int) -> None:
        gained = self._gain * steps
        self._state.context[ids] += gained
        self._state.written[ids] += gained
        counts = np.bincount(self._state.replica[ids], minlength=len(self._replicas))
        for replica, count in zip(self._replicas, counts.tolist(), strict=True):
            replica.grow(count * gained)
            self.peak_used = max(self.peak_used, replica.used)

    def _finish(self) -> None:
        """Take out the sequences that have all their tokens."""
        ids, s = self._running, self._state
        over = s.written[ids] >= s.output[ids] - 1e-9
        if not over.any():
            return
        ended = ids[over]
        self._running = ids[~over]
        for request in ended.tolist():
            self._replicas[s.replica[request]].finish(request)
        overshoot = float((s.written[ended] - s.output[ended]).sum())
        self._record.finished(ended, self._now, overshoot)
        self._done += len(ended)
        self._last_freed_s = self._now

    def _make_room(self) -> None:
        """Throw out the latest sequences of a replica until its pool can take the next step."""
        for number, replica in enumerate(self._replicas):
            while replica.crowded(self._gain):
                mine = self._running[self._state.replica[self._running] == number]
                victim = int(mine[-1])
                self._running = self._running[self._running != victim]
                replica.preempt(victim)
                self.preemptions += 1


def _kept(position: float, top_k: float) -> float:
    """Sum of min(i, top_k) for i up to a position: what sparse attention keeps of a causal prompt."""
    if position <= top_k:
        return position**2 / 2
    return float(top_k**2 / 2 + (position - top_k) * top_k)
