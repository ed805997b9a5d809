"""Compare two results: the changes, their 95 % intervals, and reasons why they are not comparable.

An interval is over repeats: the requests of one run tell how requests differ, not how runs do.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autotune.base import BadInput, Interval, Json, Strings, beside
from autotune.base.templates import write
from autotune.engines.entry import parse_yaml

from ..metrics.table import HEADLINE, METRICS
from ..metrics.tools import load_of, number, read, role_of
from .results import moments, student

_TEXTS = parse_yaml(beside(__file__, "comparison.yaml"))

ONE_RUN = (
    "with one run each the run-to-run noise is unknown: measure with --repeats, or on new launches"
)


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Interval | None:
    """Return Welch's interval of B over A, of geometric means, as a change in percent.

    Spreads may differ (B. L. Welch, Biometrika 34, 1947); logarithms, as a node's noise multiplies.
    None for fewer than two values on a side, or a value that is not above 0.
    """
    if min(len(a), len(b)) < 2 or min(*a, *b) <= 0:
        return None
    mean_a, error_a = moments(np.log(a))
    mean_b, error_b = moments(np.log(b))
    error = error_a + error_b
    half = 0.0
    if error > 0:
        degrees = error**2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
        half = student(degrees) * math.sqrt(error)
    change = mean_b - mean_a
    return 100 * math.expm1(change - half), 100 * math.expm1(change + half)


SHOWN = tuple(
    name
    for name, metric in METRICS.items()
    if metric.time_power and not name.startswith(("std", "dur"))
)
"""Throughputs and latencies, in the order of the result file."""


class Change(NamedTuple):
    """One metric of both results.

    Attributes:
        interval: 95 % interval of the change in percent, from launches or repeats; None if unknown.
        on_a_node: 90 % interval on real nodes of a predicted change, with the errors of the
            simulator.
        predicted: whether that interval decides, also where it is not known.
    """

    metric: str
    a: float
    b: float
    interval: Interval | None
    on_a_node: Interval | None = None
    predicted: bool = False

    @property
    def percent(self) -> float | None:
        """Return the change from A to B in percent; None if A is 0."""
        return number(100 * (self.b / self.a - 1)) if self.a else None

    @property
    def verdict(self) -> str | None:
        """Return ``better``, ``worse`` or ``equal``; None without an interval.

        Where the interval contains 0 it is ``unclear``, of a prediction ``open``.
        """
        if self.a == self.b:
            return "equal"
        if self.interval is None and not self.predicted:
            return None
        ends = self.on_a_node if self.predicted else self.interval
        if ends is None or ends[0] <= 0 <= ends[1]:
            return "open" if self.predicted else "unclear"
        return (
            "better"
            if (self.b > self.a) is METRICS[self.metric.partition(" ")[0]].maximise
            else "worse"
        )

    def to_json(self) -> Json:
        return {
            "a": self.a,
            "b": self.b,
            "change_percent": self.percent,
            "interval95": self.interval,
            "interval90_on_a_node": self.on_a_node,
            "verdict": self.verdict,
        }


class Comparison(NamedTuple):
    """Two results compared.

    Attributes:
        warnings: reasons why they are not comparable; empty when none is known.
        changes: of results of one load point; empty where one of them is a sweep.
        notes: source of the intervals.
        points: of sweeps, the changes at each load that both have, by its description.
    """

    a: str
    b: str
    warnings: Strings
    changes: tuple[Change, ...]
    notes: Strings
    points: Mapping[str, tuple[Change, ...]]

    def to_json(self) -> Json:
        return {
            "a": self.a,
            "b": self.b,
            "comparable": not self.warnings,
            "warnings": self.warnings,
            "metrics": changes_json(self.changes),
            "points": {load: changes_json(changes) for load, changes in self.points.items()},
            "notes": self.notes,
        }


def changes_json(changes: Sequence[Change]) -> Json:
    return {change.metric: change.to_json() for change in changes}


def compare(path_a: Path, path_b: Path) -> Comparison:
    """Compare two result files, in sweeps the common loads; raises `BadInput` for an invalid
    result."""
    a = read(path_a)
    b = read(path_b)
    for path, result in ((path_a, a), (path_b, b)):
        if result.get("invalid"):
            raise BadInput(
                f"{path}: its measurement is invalid ({result['invalid']}); measure it again"
            )
    loads_a = _loads(a)
    loads_b = _loads(b)
    sweep = max(len(loads_a), len(loads_b)) > 1
    # Our repeats of a sweep are over all its loads: they give no interval for one of them.
    common = [load for load in loads_a if load in loads_b] if sweep else []
    points = {load: _changes(loads_a[load], loads_b[load])[0] for load in common}
    changes, undefined = _changes(a, b)
    counts = [len(_repeats(result)) for result in (a, b)]
    notes = [f"intervals are over repeats, {counts[0]} of A and {counts[1]} of B, by Welch"]
    if min(counts) < 2:
        notes = [ONE_RUN]
    elif sweep:
        notes = []
    notes += undefined
    if a["tool"] != b["tool"]:
        tools = (result["tool"] or "an unknown tool" for result in (a, b))
        notes.append("A was measured by {}, B by {}".format(*tools))
    sides = {"a": _side("A", a, loads_a, sweep), "b": _side("B", b, loads_b, sweep)}
    warnings = tuple(write(_TEXTS["warnings"], number=number, **sides).splitlines())
    made = () if sweep else changes
    return Comparison(str(path_a), str(path_b), warnings, made, tuple(notes), points)


def _side(name: str, result: Json, loads: Json, sweep: bool) -> Json:
    return {
        "name": name,
        "result": result,
        "load": load_of(result),
        "loads": list(loads),
        "facts": _facts(result, sweep),
        # vLLM's files do not state their evidence.
        "evidence": str(result.get("evidence") or "not stated"),
    }


def _changes(a: Json, b: Json) -> tuple[tuple[Change, ...], list[str]]:
    """Return the change of each shown metric that both have by one definition, with an interval
    over the repeats, and notes on the others."""
    made = []
    refused: dict[str, list[str]] = {}
    for name in SHOWN:
        x = number(a.get(name))
        y = number(b.get(name))
        if x is None or y is None:
            continue
        rows = [result.get("definitions", {}).get(name, {}) for result in (a, b)]
        if rows[0].get("of") == rows[1].get("of"):
            shown = f"{name} ({rows[0]['of']})" if rows[0].get("shown", bool(rows[0])) else name
            made.append(Change(shown, x, y, ratio_interval(_repeats(a, name), _repeats(b, name))))
        else:
            why = (f"{row['because']} ({one})" for one, row in zip("AB", rows, strict=True) if row)
            refused.setdefault("; ".join(why), []).append(name)
    notes = [f"not compared: {', '.join(names)}: {why}" for why, names in refused.items()]
    return tuple(made), notes


def _loads(result: Json) -> dict[str, Json]:
    """Return the metrics of each load of a result, by its description."""
    points = result.get("points")
    loads = {
        str(point.get("load")): point["metrics"]
        for point in (points if isinstance(points, list) else [])
        if isinstance(point, dict) and "metrics" in point
    }
    return loads if len(loads) > 1 else {load_of(result): result}


def _repeats(result: Json, metric: str = HEADLINE) -> list[float]:
    """Return a metric of each repeat, or that of the result without repeats."""
    rows = result.get("repeats")
    listed = rows if isinstance(rows, list) else []
    values = [number(row.get(metric)) for row in listed if isinstance(row, dict)]
    return [value for value in values if value is not None] or [number(result.get(metric)) or 0.0]


def _facts(result: Json, sweep: bool) -> dict[str, object]:
    """Return the facts that two comparable results have in common, by name; None if not stated."""
    facts: dict[str, object] = {
        "model": result.get("model_id"),
        "workload": result.get("workload"),
        "hardware": result.get("hardware"),
        **{key: result[key] for key in result if role_of(key) == "sent"},
    }
    load = load_of(result)
    if not sweep:
        facts["load"] = load or None
        if (count := number(result.get("num_prompts"))) is not None:
            facts["number of prompts per repeat"] = f"{count / len(_repeats(result)):g}"
    endpoint = result.get("endpoint") or result.get("backend")
    if endpoint is not None:
        facts["endpoint"] = "chat completions" if "chat" in str(endpoint) else "completions"
    if "per second" in load:
        facts["burstiness"] = result.get("burstiness")
    facts["source of lengths"] = result.get("lengths_source")
    if isinstance(notes := result.get("notes"), list):
        facts["form of the requests"] = "; ".join(map(str, notes)) or "all fields"
    return facts
