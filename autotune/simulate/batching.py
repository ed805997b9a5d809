"""Continuous batching in virtual time: which requests a step computes, and when their tokens come.

One instance runs one load point. Steps in which nothing but decoding happens are taken in stretches: until the
next request ends, arrives, or the KV pool is full, the batch stays the same and only its context grows, so the
step time is evaluated at both ends and taken as linear in between.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from autotune.load.metrics import RequestRecords
from autotune.load.workloads import Requests
from autotune.simulate.recording import Recorder
from autotune.simulate.server import Server
from autotune.simulate.steptime import RankBatch, StepTime

_WATERMARK = 0.99
"""Admission leaves one percent of the pool free, as vLLM does, so that a step can grow what already runs."""

Ids = NDArray[np.int64]


class _Rank:
    """One attention replica: its queue and its KV pool.

    Attributes:
        waiting: requests not yet computed, in order.
        filling: requests whose prompt is being computed, with the tokens that are left, in order.
        running: how many sequences decode.
        used: tokens in the KV pool, those of filling prompts included.
        owed: output tokens still to come of what runs and fills.
        cached: shared beginnings that are in the pool.
    """

    __slots__ = ("cached", "filling", "in_flight", "owed", "running", "used", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.filling: deque[list[int]] = deque()
        self.cached: set[int] = set()
        self.running = self.used = self.owed = 0.0
        self.in_flight = 0


class _Chunk:
    """A piece of a prompt to compute in a step."""

    __slots__ = ("last", "request", "start", "tokens")

    def __init__(self, request: int, start: int, tokens: int, last: bool) -> None:
        self.request, self.start, self.tokens, self.last = request, start, tokens, last


class Batching:
    """A load point on a server.

    Args:
        capacity: tokens of KV per rank; the caller makes sure that every request fits.
    """

    def __init__(self, server: Server, requests: Requests, capacity: int) -> None:
        self._server, self._requests, self._capacity = server, requests, capacity
        self._c = server.coefficients
        self._time = StepTime(server)
        n = len(requests.input_tokens)
        self._ranks = [_Rank() for _ in range(server.data_parallel)]
        self._rank_of = np.zeros(n, dtype=np.int64)
        self._prompt = requests.input_tokens.astype(np.int64).copy()  # grows when a preempted request is recomputed
        self._context = np.zeros(n)
        self._written = np.zeros(n)
        self._running: Ids = np.empty(0, dtype=np.int64)
        self._next = self._done = 0
        self._now = self._front_s = self._last_freed_s = 0.0
        self._reading: deque[tuple[float, int]] = deque()
        self._record = Recorder(requests)
        self._top_k = float(server.architecture.indexer.top_k) if server.architecture.indexer else math.inf
        self._gain = server.tokens_per_step
        self.preemptions = 0
        self.peak_used = 0.0

    def run(self) -> RequestRecords:
        """Run until every request has ended."""
        total = len(self._prompt)
        while self._done < total:
            self._arrive()
            chunks = [self._take_chunks(rank) for rank in self._ranks]
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
        return self._record.cached_tokens / float(self._requests.input_tokens.sum())

    # Arrival

    def _arrive(self) -> None:
        """Send what is due and hand to the ranks what the front end has read.

        A closed loop sends the next request when one ends. The front end (HTTP, tokeniser) is one process that reads
        requests one after the other.
        """
        while self._next < len(self._prompt) and self._next_send_s() <= self._now:
            sent_s = max(self._next_send_s(), self._last_freed_s)
            self._record.sent(self._next, sent_s)
            self._front_s = max(self._front_s, sent_s) + self._c.request_ms * 1e-3
            self._reading.append((self._front_s, self._next))
            self._next += 1
        while self._reading and self._reading[0][0] <= self._now:
            request = self._reading.popleft()[1]
            number = self._pick_rank(request)
            self._rank_of[request] = number
            self._ranks[number].waiting.append(request)
            self._ranks[number].in_flight += 1

    def _next_send_s(self) -> float:
        """When the next request may be sent; infinite while the client keeps as many in flight as it may."""
        if self._next >= len(self._prompt) or self._next - self._done >= self._requests.concurrency:
            return math.inf
        return float(self._requests.send_s[self._next])

    def _next_arrival_s(self) -> float:
        """When the next request reaches a rank's queue, as far as it is known."""
        return self._reading[0][0] if self._reading else self._next_send_s()

    def _pick_rank(self, request: int) -> int:
        if self._c.dispatch == "round_robin":
            return request % len(self._ranks)
        return min(range(len(self._ranks)), key=lambda number: self._ranks[number].in_flight)

    # Prefill

    def _take_chunks(self, rank: _Rank) -> list[_Chunk]:
        """The prompt pieces of a rank's next step, within its token budget; admits waiting requests that fit."""
        budget = self._server.token_budget
        if self._c.prefill == "mixed":
            budget -= int(rank.running) * (1 + self._server.speculative_tokens)
        chunks: list[_Chunk] = []
        while budget > 0 and (rank.filling or self._admit(rank)):
            filling = rank.filling[0]
            request, left = filling
            tokens = min(left, budget)
            budget -= tokens
            filling[1] = left - tokens
            chunks.append(_Chunk(request, int(self._prompt[request]) - left, tokens, last=tokens == left))
            if tokens == left:
                rank.filling.popleft()
        return chunks

    def _admit(self, rank: _Rank) -> bool:
        """Move the first waiting request to the prompts being filled, if a slot and the pool allow it."""
        if not rank.waiting or rank.in_flight - len(rank.waiting) >= self._server.running_limit:
            return False
        request = rank.waiting[0]
        shared = self._shared_tokens(rank, request)
        prompt = int(self._prompt[request])
        output = float(self._requests.output_tokens[request] - self._written[request])
        empty = rank.in_flight == len(rank.waiting)
        demand = rank.used + prompt - shared + self._c.reserve_share * (rank.owed + output)
        if demand > self._capacity * _WATERMARK:
            if not empty:
                return False
            self._evict(rank)
            shared = 0
        rank.waiting.popleft()
        rank.filling.append([request, max(1, prompt - shared)])
        rank.used += prompt - shared
        rank.owed += output
        self._context[request] = prompt - shared
        if not self._written[request]:
            self._record.hit(shared)
        return True

    def _evict(self, rank: _Rank) -> None:
        """Drop the shared beginnings of an idle rank."""
        rank.cached.clear()
        rank.used = 0.0

    def _shared_tokens(self, rank: _Rank, request: int) -> int:
        group = int(self._requests.group[request])
        return self._requests.prefix_tokens if group in rank.cached and self._server.prefix_caching else 0

    # Steps

    def _mixed_step(self, chunks: list[list[_Chunk]]) -> None:
        """One step with prompt pieces on some ranks; ranks with separate prefill do not decode meanwhile."""
        separate = self._c.prefill == "separate"
        self._make_room(1)
        ids = self._running
        if separate and len(ids):
            idle = np.array([bool(pieces) for pieces in chunks])
            ids = ids[~idle[self._rank_of[ids]]]
        batches = self._batches(ids, chunks)
        seconds = self._time.seconds(batches, graph=self._fits_graph(batches))
        self._now += seconds
        self._grow(ids, 1)
        self._record.step(ids, self._now, self._gain)
        for rank, pieces in zip(self._ranks, chunks, strict=True):
            for piece in pieces:
                if piece.last:
                    self._first_token(rank, piece.request)
        self._finish()

    def _fits_graph(self, batches: list[RankBatch]) -> bool:
        """Graphs hold steps of up to so many tokens per rank; separate prefill never runs in one."""
        if self._c.prefill == "separate" and any(b.prefill_tokens for b in batches):
            return False
        queries = 1 + self._server.speculative_tokens
        return max(b.sequences * queries + b.prefill_tokens for b in batches) <= self._server.graph_batch * queries

    def _decode_stretch(self) -> None:
        """Decode until something changes."""
        self._make_room(1)
        ids = self._running
        if not len(ids):
            return
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
        """Steps until a sequence ends or a rank's pool is full."""
        left = self._requests.output_tokens[ids] - self._written[ids]
        steps = math.ceil(float(left.min()) / self._gain - 1e-9)
        for rank in self._ranks:
            if rank.running:
                steps = min(steps, int((self._capacity - rank.used) / (rank.running * self._gain)))
        return max(1, steps)

    def _batches(self, ids: Ids, chunks: list[list[_Chunk]] | None = None) -> list[RankBatch]:
        ranks = len(self._ranks)
        context = self._context[ids]
        attended = np.minimum(context, self._top_k)
        if ranks == 1:
            counts, contexts, kept = [len(ids)], [float(context.sum())], [float(attended.sum())]
        else:
            of = self._rank_of[ids]
            counts = np.bincount(of, minlength=ranks).tolist()
            contexts = np.bincount(of, weights=context, minlength=ranks).tolist()
            kept = np.bincount(of, weights=attended, minlength=ranks).tolist()
        pieces = chunks or [[]] * ranks
        return [RankBatch(counts[i], contexts[i], kept[i], *self._prefill_sums(pieces[i])) for i in range(ranks)]

    def _prefill_sums(self, pieces: list[_Chunk]) -> tuple[int, float, float, int]:
        """Tokens, attended pairs, pairs kept by sparse attention, and prompts that end, of a rank's pieces."""
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
        self._context[ids] += gained
        self._written[ids] += gained
        counts = np.bincount(self._rank_of[ids], minlength=len(self._ranks))
        for rank, count in zip(self._ranks, counts.tolist(), strict=True):
            rank.used += count * gained
            rank.owed -= count * gained
            self.peak_used = max(self.peak_used, rank.used)

    def _first_token(self, rank: _Rank, request: int) -> None:
        """The end of a prompt's computation gives the first token (or, after a preemption, the next one)."""
        group = int(self._requests.group[request])
        if group >= 0 and group not in rank.cached and self._server.prefix_caching:
            rank.cached.add(group)
            # The beginning now belongs to the cache, not to this request.
            self._context[request] -= self._requests.prefix_tokens
        self._written[request] += 1
        rank.owed -= 1
        rank.running += 1
        self._running = np.append(self._running, request)
        self._record.first(request, self._now)

    def _finish(self) -> None:
        """Take out the sequences that have all their tokens."""
        ids = self._running
        over = self._written[ids] >= self._requests.output_tokens[ids] - 1e-9
        if not over.any():
            return
        ended = ids[over]
        self._running = ids[~over]
        overshoot = float((self._written[ended] - self._requests.output_tokens[ended]).sum())
        self._record.finished(ended, self._now, overshoot)
        for request in ended.tolist():
            rank = self._ranks[self._rank_of[request]]
            rank.used -= self._context[request]
            rank.owed -= self._requests.output_tokens[request] - self._written[request]
            rank.running -= 1
            rank.in_flight -= 1
        self._done += len(ended)
        self._last_freed_s = self._now

    def _make_room(self, steps: int) -> None:
        """Preempt the latest sequences of a rank until its pool can take the next step; they are computed anew."""
        for number, rank in enumerate(self._ranks):
            while (
                rank.running > 1 or (rank.running and rank.filling)
            ) and rank.used + rank.running * self._gain * steps > self._capacity:
                mine = self._running[self._rank_of[self._running] == number]
                victim = int(mine[-1])
                self._running = self._running[self._running != victim]
                rank.used -= self._context[victim]
                rank.owed -= self._requests.output_tokens[victim] - self._written[victim]
                rank.running -= 1
                self._prompt[victim] = self._requests.input_tokens[victim] + int(self._written[victim])
                rank.waiting.appendleft(victim)
                self.preemptions += 1


def _kept(position: float, top_k: float) -> float:
    """Sum of min(i, top_k) for i up to a position: what sparse attention keeps of a causal prompt."""
    if position <= top_k:
        return position**2 / 2
    return float(top_k**2 / 2 + (position - top_k) * top_k)
