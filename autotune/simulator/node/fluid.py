"""A load as a fluid: how long it takes and what its latencies are, from a handful of step times and no event loop.

The batching loop follows every request. Here the load passes through three stages, of each of which the mean step is
taken from the simulator's own `StepTime`:

    ramp    the first batch's prompts are computed
    full    the batch is full: who ends makes room for the next
    drain   nobody waits any more, and the batch empties as its answers end

The drain is what mean lengths alone miss: of 1000 ShareGPT prompts sent at once it is most of the run.

Figures may be drawn: seconds are arrays, shape (draws,), then, and the first draw is the figures as they are. Steps and
tokens are the same in all draws, those of the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.arrays import Floats
from autotune.loadgen.requests import Requests, shared_tokens
from autotune.simulator.node.replica import Chunk, Sequences
from autotune.simulator.node.scheduling import Batches
from autotune.simulator.node.server import SimulatedServer
from autotune.simulator.node.steptime import Seconds, longer

EDGES = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 0.94, 0.985, 1.0])
"""Shares of a batch that have ended where the drain is looked at: close where few are left, which takes long."""
SHARES = (np.arange(12) + 0.5) / 12
"""Quantiles of the answers' lengths at which TPOT is predicted: short answers end before the drain."""
_ARRIVALS = 4
"""Rounds in which requests in flight and their latency find each other when requests arrive over time."""


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Means and quantiles of the requests of one load point.

    Attributes:
        in_flight: at most.
        read: mean tokens of a prompt.
        longest_prompt: tokens of the longest.
        written: mean tokens of an answer.
        answers: tokens of an answer at `EDGES` of the distribution.
        lengths: the same at `SHARES`.
        residuals: as `answers`, of what is left to write of a running answer, at a random moment.
        alike: how far the answers are of one length, 0 to 1.
        held: mean tokens of a running sequence at a random moment.
        span_s: seconds in which the requests arrive; 0 = as many in flight as may be, all the time.
        shared: tokens that the prompts of a group have in common; of a trace, that one shares with earlier ones, mean.
        groups: how many groups; 0 = nothing is shared.
    """

    requests: int
    in_flight: int
    read: float
    longest_prompt: int
    written: float
    answers: Floats
    lengths: Floats
    residuals: Floats
    alike: float
    held: float
    span_s: float
    shared: int
    groups: int
    is_text: bool = False

    @classmethod
    def of(cls, requests: Requests) -> LoadSummary:
        """Summarise the requests drawn for a load point."""
        read, written = requests.input_tokens.astype(float), requests.output_tokens.astype(float)
        # Who is met running is met the likelier the longer it runs, at any moment of it alike.
        odds = written / written.sum()
        order = np.argsort(written)
        ended = np.concatenate([[0.0], np.cumsum(np.full(len(written), 1.0 / len(written)))])
        lengths = np.concatenate([[0.0], written[order]])
        steps = np.diff(lengths)
        alive = 1.0 - ended[:-1]
        residual = np.concatenate([[0.0], np.cumsum(steps * alive)])
        left = np.interp(EDGES, residual / residual[-1], lengths)
        return cls(
            requests=len(read),
            in_flight=min(len(read), int(requests.concurrency)),
            read=float(read.mean()),
            longest_prompt=int(read.max()),
            written=float(written.mean()),
            answers=np.quantile(written, EDGES),
            lengths=np.quantile(written, SHARES),
            residuals=left,
            alike=max(0.0, 1.0 - 2.0 * float(written.std() / written.mean())),
            held=float((odds * (read + written / 2)).sum()),
            span_s=float(requests.send_s.max()),
            shared=requests.prefix_tokens or shared_tokens(requests) // len(read),
            groups=len(np.unique(requests.group[requests.group >= 0])) or int(bool(requests.blocks or requests.turns)),
            is_text=requests.is_text,
        )

    def share(self, servers: int) -> LoadSummary:
        """Summarise what each of several servers gets of the load, of which one has the longest answers of all."""
        requests, in_flight = math.ceil(self.requests / servers), math.ceil(self.in_flight / servers)
        return replace(self, requests=requests, in_flight=in_flight) if servers > 1 else self


@dataclass(frozen=True, slots=True)
class Flow:
    """What a load comes to.

    Attributes:
        seconds: from the first request sent to the last one finished.
        ramp_s: until the first batch is full; the mean wait of its members is half of it.
        full_s: in which the others are admitted.
        first: share of the requests that are in the first batch.
        wait_s: seconds to the first token of a request that is sent when another one ends; None where all are sent at
            once.
        answer_s: from an answer's first token to its last, in the mean.
        per_token_s: seconds between two tokens of the answers at `SHARES`, of the first batch and of the others,
            shape (2, shares), of draws (2, shares, draws).
    """

    seconds: Seconds
    ramp_s: Seconds
    full_s: Seconds
    first: float
    wait_s: Seconds | None
    answer_s: Seconds
    per_token_s: Floats

    def first_draw(self) -> Flow:
        """The flow of the first draw, the calibrated figures, as plain floats."""
        per_token_s = self.per_token_s if self.per_token_s.ndim == 2 else self.per_token_s[..., 0]
        wait_s = None if self.wait_s is None else _first(self.wait_s)
        ramp_s, full_s, answer_s = _first(self.ramp_s), _first(self.full_s), _first(self.answer_s)
        return Flow(_first(self.seconds), ramp_s, full_s, self.first, wait_s, answer_s, per_token_s)

    def token_s(self, quantile: float | None) -> float:
        """Seconds per output token after the first: of a share of the requests, or, for None, the mean."""
        if quantile is None:
            return float(self.mean_token_s)
        share = np.array([[self.first], [1 - self.first]]) / self.per_token_s.shape[1]
        share = np.broadcast_to(share, self.per_token_s.shape).ravel()
        values = self.per_token_s.ravel()
        order = np.argsort(values)
        return float(np.interp(quantile, np.cumsum(share[order]) - share[order] / 2, values[order]))

    def first_token_s(self, quantile: float | None) -> Seconds:
        """Seconds to the first token where all are sent at once: of a share of the requests, or, for None, the mean."""
        if quantile is None:
            return self.first * self.ramp_s / 2 + (1 - self.first) * (self.ramp_s + self.full_s / 2)
        if quantile <= self.first:
            return self.ramp_s * quantile / self.first
        return self.ramp_s + self.full_s * (quantile - self.first) / (1 - self.first)

    @property
    def mean_token_s(self) -> Seconds:
        """Seconds per output token after the first, the mean."""
        early, later = self.per_token_s.mean(axis=1)
        mean: Seconds = self.first * early + (1 - self.first) * later
        return mean

    @property
    def mean_wait_s(self) -> Seconds:
        """Seconds to the first token, the mean; crude where requests are sent one after the other."""
        return self.first_token_s(None) if self.wait_s is None else self.wait_s


class Fluid:
    """The steps of a server under a load.

    Args:
        running: sequences that run at a time on all replicas, when the batch is full.
    """

    def __init__(self, server: SimulatedServer, load: LoadSummary, running: int) -> None:
        self._server, self._load, self._c = server, load, server.coefficients
        self._ranks, self._gain = server.data_parallel, server.gain_of(load.is_text)
        # Seconds of a front end for one request.
        self._front_s = self._c.request_ms * 1e-3 + load.read * self._c.prompt_token_us * 1e-6
        self._own = _own_prompt(server, load)
        # Prompt tokens of a step of one rank.
        budget = float(min(server.token_budget, self._c.max_prefill_tokens or server.token_budget))
        if not self._c.chunked_prefill and self._own < budget:
            budget = budget // self._own * self._own
        self._budget = max(1.0, budget)
        if self._c.prefill == "mixed":
            # Prompts that are computed slowly keep the batch from filling.
            flow = self._ranks * self._budget / self._own * load.written / self._gain
            running = min(running, max(self._ranks, math.ceil(flow)))
        self._running = max(1, min(running, load.requests))
        rows = np.full(self._running, max(1, round(load.read)))
        self._state = Sequences(rows, np.full(self._running, max(1, round(load.written))))
        self._state.replica = np.arange(self._running) % self._ranks
        self._batches = Batches(server, self._state)

    def flow(self) -> Flow:
        """The whole load."""
        load = self._load
        ramp_steps, ramp_s = self._ramp(self._running)
        decoded = (ramp_steps - 1) / 2 * self._gain if ramp_steps else 0.0
        waiting = load.requests - self._running
        turned = min(1.0, waiting / self._running)
        # Members of the last batch that came one after the other are anywhere in their answers.
        left = (1 - turned) * np.maximum(load.answers - 1 - decoded, 0.0) + turned * load.residuals
        drain_steps, drain_s, drained = self._drain(left)
        tokens = load.requests * (load.written - 1) - self._running * decoded - drained
        full_steps = max(0.0, tokens) / (self._running * self._gain)
        full_s = self._full(full_steps, waiting)
        steps = np.cumsum([0.0, ramp_steps, full_steps, *drain_steps])
        at_s = np.cumsum(np.stack(np.broadcast_arrays(ramp_s * 0.0, ramp_s, full_s, *drain_s)), axis=0)
        # Seconds between tokens of the answers at `SHARES`, of the first batch and later.
        lengths = np.maximum(load.lengths - 1, 1.0)
        ends_s = _at_steps(ramp_steps / 2 + lengths / self._gain, steps, at_s)
        early = ((ends_s - at_s[1] / 2).T / lengths).T
        later = (at_s[2] - at_s[1]) / (steps[2] - steps[1]) / self._gain if steps[2] > steps[1] else early.mean(axis=0)
        per_token_s = np.stack([early, np.broadcast_to(later, early.shape)])
        first = self._running / load.requests
        written = np.maximum(load.lengths - 1, 0) / len(lengths)
        answer_s: Seconds = np.tensordot(written, first * per_token_s[0] + (1 - first) * per_token_s[1], axes=1)[()]
        # A front end reads prompts, a back end sends tokens, one after the other: neither is overtaken.
        each = load.requests / self._server.front_ends
        late = longer(0.0, each * self._front_s - ramp_s - full_s)
        sending = each * load.written * self._c.output_token_us * 1e-6
        seconds = longer(at_s[-1] + late, sending)
        wait_s: Seconds | None = None
        if load.in_flight < load.requests:
            queue = max(0, load.in_flight - self._running)
            wait_s = self.alone_s() + queue / self._running * load.written / self._gain * self.step_s(self._running)
        return Flow(seconds, ramp_s, full_s + late, first, wait_s, answer_s, per_token_s)

    def step_s(self, running: int, chunks: Sequence[Sequence[Chunk]] | None = None, idle: bool = False) -> Seconds:
        """Seconds of a step: so many sequences decode, on ranks alike.

        Args:
            chunks: prompt pieces per rank.
            idle: whether ranks with prompts do not decode.
        """
        ids = np.arange(min(running, self._running))
        if idle and chunks is not None:
            busy = np.array([bool(pieces) for pieces in chunks])
            ids = ids[~busy[self._state.replica[ids]]] if not self._c.prefill_idles_ranks else ids[:0]
        return self._batches.seconds(ids, chunks)

    def _at(self, written: float) -> None:
        """All sequences have so many tokens of their answers."""
        self._state.written[:] = max(0.0, written)

    def _ramp(self, requests: int) -> tuple[float, Seconds]:
        """Steps in which those that are ready decode, and seconds, until these requests' prompts are all computed."""
        per_rank = math.ceil(requests / self._ranks)
        steps = max(1.0, per_rank * self._own / self._budget)
        ranks = min(self._ranks, requests)
        chunks = self._chunks(min(requests / ranks, self._budget / self._own), ranks)
        self._at(steps / 4)
        if self._c.prefill == "mixed":
            return steps, steps * self.step_s(requests // 2 if steps > 1 else 0, chunks)
        return 0.0, steps * self.step_s(0, chunks, idle=True)

    def _full(self, steps: float, waiting: int) -> Seconds:
        """Seconds of so many steps with a full batch, into which so many requests are admitted meanwhile."""
        self._at(self._load.held - self._load.read)
        plain = self.step_s(self._running)
        if waiting <= 0:
            return steps * plain
        # Admitted together: who ends in one step; more where the steps are few. Answers of one length end as they
        # began, in waves that fill steps of all ranks.
        most = self._ranks * self._budget / self._own
        together = max(1.0, waiting / max(steps, 1.0))
        per_step: float = min(together, most) ** (1 - self._load.alike) * min(most, self._running) ** self._load.alike
        admitting = waiting / per_step
        ranks = min(self._ranks, max(1, round(per_step)))
        chunks = self._chunks(per_step / ranks, ranks)
        if self._c.prefill == "mixed":
            return max(0.0, steps - admitting) * plain + admitting * self.step_s(self._running, chunks)
        elsewhere = 0.0 if self._c.prefill_idles_ranks else 1 - ranks / self._ranks
        longer = self.step_s(self._running, chunks, idle=True)
        return max(0.0, steps - admitting * elsewhere) * plain + admitting * longer

    def _drain(self, left: Floats) -> tuple[list[float], list[Seconds], float]:
        """Steps and seconds between two ends of answers, and tokens written, until all have ended.

        Args:
            left: tokens that are left to write at `EDGES` of the batch.
        """
        steps: list[float] = []
        seconds: list[Seconds] = []
        written, before = 0.0, 0.0
        for edge, (ended, until) in enumerate(zip(EDGES, left / self._gain, strict=True)):
            if until <= before:
                continue
            alive = self._running * (1 - (ended + EDGES[max(0, edge - 1)]) / 2)
            self._at(self._load.held - self._load.read + (before + until) / 2 * self._gain)
            steps.append(float(until - before))
            seconds.append(steps[-1] * self.step_s(max(1, round(alive))))
            written += alive * steps[-1] * self._gain
            before = float(until)
        return steps, seconds, written

    def _chunks(self, prompts: float, ranks: int) -> list[list[Chunk]]:
        """A step's prompts on so many ranks: whole ones of mean length, or a piece from the middle of a long one."""
        tokens = max(1, round(min(self._own, self._budget)))
        cached = round(self._load.read - self._own)
        start = cached + round(max(0.0, self._own - tokens) / 2)
        pieces = [Chunk(number, start, tokens, last=True) for number in range(max(1, round(prompts)))]
        return [pieces if rank < ranks else [] for rank in range(self._ranks)]

    def alone_s(self) -> Seconds:
        """Seconds to the first token of a request that nobody waits before, with the batch full."""
        self._at(self._load.held - self._load.read)
        mixed = self._c.prefill == "mixed"
        computing = self.step_s(self._running if mixed else 0, self._chunks(1, 1), idle=not mixed)
        steps = math.ceil(self._own / self._budget)
        return steps * computing + self.step_s(self._running) / 2 + self._front_s


def flow_of(server: SimulatedServer, load: LoadSummary, running: int) -> Flow:
    """What a load comes to on a server that runs at most so many sequences at a time."""
    flow = Fluid(server, load, running).flow()
    if not load.span_s or _first(flow.seconds) >= load.span_s + _first(flow.answer_s):
        return flow
    # The server keeps up: as many are in flight as arrive while one is served (Little's law).
    inside = running
    for _ in range(_ARRIVALS):
        fluid = Fluid(server, load, inside)
        wait_s, token_s = fluid.alone_s(), fluid.step_s(inside) / server.gain_of(load.is_text)
        answer_s = (load.written - 1) * token_s
        inside = max(1, min(running, round(load.requests / load.span_s * _first(wait_s + answer_s))))
    per_token_s = np.stack([np.asarray(token_s)[None]] * 2)
    return Flow(load.span_s + wait_s + answer_s, wait_s, 0.0, 1.0, wait_s, answer_s, per_token_s)


def _first(value: Seconds) -> float:
    """The value of the first draw, the calibrated figures."""
    return float(value[0] if isinstance(value, np.ndarray) and value.ndim else value)


def _at_steps(steps: Floats, known: Floats, at_s: Floats) -> Floats:
    """Seconds at so many steps, linear between known ones; shape (steps,), of draws (steps, draws)."""
    place = np.clip(np.searchsorted(known, steps, side="right") - 1, 0, len(known) - 2)
    width = known[place + 1] - known[place]
    share = np.clip(np.divide(steps - known[place], width, out=np.ones_like(steps), where=width > 0), 0.0, 1.0)
    found: Floats = (at_s[place].T + share * (at_s[place + 1] - at_s[place]).T).T
    return found


def _own_prompt(server: SimulatedServer, load: LoadSummary) -> float:
    """Prompt tokens that are computed for a request, in the mean: less what the prefix cache has."""
    if not load.groups or not server.prefix_caching:
        return max(1.0, load.read)
    kept = load.shared // server.block_tokens * server.block_tokens
    computed = min(1.0, load.groups * server.data_parallel / load.requests)
    return max(1.0, load.read - kept * (1 - computed))


def sequences_held(server: SimulatedServer, load: LoadSummary, capacity: int) -> int:
    """Sequences whose tokens the KV pools of all replicas hold, in the mean, with what admission reserves."""
    c = server.coefficients
    shared = load.read - _own_prompt(server, load)
    if c.reserve_share >= 1:
        each = load.read + load.written
    else:
        left = min(load.held - load.read, c.reserve_clip or math.inf)
        each = load.held + server.reserve_share * c.reserve_least * left
    each = max(float(server.block_tokens), each + server.block_tokens / 2 - shared)
    return max(1, int(capacity * (1 - c.watermark) / each)) * server.data_parallel
