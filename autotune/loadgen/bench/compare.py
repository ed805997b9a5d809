"""Comparison of two results: what changed, its 95 % interval, and what keeps them from being comparable."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autotune.arrays import Floats, Ints
from autotune.errors import BadInput
from autotune.loadgen.bench.results import INTERVAL_ERROR, Interval, moments, number, read, student
from autotune.loadgen.request_file import RequestTable, read_requests
from autotune.metrics.table import HEADLINE, METRICS
from autotune.trial import Evidence

MIN_REQUESTS = 20
"""With fewer requests the resampled means say little of the real ones."""

_RESAMPLES = 1000
_DRAWS = 10_000_000
"""Draws per run and statistic: a run of very many requests has fewer resamples, which then suffice too."""
_MIN_RESAMPLES = 200
_BLOCK = 2_000_000
"""Draws held in memory at a time."""
Result = Mapping[str, Any]
_LENGTHS_DIFFER = 0.01
"""Mean lengths of two seeds of one workload differ by less."""
_NOT_STATED = "not stated"
_OURS = ("workload", "seed", "evidence")
ONE_RUN = "one run each says nothing about run-to-run noise: measure with --repeats, or on fresh launches"


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's interval of B over A, of geometric means, as a change in percent.

    Spreads may differ (B. L. Welch, Biometrika 34, 1947); logarithms, as a node's noise multiplies. None for fewer
    than two values on a side, or a value that is not above 0.
    """
    if min(len(a), len(b)) < 2 or min(*a, *b) <= 0:
        return None
    (mean_a, error_a), (mean_b, error_b) = moments(np.log(a)), moments(np.log(b))
    error = error_a + error_b
    half = 0.0
    if error > 0:
        degrees = error**2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
        half = student(degrees) * math.sqrt(error)
    change = mean_b - mean_a
    return 100 * math.expm1(change - half), 100 * math.expm1(change + half)


def latency_intervals(a: RequestTable, b: RequestTable, seed: int = 0) -> dict[str, Interval]:
    """Return the intervals of the change from A to B in percent, by metric name, from resampled requests.

    The percentile bootstrap over the successful requests of each run, within each load (B. Efron, Annals of
    Statistics 7, 1979). It knows how requests of one run differ, not how runs differ. A metric is left out where a
    run has fewer than `MIN_REQUESTS` requests, or a latency of 0.
    """
    rng = np.random.default_rng(seed)
    intervals: dict[str, Interval] = {}
    latencies = zip(_latencies_ms(a), _latencies_ms(b), strict=True)
    for (name, values_a, loads_a), (_, values_b, loads_b) in latencies:
        if min(len(values_a), len(values_b)) < MIN_REQUESTS:
            continue
        resamples = min(_RESAMPLES, max(_MIN_RESAMPLES, _DRAWS // max(len(values_a), len(values_b))))
        drawn_a, drawn_b = (_resampled(v, w, resamples, rng) for v, w in ((values_a, loads_a), (values_b, loads_b)))
        for statistic, low, high in zip(("mean", "median"), drawn_a, drawn_b, strict=True):
            if low.min() > 0:
                ends = np.percentile(high / low - 1, (100 * INTERVAL_ERROR / 2, 100 * (1 - INTERVAL_ERROR / 2)))
                intervals[f"{statistic}_{name}_ms"] = (100 * float(ends[0]), 100 * float(ends[1]))
    return intervals


def _latencies_ms(table: RequestTable) -> Iterator[tuple[str, Floats, Ints]]:
    """Name, value per successful request, and the load it belongs to; definitions as in `autotune.metrics.formulas`."""
    columns = table.columns
    ok = columns["outcome"] == "ok"
    _, points = np.unique(columns["point"].astype(str), return_inverse=True)
    loads = points * (1 + columns["seed"].max(initial=0)) + columns["seed"]
    several = ok & (columns["output_tokens"] > 1)
    gaps = columns["output_tokens"][several] - 1
    generating_s = (columns["e2el_s"] - columns["ttft_s"])[several]
    yield "ttft", columns["ttft_s"][ok] * 1e3, loads[ok]
    yield "tpot", generating_s / gaps * 1e3, loads[several]
    yield "e2el", columns["e2el_s"][ok] * 1e3, loads[ok]


def _resampled(values: Floats, loads: Ints, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the means and medians of resampled requests, each of shape (resamples,)."""
    members = [np.flatnonzero(loads == load) for load in np.unique(loads)]
    block = max(1, _BLOCK // len(values))
    means, medians = np.empty(resamples), np.empty(resamples)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        chosen = [each[rng.integers(0, len(each), (count, len(each)))] for each in members]
        drawn = values[np.concatenate(chosen, axis=1)]
        means[start : start + count] = drawn.mean(axis=1)
        medians[start : start + count] = np.median(drawn, axis=1)
    return means, medians


SHOWN = tuple(name for name, metric in METRICS.items() if metric.time_power and not name.startswith(("std", "dur")))
"""Throughputs and latencies, in the order of the result file."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of both results.

    Attributes:
        interval: of the change, 95 %, in percent; None where nothing tells it.
    """

    metric: str
    a: float
    b: float
    interval: Interval | None

    @property
    def percent(self) -> float | None:
        """From A to B; None where A is 0."""
        return number(100 * (self.b / self.a - 1)) if self.a else None

    @property
    def verdict(self) -> str | None:
        """``better`` or ``worse`` in the metric's own direction, ``unclear`` when the interval has 0; ``equal``.

        None without an interval.
        """
        if self.a == self.b:
            return "equal"
        if self.interval is None:
            return None
        if self.interval[0] <= 0 <= self.interval[1]:
            return "unclear"
        return "better" if (self.b > self.a) is METRICS[self.metric].maximise else "worse"

    def to_json(self) -> dict[str, Any]:
        row = {"a": self.a, "b": self.b, "change_percent": self.percent}
        return {**row, "interval95": self.interval, "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results compared.

    Attributes:
        warnings: what keeps them from being comparable; empty when nothing is known to.
        changes: of results of one load point; empty where one of them is a sweep.
        notes: what the intervals are of.
        points: of sweeps, the changes at each load that both have, by its description.
    """

    a: str
    b: str
    warnings: tuple[str, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    points: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        metrics = changes_json(self.changes)
        points = {load: changes_json(changes) for load, changes in self.points.items()}
        whole = {"a": self.a, "b": self.b, "comparable": not self.warnings, "warnings": self.warnings}
        return {**whole, "metrics": metrics, "points": points, "notes": self.notes}

    def lines(self) -> list[str]:
        """Format the comparison for people: the warnings before the numbers."""
        lines = [f"A  {self.a}", f"B  {self.b}", *(f"WARNING: {text}" for text in self.warnings), ""]
        for load, changes in (self.points or {"": self.changes}).items():
            lines += [f"{load}:"] if load else []
            lines += [*rows_of(changes), ""]
        return [*lines, *(f"Note: {text}." for text in self.notes)]


def changes_json(changes: Sequence[Change]) -> dict[str, Any]:
    return {change.metric: change.to_json() for change in changes}


def rows_of(changes: Sequence[Change]) -> list[str]:
    lines = [f"{'metric':<31}{'A':>14}{'B':>14}{'change':>11}  {'':<8} 95 % interval".rstrip()]
    for change in changes:
        percent = "–" if change.percent is None else f"{change.percent:+.1f} %"
        ends = f"{change.interval[0]:+.1f} % to {change.interval[1]:+.1f} %" if change.interval else ""
        row = f"{change.metric:<31}{change.a:>14,.2f}{change.b:>14,.2f}{percent:>11}  {change.verdict or '–':<8} {ends}"
        lines.append(row.rstrip())
    return lines


def compare(path_a: Path, path_b: Path) -> Comparison:
    """Compare two result files, with the requests beside them.

    Where one of them is a sweep, the loads that both have are compared, each by itself.

    Raises `BadInput` for a file that is no result, or whose measurement is invalid.
    """
    a, b = read(path_a), read(path_b)
    for path, result in ((path_a, a), (path_b, b)):
        if result.get("invalid"):
            raise BadInput(f"{path}: its measurement is invalid ({result['invalid']}); measure it again")
    notes: list[str] = []
    tables = [_requests(path, result, notes) for path, result in ((path_a, a), (path_b, b))]
    loads_a, loads_b, runs_a, runs_b = _loads(a), _loads(b), _repeats(a), _repeats(b)
    sweep = max(len(loads_a), len(loads_b)) > 1
    common = {load: (of_a, loads_b[load]) for load, of_a in loads_a.items() if load in loads_b}
    pairs = common if sweep else {"": (("", a), ("", b))}
    latencies = {load: _latency_intervals(tables, (of_a[0], of_b[0])) for load, (of_a, of_b) in pairs.items()}
    throughput = None if sweep else ratio_interval(runs_a, runs_b)
    if any(latencies.values()):
        notes.append("intervals of latencies are over the requests of these runs, by the bootstrap")
    if throughput is not None:
        notes.append(
            f"the interval of the throughput is over repeats, {len(runs_a)} of A and {len(runs_b)} of B, by Welch"
        )
    if min(len(runs_a), len(runs_b)) < 2:
        notes.append(ONE_RUN)
    points: dict[str, tuple[Change, ...]] = {}
    for load, ((_, of_a), (_, of_b)) in pairs.items():
        both = ((name, number(of_a.get(name)), number(of_b.get(name))) for name in SHOWN)
        intervals = latencies[load] if throughput is None else {**latencies[load], HEADLINE: throughput}
        changes = (Change(n, x, y, intervals.get(n)) for n, x, y in both if x is not None and y is not None)
        points[load] = tuple(changes)
    warnings = (
        *_differences(a, b, sweep),
        *_unmatched(loads_a, loads_b, sweep),
        *_validity("A", a),
        *_validity("B", b),
    )
    return Comparison(str(path_a), str(path_b), warnings, points.pop("", ()), tuple(notes), points)


def _loads(result: Result) -> dict[str, tuple[str, Result]]:
    """Return each load of a result by its description: its label among the requests, and its metrics."""
    listed = result.get("points")
    points = [point for point in listed if isinstance(point, dict)] if isinstance(listed, list) else []
    loads = {str(p.get("load")): (str(p.get("label") or ""), p["metrics"]) for p in points if "metrics" in p}
    return loads if len(loads) > 1 else {_load_of(result): ("", result)}


def _latency_intervals(tables: Sequence[RequestTable | None], labels: Sequence[str]) -> dict[str, Interval]:
    """Return the intervals of latencies over the requests of the load points of these labels; empty: all."""
    of_loads = []
    for table, label in zip(tables, labels, strict=True):
        if table is None:
            return {}
        chosen = table.columns["point"].astype(str) == label if label else slice(None)
        columns = {name: values[chosen] for name, values in table.columns.items()}
        of_loads.append(RequestTable(columns, table.metadata))
    return latency_intervals(of_loads[0], of_loads[1])


def _requests(path: Path, result: Result, notes: list[str]) -> RequestTable | None:
    """Read the requests of a result from the file that it names; None, and a note, where that is not right."""
    name = result.get("requests_file")
    if not isinstance(name, str) or not Path(name).name:
        return None
    beside = path.with_name(Path(name).name)
    try:
        table = read_requests(beside)
    except BadInput as error:
        notes.append(f"no intervals of latencies: {error}")
        return None
    same_date = table.metadata.get("date") == result.get("date")
    if not same_date or int((table.columns["outcome"] == "ok").sum()) != result["completed"]:
        notes.append(f"no intervals of latencies: {beside} holds the requests of another run")
        return None
    return table


def _load_of(result: Result) -> str:
    """Describe the load in the words of `Arrival.describe`; from vLLM's keys where ours are missing."""
    if isinstance(result.get("load"), str):
        return str(result["load"])
    concurrency, rate = number(result.get("max_concurrency")), number(result.get("request_rate"))
    limit = f"{concurrency:g} at a time" if concurrency else ""
    arrivals = f"{rate:g} requests per second" if rate else ""
    return ", ".join(part for part in (arrivals, limit) if part) or "all at once"


def _repeats(result: Result) -> list[float]:
    """Return the total token throughput of each repeat; one where the result names none."""
    rows = result.get("repeats")
    listed = rows if isinstance(rows, list) else []
    values = [number(row.get(HEADLINE)) for row in listed if isinstance(row, dict)]
    return [value for value in values if value is not None] or [float(result[HEADLINE])]


def _differences(a: Result, b: Result, sweep: bool) -> list[str]:
    """Name what was measured otherwise in B than in A."""
    reasons = []
    of_a, of_b = (str(result.get("evidence") or _NOT_STATED) for result in (a, b))  # vLLM's files do not say
    if of_a != of_b and _NOT_STATED in (of_a, of_b):
        reasons.append(f"evidence of A: {of_a}; evidence of B: {of_b}")
    elif of_a != of_b:
        told = f"A is {of_a.upper()}, B is {of_b.upper()}"
        reasons.append(f"EVIDENCE DIFFERS: {told}; the change is not one of any real node")
    elif of_a not in (Evidence.MEASURED, _NOT_STATED):
        reasons.append(f"{of_a.upper()}: both come from an engine that stands in for a real one")
    facts_a, facts_b = _facts(a, sweep), _facts(b, sweep)
    both = ((name, fact, facts_b.get(name)) for name, fact in facts_a.items())
    reasons += [f"another {name}: {x} in A, {y} in B" for name, x, y in both if None not in (x, y) and x != y]
    for name, result in (("A", a), ("B", b)):
        missing = [key for key in _OURS if result.get(key) is None]
        if missing:
            reasons.append(f"{name} does not state its {', '.join(missing)}; whether they are the same is not known")
    for name, key in (("input", "total_input_tokens"), ("output", "total_output_tokens")):
        means = [(number(result.get(key)) or 0.0) / max(float(result["completed"]), 1.0) for result in (a, b)]
        if abs(means[0] - means[1]) > _LENGTHS_DIFFER * max(means):
            reasons.append(f"other lengths: {means[0]:.1f} {name} tokens per request in A, {means[1]:.1f} in B")
    return reasons


def _facts(result: Result, sweep: bool) -> dict[str, object]:
    """Return what two results must have in common to be compared, by its name; None where it is not stated."""
    named, count = result.get("endpoint") or result.get("backend"), number(result.get("num_prompts"))
    facts: dict[str, object] = {"model": result.get("model_id"), "workload": result.get("workload")}
    if not sweep:
        facts["load"] = _load_of(result)
        facts["number of prompts per repeat"] = None if count is None else f"{count / len(_repeats(result)):g}"
    if named is not None:
        facts["endpoint"] = "chat completions" if "chat" in str(named) else "completions"
    if "per second" in _load_of(result):
        facts["burstiness"] = result.get("burstiness")
    return {**facts, "source of lengths": result.get("lengths_source")}


def _unmatched(a: Collection[str], b: Collection[str], sweep: bool) -> list[str]:
    pairs = (("A", [load for load in a if load not in b]), ("B", [load for load in b if load not in a]))
    return [f"only {name} has the load {', '.join(loads)}: not compared" for name, loads in pairs if sweep and loads]


def _validity(name: str, result: Result) -> list[str]:
    failed = number(result.get("failed"))
    reasons = {
        f"{failed or 0:g} requests failed": failed,
        "the client did not keep up, so its numbers are not the server's": result.get("client_bound"),
        "stopped before its end": result.get("stopped"),
    }
    return [f"{name}: {reason}" for reason, holds in reasons.items() if holds]
