"""Continuous batching in virtual time: when the tokens of a load point come.

One instance runs one load point. Steps in which nothing but decoding happens are taken in stretches: until the
next request ends, arrives, or the KV pool is full, the batch stays the same and only its context grows, so the
step time is evaluated at both ends and taken as linear in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.client.records import RequestRecords
from autotune.client.requests import Requests
from autotune.simulate.prefix import GroupCache
from autotune.simulate.recording import Recorder
from autotune.simulate.replica import Chunk, Sequences
from autotune.simulate.scheduling import FrontEnd, Scheduler
from autotune.simulate.server import Server


class Batching:
    """A load point on a server.

    Args:
        capacity: tokens of KV per replica; the caller makes sure that every request fits.
    """

    def __init__(self, server: Server, requests: Requests, capacity: int) -> None:
        self._requests = requests
        self._state = Sequences(requests.input_tokens, requests.output_tokens)
        caches = [GroupCache(server, requests, capacity) for _ in range(server.data_parallel)]
        self._scheduler = Scheduler(server, self._state, caches, capacity)
        self._front = FrontEnd(server)
        self._next = self._done = 0
        self._now = self._last_freed_s = 0.0
        self._record = Recorder(requests)

    def run(self) -> RequestRecords:
        """Run until every request has ended."""
        while self._done < len(self._state):
            self._arrive()
            chunks = self._scheduler.take_chunks()
            if any(chunks):
                self._mixed_step(chunks)
            elif len(self._scheduler.running):
                self._decode_stretch(chunks)
            else:
                self._now = max(self._now, self._next_arrival_s())
        return self._record.records()

    @property
    def cache_hit_rate(self) -> float:
        """Prompt tokens taken from the prefix cache, as a share of all prompt tokens."""
        return self._scheduler.cached_tokens / float(self._requests.input_tokens.sum())

    @property
    def preemptions(self) -> int:
        """Sequences that were thrown out of a full pool."""
        return self._scheduler.preemptions

    @property
    def peak_used(self) -> float:
        """Most tokens that were in a pool."""
        return self._scheduler.peak_used

    # Arrival

    def _arrive(self) -> None:
        """Send what is due and hand to the replicas what the front end has read.

        A closed loop sends the next request when one ends.
        """
        while self._next_send_s() <= self._now:
            sent_s = max(self._next_send_s(), self._last_freed_s)
            self._record.sent(self._next, sent_s)
            self._front.accept(self._next, sent_s)
            self._next += 1
        for request in self._front.done(self._now):
            self._scheduler.add(request)

    def _next_send_s(self) -> float:
        """When the next request may be sent; infinite while the client keeps as many in flight as it may."""
        if self._next >= len(self._state) or self._next - self._done >= self._requests.concurrency:
            return math.inf
        return float(self._requests.send_s[self._next])

    def _next_arrival_s(self) -> float:
        """When the next request reaches a replica's queue, as far as it is known."""
        read_s = self._front.next_s()
        return read_s if read_s < math.inf else self._next_send_s()

    # Steps

    def _mixed_step(self, chunks: Sequence[Sequence[Chunk]]) -> None:
        """One step with prompt pieces on some replicas."""
        step = self._scheduler.begin(chunks)
        self._now += step.seconds
        self._scheduler.end(step)
        self._record.step(step.ids, self._now, self._scheduler.gain)
        for request in step.started:
            self._record.first(request, self._now)
        self._finish()

    def _decode_stretch(self, no_chunks: Sequence[Sequence[Chunk]]) -> None:
        """Decode until something changes."""
        scheduler = self._scheduler
        step = scheduler.begin(no_chunks)
        steps = scheduler.steps_until_change(step.ids)
        until_s = self._next_arrival_s() - self._now
        if until_s < steps * step.seconds:
            steps = max(1, math.ceil(until_s / step.seconds))
        scheduler.grow(step.ids, steps)
        last = scheduler.decode_seconds(step) if steps > 1 else step.seconds
        durations = np.linspace(step.seconds, last, steps)
        self._record.stretch(step.ids, self._now, durations, scheduler.gain)
        self._now += float(durations.sum())
        self._finish()

    def _finish(self) -> None:
        """Take out the sequences that have all their tokens."""
        ended = self._scheduler.take_ended()
        if not len(ended):
            return
        overshoot = float((self._state.written[ended] - self._state.output[ended]).sum())
        self._record.finished(ended, self._now, overshoot)
        self._done += len(ended)
        self._last_freed_s = self._now
