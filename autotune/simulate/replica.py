"""One attention replica: its queue, the prompts it fills, and its KV pool."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from autotune.load.workloads import Requests
from autotune.simulate.server import Server

_WATERMARK = 0.99
"""Admission leaves one percent of the pool free, as vLLM does, so that a step can grow what already runs."""


class Sequences:
    """How far each request is; arrays of shape (n,).

    Attributes:
        prompt: tokens to compute before decoding; grows when a preempted request is computed anew.
        output: tokens asked for.
        context: its own tokens in the KV pool.
        written: tokens generated.
        replica: which replica has it.
    """

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        n = len(requests.input_tokens)
        self.prompt = requests.input_tokens.astype(np.int64).copy()
        self.output = requests.output_tokens.astype(np.float64)
        self.context = np.zeros(n)
        self.written = np.zeros(n)
        self.replica = np.zeros(n, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.prompt)

    def left(self, request: int) -> float:
        """Output tokens still to come; negative when speculation overshot."""
        return float(self.output[request] - self.written[request])


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt to compute in a step; `start` counts the tokens before it."""

    request: int
    start: int
    tokens: int
    last: bool


class Replica:
    """The state of one replica.

    Attributes:
        waiting: requests not yet computed, in order.
        running: how many sequences decode.
        in_flight: how many requests it has, waiting ones included.
        used: tokens in the KV pool, those of prompts being filled included.
        cached_tokens: prompt tokens that were found in the prefix cache, over the run.
    """

    def __init__(self, server: Server, sequences: Sequences, capacity: int) -> None:
        self._server, self._sequences, self._capacity = server, sequences, capacity
        self.waiting: deque[int] = deque()
        self._filling: deque[list[int]] = deque()  # [request, tokens left]
        self._cached: set[int] = set()
        self._cacheable = self._cacheable_groups()
        self._owed = 0.0  # output tokens still to come of what runs and fills
        self.running = 0
        self.in_flight = 0
        self.used = 0.0
        self.cached_tokens = 0

    def _cacheable_groups(self) -> int:
        """How many shared beginnings the pool may keep, so that the longest request still fits beside them."""
        requests = self._sequences.requests
        if not self._server.prefix_caching or requests.prefix_tokens == 0:
            return 0
        longest = float((requests.input_tokens + requests.output_tokens).max())
        return int(max(0.0, self._capacity * _WATERMARK - longest) / requests.prefix_tokens)

    def add(self, request: int) -> None:
        """A new request joins the queue."""
        self.waiting.append(request)
        self.in_flight += 1

    def take_chunks(self) -> list[Chunk]:
        """The prompt pieces of the next step, within the token budget; admits waiting requests that fit."""
        budget = self._server.token_budget
        if self._server.coefficients.prefill == "mixed":
            budget -= self.running * (1 + self._server.speculative_tokens)
        chunks: list[Chunk] = []
        while budget > 0 and (self._filling or self._admit()):
            request, left = self._filling[0]
            tokens = min(left, budget)
            budget -= tokens
            chunks.append(Chunk(request, int(self._sequences.prompt[request]) - left, tokens, last=tokens == left))
            if tokens == left:
                self._filling.popleft()
            else:
                self._filling[0][1] = left - tokens
        return chunks

    def _admit(self) -> bool:
        """Move the first waiting request to the prompts being filled, if a slot and the pool allow it."""
        busy = self.in_flight - len(self.waiting)
        if not self.waiting or busy >= self._server.running_limit:
            return False
        s, request = self._sequences, self.waiting[0]
        shared = self._shared_tokens(request)
        prompt, output = int(s.prompt[request]), s.left(request)
        reserve = self._server.coefficients.reserve_share * (self._owed + output)
        if busy and self.used + prompt - shared + reserve > self._capacity * _WATERMARK:
            return False
        self.waiting.popleft()
        self._filling.append([request, max(1, prompt - shared)])
        self.used += prompt - shared
        self._owed += output
        s.context[request] = prompt - shared
        if not s.written[request]:
            self.cached_tokens += shared
        return True

    def _shared_tokens(self, request: int) -> int:
        requests = self._sequences.requests
        return requests.prefix_tokens if int(requests.group[request]) in self._cached else 0

    def start(self, request: int) -> None:
        """A prompt is computed: the first token is there (after a preemption, the next one), decoding begins."""
        requests = self._sequences.requests
        group = int(requests.group[request])
        if group >= 0 and group not in self._cached and len(self._cached) < self._cacheable:
            self._cached.add(group)
            # The beginning now belongs to the cache, not to this request.
            self._sequences.context[request] -= requests.prefix_tokens
        self._sequences.written[request] += 1
        self._owed -= 1
        self.running += 1

    def grow(self, tokens: float) -> None:
        """Decoding wrote so many tokens."""
        self.used += tokens
        self._owed -= tokens

    def release(self, request: int) -> None:
        """A running sequence leaves the pool: it has ended or is thrown out."""
        self.used -= self._sequences.context[request]
        self._owed -= self._sequences.left(request)
        self.running -= 1

    def finish(self, request: int) -> None:
        """A running sequence has all its tokens."""
        self.release(request)
        self.in_flight -= 1

    def preempt(self, request: int) -> None:
        """Throw a running sequence out; it comes first in the queue and is computed anew, its own output included."""
        s = self._sequences
        self.release(request)
        s.prompt[request] = s.requests.input_tokens[request] + int(s.written[request])
        self.waiting.appendleft(request)

    def crowded(self, gain: float) -> bool:
        """Whether the next step's tokens would not fit, and throwing a sequence out would help."""
        alone = self.running == 1 and not self._filling
        return self.running > 0 and not alone and self.used + self.running * gain > self._capacity

    def steps_until_full(self, gain: float) -> float:
        """Decode steps that the pool has room for."""
        return (self._capacity - self.used) / (self.running * gain) if self.running else float("inf")
