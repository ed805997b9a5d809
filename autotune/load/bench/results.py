"""Result of a bench, repeats joined, as JSON: the keys of ``vllm bench serve --save-result``, and
our own keys.

Its keys were read off vLLM 0.13.0 and 0.32.0 (``vllm/benchmarks/serve.py``). What it writes per
request with ``--save-detailed`` stands in the columnar file of `autotune.load.request_file`.
``docs/files.md`` says what ours are. For people it is printed in the shape of ``vllm bench serve``:
its titles and sections first, ours behind.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from autotune.base import (
    BadInput,
    Evidence,
    Interval,
    Json,
    write_atomically,
)
from autotune.base.arrays import Floats
from autotune.engines import Library

from ..capacity.goal import LoadGoal
from ..capacity.search import CONFIRM_S
from ..client.messages import Progress as LoadProgress
from ..client.target import Target
from ..load import Load
from ..measuring import FoundCapacity, LoadOptions, Measurement, to_json, worst_client
from ..metrics.formulas import Slo, goodput_limits, parse_goodput, slos_of
from ..metrics.records import LATENCIES, STATISTICS
from ..metrics.table import Rent
from ..options import BenchOptions
from ..prefix_cache import CacheReport
from ..request_file import has_requests, requests_path, write_requests
from ..server_client import tokenizer_for
from ..tokenizers import Tokenizer
from ..workloads import Workload, load_workload, with_options
from ..workloads.arrivals import arrival_of


class Bench(BenchOptions):
    """The options of a bench, and the values derived from them."""

    __slots__ = ()

    @property
    def seeds(self) -> list[int]:
        """Return one seed per repeat."""
        return [self.seed + (0 if self.same_prompts else repeat) for repeat in range(self.repeats)]

    @property
    def target(self) -> Target:
        """Return the server, with the API key from an environment variable."""
        key = os.environ.get(self.api_key_env, "").strip() if self.api_key_env is not None else None
        if key == "":
            raise BadInput(
                f"--api-key-env {self.api_key_env}: this environment variable is not set"
            )
        return Target.parse(self.url, key)

    @property
    def rent(self) -> Rent:
        """Return the server's GPUs, and the hourly cost of one."""
        return Rent.checked(self.gpus, self.gpu_hour_price)

    def load_workload(self, load: Callable[[str], Workload] = load_workload) -> Workload:
        """Return the workload that `load` gives by its name, with the arrivals of these options."""
        (name,) = with_options([self.workload], self.speedup, self.output_len)
        workload = load(name)
        if not self.goal.fixed:
            self._check_find_load(workload)
        if self.concurrency and self.request_rate is not None:
            raise BadInput(
                "--concurrency and --request-rate are mutually exclusive: a load is closed or open"
            )
        if self.concurrency:
            return workload.with_concurrencies(self.concurrency)
        arrival = arrival_of(None, self.request_rate, self.burstiness)
        return workload if self.request_rate is None else workload.with_arrival(arrival)

    def _check_find_load(self, workload: Workload) -> None:
        """Raise `BadInput` for options that a load search sets itself, or that exclude one."""
        decided = {
            "--concurrency": self.concurrency,
            "--request-rate": self.request_rate is not None,
            "--burstiness": self.burstiness != 1,
            "--repeats": self.repeats != 1,
            "--same-prompts": self.same_prompts,
            "--keep-cache": self.keep_cache,
        }
        if excluded := [option for option, value in decided.items() if value]:
            raise BadInput(
                f"{' and '.join(excluded)}: --find-load sets the load itself; remove the option"
            )
        self.goal.check(workload, self.slos)

    @property
    def goal(self) -> LoadGoal:
        """Return the load that is asked for: the given one, or the highest within the limits."""
        return LoadGoal(self.find_load)

    def loads(self, workload: Workload, limits: Sequence[Slo]) -> list[Load]:
        """Return the load of each repeat, or that of a load search."""
        return [
            Load(
                workload.name,
                workload,
                seed,
                self.goal.search(workload, self.slos, limits=limits, confirm_s=CONFIRM_S),
            )
            for seed in self.seeds
        ]

    @property
    def slos(self) -> tuple[Slo, ...]:
        """Return the limits, checked by `slos_of`."""
        return slos_of(self.slo)

    def check(self) -> None:
        """Raise `BadInput` for an option outside its range, or a result file that is not
        writable."""
        if self.prompts == "ids" and "chat" in self.endpoint:
            raise BadInput(
                f"--prompts ids: {self.endpoint} takes text; token ids go to /v1/completions"
            )
        parse_goodput(self.goodput)
        Rent.checked(self.gpus, self.gpu_hour_price)
        self.check_result_file()

    def check_result_file(self) -> None:
        """Raise `BadInput` for a result file that is not writable."""
        path = self.save_result
        if path is None:
            return
        other = path.exists() and not path.is_file()
        if other or not os.access(path.absolute().parent, os.W_OK):
            raise BadInput(f"--save-result {path}: not writable; give a file in an existing folder")
        requests = requests_path(path)
        if requests.exists() and not has_requests(requests):
            raise BadInput(
                f"--save-result {path}: {requests.name} lies next to it and is no result's; choose another name"
            )

    def load_options(self, workload: Workload, target: Target) -> LoadOptions:
        """Return the load's options, with a tokenizer only for text; raises `BadInput` for no limit
        or tokenizer."""
        architecture = None
        with suppress(BadInput):  # only of a model that the packaged library knows
            architecture = Library().model(self.model).architecture
        if architecture is not None:
            workload.check_fits(architecture.context_limit)
        text = "chat" in self.endpoint or self.prompts == "text" or workload.has_text
        return LoadOptions(
            endpoint=self.endpoint,
            api_key=target.api_key,
            vocabulary=architecture.vocab_size if architecture is not None else None,
            tokenizer=tokenizer_for(self.tokenizer, target, self.model)
            if text or self.tokenizer
            else None,
            as_text=None if self.prompts is None else self.prompts == "text",
            workers=self.workers,
            slos=goodput_limits(parse_goodput(self.goodput)) or self.slos,
        )


SCHEMA = 1
_OF_A_REPEAT = (
    *("duration", "completed", "failed"),
    *("request_throughput", "output_throughput", "total_token_throughput", "cache_hit_rate"),
    *(f"{statistic}_{latency}_ms" for latency in LATENCIES for statistic in STATISTICS),
)


def result(
    options: Bench,
    workload: Workload,
    evidence: Evidence,
    runs: Sequence[Measurement],
    tokenizer: Tokenizer | None = None,
) -> Json:
    """Return the result of one or more runs, each with its own seed, ready for JSON.

    That of a load search is of the capacity's load, with the curve of all loads.
    """
    search = runs[0]
    if not isinstance(search, FoundCapacity):
        return _repeated(options, workload, evidence, runs, tokenizer)
    if sent := [load.point for load in search.shown[0].points]:
        workload = workload.with_fields(points=sent)
    whole = _repeated(options, workload, evidence, search.shown, tokenizer)
    return {
        **whole,
        **options.rent.derived(search.metrics),
        "steady_total_token_throughput": whole["steady_total_token_throughput"],
        "num_prompts": search.metrics["completed"] + search.metrics["failed"],
        **search.found.to_json(),
        "failure": search.failure or None,
        "invalid": search.invalid or None,
    }


def _repeated(
    options: Bench,
    workload: Workload,
    evidence: Evidence,
    runs: Sequence[Measurement],
    tokenizer: Tokenizer | None,
) -> Json:
    """Return the result of runs that each sent the whole workload."""
    backend = "openai-chat" if "chat" in options.endpoint else "openai"
    whole = options.rent.derived(to_json(runs))
    for point in whole["points"]:
        point["metrics"] = options.rent.derived(point["metrics"])
    cache = CacheReport.joined([load.cache for run in runs for load in run.points]).to_json()
    alone = len(whole["points"]) == len(runs) == 1  # only a single load has one steady state
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": options.model,
        "tokenizer_id": str(options.tokenizer) if options.tokenizer else None,
        **_sent(workload, len(runs)),
        "schema": SCHEMA,
        "endpoint": options.endpoint,
        "invalid": next((run.invalid for run in runs if run.invalid), None),
        "workload": workload.name,
        "load": _load_in_words(workload),
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
            **{name: cache[name] for name in ("reset", "reset_reason", "left_out")},
        },
        **whole,
        "client": worst_client([point["client"] for point in whole["points"]]),
        "repeats": [
            {
                "seed": run.seed,
                **{name: run.metrics[name] for name in _OF_A_REPEAT if name in run.metrics},
            }
            for run in runs
        ],
        # Without a limit there is no goodput, as in vLLM's.
        "request_goodput": whole["request_goodput"] if options.slo or options.goodput else None,
        "goodput": parse_goodput(options.goodput) or None,
        **asdict(options.rent),
        "requests_file": None,
    }


def _sent(workload: Workload, runs: int) -> Json:
    """Return vLLM's keys of what was sent; null where the load points of a sweep differ."""
    arrivals = [point.arrival for point in workload.points]
    return {
        "num_prompts": sum(point.prompts for point in workload.points) * runs,
        "request_rate": _common([arrival.request_rate or "inf" for arrival in arrivals]),
        "burstiness": _common([arrival.burstiness for arrival in arrivals]),
        "max_concurrency": _common([arrival.concurrency for arrival in arrivals]),
    }


def _load_in_words(workload: Workload) -> str:
    """Describe the load, or the first and the last one of a sweep."""
    ways = list(dict.fromkeys(point.arrival.describe() for point in workload.points))
    if len(ways) == 1:
        return ways[0]
    return f"{len(workload.points)} load points, {ways[0]} to {ways[-1]}"


def _common(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else None


def save(path: Path, result: Json, runs: Sequence[Measurement]) -> Json:
    """Write the result, and its requests next to it; returns the written result, with
    ``requests_file``.

    The requests are written first, so that an existing result is whole. Raises `BadInput` when a
    file cannot be written.
    """
    requests = requests_path(path)
    written = {**result, "requests_file": requests.name}
    about = {
        name: result[name] for name in ("workload", "load", "seed", "evidence", "model_id", "date")
    }
    try:
        logs = [log for run in runs for one in run.described for log in one.logs]
        write_requests(requests, logs, about)
        write_atomically(path, json.dumps(written, allow_nan=False) + "\n")
    except OSError as error:
        raise BadInput(f"--save-result {path}: not writable ({error.strerror or error})") from error
    return written


_PLAIN_EVERY_NS = 5_000_000_000


def progress_line(label: str, progress: LoadProgress) -> str:
    """Format a line of progress, e.g. ``c8: 412 of 1000 done, 588 in flight, 6,120 chunks``."""
    name = f"{label}: " if label else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    in_flight = progress.sent - progress.finished
    done = f"{name}{progress.finished} of {progress.total} done"
    return f"{done}, {in_flight} in flight{failed}, {progress.chunks:,} chunks"


INTERVAL_ERROR = 0.05


def mean_interval(values: Sequence[float]) -> Interval:
    """Return Student's interval of a mean of two values or more."""
    mean, squared_error = moments(np.asarray(values, np.float64))
    half = student(len(values) - 1) * math.sqrt(squared_error)
    return mean - half, mean + half


def student(degrees: float) -> float:
    """Return Student's t, beyond which the mean is in `INTERVAL_ERROR` of all cases."""
    from scipy.special import stdtrit  # Half a second to load, only for repeats.

    return float(stdtrit(degrees, 1 - INTERVAL_ERROR / 2))


def moments(values: Floats) -> tuple[float, float]:
    """Return the mean and the square of its standard error."""
    return float(values.mean()), float(values.var(ddof=1)) / len(values)


class LiveLine:
    """Show progress of a bench inside a ``with`` block: a bar on a terminal, else a line about
    every 5 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed_ns = perf_counter_ns()
        words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        columns = (words, BarColumn(bar_width=12), TimeElapsedColumn())
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("warming up", total=None)

    def __enter__(self) -> LiveLine:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, label: str, progress: LoadProgress) -> None:
        """Show the progress of the load of this label."""
        line = progress_line(label, progress)
        now_ns = perf_counter_ns()
        if self._console.is_terminal:
            self._bar.update(
                self._task, description=line, completed=progress.finished, total=progress.total
            )
        elif now_ns - self._printed_ns >= _PLAIN_EVERY_NS:
            self._printed_ns = now_ns
            self._console.print(line, highlight=False, markup=False)
