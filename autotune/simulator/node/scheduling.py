"""Continuous batching: which requests a step computes, how long it takes, and what it changes.

One scheduler, two loops over it: `batching.Batching` in virtual time, and the emulator by the wall clock. What differs
between engines and versions is in ``search_spaces/<engine>/simulator.yaml``, with its sources.

An engine captures graphs for a list of sizes at start. A batch runs in the next larger one, padded to it; the padding
is computed like any other token. With several attention replicas all ranks run the graph of the fullest one. Lists and
rules by engine and version: ``search_spaces/<engine>/simulator.yaml``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.simulator.node.prefix import PrefixCache
from autotune.simulator.node.replica import Chunk, Replica, Sequences
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.node.steptime import RankBatch, Seconds, StepTime

_WAITING_WEIGHT = 4.0
"""A waiting request counts as so many running ones (vLLM 0.11: v1/engine/core_client.py)."""
_PRESSURE_WEIGHT, _PRESSURE_FROM = 6.0, 0.5
"""vLLM 0.32, same file: waiting requests count more, the fuller the pool is beyond its half."""


class Graphs:
    """The graphs of a server."""

    def __init__(self, server: SimulatedServer) -> None:
        c = server.coefficients
        self._queries = 1 + server.speculative_tokens
        self._per = 1 if c.cuda_graph_counts == "tokens" else self._queries
        self._padding, self._prompts = c.cuda_graph_padding, c.cuda_graph_prompts
        most = server.graph_batch
        sizes = {size for first, last, step in c.cuda_graph_steps for size in range(first, min(last, most) + 1, step)}
        self._sizes = sorted(sizes | {most}) if most else []

    def tokens(self, sequences: Sequence[int], prompt_tokens: Sequence[int]) -> int:
        """Tokens that every rank computes in the graph that holds a step; 0 when none does.

        Args:
            sequences: that decode, per rank.
            prompt_tokens: of the step, per rank.
        """
        if any(prompt_tokens) and not self._prompts:
            return 0
        # Where ranks must be equal, one with nothing to do gets a dummy sequence (TensorRT-LLM: py_executor.py).
        least = 0 if self._padding else 1
        tokens = [max(n, least) * self._queries + p for n, p in zip(sequences, prompt_tokens, strict=True)]
        need = -(-max(tokens) // self._per)
        found = bisect_left(self._sizes, need)
        if found == len(self._sizes):
            return 0
        if not self._padding and (self._sizes[found] != need or min(tokens) != max(tokens)):
            return 0
        # A batch of equal sequences takes the next size that is a whole number of them; a few tokens more at most.
        return self._sizes[found] * self._per


class Batches:
    """Sums up the steps of a server."""

    def __init__(self, server: SimulatedServer, sequences: Sequences) -> None:
        self._state, self._graphs, self._time = sequences, Graphs(server), StepTime(server)
        self._ranks = server.data_parallel
        self._queries = 1 + server.speculative_tokens
        indexer = server.architecture.indexer
        self._top_k = float(server.architecture.attended_limit or math.inf)
        self._sparse = indexer is not None
        padding = server.coefficients.sparse_padding
        self._pads_prompts, self._pads_decode = padding != "none", padding == "both" and self._sparse
        # Of a sparse model, prompts up to here run in dense kernels.
        self._dense_below = self._top_k if self._sparse and server.coefficients.dense_prompts else 0.0

    def seconds(self, ids: Ints, chunks: Sequence[Sequence[Chunk]] | None = None) -> Seconds:
        """Duration of a step.

        Args:
            ids: the sequences that decode, shape (n,).
            chunks: prompt pieces per rank.
        """
        # All tokens before the next one, whoever owns them: attention also reads what belongs to the prefix cache.
        context = self._state.read[ids] + self._state.written[ids] - 1.0
        counts = [len(ids)]
        if self._ranks > 1:
            counts = np.bincount(self._state.replica[ids], minlength=self._ranks).tolist()
        contexts = self.sums(ids, context)
        kept = contexts if self._top_k == math.inf else self.sums(ids, np.minimum(context, self._top_k))
        entries = [count * self._top_k for count in counts] if self._pads_decode else kept
        chunks = chunks or [[]] * self._ranks
        summed = {id(pieces): self._prefill_sums(pieces) for pieces in {id(one): one for one in chunks}.values()}
        prompts = [summed[id(pieces)] for pieces in chunks]
        graph = self._graphs.tokens(counts, [sums[0] for sums in prompts])
        padding = [max(0, graph - n * self._queries - sums[0]) for n, sums in zip(counts, prompts, strict=True)]
        ranks = range(self._ranks)
        batches = [RankBatch(counts[i], contexts[i], kept[i], entries[i], *prompts[i], padding[i]) for i in ranks]
        return self._time.seconds(batches, bool(graph))

    def sums(self, ids: Ints, values: Floats) -> list[float]:
        """Sums of the sequences' values per rank."""
        if self._ranks == 1:
            return [float(values.sum())]
        sums: list[float] = np.bincount(self._state.replica[ids], weights=values, minlength=self._ranks).tolist()
        return sums

    def _prefill_sums(self, pieces: Sequence[Chunk]) -> tuple[int, float, float, float, int, int]:
        """Tokens, pairs of dense kernels, pairs scored and computed by sparse ones, prompts that end, and prompts."""
        tokens, dense, scored, attended = 0, 0.0, 0.0, 0.0
        for piece in pieces:
            end = piece.start + piece.tokens
            tokens += piece.tokens
            kept = _kept(end, self._top_k) - _kept(piece.start, self._top_k)
            pairs = (end**2 - piece.start**2) / 2
            if not self._sparse or end <= self._dense_below:
                dense += pairs
                # In layers with a sliding window.
                attended += 0.0 if self._sparse else kept
                continue
            scored += pairs
            attended += piece.tokens * self._top_k if self._pads_prompts else kept
        return tokens, dense, scored, attended, sum(piece.last for piece in pieces), len(pieces)


def _kept(position: float, top_k: float) -> float:
    """Sum of min(i, top_k) for i up to a position: what sparse attention keeps of a causal prompt."""
    if position <= top_k:
        return position**2 / 2
    return float(top_k**2 / 2 + (position - top_k) * top_k)


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One engine step, from its begin to its end.

    Attributes:
        ids: the sequences that decode in it, shape (n,).
        started: requests whose prompt ends in it.
        seconds: how long it takes.
    """

    ids: Ints
    started: tuple[int, ...]
    seconds: float


class Scheduler:
    """The replicas of a server and what they run.

    Args:
        sequences: the state of the requests; more may be added while it runs.
        caches: the prefix cache of each replica.
        capacity: tokens of KV per replica; the caller makes sure that every request fits.

    Attributes:
        running: the sequences that decode, in the order in which they began, shape (n,).
        gain: tokens that a running sequence gets per step; where text and other prompts run together, their mean.
        drafts: how often tokens were drafted for a sequence.
        accepted: drafted tokens that were kept.
        preemptions: sequences that were thrown out of a full pool.
        peak_used: most tokens that were in a pool.
    """

    def __init__(
        self, server: SimulatedServer, sequences: Sequences, caches: Sequence[PrefixCache], capacity: int
    ) -> None:
        self._server, self._c = server, server.coefficients
        self._separate = self._c.prefill == "separate"
        self._batches = Batches(server, sequences)
        self._state = sequences
        self.replicas = [Replica(server, sequences, cache, capacity) for cache in caches]
        self._turn = 0
        self.running: Ints = np.empty(0, dtype=np.int64)
        self._block = server.block_tokens
        self._clip = float(self._c.reserve_clip or math.inf)
        self.gain = server.tokens_per_step
        self.preemptions = 0
        self.drafts = self.accepted = 0.0
        self.peak_used = 0.0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix caches."""
        return sum(replica.cached_tokens for replica in self.replicas)

    def add(self, request: int) -> None:
        """A request reaches the queue of a replica; equally loaded ones take turns."""
        n, turn = len(self.replicas), self._turn
        self._turn = (turn + 1) % n
        if n == 1 or self._c.dispatch == "round_robin":
            number = turn
        else:
            number = min(((turn + i) % n for i in range(n)), key=lambda one: self._load(self.replicas[one]))
        self._state.replica[request] = number
        self.replicas[number].add(request)

    def _load(self, replica: Replica) -> tuple[float, float]:
        """What the balancer sends requests away from; it knows the state exactly, engines some 0.1 s late."""
        waiting = len(replica.waiting)
        if self._c.dispatch == "waiting_weighted":
            return _WAITING_WEIGHT * waiting + replica.in_flight - waiting, 0.0
        if self._c.dispatch == "kv_pressure":
            pressure = max(0.0, replica.used / replica.capacity - _PRESSURE_FROM)
            return replica.in_flight + waiting * _PRESSURE_WEIGHT * pressure, 0.0
        return replica.in_flight, replica.prompt_tokens

    def abort(self, request: int) -> None:
        """Give up a request between two steps."""
        if self.replicas[self._state.replica[request]].abort(request):
            self.running = self.running[self.running != request]

    # Steps

    def take_chunks(self) -> list[list[Chunk]]:
        """The prompt pieces of the next step, per replica; admits waiting requests that fit."""
        chunks: list[list[Chunk]] = []
        for number, replica in enumerate(self.replicas):
            if replica.admits:
                chunks.append(replica.take_chunks(self._taken(replica, self._of(number, self.running))))
            else:
                chunks.append(replica.take_chunks(0.0) if replica.fills else [])
        self._note_peak()
        return chunks

    def _taken(self, replica: Replica, ids: Ints) -> float:
        """Tokens of a pool that what runs needs now, or that are reserved for what it will need."""
        if not len(ids):
            return 0.0
        s = self._state
        if self._c.reserve_share >= 1:
            return float(self._grown(ids, s.output[ids] - s.written[ids] + self.gain).sum())
        reserved = 0.0
        if replica.share:
            reserved = replica.share * float(np.minimum(s.output[ids] - s.written[ids], self._clip).sum())
        return reserved if self._separate else max(reserved, float(self._grown(ids, self.gain).sum()))

    def begin(self, chunks: Sequence[Sequence[Chunk]]) -> EngineStep:
        """Begin a step; with separate prefill, replicas that fill prompts do not decode meanwhile."""
        if self._server.speculative_tokens and len(self.running):
            text, server = float(self._state.is_text[self.running].mean()), self._server
            self.gain = server.tokens_per_step * (1 - text) + server.text_tokens_per_step * text
        busy = [self._separate and bool(pieces) for pieces in chunks]
        if any(busy) and self._c.prefill_idles_ranks:
            busy = [True] * len(busy)
        for number, replica in enumerate(self.replicas):
            needed = replica.running * (self.gain + self._block)
            if replica.running and not busy[number] and replica.used + needed > replica.capacity:
                self._throw_out(number, replica)
        ids = self.running
        if len(ids) and any(busy):
            ids = ids[~np.array(busy)[self._state.replica[ids]]]
        started = tuple(piece.request for pieces in chunks for piece in pieces if piece.last)
        return EngineStep(ids, started, float(self._batches.seconds(ids, chunks)))

    def end(self, step: EngineStep) -> None:
        """A step is over: its sequences have their tokens, the prompts that it ended begin to decode."""
        self.grow(step.ids, 1)
        if step.started:
            for request in step.started:
                self.replicas[self._state.replica[request]].start(request)
            self.running = np.append(self.running, np.array(step.started, dtype=np.int64))

    def decode_seconds(self, step: EngineStep) -> float:
        """How long the same decode step takes with the contexts as they are now."""
        return float(self._batches.seconds(step.ids))

    def steps_until_change(self, ids: Ints) -> int:
        """Decode steps until a sequence ends or a replica's pool is full."""
        left = float((self._state.output[ids] - self._state.written[ids]).min())
        steps = max(1, math.ceil(left / self.gain - 1e-9))
        for number, replica in enumerate(self.replicas):
            room = replica.capacity - replica.used
            if replica.running * (self.gain * steps + self._block) > room:
                steps = self._steps_in(room, self._of(number, ids), steps)
        return steps

    def _steps_in(self, room: float, ids: Ints, most: int) -> int:
        """Decode steps that a pool with so much room can take, at least one."""
        context = self._state.context[ids]
        held = float(self._blocks(context).sum())
        tokens, least = len(ids) * self.gain, 1
        steps = math.floor(room / tokens)
        while least < most:
            steps = min(most, max(least + 1, steps))
            spare = room + held - float(self._blocks(context + self.gain * steps).sum())
            if spare >= 0:
                least, steps = steps, steps + math.floor(spare / tokens)
            else:
                most, steps = steps - 1, steps + math.floor(spare / tokens)
        return least

    def grow(self, ids: Ints, steps: int) -> None:
        """These sequences decode so many steps."""
        if not len(ids):
            return
        s, gained = self._state, self.gain * steps
        if self._server.speculative_tokens:
            self.drafts += steps * len(ids)
            self.accepted += (gained - steps) * len(ids)
        grown = self._grown(ids, gained)
        s.context[ids] += gained
        s.written[ids] += gained
        for number, tokens in enumerate(self._batches.sums(ids, grown)):
            if self.replicas[number].running:
                self.replicas[number].decoded(tokens, steps)
        self._note_peak()

    def take_ended(self) -> Ints:
        """Take out the sequences that have all their tokens."""
        ids, s = self.running, self._state
        over = s.written[ids] >= s.output[ids] - 1e-9
        ended: Ints = ids[over]
        if ended.size:
            self.running = ids[~over]
            for request in ended.tolist():
                self.replicas[s.replica[request]].finish(request)
        return ended

    def _note_peak(self) -> None:
        for replica in self.replicas:
            if replica.used > self.peak_used:
                self.peak_used = replica.used

    # Arithmetic over sequences

    def _of(self, number: int, ids: Ints) -> Ints:
        return ids if len(self.replicas) == 1 else ids[self._state.replica[ids] == number]

    def _blocks(self, tokens: Floats) -> Floats:
        blocks: Floats = np.ceil(tokens / self._block - 1e-9)
        blocks *= self._block
        return blocks

    def _grown(self, ids: Ints, gained: float | Floats) -> Floats:
        """Tokens of the pool, in whole blocks, that each of these sequences takes when it gains so many."""
        context = self._state.context[ids]
        grown: Floats = self._blocks(context + gained) - self._blocks(context)
        return grown

    # A full pool

    def _throw_out(self, number: int, replica: Replica) -> None:
        """Throw sequences out of a pool that cannot take the next step of what decodes in it."""
        s, mine, thrown = self._state, self._of(number, self.running), 0
        grown = self._grown(mine, self.gain)
        # The last one stays, yet what the cache keeps makes room for it too.
        while not replica.makes_room(float(grown.sum())) and len(mine) > (0 if replica.fills else 1):
            at = len(mine) - 1
            if self._c.victim == "fewest_tokens":  # of several the longest prompt
                at = int(np.lexsort((-s.read[mine], s.written[mine]))[0])
            victim = int(mine[at])
            mine = np.delete(mine, at)
            self.running = self.running[self.running != victim]
            replica.preempt(victim)
            thrown += 1
            if self._c.retract_steps > 1 and thrown == 1:
                grown = self._grown(mine, self.gain * self._c.retract_steps)
            else:
                grown = np.delete(grown, at)
        if thrown:
            replica.preempted(float(s.written[mine].sum()), float(s.output[mine].sum()))
            self.preemptions += thrown
