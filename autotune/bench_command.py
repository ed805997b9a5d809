"""``autotune bench``: one workload against a server that runs already."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from autotune.client.tokenizers import FileTokenizer
from autotune.errors import BadInput, LoadFailed
from autotune.home import write_atomically
from autotune.load import LoadOptions, Measurement, Progress, Target, measure
from autotune.load.control import ServerClient
from autotune.load.workloads import Workload, load_workload
from autotune.space.library import Library
from autotune.trial import Evidence

_messages = Console(stderr=True, soft_wrap=True)
_WIDTH = 56

_FIGURES = (
    ("Successful requests", "completed", 0),
    ("Failed requests", "failed", 0),
    ("Benchmark duration (s)", "duration", 2),
    ("Total input tokens", "total_input_tokens", 0),
    ("Total generated tokens", "total_output_tokens", 0),
    ("Request throughput (req/s)", "request_throughput", 2),
    ("Output token throughput (tok/s)", "output_throughput", 2),
    ("Peak output token throughput (tok/s)", "max_output_tokens_per_s", 2),
    ("Peak concurrent requests", "max_concurrent_requests", 0),
    ("Total token throughput (tok/s)", "total_token_throughput", 2),
    ("Steady total token throughput (tok/s)", "steady_total_token_throughput", 2),
)
_LATENCIES = (
    ("ttft", "Time to First Token", "TTFT"),
    ("tpot", "Time per Output Token (excl. 1st token)", "TPOT"),
    ("itl", "Inter-token Latency", "ITL"),
    ("e2el", "End-to-end Latency", "E2EL"),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The options of ``autotune bench``, as typed."""

    url: str
    model: str
    workload: str
    concurrency: int | None
    request_rate: float | None
    seed: int
    endpoint: str
    tokenizer: Path | None
    api_key_env: str | None
    save_result: Path | None


def bench(asked: Bench, as_json: bool) -> None:
    """Measure, print, write.

    Raises:
        BadInput: nothing listens, another model is served, or an option is wrong; nothing is written then.
        LoadFailed: requests failed or the client did not keep up; the result is written.
    """
    workload = _workload(asked)
    api_key = _api_key(asked.api_key_env)
    target = Target.parse(asked.url, api_key)
    _check_writable(asked.save_result)
    with ServerClient(target) as server:
        server.check_model(asked.model)
        evidence = Evidence.EMULATED if server.emulated() else Evidence.MEASURED
    options = LoadOptions(
        endpoint=asked.endpoint,
        api_key=api_key,
        vocabulary=_vocabulary(asked.model),
        tokenizer=FileTokenizer.load(asked.tokenizer) if asked.tokenizer else None,
    )
    measured = _measured(asked, workload, options)
    result = {**_result(asked, workload, measured), "evidence": evidence.value}
    if asked.save_result is not None:
        write_atomically(asked.save_result, json.dumps(result, allow_nan=False) + "\n")
        _messages.print(f"wrote {asked.save_result}", highlight=False)
    if as_json:
        click.echo(json.dumps({**result, "points": measured.to_json()["points"]}, indent=2, allow_nan=False))
    else:
        _print(workload, measured, evidence)
    _judge(measured)


def _measured(asked: Bench, workload: Workload, options: LoadOptions) -> Measurement:
    shown = _messages.status("warming up") if _messages.is_terminal else nullcontext()
    with shown as status:

        def tell(label: str, progress: Progress) -> None:
            line = _progress_line(label, progress)
            if status is not None:
                status.update(line)
            else:
                _messages.print(line, highlight=False)

        return measure(asked.url, asked.model, workload, asked.seed, replace(options, on_progress=tell))


def _progress_line(label: str, progress: Progress) -> str:
    name = f"{label}: " if label else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    in_flight = progress.sent - progress.finished
    return (
        f"{name}{progress.finished} of {progress.total} done, {in_flight} in flight{failed}, {progress.chunks:,} chunks"
    )


def _workload(asked: Bench) -> Workload:
    workload = load_workload(asked.workload)
    if asked.concurrency is not None and asked.request_rate is not None:
        raise BadInput("--concurrency and --request-rate exclude each other: a load is closed or open")
    if asked.concurrency is not None:
        if asked.concurrency < 1:
            raise BadInput(f"--concurrency {asked.concurrency}: at least 1 request must be under way")
        return workload.with_concurrency(asked.concurrency)
    if asked.request_rate is not None:
        if not 0 < asked.request_rate < float("inf"):
            raise BadInput(f"--request-rate {asked.request_rate:g}: give requests per second, more than 0")
        return workload.with_request_rate(asked.request_rate)
    return workload


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise BadInput(f"--api-key-env {variable}: this environment variable is not set")
    return value.strip()


def _check_writable(path: Path | None) -> None:
    """Before the load, as a result that cannot be kept is an hour lost."""
    if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        raise BadInput(f"--save-result {path}: cannot be written; give a file in a folder that exists")


def _vocabulary(model: str) -> int | None:
    """The vocabulary of a model that the packaged library knows."""
    try:
        return Library().model(model).architecture.vocab_size
    except BadInput:
        return None


def _result(asked: Bench, workload: Workload, measured: Measurement) -> dict[str, Any]:
    """The result file: the keys of ``vllm bench serve --save-result``, then ours."""
    arrivals = {point.arrival for point in workload.points}
    arrival = next(iter(arrivals)) if len(arrivals) == 1 else None
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "openai-chat" if "chat" in asked.endpoint else "openai",
        "endpoint": asked.endpoint,
        "model_id": asked.model,
        "tokenizer_id": str(asked.tokenizer) if asked.tokenizer else None,
        "num_prompts": sum(point.prompts for point in workload.points),
        "request_rate": (arrival and arrival.request_rate) or "inf",
        "burstiness": arrival.burstiness if arrival else None,
        "max_concurrency": arrival.concurrency if arrival else None,
        "workload": workload.name,
        "load": _load(workload),
        "seed": asked.seed,
        **measured.to_json(columns=True),
    }


def _load(workload: Workload) -> str:
    """How the requests are sent; the load points of a sweep have different ways."""
    ways = list(dict.fromkeys(point.arrival.describe() for point in workload.points))
    return ways[0] if len(ways) == 1 else f"{len(workload.points)} load points, {ways[0]} to {ways[-1]}"


def _judge(measured: Measurement) -> None:
    if measured.failure:
        raise LoadFailed(measured.failure)
    if measured.client_bound:
        raise LoadFailed("the client did not keep up, so the numbers are not the server's; see `client` in the result")


def _print(workload: Workload, measured: Measurement, evidence: Evidence) -> None:
    for point in measured.points if len(measured.points) > 1 else ():
        figure = point.metrics["total_token_throughput"]
        click.echo(f"{point.label:<16}{point.arrival:<32}{figure:>12,.2f} tok/s")
    metrics = measured.metrics
    name = "Serving Benchmark Result" if evidence is Evidence.MEASURED else "Serving Benchmark Result (EMULATED)"
    click.echo(f" {name} ".center(_WIDTH, "="))
    _line("Workload", workload.name)
    _line("Load", _load(workload))
    for title, name, digits in _FIGURES:
        _line(title, f"{metrics[name]:.{digits}f}")
    for name, title, short in _LATENCIES:
        click.echo(f" {title} ".center(_WIDTH, "-"))
        for statistic in ("mean", "median", "p90", "p99"):
            _line(f"{statistic.capitalize()} {short} (ms)", f"{metrics[f'{statistic}_{name}_ms']:.2f}")
    click.echo(" Client ".center(_WIDTH, "-"))
    for point in measured.points:
        _line(f"Share of a core{' ' + point.label if point.label else ''}", f"{point.client.cpu_share:.2f}")
        _line("Event loop lag P99 (ms)", f"{point.client.loop_lag_p99_ms:.2f}")
    _line("Kept up", "no" if measured.client_bound else "yes")
    click.echo("=" * _WIDTH)


def _line(title: str, value: str) -> None:
    click.echo(f"{title + ':':<40} {value:<15}".rstrip())
