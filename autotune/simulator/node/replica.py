"""One attention replica: its queue, the prompts in prefill, and its KV pool."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Ints
from autotune.simulator.node.prefix import PrefixCache
from autotune.simulator.node.server import SimulatedServer

_SORTED_QUEUE = 128
"""Longer queues are served first come, first served, whatever the policy (SGLang: managers/schedule_policy.py)."""


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
        is_text: whether its prompt is text, whose continuation is guessed more often.
    """

    def __init__(self, read: Ints, write: Ints) -> None:
        n = len(read)
        self.read = read.astype(np.int64)
        self.prompt = self.read.copy()
        self.output = write.astype(np.float64)
        self.context = np.zeros(n)
        self.written = np.zeros(n)
        self.replica = np.zeros(n, dtype=np.int64)
        self.is_text = np.zeros(n, dtype=bool)

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
        capacity: tokens of KV, whole blocks.
        waiting: requests not yet computed, in order.
        running: how many sequences decode.
        in_flight: how many requests it has, waiting ones included.
        prompt_tokens: prompts of the requests that it has, summed.
        used: tokens in the KV pool in whole blocks, those of prompts being filled included.
        share: of the output still to come of what runs that admission reserves now.
        cached_tokens: prompt tokens that were found in the prefix cache, over the run.
    """

    def __init__(self, server: SimulatedServer, sequences: Sequences, cache: PrefixCache, capacity: int) -> None:
        self._server, self._c, self._sequences, self._cache = server, server.coefficients, sequences, cache
        self._block = server.block_tokens
        self.capacity = capacity // self._block * self._block
        self._admissible = self.capacity * (1.0 - self._c.watermark)
        self._queries = 1 + server.speculative_tokens
        self.waiting: deque[int] = deque()
        self._filling: deque[list[int]] = deque()  # [request, tokens left]
        self._promised: dict[int, float] = {}  # room that filling prompts have for their output
        self._full = False  # nothing can be admitted before something leaves
        self.running = self.in_flight = self.prompt_tokens = 0
        self.used = 0.0
        self.share = server.reserve_share
        self._least_share = self.share * self._c.reserve_least
        self._fall = (self.share - self._least_share) / self._c.reserve_steps
        self.cached_tokens = 0

    def _blocks(self, tokens: float) -> float:
        return float(math.ceil(tokens / self._block - 1e-9) * self._block)

    def add(self, request: int) -> None:
        """A new request joins the queue."""
        self.waiting.append(request)
        self.in_flight += 1
        self.prompt_tokens += int(self._sequences.read[request])

    # Prompts

    @property
    def admits(self) -> bool:
        """Whether somebody waits and might be let in."""
        return bool(self.waiting) and not self._full

    @property
    def fills(self) -> bool:
        """Whether a prompt is partly computed."""
        return bool(self._filling)

    def take_chunks(self, taken: float) -> list[Chunk]:
        """The prompt pieces of the next step, within its budgets; admits waiting requests that fit.

        Args:
            taken: tokens of the pool that what runs needs in this step, or that are reserved for it.
        """
        budget, unit = self._server.token_budget, self._block
        if self._c.prefill == "mixed":
            budget -= self.running * self._queries
        prompts = self._c.max_prefill_tokens or math.inf
        if self._c.queue == "longest_prefix" and 1 < len(self.waiting) <= _SORTED_QUEUE and self._cache.keeps:
            self.waiting = deque(sorted(self.waiting, key=self._cache.match, reverse=True))
        chunks: list[Chunk] = []
        while budget > 0 and (self._filling or (prompts > 0 and self._admit(taken, budget, prompts, not chunks))):
            request, left = self._filling[0]
            tokens = left
            if left > budget and self._c.chunked_prefill:
                # A budget of less than a block is used as it is; what runs leaves no more than that until later.
                cut = self._c.block_chunks != "tokens" and self._server.token_budget >= unit
                tokens = budget // unit * unit if cut else budget
            if not tokens:
                break
            counted = int(self._blocks(tokens)) if self._c.block_chunks == "count" else tokens
            budget, prompts = budget - counted, prompts - counted
            chunks.append(Chunk(request, int(self._sequences.prompt[request]) - left, tokens, last=tokens == left))
            if tokens == left:
                self._filling.popleft()
            else:
                self._filling[0][1] = left - tokens
        return chunks

    def _admit(self, taken: float, budget: int, prompts: float, first: bool) -> bool:
        """Move the first waiting request to the prompts being filled, if a slot, the step and the pool allow it."""
        if not self.admits:
            return False
        busy = self.in_flight - len(self.waiting)
        if busy >= self._server.running_limit:
            self._full = True
            return False
        request = self.waiting[0]
        shared = self._cache.match(request)
        own = int(self._sequences.prompt[request]) - shared
        # Nothing but a prompt alone may be longer than a step; the front end refuses what is too long for good.
        if (own > budget and not self._c.chunked_prefill and busy) or (own >= prompts and not first):
            return False
        held, output = self._blocks(own), self._sequences.left(request)
        # Where nothing is ever evicted, the output's last block is promised too.
        promised = self._c.reserve_new * min(output, self._c.reserve_clip or math.inf)
        if self._c.reserve_share >= 1:
            promised = self._blocks(own + output + self._server.tokens_per_step) - held
        self._cache.hold(request)
        missing = self.used + held + taken + sum(self._promised.values()) + promised - self._admissible
        if missing > 0 and not self._freed(missing) and busy:
            self._cache.release(request)
            self._full = True
            return False
        self.waiting.popleft()
        self._filling.append([request, max(1, own)])
        self._promised[request] = promised
        self.used += held
        self._sequences.context[request] = own
        if not self._sequences.written[request]:
            self.cached_tokens += shared
        return True

    def _freed(self, tokens: float) -> bool:
        """Whether the prefix cache could make room for so many tokens."""
        evicted = self._cache.evict(tokens)
        self.used -= evicted
        return evicted >= tokens

    def start(self, request: int) -> None:
        """A prompt is computed: the first token is there (after a preemption, the next one), decoding begins."""
        # What the cache keeps, whole blocks, belongs to it from now on, not to this request.
        self._sequences.context[request] -= self._cache.keep(request)
        self._sequences.written[request] += 1
        del self._promised[request]
        self.running += 1

    # Decoding

    def decoded(self, grown: float, steps: int) -> None:
        """What runs decoded so many steps and took so many tokens of the pool."""
        self.used += grown
        self.share = max(self._least_share, self.share - self._fall * steps)

    def makes_room(self, tokens: float) -> bool:
        """Whether the pool can take so many tokens more, after eviction from the prefix cache."""
        missing = self.used + tokens - self.capacity
        return missing <= 0 or self._freed(missing)

    def finish(self, request: int) -> None:
        """A running sequence has all its tokens."""
        self._sequences.context[request] -= self._cache.keep_answer(request)
        self._release(request)
        self._forget(request)

    def _release(self, request: int) -> None:
        """A running sequence leaves the pool."""
        self.used -= self._blocks(float(self._sequences.context[request]))
        self.running -= 1
        self._full = False
        self._cache.release(request)

    def _forget(self, request: int) -> None:
        self.in_flight -= 1
        self.prompt_tokens -= int(self._sequences.read[request])
        if not self.in_flight:
            self.share = self._server.reserve_share

    def abort(self, request: int) -> bool:
        """Give up a request wherever it is; returns whether it was decoding."""
        filling = next((item for item in self._filling if item[0] == request), None)
        decodes = filling is None and request not in self.waiting
        if decodes:
            self._release(request)
        elif filling is not None:
            self._filling.remove(filling)
            self.used -= self._blocks(float(self._sequences.context[request]))
            del self._promised[request]
            self._cache.release(request)
        else:
            self.waiting.remove(request)
        self._full = False
        self._forget(request)
        return decodes

    def empty_cache(self) -> None:
        """Throw out of the prefix cache what nobody uses."""
        self.used -= self._cache.evict(float("inf"))
        self._full = False

    def preempt(self, request: int) -> None:
        """Throw a running sequence out; it waits and is computed anew, its own output included."""
        s = self._sequences
        self._release(request)
        s.prompt[request] = s.read[request] + int(s.written[request])
        if self._c.requeue == "front":
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)

    def preempted(self, written: float, output: float) -> None:
        """Sequences were thrown out; those left have so many tokens of those asked for (SGLang: retract_decode).

        What admission reserves rises to what they will have when the room that was made is used.
        """
        if self._fall:
            self.share = min(1.0, (written + _RETRACT_AHEAD * self.running) / (output + 1))


_RETRACT_AHEAD = 20
"""Decode steps (SGLang: SGLANG_RETRACT_DECODE_STEPS)."""
