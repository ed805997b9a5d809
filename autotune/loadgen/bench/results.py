"""Result of a bench, repeats joined, as JSON: the keys of ``vllm bench serve --save-result``, and ours beside them.

Its keys were read off vLLM 0.13.0 and 0.32.0 (``vllm/benchmarks/serve.py``). What it writes per request with
``--save-detailed`` stands in the columnar file of `loadgen.request_file`. ``docs/files.md`` says what ours are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.bench.options import BenchOptions
from autotune.loadgen.client.outcomes import RequestOutcome, failure_sentence, tally
from autotune.loadgen.request_file import LoadLog, requests_path, write_requests
from autotune.loadgen.results import Measurement, pooled_metrics
from autotune.loadgen.tokenizers import Tokenizer
from autotune.loadgen.workloads import Workload
from autotune.metrics.formulas import Slo
from autotune.study.home import write_atomically
from autotune.trial import Evidence

SCHEMA = 1
_NEEDED = ("duration", "completed", "request_throughput", "total_token_throughput")
_FORM = "not a result; a file is expected that `autotune bench --save-result` or `vllm bench serve --save-result` wrote"


def result(
    options: BenchOptions, workload: Workload, evidence: Evidence, measured: Repeats, tokenizer: Tokenizer | None = None
) -> dict[str, Any]:
    """The result, ready for JSON."""
    backend = "openai-chat" if "chat" in options.endpoint else "openai"
    whole = measured.to_json()
    arrivals = [point.arrival for point in workload.points]
    alone = len(whole["points"]) == len(whole["repeats"]) == 1  # only a single load has one steady state
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": options.model,
        "tokenizer_id": str(options.tokenizer) if options.tokenizer else None,
        "num_prompts": sum(point.prompts for point in workload.points) * len(measured.runs),
        # vLLM's three keys; null where the load points of a sweep differ.
        "request_rate": _common([arrival.request_rate or "inf" for arrival in arrivals]),
        "burstiness": _common([arrival.burstiness for arrival in arrivals]),
        "max_concurrency": _common([arrival.concurrency for arrival in arrivals]),
        "schema": SCHEMA,
        "endpoint": options.endpoint,
        "workload": workload.name,
        "load": load_words(workload),
        "lengths_source": workload.lengths_source(tokenizer),
        "seed": options.seed,
        "evidence": evidence.value,
        "steady": {
            **(whole["points"][0]["steady"] if alone else {}),
            "total_token_throughput": whole["steady_total_token_throughput"],
        },
        "cache": _cache(whole, options.keep_cache),
        **whole,
        # As in vLLM's: no goodput where no limit was asked for.
        "request_goodput": whole["request_goodput"] if options.slo else None,
        "requests_file": None,
    }


def _cache(whole: Mapping[str, Any], kept: bool) -> dict[str, Any]:
    """The prefix cache over all loads: hit rate, whether it was left as it was, and how emptying it went."""
    resets = [point["cache"] for point in whole["points"]]
    reset: Mapping[str, Any] = next((one for one in resets if one["reset"] != "done"), resets[0] if resets else {})
    return {
        "hit_rate": whole.get("cache_hit_rate"),
        "kept": kept,
        "reset": reset.get("reset"),
        "reset_reason": reset.get("reset_reason"),
    }


def _common(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else None


def load_words(workload: Workload) -> str:
    """How the requests are sent; the load points of a sweep have different ways."""
    ways = list(dict.fromkeys(point.arrival.describe() for point in workload.points))
    return ways[0] if len(ways) == 1 else f"{len(workload.points)} load points, {ways[0]} to {ways[-1]}"


def save(path: Path, result: Mapping[str, Any], loads: Sequence[LoadLog]) -> dict[str, Any]:
    """Write the result, and its requests beside it; gives the result as written, with ``requests_file``.

    The requests come first: a result that is there is whole. Raises `BadInput` when a file cannot be written.
    """
    beside = requests_path(path)
    written = {**result, "requests_file": beside.name}
    about = {name: result[name] for name in ("workload", "load", "seed", "evidence", "model_id", "date")}
    try:
        write_requests(beside, loads, about)
        write_atomically(path, json.dumps(written, allow_nan=False) + "\n")
    except OSError as error:
        raise BadInput(f"--save-result {path}: cannot be written ({error.strerror or error})") from error
    return written


def read(path: Path) -> dict[str, Any]:
    """A result that `save` or ``vllm bench serve --save-result`` wrote.

    Raises:
        BadInput: there is no such file.
        MalformedFile: it is no result.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); give two result files") from error
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, _FORM) from error
    if not isinstance(result, dict):
        raise MalformedFile(path, _FORM)
    for name in _NEEDED:
        if number(result.get(name)) is None:
            raise MalformedFile(path, f"{_FORM} (it has no number under {name!r})")
    return result


def number(value: object) -> float | None:
    """A finite number of a result, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond every float
        return None


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
    def outcomes(self) -> tuple[RequestOutcome, ...]:
        """How each request ended, over all repeats."""
        return tuple(outcome for run in self.runs for outcome in run.outcomes)

    @property
    def failure(self) -> str:
        """One sentence on the requests that failed; empty when enough of every repeat succeeded."""
        return failure_sentence(self.outcomes) if any(run.failure for run in self.runs) else ""

    @property
    def invalid(self) -> str:
        """Why the numbers say nothing of the server; empty when those of every repeat are sound."""
        return next((run.invalid for run in self.runs if run.invalid), "")

    @property
    def loads(self) -> list[LoadLog]:
        """Every load that was made, in order."""
        return [LoadLog(point.label, run.seed, point.log) for run in self.runs for point in run.points]

    def to_json(self) -> dict[str, Any]:
        """What `Measurement.to_json` gives, over all repeats, with ``client`` and one row per repeat.

        Metrics are those of all repeats as one run without pauses; of a load point likewise.
        """
        rows = [run.to_json() for run in self.runs]
        whole = rows[0]
        if len(rows) > 1:
            metrics = pooled_metrics([point for run in self.runs for point in run.points], self.slos)
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
            for run, row in zip(self.runs, rows, strict=True)
        ]
        return {**whole, "client": _worst_client(point["client"] for point in whole["points"]), "repeats": repeats}

    def _points(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row per load point; a repeat that ended early has fewer of them."""
        points: list[dict[str, Any]] = []
        for position in range(max(len(run.points) for run in self.runs)):
            made = [(run, row) for run, row in zip(self.runs, rows, strict=True) if position < len(run.points)]
            loads = [(run.points[position], row["points"][position]) for run, row in made]
            points.append(
                {
                    **loads[0][1],
                    **(_joined([row for _, row in loads]) if len(loads) > 1 else {}),
                    "metrics": pooled_metrics([point for point, _ in loads], self.slos),
                    "outcomes": tally(outcome for point, _ in loads for outcome in point.log.outcomes),
                    "client": _worst_client(row["client"] for _, row in loads),
                }
            )
        return points


def _worst_client(clients: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Figure by figure the largest of several loads."""
    worst: dict[str, Any] = {"beyond_limits": None}
    for client in clients:
        for name, value in client.items():
            worst[name] = max(value, worst.get(name, value)) if name != "beyond_limits" else worst.get(name) or value
    return worst


def _joined(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join what stands beside the metrics in the repeats of one load point."""
    caches = [row["cache"] for row in rows]
    reset = next((cache for cache in caches if cache["reset"] != "done"), caches[0])
    counted = [cache for cache in caches if cache["queries"] is not None]
    queries = sum(cache["queries"] for cache in counted)
    hits = sum(cache["hits"] for cache in counted)
    known = bool(counted) and len(counted) == len(caches)
    return {
        "cache": {
            **reset,
            "hits": hits if known else None,
            "queries": queries if known else None,
            "hit_rate": (hits / queries if queries else 0.0) if known else None,
            "expected_at_most": max(cache["expected_at_most"] for cache in caches),
        },
        "workers": [worker for row in rows for worker in row["workers"]],
        "thrown_away": [tried for row in rows for tried in row["thrown_away"]],
        "steady": None,
    }
