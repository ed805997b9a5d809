"""Fast prediction of the calibrated simulator for every candidate: the search's prior for measured
trials.

The memory plan, the step times and the fitted figures are the simulator's own. The requests, which
the simulator follows one by one, are a fluid here, in three stages; the mean step of each is taken
from the simulator's own `StepTime`:

    ramp    the first batch's prompts are computed
    full    the batch is full: a request that ends makes room for the next
    drain   nobody waits any more, and the batch empties as its answers end

Mean lengths alone miss the drain: of 1000 ShareGPT prompts sent at once it is most of the run.
Candidates with equal values of the knobs that this arithmetic reads are computed once: `Memo`
records the reads, so that no list of knobs is kept by hand.

With draws of the figures, one computation predicts with the calibrated figures and with each draw:
figures are arrays then, the calibrated ones first.

The share of a load's requests that keeps limits comes from the fluid as well. The first batch waits
for its prompts, evenly up to the end of the ramp; requests admitted later wait evenly up to the end
of the full stage. Twelve waits of each are evaluated, with answers of each length of
`LoadSummary.lengths`.

The load that a server carries within limits on its latencies comes from the fluid at a few closed
loops. A quantile is a multiple of the mean. The load at the tightest limit is interpolated between
two loads, linearly in logarithms. An open loop is carried as the closed one with as many in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, methodcaller
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from autotune.base import FloatDict, FloatMap, Strings
from autotune.base.arrays import Floats
from autotune.engines import HardwareCard, Knobs, ModelCard
from autotune.load.metrics.formulas import Slo
from autotune.load.metrics.records import QUANTILES
from autotune.load.metrics.table import GOODPUT, HEADLINE
from autotune.load.requests import Requests, shared_tokens
from autotune.load.workloads import Workload

from .calibration import Calibration, Factor, ServerSetup, coefficients_of, packaged_calibration
from .coefficients import Coefficients
from .memory import most_running, plan_memory, sequence_tokens, startup_s
from .replica import Chunk
from .scheduling import Batches, Chunks
from .server import RecordedKnobs, SimulatedServer
from .simulate import beyond_step, too_long
from .steptime import Seconds, Step, longer

EDGES = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 0.94, 0.985, 1.0])
"""Shares of ended sequences at which the drain is evaluated: dense near the end, which takes
long."""
_RUNNING = (1 - (EDGES + np.append(0.0, EDGES[:-1])) / 2).tolist()
"""Share of the sequences that run on the way to each of `EDGES`."""
SHARES = (np.arange(12) + 0.5) / 12
"""Quantiles of the answers' lengths at which TPOT is predicted: short answers end before the
drain."""
_ARRIVALS = 4
"""Iterations that solve for requests in flight and their latency under arrivals over time."""


class LoadSummary(NamedTuple):
    """Means and quantiles of the requests of one load point.

    Attributes:
        read, written: mean tokens of a prompt, of an answer.
        answers: tokens of an answer at `EDGES` of the distribution.
        lengths: the same at `SHARES`.
        residuals: as `answers`, of the rest of a running answer, at a random moment.
        width: tokens between short and long answers, as if drawn uniformly: 3.5 standard deviations.
        running_tokens: mean tokens of a running sequence at a random moment, prompt included.
        span_s: seconds in which the requests arrive; 0 = the highest number in flight, all the
            time.
        shared: tokens that the prompts of a group have in common; in a trace, the mean that a
            prompt shares with earlier ones.
        groups: number of groups; 0 = nothing is shared.
    """

    requests: int
    in_flight: int
    read: float
    longest_prompt: int
    written: float
    answers: Floats
    lengths: Floats
    residuals: Floats
    width: float
    running_tokens: float
    span_s: float
    shared: int
    groups: int

    @classmethod
    def from_requests(cls, requests: Requests) -> LoadSummary:
        read = requests.input_tokens.astype(float)
        written = requests.output_tokens.astype(float)
        count = len(read)
        # A request seen at a random moment is drawn in proportion to its length.
        odds = written / written.sum()
        lengths = np.append(0.0, np.sort(written))
        alive = 1.0 - np.append(0.0, np.cumsum(np.full(count - 1, 1.0 / count)))
        residual = np.append(0.0, np.cumsum(np.diff(lengths) * alive))
        groups = len(np.unique(requests.group[requests.group >= 0]))
        return cls(
            requests=count,
            in_flight=min(count, int(requests.concurrency)),
            read=float(read.mean()),
            longest_prompt=int(read.max()),
            written=float(written.mean()),
            answers=np.quantile(written, EDGES),
            lengths=np.quantile(written, SHARES),
            residuals=np.interp(EDGES, residual / residual[-1], lengths),
            width=math.sqrt(12) * float(written.std()),
            running_tokens=float((odds * (read + written / 2)).sum()),
            span_s=float(requests.send_s.max()),
            shared=int(np.minimum(requests.prefix_tokens, read).mean())
            or shared_tokens(requests) // count,
            groups=groups or int(bool(requests.blocks or requests.turns)),
        )

    def share(self, server: SimulatedServer) -> LoadSummary:
        """Return the share of the server that has the longest answers."""
        return self._replace(
            requests=server.share_of(self.requests), in_flight=server.share_of(self.in_flight)
        )


class Flow(NamedTuple):
    """Seconds of a load in the fluid model.

    Attributes:
        seconds: from the first request sent to the last one finished.
        ramp_s: until the first batch is full; the mean wait of its members is half of it.
        full_s: in which the others are admitted.
        first: share of the requests that are in the first batch.
        wait_s: to the first token of a request that is sent when another one ends; None where all
            are sent at once.
        answer_s: mean from an answer's first token to its last.
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
        return Flow(
            _first(self.seconds),
            _first(self.ramp_s),
            _first(self.full_s),
            self.first,
            None if self.wait_s is None else _first(self.wait_s),
            _first(self.answer_s),
            self.per_token_s if self.per_token_s.ndim == 2 else self.per_token_s[..., 0],
        )

    def token_s(self, quantile: float) -> float:
        """Return the seconds per output token after the first at a quantile of the requests."""
        lengths = self.per_token_s.shape[1]
        share = np.repeat([self.first / lengths, (1 - self.first) / lengths], lengths)
        values = self.per_token_s.ravel()
        order = np.argsort(values)
        return float(np.interp(quantile, np.cumsum(share[order]) - share[order] / 2, values[order]))

    def first_token_s(self, quantile: float) -> Seconds:
        """Return the seconds to the first token, all sent at once, at a quantile of the
        requests."""
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
        if self.wait_s is not None:
            return self.wait_s
        return self.first * self.ramp_s / 2 + (1 - self.first) * (self.ramp_s + self.full_s / 2)


Served = Sequence[tuple[LoadSummary, Flow]]
"""Loads, each with its flow on one of the servers."""
Steps = tuple[float, Step]
"""A number of equal steps."""


class Fluid:
    """Steps of a server under a load, with `running` sequences on all replicas in a full batch."""

    def __init__(self, server: SimulatedServer, load: LoadSummary, running: int) -> None:
        self._server = server
        self._load = load
        self._c = server.coefficients
        self._ranks = server.data_parallel
        self._gain = server.tokens_per_step
        self._front_end_s = self._c.request_ms * 1e-3 + load.read * self._c.prompt_token_us * 1e-6
        self._outside_s = self._front_end_s + self._c.latency_ms * 1e-3
        self._prompt = _computed_prompt(server, load)
        self._written = load.running_tokens - load.read
        # Prompt tokens of a step of one rank.
        budget = float(min(server.token_budget, self._c.max_prefill_tokens or server.token_budget))
        if not self._c.chunked_prefill and self._prompt < budget:
            budget = budget // self._prompt * self._prompt
        self._budget = max(1.0, budget)
        if self._c.prefill == "mixed":
            # Prompts that are computed slowly keep the batch from filling.
            flow = self._ranks * self._budget / self._prompt * load.written / self._gain
            running = min(running, max(self._ranks, math.ceil(flow)))
        # Mean steps from a request's arrival to the first one with it.
        self._unseen = server.receive_interval / 2 + server.schedules_ahead
        self._queue = max(0, load.in_flight - running)
        if load.in_flight < load.requests:
            # Meanwhile the place of the request before it is empty.
            answer = load.written / self._gain
            running = min(running, round(load.in_flight * answer / (answer + self._unseen)))
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
        later = early.mean(axis=0)
        if steps[2] > steps[1]:
            later = (at_s[2] - at_s[1]) / (steps[2] - steps[1]) / self._gain
        per_token_s = np.stack([early, np.broadcast_to(later, early.shape)])
        first = self._running / load.requests
        written = np.maximum(load.lengths - 1, 0) / len(lengths)
        mean_s = first * per_token_s[0] + (1 - first) * per_token_s[1]
        answer_s: Seconds = np.tensordot(written, mean_s, axes=1)[()]
        # A front end reads prompts, a back end sends tokens, one after the other, in order.
        reading = load.requests / self._server.readers * self._front_end_s
        late = longer(0.0, reading - ramp_s - full_s)
        sending = load.requests * load.written * self._server.output_token_s
        seconds = longer(at_s[-1] + late, sending)
        wait_s = None
        if later_sent:
            computing_s, step_s = rest_s[-2:]
            queued = self._queue / self._running * load.written / self._gain
            wait_s = computing_s + (self._unseen + queued) * step_s + self._outside_s
        return Flow(seconds, ramp_s, full_s + late, first, wait_s, answer_s, per_token_s)

    def alone_s(self) -> tuple[Seconds, Seconds]:
        """Return the seconds to the first token of a request without a queue, and of a step of the
        batch."""
        computing_s, step_s = self._seconds(self._alone())
        return computing_s + self._unseen * step_s + self._outside_s, step_s

    def _seconds(self, stages: Sequence[Sequence[Steps]]) -> list[Seconds]:
        """Return the seconds of each stage."""
        steps = [step for stage in stages for _, step in stage]
        seconds = iter(self._batches.time.seconds_of(steps))
        return [sum(count * next(seconds) for count, _ in stage) for stage in stages]

    def _step(self, running: int, written: float, chunks: Chunks | None = None) -> Step:
        """Make a step with this number of decoding sequences on equal ranks, their written tokens,
        and prompts."""
        each, more = divmod(min(running, self._running), self._ranks)
        counts = [each + (rank < more) for rank in range(self._ranks)]
        if chunks is not None and self._c.prefill == "separate":
            # Ranks with prompts do not decode.
            for rank, pieces in enumerate(chunks):
                if pieces or self._c.prefill_idles_ranks:
                    counts[rank] = 0
        context = max(1, round(self._load.read)) + max(0.0, written) - 1.0
        kept = min(context, self._batches.top_k)
        return self._batches.step(
            counts, [n * context for n in counts], [n * kept for n in counts], chunks
        )

    def _ramp(self, requests: int) -> tuple[float, list[Steps]]:
        """Return steps in which ready sequences, or all, decode until these requests' prompts are
        computed."""
        per_rank = math.ceil(requests / self._ranks)
        steps = max(1.0, per_rank * self._prompt / self._budget)
        ranks = min(self._ranks, requests)
        chunks = self._chunks(min(requests / ranks, self._budget / self._prompt), ranks)
        mixed = self._c.prefill == "mixed"
        ready = requests // 2 if mixed and steps > 1 else 0
        return steps if mixed else 0.0, [(steps, self._step(ready, steps / 4, chunks))]

    def _full(self, steps: float, waiting: int) -> list[Steps]:
        """Return this number of steps with a full batch and the number of requests admitted during
        them."""
        decoding = self._step(self._running, self._written)
        if waiting <= 0:
            return [(steps, decoding)]
        # Requests after ended ones are received together: the mean of a Poisson distribution
        # without 0. Answers of about one length end as they began, in waves.
        wave = self._running / (1.0 + self._load.width / self._gain)
        together = waiting * self._server.receive_interval / max(steps, 1.0)
        most = self._ranks * self._budget / self._prompt
        per_step: float = min(most, max(together / -math.expm1(-together), wave))
        admitting = waiting / per_step
        ranks = min(self._ranks, max(1, round(per_step)))
        chunks = self._chunks(per_step / ranks, ranks)
        elsewhere = 1.0
        if self._c.prefill == "separate":
            elsewhere = 0.0 if self._c.prefill_idles_ranks else 1 - ranks / self._ranks
        admits = self._step(self._running, self._written, chunks)
        return [(max(0.0, steps - admitting * elsewhere), decoding), (admitting, admits)]

    def _drain(self, left: Floats) -> tuple[list[Steps], float]:
        """Return the steps between ends of answers, `left` tokens away at `EDGES`, and tokens
        written."""
        steps: list[Steps] = []
        written = before = 0.0
        for share, until in zip(_RUNNING, (left / self._gain).tolist(), strict=True):
            if until <= before:
                continue
            alive = self._running * share
            mean = self._written + (before + until) / 2 * self._gain
            steps.append((until - before, self._step(max(1, round(alive)), mean)))
            written += alive * (until - before) * self._gain
            before = until
        return steps, written

    def _alone(self) -> list[list[Steps]]:
        """Return the steps that compute one request's prompt next to the full batch, and a step of
        that batch."""
        ready = self._running if self._c.prefill == "mixed" else 0
        computing = self._step(ready, self._written, self._chunks(1, 1))
        return [
            [(math.ceil(self._prompt / self._budget), computing)],
            [(1, self._step(self._running, self._written))],
        ]

    def _chunks(self, prompts: float, ranks: int) -> Chunks:
        """Make a step's prompts on this number of ranks: whole ones of mean length, or a long one's
        middle piece."""
        tokens = max(1, round(min(self._prompt, self._budget)))
        cached = round(self._load.read - self._prompt)
        start = cached + round(max(0.0, self._prompt - tokens) / 2)
        pieces = [
            Chunk(number, start, tokens, last=True) for number in range(max(1, round(prompts)))
        ]
        return [pieces if rank < ranks else [] for rank in range(self._ranks)]


def flow_of(server: SimulatedServer, load: LoadSummary, running: int) -> Flow:
    """Compute a load as a fluid on a server with this limit of running sequences."""
    flow = Fluid(server, load, running).flow()
    if not load.span_s or _first(flow.seconds) >= load.span_s + _first(flow.answer_s):
        return flow
    # A server that keeps up has as many in flight as arrive while one is served (Little's law).
    inside = running
    for _ in range(_ARRIVALS):
        wait_s, step_s = Fluid(server, load, inside).alone_s()
        token_s = step_s / server.tokens_per_step
        answer_s = (load.written - 1) * token_s
        arrived = round(load.requests / load.span_s * _first(wait_s + answer_s))
        inside = max(1, min(running, arrived))
    per_token_s = np.stack([np.asarray(token_s)[None]] * 2)
    return Flow(load.span_s + wait_s + answer_s, wait_s, 0.0, 1.0, wait_s, answer_s, per_token_s)


def _first(value: Seconds) -> float:
    """Return the value of the first draw, the calibrated figures."""
    return float(np.ravel(value)[0])


def _at_steps(steps: Floats, known: Floats, at_s: Floats) -> Floats:
    """Interpolate the seconds at this number of steps; shape (steps,), of draws (steps, draws)."""
    place = np.clip(np.searchsorted(known, steps, side="right") - 1, 0, len(known) - 2)
    width = known[place + 1] - known[place]
    share = np.divide(steps - known[place], width, out=np.ones_like(steps), where=width > 0)
    rise = (at_s[place + 1] - at_s[place]).T
    seconds: Floats = (at_s[place].T + np.clip(share, 0.0, 1.0) * rise).T
    return seconds


def _computed_prompt(server: SimulatedServer, load: LoadSummary) -> float:
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
    shared = load.read - _computed_prompt(server, load)
    if c.reserve_share >= 1:
        each = load.read + load.written
    else:
        left = min(load.running_tokens - load.read, c.reserve_clip or math.inf)
        each = load.running_tokens + server.reserve_share * c.reserve_least * left
    each = max(float(server.block_tokens), each + server.block_tokens / 2 - shared)
    each += sequence_tokens(server)
    return max(1, int(capacity * (1 - c.watermark) / each)) * server.data_parallel


IN_FLIGHT = (8, 32, 128, 512)
"""Loads at which the fluid is evaluated."""
_UPPER_TTFT, _UPPER_TPOT = 2.0, 1.4
"""A 90th percentile or higher over the mean, of chats on the simulated node below saturation; a
third more or less."""
_SPREAD = {"ttft": 0.2, "tpot": 0.15, "e2el": 0.1}
"""Standard deviation of ln(latency of a request / the fluid's), so that no request is good or bad
for sure: that of the means (``benchmarks/tuner/priors.py``), as requests of one kind fare much alike."""
Value = TypeVar("Value")
LEAST_ODDS, BEST_ODDS = 0.02, 0.98
"""Bounds of the odds of starting, because the memory plan is not more certain."""


def capacity_of(served: Served, slos: Sequence[Slo]) -> tuple[Floats, Floats]:
    """Return ln of tokens per second and of requests in flight at capacity; of draws arrays of
    shape (draws,).

    A server that breaks a limit at the lightest load has less than that load's throughput, by the
    same factor as the latency exceeds the limit.

    Args:
        served: closed loops, ascending, of the same prompts.
        slos: limits; only those on a latency of requests lower the capacity.
    """
    excesses = []
    speeds = []
    for load, flow in served:
        wait_s = np.asarray(flow.mean_wait_s)
        token_s = np.asarray(flow.mean_token_s)
        limits = [_log_excess(slo, load, wait_s, token_s) for slo in slos]
        excesses.append(np.max([one for one in limits if one is not None], axis=0))
        # Little's law.
        tokens = load.in_flight * (load.read + load.written)
        speeds.append(np.log(tokens / (wait_s + flow.answer_s)))
    places = np.log([load.in_flight for load, _ in served])
    speed = np.asarray(speeds[-1])
    place = np.asarray(speeds[-1]) * 0 + places[-1]
    for i in range(len(served) - 2, -1, -1):
        rise = np.maximum(excesses[i + 1] - excesses[i], 1e-9)
        share = np.clip(-excesses[i] / rise, 0.0, 1.0)
        crossed = excesses[i + 1] > 0
        speed = np.where(crossed, speeds[i] + share * (speeds[i + 1] - speeds[i]), speed)
        place = np.where(crossed, places[i] + share * (places[i + 1] - places[i]), place)
    short = np.maximum(excesses[0], 0.0)
    return np.asarray(speed - short), np.asarray(place - short)


def _log_excess(slo: Slo, load: LoadSummary, wait_s: Seconds, token_s: Seconds) -> Floats | None:
    """Return ln(latency / limit); None without a prediction."""
    statistic, _, latency = slo.metric.partition("_")
    if statistic not in (*QUANTILES, "mean") or slo.sense != "<=" or slo.limit <= 0:
        return None
    length = load.written
    if QUANTILES.get(statistic, 0.5) > 0.5:
        wait_s = _UPPER_TTFT * wait_s
        token_s = _UPPER_TPOT * token_s
        length = float(np.quantile(load.lengths, QUANTILES[statistic]))
    values = {
        "ttft_ms": wait_s,
        "tpot_ms": token_s,
        "itl_ms": token_s,
        "e2el_ms": wait_s + length * token_s,
    }
    if latency not in values:
        return None
    return np.asarray(np.log(1e3 * values[latency] / slo.limit))


def good_share(load: LoadSummary, flow: Flow, limits: Sequence[Slo]) -> float | None:
    """Return the share of requests within the limits on TTFT, TPOT and E2EL; None if unpredicted
    waits decide."""
    asked = [
        (slo, latency)
        for slo in limits
        for latency in _SPREAD
        if slo.metric.endswith(f"{latency}_ms")
    ]
    if flow.wait_s is not None and any(latency != "tpot" for _, latency in asked):
        return None
    from scipy.special import ndtr  # Half a second to load.

    good_shares = []
    batches = (flow.first, 0.0, flow.ramp_s), (1 - flow.first, flow.ramp_s, flow.full_s)
    for (part, begin_s, during_s), token_s in zip(batches, flow.per_token_s, strict=True):
        end_s = begin_s + during_s
        waits_s = (begin_s + SHARES * (end_s - begin_s))[:, None]
        wait_s, each_s = np.broadcast_arrays(waits_s, token_s)
        answer_s = np.maximum(load.lengths - 1, 0) * each_s
        # Arrays of shape (waits, lengths).
        latencies = {"ttft": wait_s, "tpot": each_s, "e2el": wait_s + answer_s}
        good = np.ones((len(SHARES), len(SHARES)))
        for slo, latency in asked:
            ratio = np.maximum(latencies[latency], 1e-9) * 1e3 / max(slo.limit, 1e-9)
            excess = np.log(ratio) / _SPREAD[latency]
            good = np.minimum(good, ndtr(-excess if slo.sense == "<=" else excess))
        good_shares.append(part * float(good.mean()))
    return max(good_shares[0] + good_shares[1], 0.5 / load.requests)


class SteadyPrediction(NamedTuple):
    """Metrics of one configuration under one workload, and the odds that it starts.

    Attributes:
        metrics: under the names of `autotune.load.metrics.formulas`, as if it started; TTFT only where
            all requests are sent at once: of other loads it is not foreseen well enough. Empty
            where the layout needs more GPUs than there are.
        starts: the odds that it starts and takes the workload's requests.
        doubt: the reason against that: ``memory`` or ``length``; empty without one.
        drawn: ln of the total token throughput and of mean latencies with each draw of the figures,
            shape (draws,); of a server that is loaded to its capacity, of the total token
            throughput there alone.
    """

    metrics: FloatMap
    starts: float
    doubt: str
    startup_s: float
    drawn: Mapping[str, Floats]


class Limits(NamedTuple):
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
        self._model = model
        self._hardware = hardware
        self._gpus = gpus
        self._calibration = calibration or packaged_calibration()
        if limits.capacity:
            workload = workload.with_concurrencies(IN_FLIGHT)
        self._workload = workload
        self._loads = [
            LoadSummary.from_requests(workload.draw(position, 0))
            for position in range(len(workload.points))
        ]
        self._coefficients = Memo(self._compute_coefficients)
        self._starts = Memo(self._compute_start)
        self._flows = Memo(self._compute_flows)

    def predict(self, engine: str, version: str, knobs: Knobs) -> SteadyPrediction:
        """Predict effective knobs; raises `UnknownName` for an engine unknown to the simulator."""
        odds, doubt, ready_s, running = self._starts(knobs, engine, version)
        metrics, drawn = self._flows(knobs, engine, version, running) if running else ({}, {})
        return SteadyPrediction(metrics, odds, doubt, ready_s, drawn)

    def _setup(self, knobs: Knobs, engine: str, version: str) -> ServerSetup:
        return ServerSetup(
            engine, version, knobs, self._model, self._hardware, self._gpus, self._calibration
        )

    def _server(
        self, knobs: Knobs, engine: str, version: str, drawn: bool = False
    ) -> SimulatedServer:
        setup = self._setup(knobs, engine, version)
        return SimulatedServer(setup, self._coefficients(knobs, engine, version, drawn))

    def _compute_coefficients(
        self, knobs: Knobs, engine: str, version: str, drawn: bool
    ) -> Coefficients:
        moved = self._moved if drawn else None
        return coefficients_of(self._setup(knobs, engine, version), moved)

    def _compute_start(
        self, knobs: Knobs, engine: str, version: str
    ) -> tuple[float, str, float, tuple[int, ...]]:
        """Return odds of starting, the doubt, seconds to ready, and sequences per load (none: too
        many GPUs)."""
        server = self._server(knobs, engine, version)
        if server.gpus > server.setup.gpus:
            return LEAST_ODDS, "length", 0.0, ()
        plan = plan_memory(server)
        limit = most_running(server, plan.capacity_tokens) * server.data_parallel
        running = []
        for load in self._loads:
            load = load.share(server)
            most = min(load.in_flight, limit)
            # A plan that does not fit is wrong about the cache too, if the server starts after all.
            if plan.starts:
                most = min(most, sequences_held(server, load, plan.capacity_tokens))
            running.append(most)
        longest = self._workload.longest_request
        prompt = max(load.longest_prompt for load in self._loads)
        fits = min(plan.fit_probability, plan.holds(longest))
        refused = too_long(server, plan, self._workload) is not None
        doubt = "memory" if fits < 0.5 or refused else ""
        if beyond_step(server, prompt) or longest > server.context_length:
            refused = True
            doubt = "length"
        odds = LEAST_ODDS if refused else min(BEST_ODDS, max(LEAST_ODDS, fits))
        return odds, doubt, startup_s(server, plan), tuple(running)

    def _compute_flows(
        self, knobs: Knobs, engine: str, version: str, running: tuple[int, ...]
    ) -> tuple[FloatDict, dict[str, Floats]]:
        """Return metrics with the calibrated figures, and logarithms with each draw."""
        server = self._server(knobs, engine, version, drawn=True)
        served = [
            (load, flow_of(server, load.share(server), most))
            for load, most in zip(self._loads, running, strict=True)
        ]
        metrics = self._metrics_of([(load, flow.first_draw()) for load, flow in served])
        if not self._moved:
            return metrics, {}
        if self._limits.capacity:
            logs = {HEADLINE: capacity_of(served, self._limits.capacity)[0]}
        else:
            logs = {name: np.log(value) for name, value in _central(served).items()}
        count = len(next(iter(self._moved.values())))
        return metrics, {name: np.broadcast_to(log, count)[1:] for name, log in logs.items()}

    def _metrics_of(self, served: Served) -> FloatDict:
        metrics = _metrics(served)
        if self._limits.capacity:
            speed, place = (
                float(np.exp(one)) for one in capacity_of(served, self._limits.capacity)
            )
            load = self._loads[0]
            metrics["capacity_total_token_throughput"] = speed
            metrics["capacity_concurrency"] = place
            metrics["capacity_request_rate"] = speed / (load.read + load.written)
        elif (limits := self._limits.request) is not None:
            good = [
                share * load.requests
                for load, flow in served
                if (share := good_share(load, flow, limits)) is not None
            ]
            if len(good) == len(served):
                metrics[GOODPUT] = sum(good) / metrics["duration"]
        return metrics


class Memo(Generic[Value]):
    """Cached function of knobs, an engine and more, computed once per combination of the knobs that
    it reads."""

    def __init__(self, compute: Callable[..., Value]) -> None:
        self._compute = compute
        self._names: dict[str, Strings] = {}
        self._known: dict[str, dict[tuple[Any, ...], Value]] = {}

    def __call__(self, knobs: Knobs, engine: str, *more: Any) -> Value:
        known = self._known.setdefault(engine, {})
        names = self._names.get(engine, ())
        key = _key(names, knobs, more)
        if key in known:
            return known[key]
        read = set(names)
        value = self._compute(RecordedKnobs(knobs, read), engine, *more)
        if len(read) > len(names):
            self._names[engine] = names = tuple(sorted(read))
            known.clear()
        known[_key(names, knobs, more)] = value
        return value


def _key(names: Strings, knobs: Knobs, more: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(map(knobs.get, names))
    # 1 and True are equal to a dictionary, and not to an engine.
    return (more, *values, *map(type, values))


def _central(served: Served) -> dict[str, Seconds]:
    """Return throughput and mean latencies of loads one after the other; of draws of the figures,
    shape (draws,)."""
    tokens = sum(load.requests * (load.read + load.written) for load, _ in served)
    metrics = {
        HEADLINE: tokens / sum(flow.seconds for _, flow in served),
        "mean_e2el_ms": _mean_ms(served, lambda flow: flow.mean_wait_s + flow.answer_s),
        "mean_tpot_ms": _mean_ms(served, attrgetter("mean_token_s")),
    }
    if all(flow.wait_s is None for _, flow in served):
        metrics["mean_ttft_ms"] = _mean_ms(served, attrgetter("mean_wait_s"))
    return metrics


def _metrics(served: Served) -> FloatDict:
    metrics = {name: float(value) for name, value in _central(served).items()}
    requests = sum(load.requests for load, _ in served)
    metrics["duration"] = seconds = float(sum(flow.seconds for _, flow in served))
    metrics["request_throughput"] = requests / seconds
    written = sum(load.requests * load.written for load, _ in served)
    metrics["output_throughput"] = written / seconds
    for name, quantile in QUANTILES.items():
        metrics[f"{name}_tpot_ms"] = float(_mean_ms(served, methodcaller("token_s", quantile)))
        if "mean_ttft_ms" in metrics:
            waits_ms = _mean_ms(served, methodcaller("first_token_s", quantile))
            metrics[f"{name}_ttft_ms"] = float(waits_ms)
    return metrics


def _mean_ms(served: Served, seconds: Callable[[Flow], Seconds]) -> Seconds:
    """Return the mean of a flow's figure over the requests of all loads."""
    requests = sum(load.requests for load, _ in served)
    return 1e3 * sum(load.requests * seconds(flow) for load, flow in served) / requests
