"""`LoadSearch`: choose the next load, and summarise the results.

The load is doubled until one breaks a limit, halved until one keeps them, then bisected
(`Bracket`). Bisection is geometric: a load is known within a share of itself, at 8 in flight as at
800. `FoundLoad` is the end, in figures and in words.

    search = LoadSearch("concurrency", slos, workload)
    while (probe := search.ask()) is not None:
        search.tell(send(probe.workload(workload), probe.seed(seed)))
    search.found.metrics

Begins with a few requests one after the other: they tell how long a request takes by itself, and
show at once where no load can keep the limits. From there loads are as long as the verdict needs,
see `LoadSearch._requests`. A rate that is to be recommended is then sent for ten minutes, and gives
way to a lighter one where the limits are not shown to hold.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from autotune.base import BadInput, Interval, Json

from ..metrics import readable
from ..metrics.formulas import Slo, summarize_loads
from ..metrics.records import RequestRecords
from ..metrics.table import ENERGY, Metrics
from ..workloads import Workload
from ..workloads.arrivals import Arrival
from ..workloads.lengths import SessionLengths, TraceLengths
from .judge import LOOKS, Broken, Judgement, judge, latency_of, least_requests

TOLERANCE = 0.1
"""Largest share between the lightest violating load and the heaviest one that meets the limits."""


@dataclass
class Bracket:
    """The loads around the capacity, none beyond the lightest or the heaviest, and their
    verdicts."""

    lightest: float
    heaviest: float
    start: float
    whole: bool
    verdicts: dict[float, bool] = field(default_factory=dict)

    @property
    def kept(self) -> float | None:
        """The heaviest load that met every limit; None while there is none."""
        return max((load for load, kept in self.verdicts.items() if kept), default=None)

    @property
    def broken(self) -> float | None:
        """The lightest load above it that violated a limit; None while there is none."""
        floor = self.kept or 0.0
        return min(
            (load for load, kept in self.verdicts.items() if not kept and load > floor),
            default=None,
        )

    @property
    def not_monotone(self) -> Interval | None:
        """A load that violated a limit, and a heavier one that met all."""
        if (heaviest := self.kept) is None:
            return None
        lower = [load for load, kept in self.verdicts.items() if not kept and load < heaviest]
        return (max(lower), heaviest) if lower else None

    def next(self, hint: float | None = None) -> float | None:
        """Return the next load to try; None when the capacity is known. No load above a `hint` is
        feasible."""
        kept = self.kept
        broken = self.broken
        if not self.verdicts or (kept is None and self.start not in self.verdicts):
            return self.start
        if broken is None:
            assert kept is not None
            return None if kept >= self.heaviest else self._valid(min(2 * kept, self.heaviest))
        if kept is None:
            if broken <= self.lightest:
                return None
            lower = broken / 2 if hint is None else min(broken / 2, hint)
            return self._valid(max(lower, self.lightest))
        if broken <= kept * (1 + TOLERANCE) or (self.whole and broken - kept <= 1):
            return None
        middle = math.sqrt(kept * broken)
        if hint is not None:
            middle = min(middle, (1 + TOLERANCE) * max(hint, kept))
        middle = self._valid(middle)
        # Avoid the ends, to which whole numbers may be rounded.
        return min(max(middle, kept + 1), broken - 1) if self.whole else middle

    def _valid(self, load: float) -> float:
        """Return a valid load: a whole number, or one of three digits."""
        return float(max(1, round(load))) if self.whole else rounded(load)


By = Literal["concurrency", "rate"]
LOADS: dict[By, str] = {"concurrency": "concurrency", "rate": "request_rate"}
"""Key of a load in a row of the curve, by the searched quantity; with ``capacity_`` before it, of
the result."""
SHAPES = {
    "concurrency": "this number of requests in flight: a stream sends its next one when an answer ends; "
    "the streams start spread over the time of a request, not all at once",
    "request_rate": "this number of requests per second, whatever is in flight; they arrive at random "
    "(Poisson), those of a trace at its own times",
}
"""The shape of a load, by its key."""


class FoundLoad(NamedTuple):
    """Result of a load search, in figures and in words.

    Attributes:
        capacity: the heaviest load that keeps every SLO; 0 where the lightest breaks one.
        broken_at: the lightest load above it that breaks one; None: the heaviest load that was
            tried keeps them.
        not_monotone: a load that broke an SLO, and a heavier one that kept them all.
        died_at: the load after which the server answered nothing any more; None: it lives.
        missed: without a capacity, the limit violated at the lightest load, and that load.
        metrics: of the capacity's load, else of the lightest, with ``capacity_…`` and ``curve``.
    """

    by: By
    capacity: float
    broken_at: float | None
    not_monotone: Interval | None
    missed: tuple[Broken, float] | None
    died_at: float | None
    metrics: Metrics

    def to_json(self) -> Json:
        """Return what was searched for, the result in words, and without a capacity the limit that
        the lightest load violates."""
        miss = None
        if self.missed is not None:
            broken, load = self.missed
            miss = {**broken._asdict(), "load": load}
            del miss["excess"]
        return {"find_load": self.by, "load_search": self.sentences(), "nearest_miss": miss}

    def sentences(self) -> list[str]:
        """Describe the result, one sentence each."""
        if self.missed is not None:
            broken, load = self.missed
            violation = violation_in_words(broken)
            return [f"violated at the lightest load, {load_in_words(self.by, load)}: {violation}"]
        parts = [f"{load_in_words(self.by, self.capacity)} meet every limit"]
        if self.broken_at is None:
            parts[0] += ", the heaviest load tried: the capacity may be higher"
        else:
            parts[0] += f", {load_in_words(self.by, self.broken_at)} do not"
        if (ramp_s := self.metrics.get("capacity_ramp_s")) is not None:
            spread = f"spread over {ramp_s:.3g} s, not all at once" if ramp_s else "all at once"
            parts.append(f"the streams start {spread}")
        if (speedup := self.metrics.get("capacity_speedup")) is not None:
            parts.append(f"the trace is served {speedup:.3g} times as fast as it was recorded")
        if self.died_at is not None:
            parts.append(
                f"the server stopped answering after {load_in_words(self.by, self.died_at)}"
            )
        if self.not_monotone is not None:
            broke, kept = (load_in_words(self.by, load) for load in self.not_monotone)
            parts.append(f"not monotone: {broke} violate a limit that {kept} meet")
        return parts


def load_in_words(by: By, load: float) -> str:
    """Describe a load in words."""
    return f"{load:,.0f} in flight" if by == "concurrency" else f"{load:.3g} requests per second"


def violation_in_words(broken: Broken) -> str:
    """Describe a violated limit in words: which, by how much."""
    if broken.metric in ("failed", "request_throughput"):
        return broken.slo
    if broken.excess <= 0:
        return f"{broken.slo}, not shown to be met by {readable.number(broken.value)}"
    return f"{broken.slo} by {readable.beyond(broken.excess)} ({readable.number(broken.value)})"


ALONE = 8
"""Requests sent one after the other, before any load."""
TURNOVERS = 5
"""Requests of a load per request in flight: fewer show no steady state
(`autotune.load.metrics.formulas`)."""
SPARE = 1.2
"""Factor on the number of requests if they took longer than expected."""
PATIENCE = 5.0
"""Duration of an open load over the time in which a queue that grows by `TOLERANCE` reaches the
limit; `FIRST` of `CONFIRM_S` at most."""
CONFIRM_S = 600.0
"""Duration in seconds of the open load that confirms a recommended rate."""
FIRST = 0.25
"""Share of it sent first: a load that is too heavy is visible there."""
MARGIN = 0.02
"""Share by which the confirmed load is lighter than the load whose figure is at the limit."""
STEP = 0.02
"""Least relative change between confirmed loads."""
START = 32
"""The first load, in flight."""
START_RATE = 4.0
LIGHTEST_RATE = 1 / 8
"""First and lightest rate, as shares of the rate of sequential requests."""
LEAST_OPEN = 200
"""Least requests of an open load: arrivals are bursty, and one burst would decide fewer."""
OVERLOADED = 0.5
"""Share served below which a server is far beyond its limits: its throughput gives the next
guess."""
MOST_REQUESTS = 100_000
"""Requests of one probe."""


class Probe(NamedTuple):
    """A load, in flight or per second (`by`), sent once; its number and the seed fix its prompts
    and times."""

    by: By
    load: float
    requests: int
    number: int
    ramp_s: float = 0.0

    def workload(self, workload: Workload) -> Workload:
        """Return the prompts of a workload at this load; a trace at its own times, sped up."""
        point = workload.points[0]
        if self.by == "concurrency":
            label = f"c{self.load:g}"
            streams = int(self.load)
            arrival = Arrival(kind="closed_loop", concurrency=streams, ramp_s=self.ramp_s)
        else:
            label = f"r{self.load:g}"
            arrival = Arrival(kind="poisson", request_rate=self.load)
            if isinstance(point.lengths, TraceLengths):
                arrival = Arrival(kind="trace", speedup=self.load / point.lengths.trace.rate)
        point = point.with_fields(label=label, prompts=self.requests, arrival=arrival)
        return workload.with_fields(points=[point])

    def seed(self, seed: int) -> int:
        """Return the seed of this probe: every probe has its own prompts."""
        return int(np.random.SeedSequence([seed, self.number]).generate_state(1)[0])


@dataclass
class _Load:
    """One load and all requests sent at it.

    Attributes:
        target: requests until the next look.
        looks: number of looks so far.
        lengthened: whether it was begun anew, as it was too short for the time that its requests
            take.
        ramp_s: seconds over which its streams started.
        confirms: whether it is to be recommended, and lasts as long as that needs; it has one look.
    """

    load: float
    target: int
    looks: int = 0
    lengthened: bool = False
    confirms: bool = False
    ramp_s: float = 0.0
    runs: list[RequestRecords] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    judgement: Judgement = field(default_factory=lambda: Judgement(None, None))

    @property
    def missing(self) -> int:
        """Requests until the next look."""
        return self.target - sum(map(len, self.runs))

    def row(self, by: By) -> Metrics:
        """Return its row of the curve."""
        numbers = {
            name: value for name, value in self.metrics.items() if isinstance(value, int | float)
        }
        load = int(self.load) if by == "concurrency" else self.load
        return {
            LOADS[by]: load,
            **numbers,
            "kept": self.judgement.kept is not False and not self.judgement.broken,
        }


def check_search(by: By, workload: Workload, slos: Sequence[Slo]) -> None:
    """Raise `BadInput` for a workload with a fixed load, or limits that no load violates."""
    kinds = {point.arrival.kind for point in workload.points}
    if kinds == {"trace"} and by == "concurrency":
        raise BadInput(
            f"--find-load concurrency with workload {workload.name}: a trace has fixed times; --find-load rate "
            "finds the highest feasible speedup"
        )
    several = len(workload.points) > 1
    if several or kinds not in ({"all_at_once"}, {"trace"}):
        arrival = workload.points[0].arrival.describe()
        fixed = f"{len(workload.points)} load points" if several else f"a load: {arrival}"
        raise BadInput(
            f"--find-load with workload {workload.name}: it fixes {fixed}; use one that sends all prompts at "
            "once, e.g. sharegpt or random:1000:200"
        )
    if any(isinstance(point.lengths, SessionLengths) for point in workload.points):
        raise BadInput(
            f"--find-load with workload {workload.name}: a session's turns wait for answers and think times; use a "
            "workload of single requests, e.g. sharegpt or random:1000:200"
        )
    if not any(map(latency_of, slos)):
        raise BadInput("--find-load needs a latency limit, e.g. --slo 'p99_ttft_ms<=2000'")


class LoadSearch:
    """One search on one server: `ask` for a probe, `tell` its result, until there is none.

    Args:
        workload: its prompts bound the concurrency.
        looks: most looks at a load.
        limits: of a good request; empty: `slos`.
        confirm_s: seconds for which a rate is sent before it is recommended; 0: it is not
            confirmed.
        at_once: all streams of a load start together, as after a restart of their sender.

    Raises `BadInput` as `check_search` does.
    """

    def __init__(
        self,
        by: By,
        slos: Sequence[Slo],
        workload: Workload,
        looks: int = LOOKS,
        limits: Sequence[Slo] = (),
        confirm_s: float = 0.0,
        at_once: bool = False,
    ) -> None:
        check_search(by, workload, slos)
        most = workload.points[0].prompts
        lengths = workload.points[0].lengths
        # Requests per second of a trace, whose requests are all sent at every load; 0: no trace.
        self._recorded_rate = lengths.trace.rate if isinstance(lengths, TraceLengths) else 0.0
        # Largest number of one probe; more are sent by sending the load again.
        self._prompts = most if workload.has_text or self._recorded_rate else MOST_REQUESTS
        # A trace is a whole load, so there is no longer one to confirm it.
        self._confirm_s = confirm_s if by == "rate" and not self._recorded_rate else 0.0
        self._limits = limits or slos
        self._by: By = by
        # Without limits on the capacity itself, which compare servers.
        self._slos = [slo for slo in slos if not slo.metric.startswith("capacity_")]
        # The heaviest rate is this share of the rate of sequential requests.
        self._most = most
        self._looks = looks
        self._at_once = at_once
        self._alone = self._load = _Load(1.0, min(ALONE, self._prompts))
        self._loads: dict[float, _Load] = {}
        self._bracket = Bracket(1.0, float(most), float(min(START, most)), whole=True)
        self._hint: float | None = None
        self._died_at: float | None = None
        self._sent = 0
        self._steps = self._search()
        self._probe: Probe | None = next(self._steps)

    def ask(self) -> Probe | None:
        """Return the next load to send; None when the search is over."""
        return self._probe

    def tell(self, records: RequestRecords, more: Metrics | None = None) -> str:
        """Add a probe's records and other metrics (`more`); returns one line for people."""
        probe = self._probe
        assert probe is not None, "the search is over"
        load = self._load
        self._sent += 1
        load.runs.append(records)
        load.metrics = {**summarize_loads(load.runs, self._limits), **(more or {})}
        if load.missing <= 0:
            load.looks += 1
            load.target = 2 * load.target
        self._judge(probe, load)
        line = self._line(probe, load, records)
        self._probe = next(self._steps, None)
        return line

    def give_up(self) -> str:
        """End the search because the server did not answer a probe; returns one line for people.

        It died of the lightest load above the capacity whose requests failed, else of that probe.
        """
        probe = self._probe
        assert probe is not None, "the search is over"
        failed = [
            load
            for load, one in self._loads.items()
            if one.metrics.get("failed") and load >= probe.load
        ]
        self._died_at = min(failed, default=probe.load)
        self._bracket.verdicts[self._died_at] = False
        self._probe = None
        last, died = (load_in_words(probe.by, load) for load in (probe.load, self._died_at))
        return f"{last}: no answer; the server died at {died}"

    def _search(self) -> Iterator[Probe]:
        """Run the whole search: sequential requests, the bracket's loads, then the loads to
        confirm."""
        alone = self._alone
        yield Probe("concurrency", 1.0, alone.target, 0)
        if self._by == "rate" and alone.metrics["completed"]:
            alone.load = rounded(1e3 / float(alone.metrics["mean_e2el_ms"]))
            shares = (LIGHTEST_RATE, float(self._most), START_RATE)
            lightest, heaviest, start = (rounded(alone.load * share) for share in shares)
            self._bracket = Bracket(lightest, heaviest, min(start, heaviest), whole=False)
        if alone.judgement.kept is False:
            # A request that takes too long by itself does so under every load: try the lightest one
            # to see whether that is so.
            self._bracket.verdicts[self._bracket.lightest] = False
        if not alone.metrics["completed"]:
            return
        while (load := self._bracket.next(self._hint)) is not None:
            yield from self._sent_until_decided(_Load(load, self._requests(load)))
        while (load := self._to_confirm()) is not None:
            needed = max(
                min(math.ceil(load * self._confirm_s), MOST_REQUESTS), self._requests(load)
            )
            yield from self._sent_until_decided(_Load(load, needed, confirms=True))

    def _sent_until_decided(self, load: _Load) -> Iterator[Probe]:
        """Send a load until it is decided, and store the verdict."""
        self._loads[load.load] = self._load = load
        while load.judgement.kept is None:
            requests = load.missing
            if load.confirms and not load.runs:
                requests = math.ceil(FIRST * load.target)
            if self._by == "concurrency":
                load.ramp_s = 0.0 if self._at_once else self._request_s(load.load)
            elif self._bracket.kept is None and not load.runs and not self._recorded_rate:
                # Send few requests first, which show a load that is far too heavy; then the others.
                requests = min(requests, max(LEAST_OPEN, least_requests(self._slos, self._looks)))
                load.target += requests if requests < load.missing else 0
            requests = min(requests, self._prompts)
            yield Probe(self._by, load.load, requests, self._sent, load.ramp_s)
        self._bracket.verdicts[load.load] = load.judgement.kept
        carried = float(load.metrics["request_throughput"])
        if self._by == "rate" and 0 < carried < OVERLOADED * load.load:
            self._hint = min(carried, self._hint or carried)

    def _judge(self, probe: Probe, load: _Load) -> None:
        """Decide a load from its requests."""
        needed = math.ceil(TURNOVERS * probe.load * float(load.metrics["mean_e2el_ms"]) / 1e3)
        # A closed loop has no backlog, and a trace is a whole load.
        whole = probe.by == "concurrency" or self._recorded_rate > 0
        settled = whole or load.confirms or load.lengthened or len(load.runs[-1]) >= needed
        rate = probe.load if settled and not whole else None
        last = load.looks >= self._looks
        confirm = load.confirms and load.looks > 0
        load.judgement = judge(
            self._slos, load.runs, load.metrics, rate, last, self._looks, confirm
        )
        if load.judgement.kept is False:
            return
        if not settled:
            load.lengthened = True
            load.looks = 0
            load.target = min(math.ceil(SPARE * needed), MOST_REQUESTS)
            load.runs.clear()
        if load is not self._alone and not load.looks:
            load.judgement = Judgement(None, load.judgement.broken)  # Too few requests to decide.

    def _to_confirm(self) -> float | None:
        """Return the next load to confirm; None when the recommended one is confirmed, or none can
        be.

        The figures at both ends of the bracket tell where the limit is reached. One that is not
        confirmed gives way to one that is lighter by `STEP` at least, and one that is confirmed to
        a heavier one where there is room for that.
        """
        kept = self._bracket.kept
        broken = self._bracket.broken
        if not self._confirm_s:
            return None
        confirmed = kept is not None and self._loads[kept].confirms
        if broken is None:
            return None if confirmed else kept
        lower = kept or self._bracket.lightest
        if lower >= broken:
            return None
        low, high = (self._pressure(one) for one in (lower, broken))
        share = -low / (high - low) if low < 0 < high else 1.0
        load = (1 - MARGIN) * lower * (broken / lower) ** share
        if confirmed:
            return rounded(load) if load >= (1 + STEP) * lower and load < broken else None
        return max(lower, rounded(min(load, broken / (1 + STEP))))

    def _pressure(self, load: float) -> float:
        """Return the logarithm of the largest share of a limit that a load uses; 0 at the limit."""
        metrics = self._loads[load].metrics if load in self._loads else {}
        shares = [
            1 + slo.excess(float(metrics[slo.metric]))
            for slo in self._slos
            if slo.metric in metrics
        ]
        return math.log(max([1e-3, *shares]))

    def _request_s(self, load: float) -> float:
        """Return the seconds of a request at the heaviest load lighter than this one."""
        lighter = [one for one in self._loads.values() if one.load < load and one.runs]
        known = max(lighter, key=lambda one: one.load, default=self._alone)
        return float(known.metrics["mean_e2el_ms"]) / 1e3

    def _requests(self, load: float) -> int:
        """Return the number of requests of the first look at a load.

        So many that a verdict is possible and a steady state is seen; of an open load so many that
        a queue which grows by `TOLERANCE` comes to the limit.
        """
        if self._recorded_rate:
            return self._prompts
        needed = [float(least_requests(self._slos, self._looks))]
        if self._by == "concurrency":
            needed.append(TURNOVERS * load)
        else:
            needed += [float(LEAST_OPEN), TURNOVERS * load * self._request_s(load)]
            for slo in self._slos:
                if latency_of(slo) in ("ttft", "e2el"):
                    slack_ms = slo.limit - float(self._alone.metrics[slo.metric])
                    wait_s = PATIENCE * slack_ms / 1e3 / TOLERANCE
                    needed.append(load * min(wait_s, FIRST * CONFIRM_S))
        return min(math.ceil(max(needed)), MOST_REQUESTS)

    @property
    def found(self) -> FoundLoad:
        """Return the result of a finished search."""
        capacity = self._bracket.kept
        broken_at = self._bracket.broken
        not_monotone = self._bracket.not_monotone
        missed = None
        tried = [one for one in self._loads.values() if one.runs]
        if capacity is not None:
            shown = self._loads[capacity]
        elif self._alone.judgement.kept is False or not tried:
            shown = self._alone
        else:
            shown = min(tried, key=lambda one: one.load)
        if capacity is None and shown.judgement.broken is not None:
            missed = (shown.judgement.broken, shown.load)
        closed = self._by == "concurrency"
        alone_counts = self._alone.runs and (closed or shown is self._alone)
        if alone_counts and self._alone.load not in self._loads:
            tried.append(self._alone)
        measured = shown.metrics or summarize_loads([], self._limits)  # a server may answer nothing
        per_token_ms = float(measured["mean_tpot_ms"])
        throughput = measured["steady_total_token_throughput"] if capacity else 0.0
        per_user = 1e3 / per_token_ms if capacity and per_token_ms else 0.0
        load = capacity or 0.0
        metrics = {
            **measured,
            f"capacity_{LOADS[self._by]}": int(load) if closed else load,
            "capacity_total_token_throughput": throughput,
            "capacity_output_tokens_per_s_per_user": per_user,
            **({"capacity_speedup": load / self._recorded_rate} if self._recorded_rate else {}),
            **({"capacity_ramp_s": shown.ramp_s} if capacity and closed else {}),
            "capacity_broken_at": broken_at,
            "capacity_died_at": self._died_at,
            "capacity_not_monotone": list(not_monotone) if not_monotone else None,
            "curve": [one.row(self._by) for one in sorted(tried, key=lambda one: one.load)],
        }
        return FoundLoad(self._by, load, broken_at, not_monotone, missed, self._died_at, metrics)

    def _line(self, probe: Probe, load: _Load, records: RequestRecords) -> str:
        """Describe a probe in one line."""
        kept, broken = load.judgement
        name = "one at a time" if load is self._alone else load_in_words(probe.by, probe.load)
        verdict = "meets the limits" if kept else "undecided"
        if kept is False and broken is not None:
            verdict = f"violates {violation_in_words(broken)}"
        figures = [
            f"{slo.metric} {readable.number(load.metrics[slo.metric])}"
            for slo in self._slos
            if slo.metric in load.metrics
        ]
        sent = f"{len(records)} requests in {records.duration_s:.1f} s"
        return f"{name}: {verdict}; {', '.join(figures)}; {sent}"


def extra_metrics(metrics: Metrics) -> Metrics:
    """Return the metrics of a load that its records do not contain."""
    names = (
        "client_bound",
        "cache_hit_rate",
        "spec_decode_acceptance_rate",
        "spec_decode_acceptance_length",
    )
    return {name: metrics[name] for name in (*names, *ENERGY) if name in metrics}


def rounded(rate: float) -> float:
    """Round a rate to three digits."""
    return float(f"{rate:.3g}")
