"""A result for people, in the shape that ``vllm bench serve`` prints: its titles and sections first, ours behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.loadgen.bench.intervals import mean_interval
from autotune.trial import Evidence

_WIDTH = 50
_TITLE = 40

_COUNTS = (
    ("Successful requests", "completed", "d"),
    ("Failed requests", "failed", "d"),
    ("Maximum request concurrency", "max_concurrency", "d"),
    ("Request rate configured (RPS)", "request_rate", ".2f"),
    ("Benchmark duration (s)", "duration", ".2f"),
    ("Total input tokens", "total_input_tokens", "d"),
    ("Total generated tokens", "total_output_tokens", "d"),
    ("Request throughput (req/s)", "request_throughput", ".2f"),
    ("Request goodput (req/s)", "request_goodput", ".2f"),
    ("Output token throughput (tok/s)", "output_throughput", ".2f"),
    ("Peak output token throughput (tok/s)", "max_output_tokens_per_s", ".2f"),
    ("Peak concurrent requests", "max_concurrent_requests", ".2f"),
    ("Total token throughput (tok/s)", "total_token_throughput", ".2f"),
)
_LATENCIES = (
    ("ttft", "Time to First Token", "TTFT"),
    ("tpot", "Time per Output Token (excl. 1st token)", "TPOT"),
    ("itl", "Inter-token Latency", "ITL"),
    ("e2el", "End-to-end Latency", "E2EL"),
)
_CLIENT = (
    ("Share of a core", "cpu_share", ".2f"),
    ("Event loop lag P99 (ms)", "loop_lag_p99_ms", ".2f"),
    ("Send delay P99 (ms)", "send_delay_p99_ms", ".2f"),
)
_CURVE = (
    ("total tok/s", "total_token_throughput"),
    ("output tok/s", "output_throughput"),
    ("req/s", "request_throughput"),
    ("TTFT median", "median_ttft_ms"),
    ("TTFT p99", "p99_ttft_ms"),
    ("TPOT median", "median_tpot_ms"),
    ("TPOT p99", "p99_tpot_ms"),
)


def lines(result: Mapping[str, Any]) -> list[str]:
    """The whole table of a result; several load points come as a curve first."""
    found = [*curve(result["points"]), ""] if len(result["points"]) > 1 else []
    emulated = result["evidence"] != Evidence.MEASURED
    if result["stopped"]:
        found.append(f"{result['stopped']['verdict']}; what follows is of the part that ran")
    title = f" Serving Benchmark Result{' (' + result['evidence'].upper() + ')' if emulated else ''} "
    found.append(title.center(_WIDTH, "="))
    found += _figures(result, _COUNTS)
    for name, heading, short in _LATENCIES:
        found.append(heading.center(_WIDTH, "-"))
        for statistic in ("mean", "median", "p90", "p99"):
            found.append(_line(f"{statistic.capitalize()} {short} (ms)", f"{result[f'{statistic}_{name}_ms']:.2f}"))
    return [*found, *_workload(result), *_repeats(result["repeats"]), *_client(result), "=" * _WIDTH]


def curve(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per load point: throughput against latency; latencies in ms."""
    names = [str(point["label"] or point["load"]) for point in points]
    wide = max(len("load"), *map(len, names))
    rows = [f"{'load':<{wide}}" + "".join(f"{heading:>14}" for heading, _ in _CURVE) + "  (latencies in ms)"]
    for name, point in zip(names, points, strict=True):
        rows.append(f"{name:<{wide}}" + "".join(f"{point['metrics'][key]:>14.2f}" for _, key in _CURVE))
    return rows


def _workload(result: Mapping[str, Any]) -> list[str]:
    found = ["Workload".center(_WIDTH, "-"), _line("Workload", result["workload"]), _line("Load", result["load"])]
    found += [_line("Seed", str(result["seed"])), _line("Evidence", result["evidence"])]
    steady, cache = result["steady"]["total_token_throughput"], result["cache"]
    found.append(_line("Steady total token throughput (tok/s)", f"{steady:.2f}"))
    if result["steady"].get("reason"):
        found.append(f"  no steady state: {result['steady']['reason']}")
    found.append(_line("Prefix cache emptied before each load", _emptied(cache)))
    if cache["hit_rate"] is not None:
        found.append(_line("Prefix cache hit rate", f"{cache['hit_rate']:.4f}"))
    return found


def _emptied(cache: Mapping[str, Any]) -> str:
    if cache["kept"]:
        return "no, as asked"
    if cache["reset"] is None:
        return "no: which engine serves is not known"
    return "yes" if cache["reset"] == "done" else f"no: {cache['reset_reason'] or cache['reset']}"


def _repeats(repeats: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(repeats) < 2:
        return []
    values = [repeat["total_token_throughput"] for repeat in repeats]
    found = ["Repeats, total token throughput (tok/s)".center(_WIDTH, "-")]
    found += [_line(f"Seed {repeat['seed']}", f"{repeat['total_token_throughput']:.2f}") for repeat in repeats]
    found.append(_line("Mean", f"{sum(values) / len(values):.2f}"))
    interval = mean_interval(values)
    if interval is not None:
        found.append(_line("95 % interval of the mean", f"{interval[0]:.2f} to {interval[1]:.2f}"))
    return found


def _client(result: Mapping[str, Any]) -> list[str]:
    kept_up = _line("Kept up", "no" if result["client_bound"] else "yes")
    return ["Client".center(_WIDTH, "-"), *_figures(result["client"], _CLIENT), kept_up]


def _figures(values: Mapping[str, Any], shown: Sequence[tuple[str, str, str]]) -> list[str]:
    """The figures that there are: a load without limit has no rate."""
    numbers = [(title, values.get(name), form) for title, name, form in shown]
    return [_line(title, format(value, form)) for title, value, form in numbers if isinstance(value, int | float)]


def _line(title: str, value: str) -> str:
    return f"{title + ':':<{_TITLE}} {value}"
