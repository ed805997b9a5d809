"""The same workload under several seeds, one after the other, as one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.loadgen import Measurement, PointMeasurement
from autotune.loadgen.cache_use import CacheUse
from autotune.loadgen.client.outcomes import Outcome, OutcomeKind, failure_sentence, tally
from autotune.loadgen.request_file import Load
from autotune.metrics.formulas import summarize_loads
from autotune.study.spec import Slo
from autotune.trial import Metrics

_OF_A_REPEAT = (
    "duration",
    "completed",
    "failed",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "cache_hit_rate",
)


@dataclass(frozen=True, slots=True)
class Repeats:
    """The measurements, at least one, each under a seed of its own."""

    runs: tuple[Measurement, ...]
    slos: tuple[Slo, ...] = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How each request ended, over all repeats."""
        return tuple(outcome for run in self.runs for outcome in run.outcomes)

    @property
    def failure(self) -> str:
        """One sentence on the requests that failed; empty when enough of every repeat succeeded."""
        ended = [outcome for outcome in self.outcomes if outcome.kind is not OutcomeKind.STOPPED]
        return failure_sentence(ended) if any(run.failure for run in self.runs) else ""

    @property
    def invalid(self) -> str:
        """Why the numbers say nothing of the server; empty when those of every repeat are sound."""
        return next((run.invalid for run in self.runs if run.invalid), "")

    @property
    def loads(self) -> list[Load]:
        """Every load that was made, in order."""
        return [Load(point.label, run.seed, point.log) for run in self.runs for point in run.points]

    def to_json(self) -> dict[str, Any]:
        """What `Measurement.to_json` gives, over all repeats, with ``client`` and one row per repeat.

        Metrics are those of all repeats as one run without pauses; of a load point likewise.
        """
        rows = [run.to_json() for run in self.runs]
        whole = rows[0]
        if len(rows) > 1:
            metrics = _pooled([point for run in self.runs for point in run.points], self.slos)
            metrics["failed"] += sum(len(run.warm_up_failed) for run in self.runs)
            whole = {
                **metrics,
                "outcomes": tally(self.outcomes),
                "failure": self.failure or None,
                "stale_connections": sum(row["stale_connections"] for row in rows),
                "warm_up_s": sum(row["warm_up_s"] for row in rows),
                "points": self._points(rows),
            }
        repeats = [
            {"seed": run.seed, **{name: row[name] for name in _OF_A_REPEAT if name in row}}
            for run, row in self._each(rows)
        ]
        return {**whole, "client": _client(point["client"] for point in whole["points"]), "repeats": repeats}

    def _each(self, rows: Sequence[dict[str, Any]]) -> Iterable[tuple[Measurement, dict[str, Any]]]:
        return zip(self.runs, rows, strict=True)

    def _points(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row per load point; a repeat that ended early has fewer of them."""
        points: list[dict[str, Any]] = []
        for position in range(max(len(run.points) for run in self.runs)):
            made = [(run, row) for run, row in self._each(rows) if position < len(run.points)]
            loads = [(run.points[position], row["points"][position]) for run, row in made]
            points.append(
                {
                    **loads[0][1],
                    **(_joined([row for _, row in loads]) if len(loads) > 1 else {}),
                    "metrics": _pooled([point for point, _ in loads], self.slos),
                    "outcomes": tally(outcome for point, _ in loads for outcome in point.log.outcomes),
                    "client": _client(row["client"] for _, row in loads),
                }
            )
        return points


def measure_repeats(repeats: int, measure: Callable[[int], Measurement], slos: tuple[Slo, ...] = ()) -> Repeats:
    """Measure so often; a server that answers no request gets no further load.

    Args:
        measure: of the repeat's number, from 0.
    """
    runs: list[Measurement] = []
    for repeat in range(repeats):
        runs.append(measure(repeat))
        if runs[-1].warm_up_failed:
            break
    return Repeats(tuple(runs), slos)


def worst(clients: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Figure by figure the largest of several loads."""
    found: dict[str, float] = {}
    for client in clients:
        for name, value in client.items():
            if isinstance(value, int | float):
                found[name] = max(value, found.get(name, value))
    return found


def _client(clients: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    listed = list(clients)
    return {**worst(listed), "beyond_limits": _first(client["beyond_limits"] for client in listed)}


def _joined(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the repeats of one load point say of themselves, so that none of them is lost behind the first."""
    caches = [row["cache"] for row in rows]
    told = next((cache for cache in caches if cache["reset"] != "done"), caches[0])
    counted = [cache for cache in caches if cache["queries"] is not None]
    queries = sum(cache["queries"] for cache in counted)
    hits = sum(cache["hits"] for cache in counted)
    known = bool(counted) and len(counted) == len(caches)
    return {
        "stopped": _first(row["stopped"] for row in rows),
        "cache": {
            **told,
            "hits": hits if known else None,
            "queries": queries if known else None,
            "hit_rate": (hits / queries if queries else 0.0) if known else None,
            "expected_at_most": max(cache["expected_at_most"] for cache in caches),
        },
        "workers": [worker for row in rows for worker in row["workers"]],
        "thrown_away": [tried for row in rows for tried in row["thrown_away"]],
        "steady": None,
    }


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _pooled(points: Sequence[PointMeasurement], slos: Sequence[Slo]) -> Metrics:
    metrics = summarize_loads([point.log.counted for point in points], slos)
    metrics["client_bound"] = any(point.client_bound for point in points)
    use = CacheUse.total([point.cache.use for point in points])
    return metrics if use is None else {**metrics, "cache_hit_rate": use.hit_rate}
