"""Fast prediction of the calibrated simulator for every candidate: the search's prior for measured
trials.

The memory plan, the step times and the fitted figures are the simulator's own; what it follows
request by request is taken as a fluid here, in three stages, of each of which the mean step is
taken from the simulator's own `StepTime`:

    ramp    the first batch's prompts are computed
    full    the batch is full: who ends makes room for the next
    drain   nobody waits any more, and the batch empties as its answers end

The drain is what mean lengths alone miss: of 1000 ShareGPT prompts sent at once it is most of the
run. Candidates that differ in nothing that this arithmetic reads are computed once: it is noted
which knobs were read, so no list of them has to be kept by hand.

Where draws of the figures are given, one computation predicts with the figures as they are and with
each draw: they are arrays then, the figures as they are first.

The share of a load's requests that keeps limits comes from the fluid as well. The first batch waits
for its prompts, evenly up to the end of the ramp; who is admitted later waits evenly up to the end
of the full stage. Of each a twelfth is looked at, with answers of each length of
`LoadSummary.lengths`.

What a server carries within limits on its latencies comes from the fluid at a few closed loops. A
quantile is taken as a multiple of the mean. Where the worst of the limits is reached lies between
two loads, on straight lines through logarithms. An open loop is carried as the closed one that
holds as many in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from autotune.base.arrays import Floats
from autotune.engines.cards import HardwareCard, ModelCard
from autotune.engines.command import Scalar
from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.records import QUANTILES
from autotune.load.metrics.table import GOODPUT, HEADLINE
from autotune.load.requests import Requests, shared_tokens
from autotune.load.workloads import Workload

from .calibration import Calibration, Factor, coefficients_of, packaged_calibration
from .coefficients import Coefficients, speed_card
from .memory import plan_memory, startup_s
from .replica import Chunk
from .scheduling import Batches
from .server import RecordedKnobs, ServerSetup, SimulatedServer
from .simulate import beyond_step, too_long
from .steptime import Seconds, Step, longer

EDGES = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 0.94, 0.985, 1.0])
"""Shares of ended sequences at which the drain is evaluated: dense near the end, which takes
long."""
SHARES = (np.arange(12) + 0.5) / 12
"""Quantiles of the answers' lengths at which TPOT is predicted: short answers end before the
drain."""
_ARRIVALS = 4
"""Iterations that solve for requests in flight and their latency under arrivals over time."""


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Means and quantiles of the requests of one load point.

    Attributes:
        read, written: mean tokens of a prompt, of an answer.
        answers: tokens of an answer at `EDGES` of the distribution.
        lengths: the same at `SHARES`.
        residuals: as `answers`, of what is left to write of a running answer, at a random moment.
        alike: how far the answers are of one length, 0 to 1.
        held: mean tokens of a running sequence at a random moment.
        span_s: seconds in which the requests arrive; 0 = as many in flight as may be, all the time.
        shared: tokens that the prompts of a group have in common; of a trace, that one shares with
            earlier ones, mean.
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

    @classmethod
    def of(cls, requests: Requests) -> LoadSummary:
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
            groups=len(np.unique(requests.group[requests.group >= 0]))
            or int(bool(requests.blocks or requests.turns)),
        )

    def share(self, servers: int) -> LoadSummary:
        """Return the share of one of several servers, one of which has the longest answers."""
        requests, in_flight = (
            math.ceil(self.requests / servers),
            math.ceil(self.in_flight / servers),
        )
        return replace(self, requests=requests, in_flight=in_flight) if servers > 1 else self


@dataclass(frozen=True, slots=True)
class Flow:
    """Seconds of a load in the fluid model.

    Attributes:
        seconds: from the first request sent to the last one finished.
        ramp_s: until the first batch is full; the mean wait of its members is half of it.
        full_s: in which the others are admitted.
        first: share of the requests that are in the first batch.
        wait_s: to the first token of a request that is sent when another one ends; None where all
            are sent at once.
        answer_s: from an answer's first token to its last, in the mean.
        per_token_s: between two tokens of the answers at `SHARES`, of the first batch and of the
            others, shape (2, shares), of draws (2, shares, draws).
    """

    seconds: Seconds
    ramp_s: Seconds
    full_s: Seconds
    first: float
    wait_s: Seconds | None
    answer_s: Seconds
    per_token_s: Floats

    def first_draw(self) -> Flow:
        """Return the flow of the first draw, the calibrated figures, as plain floats."""
        per_token_s = self.per_token_s if self.per_token_s.ndim == 2 else self.per_token_s[..., 0]
        wait_s = None if self.wait_s is None else _first(self.wait_s)
        ramp_s, full_s, answer_s = _first(self.ramp_s), _first(self.full_s), _first(self.answer_s)
        return Flow(_first(self.seconds), ramp_s, full_s, self.first, wait_s, answer_s, per_token_s)

    def token_s(self, quantile: float | None) -> float:
        """Return the seconds per output token after the first at a quantile of the requests; None:
        the mean."""
        if quantile is None:
            return float(self.mean_token_s)
        share = np.array([[self.first], [1 - self.first]]) / self.per_token_s.shape[1]
        share = np.broadcast_to(share, self.per_token_s.shape).ravel()
        values = self.per_token_s.ravel()
        order = np.argsort(values)
        return float(np.interp(quantile, np.cumsum(share[order]) - share[order] / 2, values[order]))

    def first_token_s(self, quantile: float | None) -> Seconds:
        """Return the seconds to the first token, all sent at once, at a quantile of the requests;
        None: the mean."""
        if quantile is None:
            return self.first * self.ramp_s / 2 + (1 - self.first) * (self.ramp_s + self.full_s / 2)
        if quantile <= self.first:
            return self.ramp_s * quantile / self.first
        return self.ramp_s + self.full_s * (quantile - self.first) / (1 - self.first)

    @property
    def mean_token_s(self) -> Seconds:
        early, later = self.per_token_s.mean(axis=1)
        mean: Seconds = self.first * early + (1 - self.first) * later
        return mean

    @property
    def mean_wait_s(self) -> Seconds:
        """Return the mean seconds to the first token; approximate for sequential sending."""
        return self.first_token_s(None) if self.wait_s is None else self.wait_s


Steps = tuple[float, Step]
"""A number of equal steps."""


class Fluid:
    """Steps of a server under a load, with `running` sequences on all replicas in a full batch."""

    def __init__(self, server: SimulatedServer, load: LoadSummary, running: int) -> None:
        self._server, self._load, self._c = server, load, server.coefficients
        self._ranks, self._gain = server.data_parallel, server.tokens_per_step
        # Seconds of a front end for one request.
        self._front_s = self._c.request_ms * 1e-3 + load.read * self._c.prompt_token_us * 1e-6
        self._own = _own_prompt(server, load)
        self._held = load.held - load.read
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
        self._batches = Batches(server)

    def flow(self) -> Flow:
        load = self._load
        ramp_steps, ramp = self._ramp(self._running)
        decoded = (ramp_steps - 1) / 2 * self._gain if ramp_steps else 0.0
        waiting = load.requests - self._running
        turned = min(1.0, waiting / self._running)
        # Members of the last batch that came one after the other are anywhere in their answers.
        left = (1 - turned) * np.maximum(load.answers - 1 - decoded, 0.0) + turned * load.residuals
        drain, drained = self._drain(left)
        tokens = load.requests * (load.written - 1) - self._running * decoded - drained
        full_steps = max(0.0, tokens) / (self._running * self._gain)
        full = self._full(full_steps, waiting)
        later_sent = load.in_flight < load.requests
        stages = [ramp, full, *([part] for part in drain), *(self._alone() if later_sent else ())]
        ramp_s, full_s, *rest_s = self._seconds(stages)
        steps = np.cumsum([0.0, ramp_steps, full_steps, *(count for count, _ in drain)])
        at_s = np.cumsum(np.stack([ramp_s * 0.0, ramp_s, full_s, *rest_s[: len(drain)]]), axis=0)
        # Seconds between tokens of the answers at `SHARES`, of the first batch and later.
        lengths = np.maximum(load.lengths - 1, 1.0)
        ends_s = _at_steps(ramp_steps / 2 + lengths / self._gain, steps, at_s)
        early = ((ends_s - at_s[1] / 2).T / lengths).T
        later = (
            (at_s[2] - at_s[1]) / (steps[2] - steps[1]) / self._gain
            if steps[2] > steps[1]
            else early.mean(axis=0)
        )
        per_token_s = np.stack([early, np.broadcast_to(later, early.shape)])
        first = self._running / load.requests
        written = np.maximum(load.lengths - 1, 0) / len(lengths)
        answer_s: Seconds = np.tensordot(
            written, first * per_token_s[0] + (1 - first) * per_token_s[1], axes=1
        )[()]
        # A front end reads prompts, a back end sends tokens, one after the other: neither is
        # overtaken.
        each = load.requests / self._server.front_ends
        late = longer(0.0, each * self._front_s - ramp_s - full_s)
        sending = each * load.written * self._c.output_token_us * 1e-6
        seconds = longer(at_s[-1] + late, sending)
        wait_s: Seconds | None = None
        if later_sent:
            computing_s, step_s = rest_s[-2:]
            queue = max(0, load.in_flight - self._running)
            wait_s = computing_s + step_s / 2 + self._front_s
            wait_s = wait_s + queue / self._running * load.written / self._gain * step_s
        return Flow(seconds, ramp_s, full_s + late, first, wait_s, answer_s, per_token_s)

    def alone_s(self) -> tuple[Seconds, Seconds]:
        """Return the seconds to the first token of a request without a queue, and of a step of the
        batch."""
        computing_s, step_s = self._seconds(self._alone())
        return computing_s + step_s / 2 + self._front_s, step_s

    def _seconds(self, stages: Sequence[Sequence[Steps]]) -> list[Seconds]:
        """Return the seconds of each stage."""
        seconds = iter(
            self._batches.time.seconds_of([step for stage in stages for _, step in stage])
        )
        sums: list[Seconds] = []
        for stage in stages:
            parts = [count * next(seconds) for count, _ in stage]
            sums.append(sum(parts[1:], parts[0]))
        return sums

    def _step(
        self, running: int, written: float, chunks: Sequence[Sequence[Chunk]] | None = None
    ) -> Step:
        """Make a step with this number of decoding sequences on equal ranks, their written tokens,
        and prompts."""
        each, more = divmod(min(running, self._running), self._ranks)
        counts = [each + (rank < more) for rank in range(self._ranks)]
        if chunks is not None and self._c.prefill == "separate":
            # Ranks with prompts do not decode.
            idle = self._c.prefill_idles_ranks
            counts = [
                0 if idle or pieces else count for count, pieces in zip(counts, chunks, strict=True)
            ]
        context = max(1, round(self._load.read)) + max(0.0, written) - 1.0
        kept = min(context, self._batches.top_k)
        return self._batches.step(
            counts, [n * context for n in counts], [n * kept for n in counts], chunks
        )

    def _ramp(self, requests: int) -> tuple[float, list[Steps]]:
        """Return steps in which ready sequences, or all, decode until these requests' prompts are
        computed."""
        per_rank = math.ceil(requests / self._ranks)
        steps = max(1.0, per_rank * self._own / self._budget)
        ranks = min(self._ranks, requests)
        chunks = self._chunks(min(requests / ranks, self._budget / self._own), ranks)
        mixed = self._c.prefill == "mixed"
        ready = requests // 2 if mixed and steps > 1 else 0
        return steps if mixed else 0.0, [(steps, self._step(ready, steps / 4, chunks))]

    def _full(self, steps: float, waiting: int) -> list[Steps]:
        """Return this number of steps with a full batch and the number of requests admitted during
        them."""
        plain = self._step(self._running, self._held)
        if waiting <= 0:
            return [(steps, plain)]
        # Admitted together: who ends in one step; more where the steps are few. Answers of one
        # length end as they began, in waves that fill steps of all ranks.
        most = self._ranks * self._budget / self._own
        together = max(1.0, waiting / max(steps, 1.0))
        per_step: float = (
            min(together, most) ** (1 - self._load.alike)
            * min(most, self._running) ** self._load.alike
        )
        admitting = waiting / per_step
        ranks = min(self._ranks, max(1, round(per_step)))
        chunks = self._chunks(per_step / ranks, ranks)
        elsewhere = 1.0
        if self._c.prefill == "separate":
            elsewhere = 0.0 if self._c.prefill_idles_ranks else 1 - ranks / self._ranks
        admits = self._step(self._running, self._held, chunks)
        return [(max(0.0, steps - admitting * elsewhere), plain), (admitting, admits)]

    def _drain(self, left: Floats) -> tuple[list[Steps], float]:
        """Return the steps between ends of answers, `left` tokens away at `EDGES`, and tokens
        written."""
        steps: list[Steps] = []
        written, before = 0.0, 0.0
        for edge, (ended, until) in enumerate(
            zip(EDGES, (left / self._gain).tolist(), strict=True)
        ):
            if until <= before:
                continue
            alive = self._running * float(1 - (ended + EDGES[max(0, edge - 1)]) / 2)
            step = self._step(max(1, round(alive)), self._held + (before + until) / 2 * self._gain)
            steps.append((until - before, step))
            written += alive * (until - before) * self._gain
            before = until
        return steps, written

    def _alone(self) -> list[list[Steps]]:
        """Return the steps that compute one request's prompt next to the full batch, and a step of
        that batch."""
        ready = self._running if self._c.prefill == "mixed" else 0
        computing = self._step(ready, self._held, self._chunks(1, 1))
        return [
            [(math.ceil(self._own / self._budget), computing)],
            [(1, self._step(self._running, self._held))],
        ]

    def _chunks(self, prompts: float, ranks: int) -> list[list[Chunk]]:
        """Make a step's prompts on this number of ranks: whole ones of mean length, or a long one's
        middle piece."""
        tokens = max(1, round(min(self._own, self._budget)))
        cached = round(self._load.read - self._own)
        start = cached + round(max(0.0, self._own - tokens) / 2)
        pieces = [
            Chunk(number, start, tokens, last=True) for number in range(max(1, round(prompts)))
        ]
        return [pieces if rank < ranks else [] for rank in range(self._ranks)]


def flow_of(server: SimulatedServer, load: LoadSummary, running: int) -> Flow:
    """Compute a load as a fluid on a server with this limit of running sequences."""
    flow = Fluid(server, load, running).flow()
    if not load.span_s or _first(flow.seconds) >= load.span_s + _first(flow.answer_s):
        return flow
    # The server keeps up: as many are in flight as arrive while one is served (Little's law).
    inside = running
    for _ in range(_ARRIVALS):
        fluid = Fluid(server, load, inside)
        wait_s, step_s = fluid.alone_s()
        token_s = step_s / server.tokens_per_step
        answer_s = (load.written - 1) * token_s
        inside = max(
            1, min(running, round(load.requests / load.span_s * _first(wait_s + answer_s)))
        )
    per_token_s = np.stack([np.asarray(token_s)[None]] * 2)
    return Flow(load.span_s + wait_s + answer_s, wait_s, 0.0, 1.0, wait_s, answer_s, per_token_s)


def _first(value: Seconds) -> float:
    """Return the value of the first draw, the calibrated figures."""
    return float(value[0] if isinstance(value, np.ndarray) and value.ndim else value)


def _at_steps(steps: Floats, known: Floats, at_s: Floats) -> Floats:
    """Interpolate the seconds at this number of steps; shape (steps,), of draws (steps, draws)."""
    place = np.clip(np.searchsorted(known, steps, side="right") - 1, 0, len(known) - 2)
    width = known[place + 1] - known[place]
    share = np.clip(
        np.divide(steps - known[place], width, out=np.ones_like(steps), where=width > 0), 0.0, 1.0
    )
    found: Floats = (at_s[place].T + share * (at_s[place + 1] - at_s[place]).T).T
    return found


def _own_prompt(server: SimulatedServer, load: LoadSummary) -> float:
    """Return the mean of a request's computed prompt tokens: without those in the prefix cache."""
    if not load.groups or not server.prefix_caching:
        return max(1.0, load.read)
    kept = load.shared // server.block_tokens * server.block_tokens
    computed = min(1.0, load.groups * server.data_parallel / load.requests)
    return max(1.0, load.read - kept * (1 - computed))


def sequences_held(server: SimulatedServer, load: LoadSummary, capacity: int) -> int:
    """Return the mean number of sequences in the pools of all replicas, with the reservation at
    admission."""
    c = server.coefficients
    shared = load.read - _own_prompt(server, load)
    if c.reserve_share >= 1:
        each = load.read + load.written
    else:
        left = min(load.held - load.read, c.reserve_clip or math.inf)
        each = load.held + server.reserve_share * c.reserve_least * left
    each = max(float(server.block_tokens), each + server.block_tokens / 2 - shared)
    return max(1, int(capacity * (1 - c.watermark) / each)) * server.data_parallel


IN_FLIGHT = (8, 32, 128, 512)
"""Loads at which the fluid is evaluated."""
_UPPER_TTFT, _UPPER_TPOT = 2.0, 1.4
"""A 90th percentile or higher over the mean, of chats on the simulated node below saturation; a
third more or less."""
_SPREAD = {"ttft": 0.2, "tpot": 0.15, "e2el": 0.1}
"""Standard deviation of ln(latency of a request / what the fluid says of it), so that no request is
good or bad for sure: that of the means (``benchmarks/priors.py``), as requests of one kind fare
much alike."""
Value = TypeVar("Value")
LEAST_ODDS, BEST_ODDS = 0.02, 0.98
"""Bounds of the odds of starting, because the memory plan is not more certain."""


def carried(
    loads: Sequence[LoadSummary], flows: Sequence[Flow], slos: Sequence[Slo]
) -> tuple[Floats, Floats]:
    """Return ln of tokens per second and of requests in flight at capacity; of draws arrays of
    shape (draws,).

    A server that breaks a limit at the lightest load has less than that load's throughput, by as
    much as it is beyond.

    Args:
        loads: closed loops, ascending, of the same prompts.
        slos: limits on anything else than a latency of requests hold nothing back.
    """
    beyond, speeds = [], []
    for load, flow in zip(loads, flows, strict=True):
        wait_s, token_s = np.asarray(flow.mean_wait_s), np.asarray(flow.mean_token_s)
        limits = [_beyond(slo, load, wait_s, token_s) for slo in slos]
        beyond.append(np.max([one for one in limits if one is not None], axis=0))
        # Little's law.
        speeds.append(
            np.log(load.in_flight * (load.read + load.written) / (wait_s + flow.answer_s))
        )
    places = np.log([load.in_flight for load in loads])
    speed, place = np.asarray(speeds[-1]), np.asarray(speeds[-1]) * 0 + places[-1]
    for i in range(len(loads) - 2, -1, -1):
        rise = np.maximum(beyond[i + 1] - beyond[i], 1e-9)
        share = np.clip(-beyond[i] / rise, 0.0, 1.0)
        crossed = beyond[i + 1] > 0
        speed = np.where(crossed, speeds[i] + share * (speeds[i + 1] - speeds[i]), speed)
        place = np.where(crossed, places[i] + share * (places[i + 1] - places[i]), place)
    short = np.maximum(beyond[0], 0.0)
    return np.asarray(speed - short), np.asarray(place - short)


def _beyond(slo: Slo, load: LoadSummary, wait_s: Seconds, token_s: Seconds) -> Floats | None:
    """Return ln(latency / limit); None without a prediction."""
    statistic, _, rest = slo.metric.partition("_")
    if statistic not in (*QUANTILES, "mean") or slo.sense != "<=" or slo.limit <= 0:
        return None
    upper = QUANTILES.get(statistic, 0.5) > 0.5
    first_s, each_s = (_UPPER_TTFT * wait_s, _UPPER_TPOT * token_s) if upper else (wait_s, token_s)
    length = float(np.quantile(load.lengths, QUANTILES[statistic])) if upper else load.written
    values = {
        "ttft_ms": first_s,
        "tpot_ms": each_s,
        "itl_ms": each_s,
        "e2el_ms": first_s + length * each_s,
    }
    return np.asarray(np.log(1e3 * values[rest] / slo.limit)) if rest in values else None


def good_share(load: LoadSummary, flow: Flow, limits: Sequence[Slo]) -> float | None:
    """Return the share of requests within the limits on TTFT, TPOT and E2EL; None if unpredicted
    waits decide."""
    named = [
        (slo, slo.metric.removesuffix("_ms").rpartition("_")[2])
        for slo in limits
        if slo.metric.endswith("_ms")
    ]
    asked = [(slo, latency) for slo, latency in named if latency in _SPREAD]
    if flow.wait_s is not None and any(latency != "tpot" for _, latency in asked):
        return None
    from scipy.special import ndtr  # Half a second to load.

    share = 0.0
    begins_s, ends_s = (
        (0.0, float(flow.ramp_s)),
        (float(flow.ramp_s), float(flow.ramp_s + flow.full_s)),
    )
    for part, (begin_s, end_s), token_s in zip(
        (flow.first, 1 - flow.first), (begins_s, ends_s), flow.per_token_s, strict=True
    ):
        wait_s, each_s = np.broadcast_arrays(
            (begin_s + SHARES * (end_s - begin_s))[:, None], token_s
        )
        answer_s = np.maximum(load.lengths - 1, 0) * each_s
        latencies = {
            "ttft": wait_s,
            "tpot": each_s,
            "e2el": wait_s + answer_s,
        }  # shape (waits, lengths)
        good = np.ones((len(SHARES), len(SHARES)))
        for slo, latency in asked:
            beyond = (
                np.log(np.maximum(latencies[latency], 1e-9) * 1e3 / max(slo.limit, 1e-9))
                / _SPREAD[latency]
            )
            good = np.minimum(good, ndtr(-beyond if slo.sense == "<=" else beyond))
        share += part * float(good.mean())
    return max(share, 0.5 / load.requests)


@dataclass(frozen=True, slots=True)
class SteadyPrediction:
    """Metrics of one configuration under one workload, and the odds that it starts.

    Attributes:
        metrics: under the names of `autotune.load.metrics.formulas`, as if it started; TTFT only where
            all requests are sent at once: of other loads it is not foreseen well enough. Empty
            where the layout needs more GPUs than there are.
        starts: the odds that it starts and takes the workload's requests.
        doubt: what speaks against that: ``memory`` or ``length``; empty where nothing does.
        drawn: ln of the total token throughput and of mean latencies with each draw of the figures,
            shape (draws,); of a server that is loaded to its capacity, of the total token
            throughput there alone.
    """

    metrics: Mapping[str, float]
    starts: float
    doubt: str
    startup_s: float
    drawn: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on latencies: of a server at its `capacity`, and of a `request` in
    ``request_goodput``."""

    capacity: tuple[Slo, ...] = ()
    request: tuple[Slo, ...] | None = None


NO_LIMITS = Limits()


class SteadyNode:
    """Predict configurations of any engine under one workload on one node, with draws as of
    `drawn_factors`."""

    def __init__(
        self,
        model: ModelCard,
        hardware: HardwareCard,
        gpus: int,
        workload: Workload,
        calibration: Calibration | None = None,
        moved: Mapping[Factor, Floats] | None = None,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._limits = limits
        self._moved = {which: np.append(0.0, values) for which, values in (moved or {}).items()}
        self._model, self._hardware, self._gpus = model, hardware, gpus
        self._calibration = calibration or packaged_calibration()
        self._workload = workload = (
            workload.with_concurrencies(IN_FLIGHT) if limits.capacity else workload
        )
        self._loads = [
            LoadSummary.of(workload.draw(position, 0)) for position in range(len(workload.points))
        ]
        self._coefficients = Memo(self._compute_coefficients)
        self._starts = Memo(self._compute_start)
        self._flows = Memo(self._compute_flows)

    def predict(self, engine: str, version: str, knobs: Mapping[str, Scalar]) -> SteadyPrediction:
        """Predict effective knobs; raises `UnknownName` for an engine unknown to the simulator."""
        odds, doubt, ready_s, running = self._starts(knobs, engine, version)
        metrics, drawn = self._flows(knobs, engine, version, running) if running else ({}, {})
        return SteadyPrediction(metrics, odds, doubt, ready_s, drawn)

    def _server(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, drawn: bool = False
    ) -> SimulatedServer:
        setup = ServerSetup(
            engine, version, knobs, self._model, self._hardware, self._gpus, self._calibration
        )
        return SimulatedServer(setup, self._coefficients(knobs, engine, version, drawn))

    def _compute_coefficients(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, drawn: bool
    ) -> Coefficients:
        scope = {"model": self._model, "hardware": self._hardware, "gpus": self._gpus}
        moved = self._moved if drawn else None
        return coefficients_of(speed_card(engine), self._calibration, version, knobs, scope, moved)

    def _compute_start(
        self, knobs: Mapping[str, Scalar], engine: str, version: str
    ) -> tuple[float, str, float, tuple[int, ...]]:
        """Return odds of starting, the doubt, seconds to ready, and sequences per load (none: too
        many GPUs)."""
        server = self._server(knobs, engine, version)
        if server.gpus > server.setup.gpus:
            return LEAST_ODDS, "length", 0.0, ()
        plan, loads = plan_memory(server), [load.share(server.replicas) for load in self._loads]
        limit, starts = server.running_limit * server.data_parallel, plan.starts
        # What does not fit is predicted as if it did: if it starts all the same, the cache's size
        # is wrong too.
        held = [
            sequences_held(server, load, plan.capacity_tokens) if starts else limit
            for load in loads
        ]
        running = tuple(
            min(load.in_flight, limit, most) for load, most in zip(loads, held, strict=True)
        )
        longest = max(load.longest_prompt for load in self._loads)
        fits = min(plan.fit_probability, plan.holds(self._workload.longest_request))
        refused = too_long(server, plan, self._workload) is not None
        doubt = "memory" if fits < 0.5 or refused else ""
        if beyond_step(server, longest) or self._workload.longest_request > server.context_length:
            refused, doubt = True, "length"
        odds = LEAST_ODDS if refused else min(BEST_ODDS, max(LEAST_ODDS, fits))
        return odds, doubt, startup_s(server, plan), running

    def _compute_flows(
        self, knobs: Mapping[str, Scalar], engine: str, version: str, running: tuple[int, ...]
    ) -> tuple[dict[str, float], dict[str, Floats]]:
        """Return metrics with the calibrated figures, and logarithms with each draw."""
        server = self._server(knobs, engine, version, drawn=True)
        loads = [load.share(server.replicas) for load in self._loads]
        flows = [flow_of(server, load, most) for load, most in zip(loads, running, strict=True)]
        metrics = self._metrics_of([flow.first_draw() for flow in flows])
        if not self._moved:
            return metrics, {}
        if self._limits.capacity:
            found = {HEADLINE: carried(self._loads, flows, self._limits.capacity)[0]}
        else:
            found = {name: np.log(value) for name, value in _central(self._loads, flows).items()}
        count = len(next(iter(self._moved.values())))
        return metrics, {name: np.broadcast_to(logs, (count,))[1:] for name, logs in found.items()}

    def _metrics_of(self, flows: Sequence[Flow]) -> dict[str, float]:
        metrics = _metrics(self._loads, flows)
        if self._limits.capacity:
            speed, place = (
                float(np.exp(one)) for one in carried(self._loads, flows, self._limits.capacity)
            )
            metrics |= {"capacity_total_token_throughput": speed, "capacity_concurrency": place}
            metrics["capacity_request_rate"] = speed / (
                self._loads[0].read + self._loads[0].written
            )
        elif (request := self._limits.request) is not None:
            shares = [
                good_share(load, flow, request)
                for load, flow in zip(self._loads, flows, strict=True)
            ]
            good = [
                share * load.requests
                for load, share in zip(self._loads, shares, strict=True)
                if share is not None
            ]
            metrics |= (
                {GOODPUT: sum(good) / metrics["duration"]} if len(good) == len(shares) else {}
            )
        return metrics


class Memo(Generic[Value]):
    """Cached function of knobs, an engine and more, computed once per combination of the knobs that
    it reads."""

    def __init__(self, compute: Callable[..., Value]) -> None:
        self._compute = compute
        self._names: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, dict[tuple[Any, ...], Value]] = {}

    def __call__(self, knobs: Mapping[str, Scalar], engine: str, *more: Any) -> Value:
        known, names = self._known.setdefault(engine, {}), self._names.get(engine, ())
        found = known.get(_key(names, knobs, more))
        if found is not None:
            return found
        read = set(names)
        value = self._compute(RecordedKnobs(knobs, read), engine, *more)
        if len(read) > len(names):
            self._names[engine] = names = tuple(sorted(read))
            known.clear()
        known[_key(names, knobs, more)] = value
        return value


def _key(
    names: tuple[str, ...], knobs: Mapping[str, Scalar], more: tuple[Any, ...]
) -> tuple[Any, ...]:
    values = list(map(knobs.get, names))
    # 1 and True are equal to a dictionary, and not to an engine.
    return (more, *values, *map(type, values))


def _central(loads: Sequence[LoadSummary], flows: Sequence[Flow]) -> dict[str, Seconds]:
    """Return throughput and mean latencies of loads one after the other; of draws of the figures,
    shape (draws,)."""
    requests = sum(load.requests for load in loads)
    tokens = sum(load.requests * (load.read + load.written) for load in loads)

    def mean_ms(values: Sequence[Seconds]) -> Seconds:
        return (
            1e3 * sum(load.requests * v for load, v in zip(loads, values, strict=True)) / requests
        )

    found = {
        HEADLINE: tokens / sum(flow.seconds for flow in flows),
        "mean_e2el_ms": mean_ms([flow.mean_wait_s + flow.answer_s for flow in flows]),
        "mean_tpot_ms": mean_ms([flow.mean_token_s for flow in flows]),
    }
    if all(flow.wait_s is None for flow in flows):
        found["mean_ttft_ms"] = mean_ms([flow.mean_wait_s for flow in flows])
    return found


def _metrics(loads: Sequence[LoadSummary], flows: Sequence[Flow]) -> dict[str, float]:
    found = {name: float(value) for name, value in _central(loads, flows).items()}
    seconds, requests = (
        float(sum(flow.seconds for flow in flows)),
        sum(load.requests for load in loads),
    )
    found |= {
        "duration": seconds,
        "request_throughput": requests / seconds,
        "output_throughput": sum(load.requests * load.written for load in loads) / seconds,
    }
    shares = [load.requests / requests for load in loads]
    for name, quantile in QUANTILES.items():
        parts = [share * flow.token_s(quantile) for share, flow in zip(shares, flows, strict=True)]
        found[f"{name}_tpot_ms"] = 1e3 * sum(parts)
        if "mean_ttft_ms" in found:
            waits = [
                share * flow.first_token_s(quantile)
                for share, flow in zip(shares, flows, strict=True)
            ]
            found[f"{name}_ttft_ms"] = float(1e3 * sum(waits))
    return found
