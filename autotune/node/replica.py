"""One attention replica: front end, queue, prompts in prefill, KV pool and prefix cache.

The front end lies between the client's connection and the scheduler. Each way is a process, or
several, that takes what comes one after the other. Neither slows the engine's steps; when it
saturates, requests reach the scheduler late, or tokens the client. What the prefix cache holds
counts as used in the KV pool, whether or not a running sequence uses it.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from autotune.base.arrays import Floats, Ints
from autotune.load.requests import Requests, Segment, prompt_segments

from .memory import most_running, sequence_tokens
from .server import SimulatedServer

Blocks = Mapping[int, Sequence[int]]
"""Blocks of the cache that each request fills, in order."""


class BlockCache:
    """The prefix cache of one replica: blocks of its pool by `block_hashes`, least recently used
    out first.

    `answers` are blocks of prompt and answer, of requests whose answer somebody may send again.
    """

    def __init__(self, block_tokens: int, enabled: bool, blocks: Blocks, answers: Blocks) -> None:
        self._block_tokens = block_tokens
        self._enabled = enabled
        self._blocks = blocks
        self._answers = answers
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, list[int]] = {}

    @property
    def idle_tokens(self) -> int:
        return self._tokens(self._idle)

    @property
    def keeps(self) -> bool:
        return bool(self._users or self._idle)

    def match(self, request: int) -> int:
        return self._tokens(self._matched(request))

    def _tokens(self, blocks: Collection[int]) -> int:
        return len(blocks) * self._block_tokens

    def _matched(self, request: int) -> list[int]:
        return list(takewhile(self._has, self._blocks[request]))

    def _has(self, block: int) -> bool:
        return block in self._users or block in self._idle

    def hold(self, request: int) -> None:
        held = self._matched(request)
        for block in held:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._held[request] = held

    def keep(self, request: int) -> int:
        """Cache a computed prompt's blocks, count their tokens; a block inserted by another request
        stays its own."""
        if not self._enabled:
            return 0
        held = self._held.setdefault(request, [])
        return self._add(held, self._blocks[request][len(held) :])

    def keep_answer(self, request: int) -> int:
        """Cache the blocks that a request filled during decode, as the engines do; count their
        tokens."""
        if not self._enabled or request not in self._answers:
            return 0
        return self._add(self._held.setdefault(request, []), self._answers[request])

    def _add(self, held: list[int], blocks: Sequence[int]) -> int:
        added = [block for block in blocks if not self._has(block)]
        self._users.update(dict.fromkeys(added, 1))
        held += added
        return self._tokens(added)

    def release(self, request: int) -> None:
        """Release a request's blocks that no other request uses, the prompt's end before its
        start."""
        for block in reversed(self._held.pop(request, [])):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._idle[block] = None

    def evict(self, tokens: float) -> float:
        freed = 0
        while freed < tokens and self._idle:
            block, _ = self._idle.popitem(last=False)
            freed += self._tokens((block,))
        return float(freed)


class SegmentCache(BlockCache):
    """Prefix cache of a load with known prompts: blocks of a trace, turns, a group's prefix."""

    def __init__(
        self,
        server: SimulatedServer,
        blocks: Blocks,
        answers: Blocks,
        sizes: Mapping[int, int],
        read: Ints,
    ) -> None:
        super().__init__(server.block_tokens, server.prefix_caching, blocks, answers)
        self._sizes = sizes
        self._read = read

    def match(self, request: int) -> int:
        # At least the prompt's last token is computed anew, as its successor comes from it.
        return min(
            super().match(request),
            (int(self._read[request]) - 1) // self._block_tokens * self._block_tokens,
        )

    def _tokens(self, blocks: Collection[int]) -> int:
        return sum(self._sizes[block] for block in blocks)


def load_caches(server: SimulatedServer, requests: Requests) -> list[SegmentCache]:
    """Make the prefix caches of the replicas for a load with known requests."""
    block = server.block_tokens
    segments = list(prompt_segments(requests))
    answers: dict[int, list[int]] = {}
    if segments:
        cut = [_whole_blocks(pieces, block) for pieces in segments]
    else:
        # A prompt that ends within the prefix has its first pieces only.
        whole = np.minimum(requests.prefix_tokens, requests.input_tokens) // block * block
        ends = np.unique(np.append(0, whole))
        cut = [
            {
                group * (requests.prefix_tokens + 1) + end: size
                for end, size in zip(ends[1:].tolist(), np.diff(ends).tolist(), strict=True)
                if group >= 0 and end <= own
            }
            for group, own in zip(requests.group.tolist(), whole.tolist(), strict=True)
        ]
    if requests.turns is not None:
        # The next turn of the session begins with them.
        after = requests.turns.after.tolist()
        answers = {
            before: list(_whole_blocks(segments[request][:-1], block))
            for request, before in enumerate(after)
            if before >= 0
        }
    blocks = {request: list(pieces) for request, pieces in enumerate(cut)}
    sizes = dict[int, int]()
    for pieces in cut:
        sizes.update(pieces)
    return [
        SegmentCache(server, blocks, answers, sizes, requests.input_tokens)
        for _ in range(server.data_parallel)
    ]


def _whole_blocks(pieces: Sequence[Segment], block: int) -> dict[int, int]:
    """Cut the segments of a prompt to whole blocks of the pool: tokens by segment number."""
    end = 0
    cut = {}
    for piece in pieces:
        begin = end // block * block
        end = end + piece.tokens
        tokens = end // block * block - begin
        if tokens > 0:
            # A piece that is cut shorter in one prompt than in another is another one.
            cut[hash((piece.chain, tokens))] = tokens
    return cut


class FrontEnd:
    """HTTP and tokeniser: each of its processes reads requests one after the other.

    The engine receives them between steps. With asynchronous scheduling a step is put together when
    the one before it begins, of what was read until then. SGLang's ``--scheduler-recv-interval N``
    skips this but for each N-th step; not after prompts (managers/scheduler_recv_skipper.py, 0.5.9).
    """

    def __init__(self, server: SimulatedServer) -> None:
        c = server.coefficients
        self._ahead = server.schedules_ahead
        self._interval = server.receive_interval
        self._decoded = 0  # steps since requests were received
        self._request_s = c.request_ms * 1e-3
        self._token_s = c.prompt_token_us * 1e-6
        self._latency_s = c.latency_ms * 1e-3
        self._free_s = [0.0] * server.readers
        self._reading: list[tuple[float, int]] = []  # a heap: (when it is done with it, request)

    def accept(self, request: int, at_s: float, tokens: int) -> None:
        """Queue a request with this number of prompt tokens; 0 for token ids."""
        done_s = max(self._free_s[0], at_s) + self._request_s + tokens * self._token_s
        heapq.heapreplace(self._free_s, done_s)
        heapq.heappush(self._reading, (done_s + self._latency_s, request))

    def received(self, now_s: float, begun_s: float, decoded: int) -> list[int]:
        """Return the requests of a step that begins now.

        Args:
            begun_s: when the step before it began; now after a pause.
            decoded: steps since the last call; 0 after a pause or a step with prompts.
        """
        self._decoded = (self._decoded + decoded) % self._interval if decoded else 0
        ready: list[int] = []
        seen_s = begun_s if self._ahead else now_s
        while not self._decoded and self._reading and self._reading[0][0] <= seen_s:
            ready.append(heapq.heappop(self._reading)[1])
        return ready

    def steps_until(self, seconds: float) -> int:
        """Return after how many of these decode steps requests are received that are read in this
        many of them."""
        steps = max(1, math.ceil(seconds) + self._ahead)
        return steps + -(self._decoded + steps) % self._interval

    def next_s(self) -> float:
        return self._reading[0][0] if self._reading else math.inf

    def drop(self, request: int) -> bool:
        """Abort a request; return False if this replica does not have it."""
        kept = [item for item in self._reading if item[1] != request]
        dropped = len(kept) < len(self._reading)
        heapq.heapify(kept)
        self._reading = kept
        return dropped


class BackEnd:
    """Detokeniser and HTTP: send the tokens of a step after those of earlier steps."""

    def __init__(self, server: SimulatedServer) -> None:
        # The tokens of a step are of many requests, which are spread over the processes.
        self._token_s = server.output_token_s
        self._free_s = 0.0

    def send(self, at_s: float, tokens: float) -> float:
        """Return when the tokens of a step with this end reach their clients."""
        self._free_s = max(self._free_s, at_s) + tokens * self._token_s
        return self._free_s

    def send_steps(self, at_s: Floats, tokens: float) -> Floats:
        """Return the same for consecutive steps with equal token counts; shape (steps,)."""
        if not self._token_s:
            return at_s
        work = tokens * self._token_s * np.arange(1, len(at_s) + 1)
        # Sent once it has ended and all before it are sent: the latest begin of any of them, and
        # the work since.
        begins = at_s - work + tokens * self._token_s
        begins[0] = max(begins[0], self._free_s)
        sent: Floats = np.maximum.accumulate(begins) + work
        self._free_s = float(sent[-1])
        return sent


_SORTED_QUEUE = 128
"""Longer queues are served first come, first served, whatever the policy (SGLang:
managers/schedule_policy.py)."""


class Sequences:
    """Progress of each request; arrays of shape (n,).

    `prompt`, the tokens to compute before decoding, grows beyond `read`, those sent, where a
    request is computed anew.
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
        """Return the output tokens still to come; negative when speculation overshot."""
        return float(self.output[request] - self.written[request])


class Chunk(NamedTuple):
    """A piece of a prompt to compute in a step; `start` counts the tokens before it."""

    request: int
    start: int
    tokens: int
    last: bool


class Replica:
    """The state of one replica.

    Attributes:
        capacity: tokens of KV, whole blocks.
        in_flight: how many requests it has, waiting ones included.
        prompt_tokens: prompts of the requests that it has, summed.
        used: tokens in the KV pool in whole blocks, those of prompts being filled included.
        share: of the output still to come of what runs that admission reserves now.
        cached_tokens: prompt tokens that were found in the prefix cache, over the run.
    """

    def __init__(
        self, server: SimulatedServer, sequences: Sequences, cache: BlockCache, capacity: int
    ) -> None:
        self._server = server
        self._c = server.coefficients
        self._sequences = sequences
        self._cache = cache
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
        self._states = sequence_tokens(server)
        self._most = most_running(server, capacity)
        self.share = server.reserve_share
        self._least_share = self.share * self._c.reserve_least
        self._fall = (self.share - self._least_share) / self._c.reserve_steps
        self.cached_tokens = 0

    def _blocks(self, tokens: float) -> float:
        return float(math.ceil(tokens / self._block - 1e-9) * self._block)

    def _held(self, request: int) -> float:
        return self._blocks(float(self._sequences.context[request])) + self._states

    def add(self, request: int) -> None:
        self.waiting.append(request)
        self.in_flight += 1
        self.prompt_tokens += int(self._sequences.read[request])

    @property
    def admits(self) -> bool:
        return bool(self.waiting) and not self._full

    @property
    def fills(self) -> bool:
        return bool(self._filling)

    def take_chunks(self, taken: float) -> list[Chunk]:
        """Take the next step's prompt pieces, on top of running sequences' `taken` tokens; admit
        waiting requests."""
        budget = self._server.token_budget
        unit = self._block
        if self._c.prefill == "mixed":
            budget -= self.running * self._queries
        prompts = self._c.max_prefill_tokens or math.inf
        if (
            self._c.queue == "longest_prefix"
            and 1 < len(self.waiting) <= _SORTED_QUEUE
            and self._cache.keeps
        ):
            self.waiting = deque(sorted(self.waiting, key=self._cache.match, reverse=True))
        chunks: list[Chunk] = []
        while budget > 0:
            if not self._filling and (
                prompts <= 0 or not self._admit(taken, budget, prompts, not chunks)
            ):
                break
            request, left = self._filling[0]
            tokens = left
            if left > budget and self._c.chunked_prefill:
                # A budget of less than a block is used as it is; what runs leaves no more than that
                # until later.
                cut = self._c.block_chunks != "tokens" and self._server.token_budget >= unit
                tokens = budget // unit * unit if cut else budget
            if not tokens:
                break
            counted = int(self._blocks(tokens)) if self._c.block_chunks == "count" else tokens
            budget = budget - counted
            prompts = prompts - counted
            start = int(self._sequences.prompt[request]) - left
            chunks.append(Chunk(request, start, tokens, last=tokens == left))
            if tokens == left:
                self._filling.popleft()
            else:
                self._filling[0][1] = left - tokens
        return chunks

    def _admit(self, taken: float, budget: int, prompts: float, first: bool) -> bool:
        """Move the first waiting request to the prompts being filled, if a slot, the step and the
        pool allow it."""
        if not self.admits:
            return False
        busy = self.in_flight - len(self.waiting)
        if busy >= self._most:
            self._full = True
            return False
        request = self.waiting[0]
        shared = self._cache.match(request)
        own = int(self._sequences.prompt[request]) - shared
        # Nothing but a prompt alone may be longer than a step; the front end refuses what is too
        # long for good.
        if own > budget and not self._c.chunked_prefill and busy:
            return False
        if own >= prompts and not first:
            return False
        held = self._blocks(own)
        output = self._sequences.left(request)
        # Without evictions the output's last block is promised too.
        promised = self._c.reserve_new * min(output, self._c.reserve_clip or math.inf)
        if self._c.reserve_share >= 1:
            promised = self._blocks(own + output + self._server.tokens_per_step) - held
        held += self._states
        self._cache.hold(request)
        missing = (
            self.used + held + taken + sum(self._promised.values()) + promised - self._admissible
        )
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
        """Evict from the prefix cache; return whether this number of tokens became free."""
        evicted = self._cache.evict(tokens)
        self.used -= evicted
        return evicted >= tokens

    def start(self, request: int) -> None:
        """Start decoding: the prompt is computed, the first token exists (after a preemption, the
        next one)."""
        # Whole blocks that the cache keeps belong to it from now on, not to this request.
        self._sequences.context[request] -= self._cache.keep(request)
        self._sequences.written[request] += 1
        del self._promised[request]
        self.running += 1

    def decoded(self, grown: float, steps: int) -> None:
        """Advance the running requests by this number of steps and tokens of the pool."""
        self.used += grown
        self.share = max(self._least_share, self.share - self._fall * steps)

    def makes_room(self, tokens: float) -> bool:
        """Return whether the pool can take this number of further tokens, after eviction from the
        prefix cache."""
        missing = self.used + tokens - self.capacity
        return missing <= 0 or self._freed(missing)

    def finish(self, request: int) -> None:
        self._sequences.context[request] -= self._cache.keep_answer(request)
        self._release(request)
        self._forget(request)

    def _release(self, request: int) -> None:
        self.used -= self._held(request)
        self.running -= 1
        self._full = False
        self._cache.release(request)

    def _forget(self, request: int) -> None:
        self.in_flight -= 1
        self.prompt_tokens -= int(self._sequences.read[request])
        if not self.in_flight:
            self.share = self._server.reserve_share

    def abort(self, request: int) -> bool:
        """Abort a request in any state; return whether it was decoding."""
        filling = next((item for item in self._filling if item[0] == request), None)
        decodes = filling is None and request not in self.waiting
        if decodes:
            self._release(request)
        elif filling is not None:
            self._filling.remove(filling)
            self.used -= self._held(request)
            del self._promised[request]
            self._cache.release(request)
        else:
            self.waiting.remove(request)
        self._full = False
        self._forget(request)
        return decodes

    def empty_cache(self) -> None:
        self.used -= self._cache.evict(float("inf"))
        self._full = False

    def preempt(self, request: int) -> None:
        """Preempt a running sequence; it waits and is recomputed, its output included."""
        s = self._sequences
        self._release(request)
        s.prompt[request] = s.read[request] + int(s.written[request])
        if self._c.requeue == "front":
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)

    def preempted(self, written: float, output: float) -> None:
        """Raise the reservation at admission to that of the remaining requests at the end of the
        freed space.

        They have so many tokens written of those asked for (SGLang: retract_decode).
        """
        if self._fall:
            self.share = min(1.0, (written + _RETRACT_AHEAD * self.running) / (output + 1))


_RETRACT_AHEAD = 20
"""Decode steps (SGLang: SGLANG_RETRACT_DECODE_STEPS)."""
