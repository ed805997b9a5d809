"""Continuous batching in virtual time: when the tokens of a load point come.

One instance runs one load point. Steps in which nothing but decoding happens are taken in stretches: until the
next request ends, arrives, or the KV pool is full, the batch stays the same and only its context grows, so the
step time is evaluated at both ends and taken as linear in between.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.loadgen.requests import Requests, Turns
from autotune.metrics.records import RequestRecords
from autotune.simulator.node.frontend import BackEnd, FrontEnd
from autotune.simulator.node.prefix import load_caches
from autotune.simulator.node.replica import Chunk, Sequences
from autotune.simulator.node.scheduling import Scheduler
from autotune.simulator.node.server import SimulatedServer


class SessionClient:
    """Keeps so many sessions open; the next one begins when one ends."""

    def __init__(self, turns: Turns, concurrency: int) -> None:
        self._think_s = turns.think_s.tolist()
        after = turns.after.tolist()
        self._next = {before: request for request, before in enumerate(after) if before >= 0}
        self._begins = iter([request for request, before in enumerate(after) if before < 0])
        self._due: list[tuple[float, int]] = []
        for _ in range(concurrency):
            self._begin(0.0)

    def _begin(self, now_s: float) -> None:
        request = next(self._begins, None)
        if request is not None:
            self._plan(request, now_s)

    def _plan(self, request: int, now_s: float) -> None:
        heapq.heappush(self._due, (now_s + self._think_s[request], request))

    def next_s(self) -> float:
        """When the next turn is sent, as far as it is known; infinite while all wait for answers."""
        return self._due[0][0] if self._due else math.inf

    def take(self) -> int:
        """The request that is sent then."""
        return heapq.heappop(self._due)[1]

    def ended(self, requests: Iterable[int], seen_s: float) -> None:
        """These answers are there."""
        for request in requests:
            following = self._next.get(request)
            if following is None:
                self._begin(seen_s)
            else:
                self._plan(following, seen_s)


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

    def first(self, ids: Ints, at_s: float) -> None:
        """The prompts of these were computed; each one's token is its first, or one more after a preemption."""
        new = np.isnan(self._first[ids])
        self._first[ids[new]] = at_s
        self._gaps.append(at_s - self._last[ids[~new]])
        self._last[ids] = at_s
        self._tokens(np.array([at_s]), np.array([float(len(ids))]))

    def step(self, ids: Ints, at_s: float, gain: float) -> None:
        """Each of these sequences got `gain` tokens in one chunk."""
        if len(ids):
            self._gaps.append(at_s - self._last[ids])
            self._last[ids] = at_s
            self._tokens(np.array([at_s]), np.array([gain * len(ids)]))

    def stretch(self, ids: Ints, times: Floats, gain: float) -> None:
        """Several steps of one batch, one after the other; times of their tokens in s, shape (steps,)."""
        self._gaps.append(times[0] - self._last[ids])
        self._gaps.append(np.repeat(times[1:] - times[:-1], len(ids)))
        self._last[ids] = times[-1]
        self._tokens(times, np.full(len(times), gain * len(ids)))

    def finished(self, ids: Ints, at_s: float, overshoot: float) -> None:
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


class Batching:
    """A load point on a server.

    Args:
        capacity: tokens of KV per replica; the caller makes sure that every request fits.
    """

    def __init__(self, server: SimulatedServer, requests: Requests, capacity: int) -> None:
        self._requests = requests
        self._state = Sequences(requests.input_tokens, requests.output_tokens)
        self._state.is_text[:] = requests.is_text
        self.scheduler = Scheduler(server, self._state, load_caches(server, requests), capacity)
        self._front, self._back = FrontEnd(server), BackEnd(server)
        self._next = 0
        self._sessions = SessionClient(requests.turns, requests.concurrency) if requests.turns is not None else None
        self._begins_s = requests.begins_s.tolist()
        self._begun = 0  # streams of the client
        self._now = 0.0
        self._seen_s: list[float] = []  # when the client saw requests end, in order
        self._record = Recorder(requests)

    def run(self) -> RequestRecords:
        """Run until every request has ended."""
        while len(self._seen_s) < len(self._state):
            # A closed loop sends the next request when one ends.
            while (sent_s := self._next_send_s()) <= self._now:
                request = self._take()
                self._record.sent(request, sent_s)
                self._front.accept(request, sent_s, int(self._state.read[request]))
            for request in self._front.done(self._now):
                self.scheduler.add(request)
            chunks = self.scheduler.take_chunks()
            if any(chunks):
                self._mixed_step(chunks)
            elif len(self.scheduler.running):
                self._decode_stretch(chunks)
            else:
                self._now = max(self._now, self._next_arrival_s())
        return self._record.records()

    # Arrival

    def _next_send_s(self) -> float:
        """When the next request may be sent; infinite while the client keeps as many in flight as it may."""
        if self._sessions is not None:
            return self._sessions.next_s()
        if self._next >= len(self._state):
            return math.inf
        return max(float(self._requests.send_s[self._next]), min(self._next_begin_s(), self._next_end_s()))

    def _next_begin_s(self) -> float:
        """When the next of the client's streams begins; infinite when all have."""
        return self._begins_s[self._begun] if self._begun < len(self._begins_s) else math.inf

    def _next_end_s(self) -> float:
        """When the request ended in whose place the next one is sent; infinite when none has that is not replaced."""
        replaced = self._next - self._begun
        return self._seen_s[replaced] if replaced < len(self._seen_s) else math.inf

    def _take(self) -> int:
        if self._sessions is not None:
            return self._sessions.take()
        self._begun += self._next_begin_s() <= self._next_end_s()
        self._next += 1
        return self._next - 1

    def _next_arrival_s(self) -> float:
        """When the next request reaches a replica's queue, as far as it is known."""
        read_s = self._front.next_s()
        return read_s if read_s < math.inf else self._next_send_s()

    # Steps

    def _mixed_step(self, chunks: Sequence[Sequence[Chunk]]) -> None:
        step, gain = self.scheduler.begin(chunks), self.scheduler.gain
        self._now += step.seconds
        self.scheduler.end(step)
        seen_s = self._back.send(self._now, len(step.ids) * gain + len(step.started))
        self._record.step(step.ids, seen_s, gain)
        if step.started:
            self._record.first(np.array(step.started, dtype=np.int64), seen_s)
        self._finish(seen_s)

    def _decode_stretch(self, no_chunks: Sequence[Sequence[Chunk]]) -> None:
        scheduler = self.scheduler
        step = scheduler.begin(no_chunks)
        steps = scheduler.steps_until_change(step.ids)
        until_s = self._next_arrival_s() - self._now
        if until_s < steps * step.seconds:
            steps = max(1, math.ceil(until_s / step.seconds))
        scheduler.grow(step.ids, steps)
        last = scheduler.decode_seconds(step) if steps > 1 else step.seconds
        rise = (last - step.seconds) / max(1, steps - 1)
        number = np.arange(1.0, steps + 1.0)
        # Step times on a straight line, summed.
        ends_s = self._now + number * (step.seconds + (number - 1.0) * (rise / 2))
        seen_s = self._back.send_steps(ends_s, len(step.ids) * scheduler.gain)
        self._record.stretch(step.ids, seen_s, scheduler.gain)
        self._now = float(ends_s[-1])
        self._finish(float(seen_s[-1]))

    def _finish(self, seen_s: float) -> None:
        """Take out the sequences that have all their tokens; the client has the last ones at a time."""
        ended = self.scheduler.take_ended()
        if not len(ended):
            return
        overshoot = float((self._state.written[ended] - self._state.output[ended]).sum())
        self._record.finished(ended, seen_s, overshoot)
        self._seen_s += [seen_s] * len(ended)
        if self._sessions is not None:
            self._sessions.ended(ended.tolist(), seen_s)
