"""A result for people, in the shape that ``vllm bench serve`` prints: its titles and sections first, ours behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from autotune.loadgen.bench.compare import mean_interval
from autotune.loadgen.capacity.search import LOADS, described
from autotune.loadgen.client.messages import Progress as LoadProgress
from autotune.metrics.table import COSTS, HEADLINE, STEADY, shown_in, title_of
from autotune.trial import Evidence

_PLAIN_EVERY_NS = 5_000_000_000
_WIDTH = 50
_TITLE = 40

_VLLM = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "max_concurrency": "Maximum request concurrency",
    "request_rate": "Request rate configured (RPS)",
    "duration": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "request_goodput": "Request goodput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "max_output_tokens_per_s": "Peak output token throughput (tok/s)",
    "max_concurrent_requests": "Peak concurrent requests",
    "total_token_throughput": "Total token throughput (tok/s)",
}
"""The figures of ``vllm bench serve`` with its titles, in its order."""
_OF_A_SWEEP = ("completed", "failed", "duration", "total_input_tokens", "total_output_tokens")
"""Figures that add up over load points; a throughput or a latency is of one of them, and stands in the curve."""
_LATENCIES = (
    ("ttft", "Time to First Token", "TTFT"),
    ("tpot", "Time per Output Token (excl. 1st token)", "TPOT"),
    ("itl", "Inter-token Latency", "ITL"),
    ("e2el", "End-to-end Latency", "E2EL"),
)
_CLIENT = {
    "cpu_share": "Share of a core",
    "loop_lag_p99_ms": "Event loop lag P99 (ms)",
    "send_delay_p99_ms": "Send delay P99 (ms)",
}
_DRAFTS = {"spec_decode_acceptance_rate": "Acceptance rate (%)", "spec_decode_acceptance_length": "Acceptance length"}
_CURVE = (
    ("total tok/s", "total_token_throughput"),
    ("output tok/s", "output_throughput"),
    ("req/s", "request_throughput"),
    ("TTFT median", "median_ttft_ms"),
    ("TTFT p99", "p99_ttft_ms"),
    ("TPOT median", "median_tpot_ms"),
    ("TPOT p99", "p99_tpot_ms"),
)


def table(result: Mapping[str, Any]) -> list[str]:
    """Format a result; several load points come as a curve, and only what adds up over them below it.

    Of a load search: the curve, what was found, and the table of the load that is the capacity.
    """
    if by := result.get("find_load"):
        points = [{"label": described(by, row[LOADS[by]]), "metrics": row} for row in result["curve"]]
        found = [f"{sentence}." for sentence in result["load_search"]]
        found += [*_figures(result, shown_in("capacity")), ""]
        return [*curve(points), "", *found, *table({**result, "find_load": None})]
    sweep = len(result["points"]) > 1
    lines = [*curve(result["points"]), ""] if sweep else []
    emulated = result["evidence"] != Evidence.MEASURED
    title = f" Serving Benchmark Result{' (' + result['evidence'].upper() + ')' if emulated else ''} "
    lines.append(title.center(_WIDTH, "="))
    lines += _figures(result, _OF_A_SWEEP if sweep else _VLLM)
    for name, heading, short in () if sweep else _LATENCIES:
        lines.append(heading.center(_WIDTH, "-"))
        for statistic in ("mean", "median", "p90", "p99"):
            lines.append(_line(f"{statistic.capitalize()} {short} (ms)", f"{result[f'{statistic}_{name}_ms']:.2f}"))
    derived = [] if sweep else _figures(result, shown_in("bench"))
    lines += ["Per GPU, per user, in money".center(_WIDTH, "-"), *derived] if derived else []
    lines += [f"INVALID: {result['invalid']}"] if result["invalid"] else []
    lines += [*_workload(result, sweep), "Client".center(_WIDTH, "-"), *_figures(result["client"], _CLIENT, _CLIENT)]
    return [*lines, _line("Kept up", "no" if result["client_bound"] else "yes"), "=" * _WIDTH]


def curve(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a line per load point: throughput against latency; latencies in ms."""
    names = [str(point["label"] or point["load"]) for point in points]
    wide = max(map(len, ["load", *names]))
    rows = [f"{'load':<{wide}}" + "".join(f"{heading:>14}" for heading, _ in _CURVE) + "  (latencies in ms)"]
    for name, point in zip(names, points, strict=True):
        rows.append(f"{name:<{wide}}" + "".join(f"{point['metrics'][key]:>14.2f}" for _, key in _CURVE))
    return rows


def _workload(result: Mapping[str, Any], sweep: bool) -> list[str]:
    """Format what was sent, and what the server's caches and drafts had to do with it."""
    lines = ["Workload".center(_WIDTH, "-"), _line("Workload", result["workload"]), _line("Load", result["load"])]
    lines += [_line("Seed", str(result["seed"])), _line("Evidence", result["evidence"])]
    cache, reason = result["cache"], result["steady"].get("reason")
    lines += [] if sweep else _figures(result, [STEADY])
    lines += [f"  no steady state: {reason}"] if reason else []
    emptied = "yes" if cache["reset"] == "done" else f"no: {cache['reset_reason'] or cache['reset']}"
    if cache["kept"]:
        emptied = "no, as asked"
    elif cache["reset"] is None:
        emptied = "no: which engine serves is not known"
    lines.append(_line("Prefix cache emptied before each load", emptied))
    if cache["hit_rate"] is not None:
        lines.append(_line("Prefix cache hit rate", f"{cache['hit_rate']:.4f}"))
    lines += _figures(result, _DRAFTS, _DRAFTS)
    repeats = result["repeats"]
    if len(repeats) < 2:
        return lines
    values = [repeat[HEADLINE] for repeat in repeats]
    title = f"Repeats, {'all load points as one load' if sweep else 'total token throughput'} (tok/s)"
    lines.append(title.center(_WIDTH, "-"))
    lines += [_line(f"Seed {repeat['seed']}", f"{repeat[HEADLINE]:.2f}") for repeat in repeats]
    low, high = mean_interval(values)
    lines.append(_line("Mean", f"{sum(values) / len(values):.2f}"))
    return [*lines, _line("95 % interval of the mean", f"{low:.2f} to {high:.2f}")]


def _figures(values: Mapping[str, Any], names: Iterable[str], titles: Mapping[str, str] = _VLLM) -> list[str]:
    """Format the figures that the result has: a load without limit has no rate."""
    lines = []
    for name in names:
        value, (title, unit) = values.get(name), title_of(name)
        form = "d" if isinstance(value, int) else ".4f" if name in COSTS else ".2f"
        if isinstance(value, int | float):
            lines.append(_line(titles.get(name) or (f"{title} ({unit})" if unit else title), format(value, form)))
    return lines


def _line(title: str, value: str) -> str:
    return f"{title + ':':<{_TITLE}} {value}"


def progress_line(label: str, progress: LoadProgress) -> str:
    """Format a line, e.g. ``c8: 412 of 1000 done, 588 in flight, 6,120 chunks``."""
    name = f"{label}: " if label else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    in_flight = progress.sent - progress.finished
    return (
        f"{name}{progress.finished} of {progress.total} done, {in_flight} in flight{failed}, {progress.chunks:,} chunks"
    )


class LiveLine:
    """Shows the loads of a bench while it is a context: a bar on a terminal, else a line about every 5 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        if console.is_terminal:
            words = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
            columns = (words, BarColumn(bar_width=12), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("warming up", total=None)
        self._printed_ns = perf_counter_ns()

    def __enter__(self) -> LiveLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, label: str, progress: LoadProgress) -> None:
        """Show how far the load of this label is."""
        now_ns = perf_counter_ns()
        if self._bar is not None:
            line = progress_line(label, progress)
            self._bar.update(self._task, description=line, completed=progress.finished, total=progress.total)
        elif now_ns - self._printed_ns >= _PLAIN_EVERY_NS:
            self._printed_ns = now_ns
            self._console.print(progress_line(label, progress), highlight=False, markup=False)
