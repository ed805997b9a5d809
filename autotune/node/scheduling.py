"""Continuous batching: the requests of a step, its duration, and its effects.

One scheduler, two loops over it: `Batching` in virtual time, and the emulator by the wall clock.
The differences between engines and versions are in ``search_spaces/<engine>/simulator.yaml``, with
their sources.

An engine captures graphs for a list of sizes at start. A batch runs in the next larger one, padded
to it; the padding is computed like any other token. With several attention replicas all ranks run
the graph of the fullest one. Lists and rules by engine and version:
``search_spaces/<engine>/simulator.yaml``.

In virtual time, steps that only decode are simulated in stretches: until the next request ends,
arrives, or the KV pool is full, the batch stays the same and only its context grows. The step time
is evaluated at both ends of a stretch and linear in between.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotune.base.arrays import Floats, Ints
from autotune.load.metrics.records import RequestRecords
from autotune.load.requests import Requests, Turns

from .replica import BackEnd, BlockCache, Chunk, FrontEnd, Replica, Sequences, load_caches
from .server import SimulatedServer
from .steptime import RankBatch, Step, StepTime

Chunks = Sequence[Sequence[Chunk]]
"""Prompt pieces of a step, per rank."""
_WAITING_WEIGHT = 4.0
"""Running requests equivalent to one waiting request (vLLM 0.11: v1/engine/core_client.py)."""
_PRESSURE_WEIGHT, _PRESSURE_FROM = 6.0, 0.5
"""vLLM 0.32, same file: waiting requests count more, the fuller the pool is beyond its half."""


class Graphs:
    """Batch sizes with a captured CUDA graph."""

    def __init__(self, server: SimulatedServer) -> None:
        c = server.coefficients
        self._queries = 1 + server.speculative_tokens
        self._per = 1 if c.cuda_graph_counts == "tokens" else self._queries
        self._padding = c.cuda_graph_padding
        self._prompts = c.cuda_graph_prompts
        self._idle = c.cuda_graph_idle or server.joined_replicas == 1
        largest = server.graph_batch
        sizes = {
            size
            for first, last, step in c.cuda_graph_steps
            for size in range(first, min(last, largest) + 1, step)
        }
        self._sizes = sorted(sizes | {largest}) if largest else []

    def tokens(self, sequences: Sequence[int], prompt_tokens: Sequence[int]) -> int:
        """Return the tokens that each rank computes in the graph for its part of a step; 0 without
        a graph."""
        ready = self._idle or all(n or p for n, p in zip(sequences, prompt_tokens, strict=True))
        if not ready or (any(prompt_tokens) and not self._prompts):
            return 0
        # Ranks that must be equal give an idle one a dummy sequence (TensorRT-LLM: py_executor.py).
        least = 0 if self._padding else 1
        tokens = [
            max(n, least) * self._queries + p for n, p in zip(sequences, prompt_tokens, strict=True)
        ]
        need = math.ceil(max(tokens) / self._per)
        place = bisect_left(self._sizes, need)
        if place == len(self._sizes):
            return 0
        size = self._sizes[place]
        if not self._padding and (size != need or min(tokens) != max(tokens)):
            return 0
        # A batch of equal sequences takes the next size that is a whole number of them; a few
        # tokens more at most.
        return size * self._per


class Batches:
    """Sum up the steps of a server."""

    def __init__(self, server: SimulatedServer) -> None:
        self._graphs = Graphs(server)
        self.time = StepTime(server)
        self._queries = 1 + server.speculative_tokens
        self.top_k = float(server.architecture.attended_limit or math.inf)
        self._sparse = server.architecture.indexer is not None
        padding = server.coefficients.sparse_padding
        self._pads_prompts = padding != "none"
        self._pads_decode = padding == "both" and self._sparse
        # Prompts of a sparse model run in dense kernels up to here; all of a dense model.
        self._dense_below = math.inf
        if self._sparse:
            self._dense_below = self.top_k if server.coefficients.dense_prompts else 0.0

    def step(
        self,
        counts: Sequence[int],
        contexts: Sequence[float],
        kept: Sequence[float],
        chunks: Chunks | None = None,
    ) -> Step:
        """Return a step with decoding sequences and prompt pieces.

        Args:
            counts: their number, per rank.
            contexts: the tokens before their next ones, summed, per rank.
            kept: the part of these that sparse attention or a sliding window keeps.
        """
        entries = [count * self.top_k for count in counts] if self._pads_decode else kept
        chunks = chunks or [()] * len(counts)
        distinct = {id(pieces): pieces for pieces in chunks}
        sums = {key: self._prefill_sums(pieces) for key, pieces in distinct.items()}
        prompts = [sums[id(pieces)] for pieces in chunks]
        graph = self._graphs.tokens(counts, [prompt[0] for prompt in prompts])
        batches = []
        for rank, (count, prompt) in enumerate(zip(counts, prompts, strict=True)):
            padding = max(0, graph - count * self._queries - prompt[0])
            batches.append(
                RankBatch(count, contexts[rank], kept[rank], entries[rank], *prompt, padding)
            )
        return batches, bool(graph)

    def _prefill_sums(self, pieces: Sequence[Chunk]) -> tuple[int, float, float, float, int, int]:
        """Sum tokens, pairs of dense kernels, pairs scored and computed by sparse ones, prompts
        that end, prompts."""
        tokens = 0
        dense = 0.0
        scored = 0.0
        attended = 0.0
        for piece in pieces:
            end = piece.start + piece.tokens
            tokens += piece.tokens
            kept = _kept(end, self.top_k) - _kept(piece.start, self.top_k)
            pairs = (end**2 - piece.start**2) / 2
            if end > self._dense_below:
                scored += pairs
                attended += piece.tokens * self.top_k if self._pads_prompts else kept
                continue
            dense += pairs
            if not self._sparse:
                attended += kept  # in layers with a sliding window
        return tokens, dense, scored, attended, sum(piece.last for piece in pieces), len(pieces)


def _kept(position: float, top_k: float) -> float:
    """Return the sum of min(i, top_k) for i up to a position: tokens kept by sparse attention in a
    causal prompt."""
    if position <= top_k:
        return position**2 / 2
    return float(top_k**2 / 2 + (position - top_k) * top_k)


class EngineStep(NamedTuple):
    """One engine step, from start to end; `ids` are the decoding sequences, shape (n,)."""

    ids: Ints
    started: tuple[int, ...]
    seconds: float


class Scheduler:
    """Replicas of a server and their running requests.

    Args:
        sequences: the state of the requests; more may be added while it runs.
        capacity: tokens of KV per replica; the caller makes sure that every request fits.

    Attributes:
        running: the sequences that decode, in the order in which they began, shape (n,).
        gain: tokens that a running sequence gets per step; where text and other prompts run
            together, their mean.
        preemptions: number of sequences preempted because a pool was full.
    """

    def __init__(
        self,
        server: SimulatedServer,
        sequences: Sequences,
        caches: Sequence[BlockCache],
        capacity: int,
    ) -> None:
        self._server = server
        self._c = server.coefficients
        self._separate = self._c.prefill == "separate"
        self._batches = Batches(server)
        self._state = sequences
        self.attention_replicas = [Replica(server, sequences, cache, capacity) for cache in caches]
        self._turn = 0
        self.running: Ints = np.empty(0, dtype=np.int64)
        self._block = server.block_tokens
        self._clip = float(self._c.reserve_clip or math.inf)
        self.gain = server.tokens_per_step
        self.preemptions = 0

    @property
    def cached_tokens(self) -> int:
        return sum(replica.cached_tokens for replica in self.attention_replicas)

    def add(self, request: int) -> None:
        """Queue a request at a replica; equally loaded ones take turns."""
        count = len(self.attention_replicas)
        number = self._turn
        self._turn = (number + 1) % count
        if self._c.dispatch != "round_robin":
            turns = [*range(number, count), *range(number)]
            number = min(turns, key=lambda one: self._load(self.attention_replicas[one]))
        self._state.replica[request] = number
        self.attention_replicas[number].add(request)

    def _load(self, replica: Replica) -> tuple[float, float]:
        """Return the load seen by the balancer, which is exact here and about 0.1 s late in
        engines."""
        waiting = len(replica.waiting)
        if self._c.dispatch == "waiting_weighted":
            return _WAITING_WEIGHT * waiting + replica.in_flight - waiting, 0.0
        if self._c.dispatch == "kv_pressure":
            pressure = max(0.0, replica.used / replica.capacity - _PRESSURE_FROM)
            return replica.in_flight + waiting * _PRESSURE_WEIGHT * pressure, 0.0
        return replica.in_flight, replica.prompt_tokens

    def abort(self, request: int) -> None:
        if self.attention_replicas[self._state.replica[request]].abort(request):
            self.running = self.running[self.running != request]

    def take_chunks(self) -> Chunks:
        """Take the prompt pieces of the next step, per replica; admits waiting requests that
        fit."""
        chunks = list[Sequence[Chunk]]()
        for number, replica in enumerate(self.attention_replicas):
            if replica.admits:
                chunks.append(
                    replica.take_chunks(self._taken(replica, self._of(number, self.running)))
                )
            else:
                chunks.append(replica.take_chunks(0.0) if replica.fills else [])
        return chunks

    def _taken(self, replica: Replica, ids: Ints) -> float:
        """Count a pool's tokens needed or reserved for running requests."""
        if not len(ids):
            return 0.0
        s = self._state
        if self._c.reserve_share >= 1:
            return float(self._grown(ids, s.output[ids] - s.written[ids] + self.gain).sum())
        reserved = 0.0
        if replica.share:
            left = np.minimum(s.output[ids] - s.written[ids], self._clip)
            reserved = replica.share * float(left.sum())
        if self._separate:
            return reserved
        return max(reserved, float(self._grown(ids, self.gain).sum()))

    def begin(self, chunks: Chunks) -> EngineStep:
        """Start a step; with separate prefill, replicas with prompts do not decode in it."""
        if self._server.speculative_tokens and len(self.running):
            text = float(self._state.is_text[self.running].mean())
            random = self._server.tokens_per_step * (1 - text)
            self.gain = random + self._server.text_tokens_per_step * text
        busy = [self._separate and bool(pieces) for pieces in chunks]
        if any(busy) and self._c.prefill_idles_ranks:
            busy = [True] * len(busy)
        for number, replica in enumerate(self.attention_replicas):
            needed = replica.running * (self.gain + self._block)
            if replica.running and not busy[number] and replica.used + needed > replica.capacity:
                self._preempt(number, keeps=0 if replica.fills or chunks[number] else 1)
        ids = self.running
        if len(ids) and any(busy):
            ids = ids[~np.array(busy)[self._state.replica[ids]]]
        started = tuple(piece.request for pieces in chunks for piece in pieces if piece.last)
        return EngineStep(ids, started, self.seconds(ids, chunks))

    def seconds(self, ids: Ints, chunks: Chunks | None = None) -> float:
        """Return the duration of a step in which sequences `ids`, shape (n,), decode beside prompt
        pieces per rank."""
        # Attention also reads the tokens before the next one that belong to the prefix cache.
        context = self._state.read[ids] + self._state.written[ids] - 1.0
        top_k = self._batches.top_k
        ranks = len(self.attention_replicas)
        counts = [len(ids)]
        if ranks > 1:
            counts = np.bincount(self._state.replica[ids], minlength=ranks).tolist()
        contexts = self._sums(ids, context)
        kept = contexts if top_k == math.inf else self._sums(ids, np.minimum(context, top_k))
        return self._batches.time.seconds(*self._batches.step(counts, contexts, kept, chunks))

    def _sums(self, ids: Ints, values: Floats) -> list[float]:
        ranks = len(self.attention_replicas)
        if ranks == 1:
            return [float(values.sum())]
        sums: list[float] = np.bincount(self._state.replica[ids], values, ranks).tolist()
        return sums

    def end(self, step: EngineStep) -> None:
        """End a step: its sequences have their tokens, the prompts that it ended begin to
        decode."""
        self.grow(step.ids, 1)
        if step.started:
            for request in step.started:
                self.attention_replicas[self._state.replica[request]].start(request)
            self.running = np.append(self.running, np.array(step.started, dtype=np.int64))

    def steps_until_change(self, ids: Ints) -> int:
        """Count the decode steps until a sequence ends or a replica's pool is full."""
        left = float((self._state.output[ids] - self._state.written[ids]).min())
        steps = max(1, math.ceil(left / self.gain - 1e-9))
        for number, replica in enumerate(self.attention_replicas):
            room = replica.capacity - replica.used
            if replica.running * (self.gain * steps + self._block) > room:
                steps = self._steps_in(room, self._of(number, ids), steps)
        return steps

    def _steps_in(self, room: float, ids: Ints, most: int) -> int:
        """Return the decode steps that fit the room of a pool, at least one."""
        context = self._state.context[ids]
        held = float(self._blocks(context).sum())
        tokens = len(ids) * self.gain
        least = 1
        steps = math.floor(room / tokens)
        while least < most:
            steps = min(most, max(least + 1, steps))
            spare = room + held - float(self._blocks(context + self.gain * steps).sum())
            if spare >= 0:
                least = steps
            else:
                most = steps - 1
            steps += math.floor(spare / tokens)
        return least

    def grow(self, ids: Ints, steps: int) -> None:
        """Let these sequences decode this number of steps."""
        if not len(ids):
            return
        s = self._state
        gained = self.gain * steps
        grown = self._grown(ids, gained)
        s.context[ids] += gained
        s.written[ids] += gained
        for number, tokens in enumerate(self._sums(ids, grown)):
            if self.attention_replicas[number].running:
                self.attention_replicas[number].decoded(tokens, steps)

    def take_ended(self) -> Ints:
        """Remove the sequences with all tokens."""
        ids = self.running
        s = self._state
        over = s.written[ids] >= s.output[ids] - 1e-9
        ended: Ints = ids[over]
        if ended.size:
            self.running = ids[~over]
            for request in ended.tolist():
                self.attention_replicas[s.replica[request]].finish(request)
        return ended

    def _of(self, number: int, ids: Ints) -> Ints:
        return ids if len(self.attention_replicas) == 1 else ids[self._state.replica[ids] == number]

    def _blocks(self, tokens: Floats) -> Floats:
        blocks: Floats = np.ceil(tokens / self._block - 1e-9)
        blocks *= self._block
        return blocks

    def _grown(self, ids: Ints, gained: float | Floats) -> Floats:
        """Return the pool's tokens, in whole blocks, for each sequence's next tokens."""
        context = self._state.context[ids]
        grown: Floats = self._blocks(context + gained) - self._blocks(context)
        return grown

    def _preempt(self, number: int, keeps: int) -> None:
        """Preempt sequences of a pool that cannot take its next decode step, until `keeps` are
        left."""
        s = self._state
        replica = self.attention_replicas[number]
        mine = self._of(number, self.running)
        preempted = 0
        grown = self._grown(mine, self.gain)
        # Without prompts the last one stays, although the cache could make room for it too.
        while not replica.makes_room(float(grown.sum())) and len(mine) > keeps:
            place = len(mine) - 1
            if self._c.victim == "fewest_tokens":  # of several the longest prompt
                place = int(np.lexsort((-s.read[mine], s.written[mine]))[0])
            victim = int(mine[place])
            mine = np.delete(mine, place)
            self.running = self.running[self.running != victim]
            replica.preempt(victim)
            preempted += 1
            if self._c.retract_steps > 1 and preempted == 1:
                grown = self._grown(mine, self.gain * self._c.retract_steps)
            else:
                grown = np.delete(grown, place)
        if preempted:
            replica.preempted(float(s.written[mine].sum()), float(s.output[mine].sum()))
            self.preemptions += preempted


class LoopClient:
    """Send requests at their times; each begins a stream or replaces one that ended."""

    def __init__(self, requests: Requests) -> None:
        self._send_s: list[float] = requests.send_s.tolist()
        self._begins_s: list[float] = requests.begins_s.tolist()
        self._next = self._begun = 0  # requests, and streams
        self._ends_s: list[float] = []

    def next_s(self) -> float:
        """Return when the next request may be sent; infinite at the limit of requests in flight."""
        if self._next >= len(self._send_s):
            return math.inf
        return max(self._send_s[self._next], min(self._next_begin_s(), self._next_end_s()))

    def _next_begin_s(self) -> float:
        return self._begins_s[self._begun] if self._begun < len(self._begins_s) else math.inf

    def _next_end_s(self) -> float:
        """Return the end of the request that the next one replaces; infinite if each is
        replaced."""
        replaced = self._next - self._begun
        return self._ends_s[replaced] if replaced < len(self._ends_s) else math.inf

    def take(self) -> int:
        self._begun += self._next_begin_s() <= self._next_end_s()
        self._next += 1
        return self._next - 1

    def ended(self, requests: Sequence[int], seen_s: float) -> None:
        self._ends_s += [seen_s] * len(requests)


class SessionClient:
    """Keep this number of sessions open; the next one starts when one ends."""

    def __init__(self, turns: Turns, concurrency: int) -> None:
        self._think_s = turns.think_s.tolist()
        after = turns.after.tolist()
        self._next = {before: request for request, before in enumerate(after) if before >= 0}
        self._begins = iter([request for request, before in enumerate(after) if before < 0])
        self._due: list[tuple[float, int]] = []
        for _ in range(concurrency):
            self._plan(next(self._begins, None), 0.0)

    def _plan(self, request: int | None, now_s: float) -> None:
        if request is not None:
            heapq.heappush(self._due, (now_s + self._think_s[request], request))

    def next_s(self) -> float:
        """Return when the next turn is sent, if known; infinite while all wait for answers."""
        return self._due[0][0] if self._due else math.inf

    def take(self) -> int:
        return heapq.heappop(self._due)[1]

    def ended(self, requests: Sequence[int], seen_s: float) -> None:
        for request in requests:
            following = self._next.get(request)
            if following is None:
                following = next(self._begins, None)
            self._plan(following, seen_s)


class Batching:
    """Simulate a load point on a server in virtual time; every request must fit a replica's
    capacity, tokens of KV."""

    def __init__(self, server: SimulatedServer, requests: Requests, capacity: int) -> None:
        self._requests = requests
        self._state = Sequences(requests.input_tokens, requests.output_tokens)
        self.scheduler = Scheduler(server, self._state, load_caches(server, requests), capacity)
        self._front = FrontEnd(server)
        self._back = BackEnd(server)
        self._client: LoopClient | SessionClient = LoopClient(requests)
        if requests.turns is not None:
            self._client = SessionClient(requests.turns, requests.concurrency)
        self._now = self._begun = 0.0
        self._decoded = 0  # steps since the front end was asked
        self._ended = 0
        n = len(self._state)
        self._sent_s = np.zeros(n)
        self._first_s = np.full(n, np.nan)
        self._finished_s = np.zeros(n)
        self._last_s = np.zeros(n)  # of each request's latest tokens
        self._gaps_s: list[Floats] = []
        self._token_s: list[Floats] = []  # when tokens came, and how many
        self._token_n: list[Floats] = []

    def run(self) -> RequestRecords:
        """Run until every request has ended."""
        while self._ended < len(self._state):
            # A closed loop sends the next request when one ends.
            while (sent_s := self._client.next_s()) <= self._now:
                request = self._client.take()
                self._sent_s[request] = sent_s
                self._front.accept(request, sent_s, int(self._state.read[request]))
            for request in self._front.received(self._now, self._begun, self._decoded):
                self.scheduler.add(request)
            chunks = self.scheduler.take_chunks()
            if any(chunks):
                self._mixed_step(chunks)
            elif len(self.scheduler.running):
                self._decode_stretch(chunks)
            else:
                self._now = self._begun = max(self._now, self._next_arrival_s())
                self._decoded = 0
        return RequestRecords(
            sent_s=self._sent_s,
            first_token_s=self._first_s,
            finished_s=self._finished_s,
            input_tokens=self._requests.input_tokens.astype(np.float64),
            output_tokens=self._requests.output_tokens.astype(np.float64),
            ok=np.ones(len(self._state), dtype=bool),
            itl_ms=np.concatenate(self._gaps_s) * 1e3 if self._gaps_s else np.empty(0),
            token_s=np.concatenate(self._token_s),
            token_n=np.concatenate(self._token_n),
        )

    def _next_arrival_s(self) -> float:
        """Return when the next request reaches a replica's queue, if known."""
        read_s = self._front.next_s()
        return read_s if read_s < math.inf else self._client.next_s()

    def _mixed_step(self, chunks: Chunks) -> None:
        step = self.scheduler.begin(chunks)
        gain = self.scheduler.gain
        self._begun, self._decoded = self._now, 0
        self._now += step.seconds
        self.scheduler.end(step)
        seen_s = self._back.send(self._now, len(step.ids) * gain + len(step.started))
        if len(step.ids):
            self._note_gaps(step.ids, np.array([seen_s]), gain * len(step.ids))
        if step.started:
            started = np.array(step.started, dtype=np.int64)
            # After a preemption it is a further token, not the first one.
            again = ~np.isnan(self._first_s[started])
            self._first_s[started[~again]] = seen_s
            self._note_gaps(started[again], np.array([seen_s]), float(len(started)))
            self._last_s[started] = seen_s
        self._finish(seen_s)

    def _decode_stretch(self, no_chunks: Chunks) -> None:
        scheduler = self.scheduler
        step = scheduler.begin(no_chunks)
        steps = scheduler.steps_until_change(step.ids)
        until_s = self._next_arrival_s() - self._now
        if until_s < steps * step.seconds:
            steps = min(steps, self._front.steps_until(until_s / step.seconds))
        scheduler.grow(step.ids, steps)
        last = scheduler.seconds(step.ids) if steps > 1 else step.seconds
        rise = (last - step.seconds) / max(1, steps - 1)
        number = np.arange(1.0, steps + 1.0)
        # Step times on a straight line, summed.
        ends_s = self._now + number * (step.seconds + (number - 1.0) * (rise / 2))
        seen_s = self._back.send_steps(ends_s, len(step.ids) * scheduler.gain)
        self._note_gaps(step.ids, seen_s, scheduler.gain * len(step.ids))
        self._begun = float(ends_s[-2]) if steps > 1 else self._now
        self._now = float(ends_s[-1])
        self._decoded = steps
        self._finish(float(seen_s[-1]))

    def _note_gaps(self, ids: Ints, seen_s: Floats, tokens: float) -> None:
        """Record a chunk of each of these sequences at each of these times, all of this number of
        tokens."""
        self._gaps_s.append(seen_s[0] - self._last_s[ids])
        if len(seen_s) > 1:
            self._gaps_s.append(np.repeat(seen_s[1:] - seen_s[:-1], len(ids)))
        self._last_s[ids] = seen_s[-1]
        self._token_s.append(seen_s)
        self._token_n.append(np.full(len(seen_s), tokens))

    def _finish(self, seen_s: float) -> None:
        ended = self.scheduler.take_ended()
        if not len(ended):
            return
        overshoot = float((self._state.written[ended] - self._state.output[ended]).sum())
        self._finished_s[ended] = seen_s
        if overshoot > 0:  # tokens that speculation made beyond the ends are discarded
            self._token_s.append(np.array([seen_s]))
            self._token_n.append(np.array([-overshoot]))
        self._ended += len(ended)
        self._client.ended(ended.tolist(), seen_s)
