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
from autotune.loadgen.bench.results import number, read
from autotune.loadgen.request_file import RequestTable, read_requests
from autotune.metrics.table import METRICS
from autotune.trial import Evidence

Interval = tuple[float, float]

INTERVAL_ERROR = 0.05
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
_OURS = ("workload", "seed", "evidence")
ONE_RUN = "one run each says nothing about run-to-run noise: measure with --repeats, or on fresh launches"


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of a mean of two values or more."""
    mean, squared_error = _moments(np.asarray(values, dtype=np.float64))
    half = _student(len(values) - 1) * math.sqrt(squared_error)
    return mean - half, mean + half


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Welch's interval of B over A, of geometric means, as a change in percent.

    Spreads may differ (B. L. Welch, Biometrika 34, 1947); logarithms, as a node's noise multiplies. None for fewer
    than two values on a side, or a value that is not above 0.
    """
    if min(len(a), len(b)) < 2 or min(*a, *b) <= 0:
        return None
    (mean_a, error_a), (mean_b, error_b) = _moments(np.log(a)), _moments(np.log(b))
    error = error_a + error_b
    half = 0.0
    if error > 0:
        degrees = error**2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
        half = _student(degrees) * math.sqrt(error)
    change = mean_b - mean_a
    return 100 * math.expm1(change - half), 100 * math.expm1(change + half)


def _student(degrees: float) -> float:
    """Student's t that the mean leaves on either side in `INTERVAL_ERROR` of all cases."""
    from scipy.special import stdtrit  # Half a second to load, for those who repeat.

    return float(stdtrit(degrees, 1 - INTERVAL_ERROR / 2))


def _moments(values: Floats) -> tuple[float, float]:
    """The mean, and the square of its standard error."""
    return float(values.mean()), float(values.var(ddof=1)) / len(values)


def latency_intervals(a: RequestTable, b: RequestTable, seed: int = 0) -> dict[str, Interval]:
    """Intervals of the change from A to B in percent, by metric name, from resampled requests.

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
    """Means and medians of resampled requests, each of shape (resamples,)."""
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

    Raises `BadInput` for a file that is no result, or whose measurement is invalid.

    Where one of them is a sweep, the loads that both have are compared, each by itself.
    """
    a, b = read(path_a), read(path_b)
    for path, result in ((path_a, a), (path_b, b)):
        if result.get("invalid"):
            raise BadInput(f"{path}: its measurement is invalid ({result['invalid']}); measure it again")
    notes: list[str] = []
    tables = [_requests(path, result, notes) for path, result in ((path_a, a), (path_b, b))]
    runs_a, runs_b = _repeats(a), _repeats(b)
    warnings = (*_evidence(a, b), *_differences(a, b), *_lengths(a, b), *_validity("A", a), *_validity("B", b))
    loads_a, loads_b = _loads(a), _loads(b)
    sweep = _sweep(a, b)
    common = [load for load in loads_a if load in loads_b] if sweep else []
    of_requests = [_latencies_of(tables, loads_a[load][0], loads_b[load][0]) for load in common]
    if not sweep:
        of_requests = [_latencies_of(tables)]
    throughput = None if sweep else ratio_interval(runs_a, runs_b)
    if any(of_requests):
        notes.append("intervals of latencies are over the requests of these runs, by the bootstrap")
    if throughput is not None:
        notes.append(
            f"the interval of the throughput is over repeats, {len(runs_a)} of A and {len(runs_b)} of B, by Welch"
        )
    if min(len(runs_a), len(runs_b)) < 2:
        notes.append(ONE_RUN)
    of_throughput = {} if throughput is None else {"total_token_throughput": throughput}
    changes = () if sweep else _changes(a, b, {**of_requests[0], **of_throughput})
    points = {
        load: _changes(loads_a[load][1], loads_b[load][1], intervals)
        for load, intervals in zip(common, of_requests, strict=False)
    }
    return Comparison(str(path_a), str(path_b), warnings, changes, tuple(notes), points)


def _loads(result: Result) -> dict[str, tuple[str, Result]]:
    """Each load of a result by its description: its label among the requests, and its metrics."""
    listed = result.get("points")
    points = [point for point in listed if isinstance(point, dict)] if isinstance(listed, list) else []
    loads = {str(p.get("load")): (str(p.get("label") or ""), p["metrics"]) for p in points if "metrics" in p}
    return loads if len(loads) > 1 else {_load_of(result): ("", result)}


def _changes(a: Result, b: Result, intervals: Mapping[str, Interval]) -> tuple[Change, ...]:
    changes = []
    for name in SHOWN:
        of_a, of_b = number(a.get(name)), number(b.get(name))
        if of_a is not None and of_b is not None:
            changes.append(Change(name, of_a, of_b, intervals.get(name)))
    return tuple(changes)


def _latencies_of(tables: Sequence[RequestTable | None], *labels: str) -> dict[str, Interval]:
    """Intervals of latencies, over the requests of the load points of these labels (none given, or empty: all)."""
    of_loads = []
    for table, label in zip(tables, labels or ("", ""), strict=True):
        if table is None:
            return {}
        chosen = table.columns["point"].astype(str) == label if label else slice(None)
        columns = {name: values[chosen] for name, values in table.columns.items()}
        of_loads.append(RequestTable(columns, table.metadata))
    return latency_intervals(of_loads[0], of_loads[1])


def _requests(path: Path, result: Mapping[str, Any], notes: list[str]) -> RequestTable | None:
    """The requests of a result, from the file that it names; else None, and a note on a file that is not right."""
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
    """Total token throughput of each repeat; one where the result names none."""
    rows = result.get("repeats")
    listed = rows if isinstance(rows, list) else []
    values = [number(row.get("total_token_throughput")) for row in listed if isinstance(row, dict)]
    return [value for value in values if value is not None] or [float(result["total_token_throughput"])]


def _evidence(a: Result, b: Result) -> list[str]:
    of_a, of_b = (str(result.get("evidence") or "not stated") for result in (a, b))  # vLLM's files do not say
    if of_a == of_b:
        stands_in = of_a not in (Evidence.MEASURED, "not stated")
        return [f"{of_a.upper()}: both come from an engine that stands in for a real one"] if stands_in else []
    if "not stated" in (of_a, of_b):
        return [f"evidence of A: {of_a}; evidence of B: {of_b}"]
    return [f"EVIDENCE DIFFERS: A is {of_a.upper()}, B is {of_b.upper()}; the change is not one of any real node"]


def _differences(a: Result, b: Result) -> list[str]:
    pairs: list[tuple[str, object, object]] = [("model", a.get("model_id"), b.get("model_id"))]
    pairs.append(("workload", a.get("workload"), b.get("workload")))
    pairs += [("load", _load_of(a), _load_of(b))] if not _sweep(a, b) else []
    pairs.append(("endpoint", _endpoint(a), _endpoint(b)))
    if _load_of(a) == _load_of(b) and "per second" in _load_of(a):
        pairs.append(("burstiness", a.get("burstiness"), b.get("burstiness")))
    pairs += [("number of prompts per repeat", _prompts(a), _prompts(b))] if not _sweep(a, b) else []
    pairs.append(("source of lengths", a.get("lengths_source"), b.get("lengths_source")))
    reasons = [f"another {what}: {x} in A, {y} in B" for what, x, y in pairs if None not in (x, y) and x != y]
    for name, result in (("A", a), ("B", b)):
        missing = [key for key in _OURS if result.get(key) is None]
        if missing:
            reasons.append(f"{name} does not state its {', '.join(missing)}; whether they are the same is not known")
    return [*reasons, *_unmatched(_loads(a), _loads(b))] if _sweep(a, b) else reasons


def _sweep(a: Result, b: Result) -> bool:
    return max(len(_loads(a)), len(_loads(b))) > 1


def _unmatched(a: Collection[str], b: Collection[str]) -> list[str]:
    pairs = (("A", [load for load in a if load not in b]), ("B", [load for load in b if load not in a]))
    return [f"only {name} has the load {', '.join(loads)}: not compared" for name, loads in pairs if loads]


def _endpoint(result: Result) -> str | None:
    named = result.get("endpoint") or result.get("backend")
    return None if named is None else "chat completions" if "chat" in str(named) else "completions"


def _prompts(result: Result) -> str | None:
    count = number(result.get("num_prompts"))
    return None if count is None else f"{count / len(_repeats(result)):g}"


def _lengths(a: Result, b: Result) -> list[str]:
    reasons = []
    for words, key in (("input", "total_input_tokens"), ("output", "total_output_tokens")):
        means = [(number(r.get(key)) or 0.0) / max(float(r["completed"]), 1.0) for r in (a, b)]
        if abs(means[0] - means[1]) > _LENGTHS_DIFFER * max(means):
            reasons.append(f"other lengths: {means[0]:.1f} {words} tokens per request in A, {means[1]:.1f} in B")
    return reasons


def _validity(name: str, result: Result) -> list[str]:
    reasons = []
    failed = number(result.get("failed"))
    if failed:
        reasons.append(f"{name}: {failed:g} requests failed")
    if result.get("client_bound"):
        reasons.append(f"{name}: the client did not keep up, so its numbers are not the server's")
    if result.get("stopped"):
        reasons.append(f"{name}: stopped before its end")
    return reasons
