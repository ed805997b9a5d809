"""``autotune compare``: two results side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autotune.errors import BadInput
from autotune.loadgen.bench import comparable, result_file
from autotune.loadgen.bench.intervals import Interval, latency_intervals, ratio_interval
from autotune.loadgen.request_file import RequestTable, read_requests
from autotune.metrics.formulas import METRICS

_SHOWN = tuple(name for name, metric in METRICS.items() if metric.time_power and not name.startswith(("std", "dur")))
"""Throughputs and latencies, in the order of the result file."""

ONE_RUN = "one run each says nothing about run-to-run noise: measure with --repeats, or on fresh launches"


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of both results.

    Attributes:
        percent: from A to B; None where A is 0.
        interval: of the change, 95 %, in percent; None where nothing tells it.
    """

    metric: str
    a: float
    b: float
    percent: float | None
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """``better`` or ``worse`` in the metric's own direction; ``equal``; ``unclear`` when the interval has 0."""
        if self.interval is not None and self.interval[0] <= 0 <= self.interval[1]:
            return "unclear" if self.a != self.b else "equal"
        if self.a == self.b:
            return "equal"
        return "better" if (self.b > self.a) is METRICS[self.metric].maximise else "worse"

    def to_json(self) -> dict[str, Any]:
        interval = list(self.interval) if self.interval else None
        return {
            "a": self.a,
            "b": self.b,
            "change_percent": self.percent,
            "interval95": interval,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results compared.

    Attributes:
        warnings: what keeps them from being comparable; empty when nothing is known to.
        notes: what the intervals are of.
    """

    a: str
    b: str
    warnings: tuple[str, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "comparable": not self.warnings,
            "warnings": list(self.warnings),
            "metrics": {change.metric: change.to_json() for change in self.changes},
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """As a person reads it: the warnings before the numbers."""
        found = [f"A  {self.a}", f"B  {self.b}", *(f"WARNING: {text}" for text in self.warnings), ""]
        found.append(f"{'metric':<31}{'A':>14}{'B':>14}{'change':>11}  {'':<8} 95 % interval".rstrip())
        for change in self.changes:
            percent = "–" if change.percent is None else f"{change.percent:+.1f} %"
            ends = f"{change.interval[0]:+.1f} % to {change.interval[1]:+.1f} %" if change.interval else ""
            row = f"{change.metric:<31}{change.a:>14,.2f}{change.b:>14,.2f}{percent:>11}  {change.verdict:<8} {ends}"
            found.append(row.rstrip())
        return [*found, "", *(f"Note: {text}." for text in self.notes)]


def compare(path_a: Path, path_b: Path, as_json: bool) -> None:
    """Print the comparison; raises `BadInput` for a file that is no result."""
    comparison = compared(path_a, path_b)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        click.echo("\n".join(comparison.lines()))


def compared(path_a: Path, path_b: Path) -> Comparison:
    """Compare two result files, with what lies beside them."""
    a, b = result_file.read(path_a), result_file.read(path_b)
    notes: list[str] = []
    intervals: dict[str, Interval] = {}
    tables = [_requests(path, result, notes) for path, result in ((path_a, a), (path_b, b))]
    if tables[0] is not None and tables[1] is not None:
        intervals = latency_intervals(tables[0], tables[1])
        if intervals:
            notes.append("intervals of latencies are over the requests of these runs, by the bootstrap")
    runs_a, runs_b = comparable.repeats(a), comparable.repeats(b)
    interval = ratio_interval(runs_a, runs_b)
    if interval is not None:
        intervals["total_token_throughput"] = interval
        notes.append(
            f"the interval of the throughput is over repeats, {len(runs_a)} of A and {len(runs_b)} of B, by Welch"
        )
    notes.append("without an interval, better and worse only name the direction")
    if min(len(runs_a), len(runs_b)) < 2:
        notes.append(ONE_RUN)
    warnings = tuple(comparable.warnings(a, b))
    return Comparison(str(path_a), str(path_b), warnings, _changes(a, b, intervals), tuple(notes))


def _changes(a: Mapping[str, Any], b: Mapping[str, Any], intervals: Mapping[str, Interval]) -> tuple[Change, ...]:
    """The metrics that both results have."""
    found = []
    for name in _SHOWN:
        of_a, of_b = result_file.number(a.get(name)), result_file.number(b.get(name))
        if of_a is not None and of_b is not None:
            percent = result_file.number(100 * (of_b / of_a - 1)) if of_a else None
            found.append(Change(name, of_a, of_b, percent, intervals.get(name)))
    return tuple(found)


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
