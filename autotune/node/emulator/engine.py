"""Simulated node in wall-clock time: each step's tokens are sent together after its duration.

The scheduler and the step times are those of `autotune.node`. A step's end is an absolute
deadline, and the next step begins at that deadline and not when the timer fired, so lateness does
not add up. Only a server that is further behind than `_PATIENCE_S` gives up the lost time, and
counts it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, cycle, islice
from time import perf_counter

import numpy as np

from ..replica import BackEnd, BlockCache, FrontEnd, Sequences
from ..scheduling import EngineStep, Scheduler
from ..server import SimulatedServer

_PATIENCE_S = 0.5
_EARLY_S = 0.0005
"""Time before a deadline that counts as due: a timer of the event loop fires on whole
milliseconds."""
_ROOM = 64


OnTokens = Callable[[int, bool], None]
"""Callback for the tokens of a request in one step, and whether they are its last."""


class LiveSequences(Sequences):
    """Sequences of variable number: a slot is reused after the end of its request."""

    def __init__(self) -> None:
        nothing = np.zeros(_ROOM, dtype=np.int64)
        super().__init__(nothing, nothing)
        self.sent = nothing.copy()
        self.drafts = nothing.copy()
        self._free = list(range(_ROOM))

    def place(self, read: int, write: int) -> int:
        """Return a slot for a request with this number of prompt tokens and tokens to generate."""
        if not self._free:
            n = len(self)
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
            self._free = list(range(n, 2 * n))
        slot = self._free.pop()
        self.read[slot] = self.prompt[slot] = read
        self.output[slot] = write
        self.context[slot] = self.written[slot] = self.sent[slot] = self.drafts[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        self._free.append(slot)


def block_hashes(tokens: Sequence[int], block_tokens: int, before: int = 0) -> tuple[int, ...]:
    """Return a hash per full block, of all tokens up to its end, as vLLM's
    v1/core/kv_cache_utils.py does."""
    hashes: list[int] = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        before = hash((before, *tokens[end - block_tokens : end]))
        hashes.append(before)
    return tuple(hashes)


class LiveEngine:
    """Continuous batching in wall-clock time. All calls come from one event loop.

    Args:
        capacity: tokens of KV per replica.
        block_tokens: tokens per block of the prefix cache.
        speed: virtual seconds per second of the wall clock.
        clock: seconds; must be the time of the event loop, which may have a coarser one.
        answer: token ids that every answer is made of, over and over, as the tokeniser reads its
            text; empty: nobody sends an answer again.

    Attributes:
        slowness: how many times as long steps take; may be changed at any time.
    """

    def __init__(
        self,
        server: SimulatedServer,
        capacity: int,
        block_tokens: int,
        speed: float,
        clock: Callable[[], float] = perf_counter,
        answer: Sequence[int] = (),
    ) -> None:
        self.server, self.capacity = server, capacity
        # The cache keeps whole blocks of the pool.
        self.block_tokens = block_tokens = math.lcm(block_tokens, server.block_tokens)
        self._speed, self._clock, self.slowness = speed, clock, 1.0
        self._answer = answer
        self._blocks: dict[int, tuple[int, ...]] = {}
        # Whole blocks of a prompt, and the rest of its tokens.
        self._tails: dict[int, tuple[tuple[int, ...], Sequence[int]]] = {}
        self._answers: dict[int, tuple[int, ...]] = {}
        self._sinks: dict[int, OnTokens] = {}
        self._unread: dict[int, Callable[[int], None]] = {}
        self._state = LiveSequences()
        self._caches = [
            BlockCache(block_tokens, server.prefix_caching, self._blocks, self._answers)
            for _ in range(server.data_parallel)
        ]
        self._scheduler = Scheduler(server, self._state, self._caches, capacity)
        self._front, self._back = FrontEnd(server), BackEnd(server)
        self._step: EngineStep | None = None
        self._begun_s, self._decoded = 0.0, 0
        self._due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._abandoned: set[int] = set()
        # Tokens in the detokeniser, and the requests that end with them.
        self._unsent: deque[tuple[list[tuple[OnTokens, int, bool]], set[int]]] = deque()
        self._ended: set[int] = set()
        self._origin_s = clock()
        self.generated_tokens = self._requests = self._finished_tokens = self._finished_drafts = 0
        # Drafts and accepted tokens of each replica.
        self._drafts = np.zeros((2, server.data_parallel))
        # Tokens of the prompts that were looked up in the prefix cache and begun.
        self._prompt_tokens = 0
        self._lost_s = 0.0

    def submit(
        self,
        prompt: Sequence[int],
        output_tokens: int,
        on_tokens: OnTokens,
        on_cached: Callable[[int], None],
        was_text: bool = True,
        predictable: bool = False,
    ) -> int:
        """Queue a request that fits the context and the pool; return the number by which it can be
        abandoned.

        `on_cached` is called once, before the first tokens, with the tokens of the prompt that were
        in the cache.
        """
        slot = self._state.place(len(prompt), output_tokens)
        self._state.is_text[slot] = predictable
        blocks = block_hashes(prompt, self.block_tokens)
        # At least the prompt's last token is computed anew, as its successor comes from it.
        self._blocks[slot] = blocks[: (len(prompt) - 1) // self.block_tokens]
        self._tails[slot] = blocks, prompt[len(blocks) * self.block_tokens :]
        self._sinks[slot], self._unread[slot] = on_tokens, on_cached
        self._front.accept(slot, self._now_s(), len(prompt) if was_text else 0)
        if self._step is None:
            self._due_s = self._front.next_s()
            self._set_timer()
        return slot

    @property
    def longest(self) -> int:
        """Return the tokens of the longest request, prompt and answer, in a replica's pool."""
        return self.capacity // self.server.block_tokens * self.server.block_tokens

    @property
    def under_way(self) -> int:
        return len(self._sinks)

    def abandon(self, slot: int) -> None:
        if slot in self._sinks and slot not in self._ended:
            self._abandoned.add(slot)

    def reset_cache(self) -> bool:
        """Empty the prefix caches; False if a replica has requests: it then keeps everything, as
        the engines do."""
        for replica in self._scheduler.attention_replicas:
            if not replica.in_flight:
                replica.empty_cache()
        return not self._sinks

    def figures(self) -> dict[str, float]:
        scheduler = self._scheduler
        waiting = sum(len(replica.waiting) for replica in scheduler.attention_replicas)
        idle = sum(cache.idle_tokens for cache in self._caches)
        used = max(0.0, sum(replica.used for replica in scheduler.attention_replicas) - idle)
        pool = self.capacity * len(self._caches)
        read = self._prompt_tokens
        figures = {
            "running": len(self._sinks) - waiting,
            "waiting": waiting,
            "kv_usage": used / pool,
            "kv_used_tokens": used,
            # Without prefix caching nothing is looked up (vLLM 0.32: v1/core/kv_cache_manager.py).
            "cache_queries": read if self.server.prefix_caching else 0,
            "cache_hits": scheduler.cached_tokens,
            "cache_hit_rate": scheduler.cached_tokens / read if read else 0,
            "preemptions": scheduler.preemptions,
            "prompt_tokens": read,
            "external_hits": 0,
            "paused": 0,
            "generated_tokens": self.generated_tokens,
            "finished_tokens": self._finished_tokens,
            "requests": self._requests,
            "capacity_tokens": pool,
            "lost_s": self._lost_s,
        }
        if self.server.speculative_tokens:
            figures["finished_drafts"] = self._finished_drafts
        return {name: float(figure) for name, figure in figures.items()}

    def rank_figures(self) -> dict[str, list[float]]:
        """Return the figures of speculative decoding for each data-parallel rank, whole tokens
        where counted."""
        each, gain = self.server.speculative_tokens, self._scheduler.gain
        if not each:
            return {}
        drafts, accepted = self._drafts
        now = drafts > 0
        return {
            "drafts": drafts.tolist(),
            "draft_tokens": (drafts * each).tolist(),
            "accepted_tokens": np.floor(accepted + 1e-6).tolist(),
            "accept_length": (gain * now).tolist(),
            "accept_rate": ((gain - 1) / each * now).tolist(),
            "verified_rate": (gain / (1 + each) * now).tolist(),
            "verified_tokens": ((1.0 + each) * now).tolist(),
        }

    def _now_s(self) -> float:
        return (self._clock() - self._origin_s) * self._speed

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due_s < math.inf:
            delay_s = max(0.0, self._due_s - self._now_s()) / self._speed
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        """End due steps and start the next; several at once if they are shorter than a timer's
        tick."""
        self._timer = None
        while self._due_s <= self._now_s() + _EARLY_S * self._speed:
            if self._step is not None:
                self._end(self._step)
            behind_s = self._now_s() - self._due_s
            if behind_s > _PATIENCE_S * self._speed:
                self._lost_s += behind_s / self._speed
                self._due_s += behind_s
            self._begin(self._due_s)
        self._set_timer()

    def _begin(self, at_s: float) -> None:
        self._drop_abandoned()
        begun_s = at_s if self._step is None else self._begun_s
        for slot in self._front.received(at_s, begun_s, self._decoded):
            self._scheduler.add(slot)
        chunks = self._scheduler.take_chunks()
        for chunk in chain.from_iterable(chunks):
            # A prompt's first piece begins where the cache ends.
            if (on_cached := self._unread.pop(chunk.request, None)) is not None:
                self._prompt_tokens += int(self._state.read[chunk.request])
                on_cached(chunk.start)
        if any(chunks) or len(self._scheduler.running):
            self._step = self._scheduler.begin(chunks)
            self._begun_s, self._decoded = at_s, int(not any(chunks))
            self._due_s = at_s + self._step.seconds * self.slowness
        else:
            self._step, self._due_s = None, max(at_s, self._front.next_s())
            self._decoded = 0

    def _end(self, step: EngineStep) -> None:
        """Send the tokens of a step after the detokeniser has sent those of earlier steps."""
        scheduler, state = self._scheduler, self._state
        scheduler.end(step)
        if self.server.speculative_tokens:
            counts = np.bincount(state.replica[step.ids], minlength=self._drafts.shape[1])
            self._drafts += counts, (scheduler.gain - 1) * counts
            state.drafts[step.ids] += 1
        self._note_answers()
        ended = set(scheduler.take_ended().tolist())
        ids = np.concatenate([step.ids, np.array(step.started, dtype=np.int64)])
        reached = np.minimum(np.floor(state.written[ids] + 1e-9), state.output[ids]).astype(
            np.int64
        )
        fresh = reached - state.sent[ids]
        state.sent[ids] = reached
        generated = int(fresh.sum())
        self.generated_tokens += generated
        tokens = [
            (self._sinks[slot], count, slot in ended)
            for slot, count in zip(ids.tolist(), fresh.tolist(), strict=True)
            if count or slot in ended
        ]
        self._ended |= ended
        self._unsent.append((tokens, ended))
        late_s = (self._back.send(self._due_s, generated) - self._now_s()) / self._speed
        if len(self._unsent) > 1 or late_s > _EARLY_S:
            asyncio.get_running_loop().call_later(max(0.0, late_s), self._tell)
        else:
            self._tell()

    def _note_answers(self) -> None:
        """Prepare the blocks of ending requests, prompt and answer, for the cache."""
        if not self._answer or not self.server.prefix_caching:
            return
        ids, state = self._scheduler.running, self._state
        for slot in ids[state.written[ids] >= state.output[ids] - 1e-9].tolist():
            blocks, rest = self._tails[slot]
            # Leave out the last token, which was never put into the model.
            generated = islice(cycle(self._answer), int(state.output[slot]) - 1)
            self._answers[slot] = blocks + block_hashes(
                [*rest, *generated], self.block_tokens, (0, *blocks)[-1]
            )

    def _tell(self) -> None:
        """Send the unsent tokens of the first step."""
        tokens, ended = self._unsent.popleft()
        for on_tokens, count, last in tokens:
            on_tokens(count, last)
        self._ended -= ended
        for slot in ended:
            self._requests += 1
            self._finished_tokens += int(self._state.output[slot])
            self._finished_drafts += int(self._state.drafts[slot])
            self._forget(slot)

    def _drop_abandoned(self) -> None:
        for slot in self._abandoned:
            if slot in self._sinks and slot not in self._ended:
                if not self._front.drop(slot):
                    self._scheduler.abort(slot)
                self._forget(slot)
        self._abandoned.clear()

    def _forget(self, slot: int) -> None:
        for by_slot in (self._sinks, self._blocks, self._tails, self._answers, self._unread):
            by_slot.pop(slot, None)
        self._state.free(slot)
