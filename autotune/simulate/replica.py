"""One attention replica: its queue, the prompts it fills, and its KV pool."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.simulate.prefix import WATERMARK, PrefixCache
from autotune.simulate.server import Server


class Sequences:
    """How far each request is; arrays of shape (n,).

    Args:
        read: prompt tokens, shape (n,).
        write: tokens asked for, shape (n,).

    Attributes:
        read: prompt tokens as they were sent.
        prompt: tokens to compute before decoding; grows when a preempted request is computed anew.
        output: tokens asked for.
        context: its own tokens in the KV pool.
        written: tokens generated.
        replica: which replica has it.
    """

    def __init__(self, read: NDArray[np.int64], write: NDArray[np.int64]) -> None:
        n = len(read)
        self.read = read.astype(np.int64)
        self.prompt = self.read.copy()
        self.output = write.astype(np.float64)
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

    def __init__(self, server: Server, sequences: Sequences, cache: PrefixCache, capacity: int) -> None:
        self._server, self._sequences, self._cache, self._capacity = server, sequences, cache, capacity
        self.waiting: deque[int] = deque()
        self._filling: deque[list[int]] = deque()  # [request, tokens left]
        self._owed = 0.0  # output tokens still to come of what runs and fills
        self.running = 0
        self.in_flight = 0
        self.used = 0.0
        self.cached_tokens = 0

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
        shared = self._cache.match(request)
        prompt, output = int(s.prompt[request]), s.left(request)
        reserve = self._server.coefficients.reserve_share * (self._owed + output)
        self._cache.hold(request)
        missing = self.used + prompt - shared + reserve - self._capacity * WATERMARK
        if missing > 0 and not self._freed(missing) and busy:
            self._cache.release(request)
            return False
        self.waiting.popleft()
        self._filling.append([request, max(1, prompt - shared)])
        self.used += prompt - shared
        self._owed += output
        s.context[request] = prompt - shared
        if not s.written[request]:
            self.cached_tokens += shared
        return True

    def _freed(self, tokens: float) -> bool:
        """Whether the prefix cache could make room for so many tokens."""
        evicted = self._cache.evict(tokens)
        self.used -= evicted
        return evicted >= tokens

    def start(self, request: int) -> None:
        """A prompt is computed: the first token is there (after a preemption, the next one), decoding begins."""
        # What the cache keeps belongs to it from now on, not to this request.
        self._sequences.context[request] -= self._cache.keep(request)
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
        self._cache.release(request)

    def finish(self, request: int) -> None:
        """A running sequence has all its tokens."""
        self.release(request)
        self.in_flight -= 1

    def abort(self, request: int) -> bool:
        """Give up a request wherever it is; returns whether it was decoding."""
        filling = next((item for item in self._filling if item[0] == request), None)
        if request in self.waiting:
            self.waiting.remove(request)
        elif filling is not None:
            self._filling.remove(filling)
            self.used -= self._sequences.context[request]
            self._owed -= self._sequences.left(request)
            self._cache.release(request)
        else:
            self.finish(request)
            return True
        self.in_flight -= 1
        return False

    def empty_cache(self) -> None:
        """Throw out of the prefix cache what nobody uses."""
        self.used -= self._cache.evict(float("inf"))

    def preempt(self, request: int) -> None:
        """Throw a running sequence out; it comes first in the queue and is computed anew, its own output included."""
        s = self._sequences
        self.release(request)
        s.prompt[request] = s.read[request] + int(s.written[request])
        self.waiting.appendleft(request)

    def crowded(self, gain: float) -> bool:
        """Whether the next step's tokens would not fit, and throwing a sequence out would help."""
        missing = self.used + self.running * gain - self._capacity
        if self.running == 0 or missing <= 0 or self._freed(missing):
            return False
        return self.running > 1 or bool(self._filling)

    def steps_until_full(self, gain: float) -> float:
        """Decode steps that the pool has room for."""
        return (self._capacity - self.used) / (self.running * gain) if self.running else float("inf")
