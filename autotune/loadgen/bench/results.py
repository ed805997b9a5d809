"""Result of a bench, repeats joined, as JSON: the keys of ``vllm bench serve --save-result``, and ours beside them.

Its keys were read off vLLM 0.13.0 and 0.32.0 (``vllm/benchmarks/serve.py``). What it writes per request with
``--save-detailed`` stands in the columnar file of `loadgen.request_file`. ``docs/files.md`` says what ours are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.errors import BadInput, MalformedFile
from autotune.loadgen.bench.options import Bench
from autotune.loadgen.prefix_cache import CacheReport
from autotune.loadgen.request_file import requests_path, write_requests
from autotune.loadgen.results import FoundCapacity, Measurement, to_json, worst_client
from autotune.loadgen.tokenizers import Tokenizer
from autotune.loadgen.workloads import Workload
from autotune.metrics.formulas import parse_goodput
from autotune.study.home import write_atomically
from autotune.trial import Evidence

SCHEMA = 1
_OF_A_REPEAT = (
    *("duration", "completed", "failed"),
    *("request_throughput", "output_throughput", "total_token_throughput", "cache_hit_rate"),
)
_NEEDED = ("duration", "completed", "request_throughput", "total_token_throughput")
_FORM = "not a result; a file is expected that `autotune bench --save-result` or `vllm bench serve --save-result` wrote"


def result(
    options: Bench,
    workload: Workload,
    evidence: Evidence,
    runs: Sequence[Measurement],
    tokenizer: Tokenizer | None = None,
) -> dict[str, Any]:
    """Return the result of one run or more, each under a seed of its own, ready for JSON."""
    backend = "openai-chat" if "chat" in options.endpoint else "openai"
    whole = options.rent.derived(to_json(runs))
    for point in whole["points"]:
        point["metrics"] = options.rent.derived(point["metrics"])
    arrivals = [point.arrival for point in workload.points]
    ways = list(dict.fromkeys(arrival.describe() for arrival in arrivals))
    cache = CacheReport.joined([load.cache for run in runs for load in run.points]).to_json()
    alone = len(whole["points"]) == len(runs) == 1  # only a single load has one steady state
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": options.model,
        "tokenizer_id": str(options.tokenizer) if options.tokenizer else None,
        "num_prompts": sum(point.prompts for point in workload.points) * len(runs),
        # vLLM's three keys; null where the load points of a sweep differ.
        "request_rate": _common([arrival.request_rate or "inf" for arrival in arrivals]),
        "burstiness": _common([arrival.burstiness for arrival in arrivals]),
        "max_concurrency": _common([arrival.concurrency for arrival in arrivals]),
        "schema": SCHEMA,
        "endpoint": options.endpoint,
        "invalid": next((run.invalid for run in runs if run.invalid), None),
        "workload": workload.name,
        "load": ways[0] if len(ways) == 1 else f"{len(arrivals)} load points, {ways[0]} to {ways[-1]}",
        "lengths_source": workload.lengths_source(tokenizer),
        "seed": options.seed,
        "evidence": evidence.value,
        "steady": {
            **(whole["points"][0]["steady"] if alone else {}),
            "total_token_throughput": whole["steady_total_token_throughput"],
        },
        "cache": {
            "hit_rate": whole.get("cache_hit_rate"),
            "kept": options.keep_cache,
            **{name: cache[name] for name in ("reset", "reset_reason")},
        },
        **whole,
        "client": worst_client([point["client"] for point in whole["points"]]),
        "repeats": [
            {"seed": run.seed, **{name: run.metrics[name] for name in _OF_A_REPEAT if name in run.metrics}}
            for run in runs
        ],
        # As in vLLM's: no goodput where no limit was asked for.
        "request_goodput": whole["request_goodput"] if options.slo or options.goodput else None,
        "goodput": parse_goodput(options.goodput) or None,
        **asdict(options.rent),
        "requests_file": None,
    }


def searched(
    options: Bench, workload: Workload, evidence: Evidence, came: FoundCapacity, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """The result of a load search, ready for JSON: of the load that is the capacity, with the curve of all loads.

    Where there is none, ``nearest_miss`` has the limit that the lightest load breaks.
    """
    found, shown = came.found, came.shown
    sent = [load.point for load in shown[0].points]
    workload = workload.model_copy(update={"points": sent}) if sent else workload
    miss = None
    if found.missed is not None:
        broken, load = found.missed
        miss = {"slo": broken.slo, "metric": broken.metric, "value": broken.value, "limit": broken.limit, "load": load}
    whole = result(options, workload, evidence, shown, tokenizer)
    return {
        **whole,
        **options.rent.derived(came.metrics),
        "steady_total_token_throughput": whole["steady_total_token_throughput"],
        "num_prompts": came.metrics["completed"] + came.metrics["failed"],
        "find_load": options.find_load,
        "load_search": found.sentences(),
        "nearest_miss": miss,
        "failure": came.failure or None,
        "invalid": came.invalid or None,
    }


def _common(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else None


def save(path: Path, result: Mapping[str, Any], runs: Sequence[Measurement]) -> dict[str, Any]:
    """Write the result, and its requests beside it; gives the result as written, with ``requests_file``.

    The requests come first: a result that is there is whole. Raises `BadInput` when a file cannot be written.
    """
    beside = requests_path(path)
    written = {**result, "requests_file": beside.name}
    about = {name: result[name] for name in ("workload", "load", "seed", "evidence", "model_id", "date")}
    try:
        write_requests(beside, [log for run in runs for log in run.logs], about)
        write_atomically(path, json.dumps(written, allow_nan=False) + "\n")
    except OSError as error:
        raise BadInput(f"--save-result {path}: cannot be written ({error.strerror or error})") from error
    return written


def read(path: Path) -> dict[str, Any]:
    """Return a result that `save` or ``vllm bench serve --save-result`` wrote.

    Raises:
        BadInput: there is no such file.
        MalformedFile: it is no result.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); give two result files, or two studies") from error
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, _FORM) from error
    if not isinstance(result, dict):
        raise MalformedFile(path, _FORM)
    for name in _NEEDED:
        if number(result.get(name)) is None:
            raise MalformedFile(path, f"{_FORM} (it has no number under {name!r})")
    return result


def number(value: object) -> float | None:
    """Return a finite number of a result, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond every float
        return None
