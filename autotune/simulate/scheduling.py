"""Continuous batching: which requests a step computes, how long it takes, and what it changes.

One scheduler, two loops over it: `batching.Batching` in virtual time, and the emulator by the wall clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.simulate.prefix import PrefixCache
from autotune.simulate.replica import Chunk, Replica, Sequences
from autotune.simulate.server import Server
from autotune.simulate.steptime import RankBatch, StepTime

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """A step that has begun.

    Attributes:
        ids: the sequences that decode in it, shape (n,).
        started: requests whose prompt ends in it.
        seconds: how long it takes.
        graph: whether a CUDA graph holds it.
    """

    ids: Ids
    started: tuple[int, ...]
    seconds: float
    graph: bool


class FrontEnd:
    """HTTP and tokeniser: one process that reads requests one after the other."""

    def __init__(self, server: Server) -> None:
        self._request_s = server.coefficients.request_ms * 1e-3
        self._free_s = 0.0
        self._reading: deque[tuple[float, int]] = deque()  # (when it is done with it, request)

    def accept(self, request: int, at_s: float) -> None:
        """A request arrives."""
        self._free_s = max(self._free_s, at_s) + self._request_s
        self._reading.append((self._free_s, request))

    def done(self, now_s: float) -> list[int]:
        """The requests that it has read since the last call."""
        ready = []
        while self._reading and self._reading[0][0] <= now_s:
            ready.append(self._reading.popleft()[1])
        return ready

    def next_s(self) -> float:
        """When it is done with the next one; infinite when it has none."""
        return self._reading[0][0] if self._reading else math.inf

    def drop(self, request: int) -> bool:
        """Give a request up; returns whether it was here."""
        kept = deque(item for item in self._reading if item[1] != request)
        found = len(kept) < len(self._reading)
        self._reading = kept
        return found


class Scheduler:
    """The replicas of a server and what they run.

    Args:
        sequences: the state of the requests; more may be added while it runs.
        caches: the prefix cache of each replica.
        capacity: tokens of KV per replica; the caller makes sure that every request fits.

    Attributes:
        running: the sequences that decode, in the order in which they began, shape (n,).
        gain: tokens that a running sequence gets per step.
        preemptions: sequences that were thrown out of a full pool.
        peak_used: most tokens that were in a pool.
    """

    def __init__(self, server: Server, sequences: Sequences, caches: Sequence[PrefixCache], capacity: int) -> None:
        self._server = server
        self._separate = server.coefficients.prefill == "separate"
        self._time = StepTime(server)
        self._state = sequences
        self.replicas = [Replica(server, sequences, cache, capacity) for cache in caches]
        self.running: Ids = np.empty(0, dtype=np.int64)
        indexer = server.architecture.indexer
        self._top_k = float(server.architecture.attended_limit or math.inf)
        padding = server.coefficients.sparse_padding
        self._sparse = indexer is not None
        self._pads_prompts, self._pads_decode = padding != "none", padding == "both" and self._sparse
        # Of a sparse model, prompts up to here run in dense kernels.
        self._dense_below = self._top_k if self._sparse and server.coefficients.dense_prompts else 0.0
        self.gain = server.tokens_per_step
        self._dispatched = 0
        self.preemptions = 0
        self.peak_used = 0.0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix caches."""
        return sum(replica.cached_tokens for replica in self.replicas)

    def add(self, request: int) -> None:
        """A request reaches the queue of a replica."""
        number = self._pick_replica()
        self._dispatched += 1
        self._state.replica[request] = number
        self.replicas[number].add(request)

    def _pick_replica(self) -> int:
        if self._server.coefficients.dispatch == "round_robin":
            return self._dispatched % len(self.replicas)
        return min(range(len(self.replicas)), key=lambda number: self.replicas[number].in_flight)

    def abort(self, request: int) -> None:
        """Give up a request between two steps."""
        if self.replicas[self._state.replica[request]].abort(request):
            self.running = self.running[self.running != request]

    # Steps

    def take_chunks(self) -> list[list[Chunk]]:
        """The prompt pieces of the next step, per replica; admits waiting requests that fit."""
        return [replica.take_chunks() for replica in self.replicas]

    def begin(self, chunks: Sequence[Sequence[Chunk]]) -> Step:
        """Begin a step; with separate prefill, replicas that fill prompts do not decode meanwhile."""
        self._make_room()
        ids = self.running
        if self._separate and len(ids) and any(chunks):
            busy = np.array([bool(pieces) for pieces in chunks])
            ids = ids[~busy[self._state.replica[ids]]]
        batches = self._batches(ids, chunks)
        graph = self._fits_graph(batches)
        started = tuple(piece.request for pieces in chunks for piece in pieces if piece.last)
        return Step(ids, started, self._time.seconds(batches, graph), graph)

    def end(self, step: Step) -> None:
        """A step is over: its sequences have their tokens, the prompts that it ended begin to decode."""
        self.grow(step.ids, 1)
        if step.started:
            for request in step.started:
                self.replicas[self._state.replica[request]].start(request)
            self.running = np.append(self.running, np.array(step.started, dtype=np.int64))

    def decode_seconds(self, step: Step) -> float:
        """How long the same decode step takes with the contexts as they are now."""
        return self._time.seconds(self._batches(step.ids, [[]] * len(self.replicas)), step.graph)

    def steps_until_change(self, ids: Ids) -> int:
        """Decode steps until a sequence ends or a replica's pool is full."""
        left = float((self._state.output[ids] - self._state.written[ids]).min())
        room = min(replica.steps_until_full(self.gain) for replica in self.replicas)
        return max(1, math.floor(min(math.ceil(left / self.gain - 1e-9), room)))

    def grow(self, ids: Ids, steps: int) -> None:
        """These sequences decode so many steps."""
        gained = self.gain * steps
        self._state.context[ids] += gained
        self._state.written[ids] += gained
        counts = np.bincount(self._state.replica[ids], minlength=len(self.replicas))
        for replica, count in zip(self.replicas, counts.tolist(), strict=True):
            replica.grow(count * gained)
            self.peak_used = max(self.peak_used, replica.used)

    def take_ended(self) -> Ids:
        """Take out the sequences that have all their tokens."""
        ids, s = self.running, self._state
        over = s.written[ids] >= s.output[ids] - 1e-9
        ended: Ids = ids[over]
        if len(ended):
            self.running = ids[~over]
            for request in ended.tolist():
                self.replicas[s.replica[request]].finish(request)
        return ended

    def _fits_graph(self, batches: Sequence[RankBatch]) -> bool:
        """Graphs hold steps of up to so many tokens per replica; separate prefill never runs in one."""
        if self._separate and any(b.prefill_tokens for b in batches):
            return False
        queries = 1 + self._server.speculative_tokens
        return max(b.sequences * queries + b.prefill_tokens for b in batches) <= self._server.graph_batch * queries

    def _batches(self, ids: Ids, chunks: Sequence[Sequence[Chunk]]) -> list[RankBatch]:
        replicas = len(self.replicas)
        s, of = self._state, self._state.replica[ids]
        # All tokens before the next one, whoever owns them: attention also reads what belongs to the prefix cache.
        context = s.read[ids] + s.written[ids] - 1.0
        counts = np.bincount(of, minlength=replicas).tolist()
        contexts = np.bincount(of, weights=context, minlength=replicas).tolist()
        kept = np.bincount(of, weights=np.minimum(context, self._top_k), minlength=replicas).tolist()
        entries = [count * self._top_k for count in counts] if self._pads_decode else kept
        return [
            RankBatch(counts[i], contexts[i], kept[i], entries[i], *self._prefill_sums(chunks[i]))
            for i in range(replicas)
        ]

    def _prefill_sums(self, pieces: Sequence[Chunk]) -> tuple[int, float, float, float, int]:
        """Tokens, pairs of dense kernels, pairs scored and computed by sparse ones, and prompts that end."""
        tokens, dense, scored, attended = 0, 0.0, 0.0, 0.0
        for piece in pieces:
            end = piece.start + piece.tokens
            tokens += piece.tokens
            pairs = (end**2 - piece.start**2) / 2
            if not self._sparse or end <= self._dense_below:
                dense += pairs
                # In layers with a sliding window.
                attended += 0.0 if self._sparse else self._kept_of(piece)
                continue
            scored += pairs
            attended += piece.tokens * self._top_k if self._pads_prompts else self._kept_of(piece)
        return tokens, dense, scored, attended, sum(piece.last for piece in pieces)

    def _kept_of(self, piece: Chunk) -> float:
        return _kept(piece.start + piece.tokens, self._top_k) - _kept(piece.start, self._top_k)

    def _make_room(self) -> None:
        """Throw out the latest sequences of a replica until its pool can take the next step."""
        for number, replica in enumerate(self.replicas):
            while replica.crowded(self.gain):
                mine = self.running[self._state.replica[self.running] == number]
                victim = int(mine[-1])
                self.running = self.running[self.running != victim]
                replica.preempt(victim)
                self.preemptions += 1


def _kept(position: float, top_k: float) -> float:
    """Sum of min(i, top_k) for i up to a position: what sparse attention keeps of a causal prompt."""
    if position <= top_k:
        return position**2 / 2
    return float(top_k**2 / 2 + (position - top_k) * top_k)
