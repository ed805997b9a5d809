"""What keeps two results from being comparable: one sentence per difference that is not the server's doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.loadgen.bench.result_file import number
from autotune.trial import Evidence

Result = Mapping[str, Any]

_LENGTHS_DIFFER = 0.01
"""Mean lengths of two seeds of one workload differ by less."""
_OURS = ("workload", "seed", "evidence")


def warnings(a: Result, b: Result) -> list[str]:
    """All reasons to distrust the comparison, those about evidence first."""
    return [*_evidence(a, b), *_differences(a, b), *_lengths(a, b), *_validity("A", a), *_validity("B", b)]


def evidence(result: Result) -> str:
    """Where its numbers come from; vLLM's files do not say."""
    return str(result.get("evidence") or "not stated")


def load_words(result: Result) -> str:
    """How the requests were sent, in the words of `Arrival.describe`; from vLLM's keys where ours are missing."""
    if isinstance(result.get("load"), str):
        return str(result["load"])
    concurrency, rate = number(result.get("max_concurrency")), number(result.get("request_rate"))
    limit = f"{concurrency:g} at a time" if concurrency else ""
    arrivals = f"{rate:g} requests per second" if rate else ""
    return ", ".join(part for part in (arrivals, limit) if part) or "all at once"


def repeats(result: Result) -> list[float]:
    """Total token throughput of each repeat; one where the result names none."""
    rows = result.get("repeats")
    listed = rows if isinstance(rows, list) else []
    found = [number(row.get("total_token_throughput")) for row in listed if isinstance(row, dict)]
    return [value for value in found if value is not None] or [float(result["total_token_throughput"])]


def _evidence(a: Result, b: Result) -> list[str]:
    of_a, of_b = evidence(a), evidence(b)
    if of_a == of_b:
        stands_in = of_a not in (Evidence.MEASURED, "not stated")
        return [f"{of_a.upper()}: both come from an engine that stands in for a real one"] if stands_in else []
    if "not stated" in (of_a, of_b):
        return [f"evidence of A: {of_a}; evidence of B: {of_b}"]
    return [f"EVIDENCE DIFFERS: A is {of_a.upper()}, B is {of_b.upper()}; the change is not one of any real node"]


def _differences(a: Result, b: Result) -> list[str]:
    pairs: list[tuple[str, object, object]] = [("model", a.get("model_id"), b.get("model_id"))]
    pairs.append(("workload", a.get("workload"), b.get("workload")))
    pairs += [("load", load_words(a), load_words(b)), ("endpoint", _endpoint(a), _endpoint(b))]
    if load_words(a) == load_words(b) and "per second" in load_words(a):
        pairs.append(("burstiness", a.get("burstiness"), b.get("burstiness")))
    pairs += [("number of prompts per repeat", _prompts(a), _prompts(b)), ("seed", a.get("seed"), b.get("seed"))]
    pairs.append(("source of lengths", a.get("lengths_source"), b.get("lengths_source")))
    found = [f"another {what}: {x} in A, {y} in B" for what, x, y in pairs if None not in (x, y) and x != y]
    for name, result in (("A", a), ("B", b)):
        missing = [key for key in _OURS if result.get(key) is None]
        if missing:
            found.append(f"{name} does not state its {', '.join(missing)}; whether they are the same is not known")
    return found


def _endpoint(result: Result) -> str | None:
    named = result.get("endpoint") or result.get("backend")
    return None if named is None else "chat completions" if "chat" in str(named) else "completions"


def _prompts(result: Result) -> str | None:
    count = number(result.get("num_prompts"))
    return None if count is None else f"{count / len(repeats(result)):g}"


def _lengths(a: Result, b: Result) -> list[str]:
    found = []
    for words, key in (("input", "total_input_tokens"), ("output", "total_output_tokens")):
        means = [(number(r.get(key)) or 0.0) / max(float(r["completed"]), 1.0) for r in (a, b)]
        if abs(means[0] - means[1]) > _LENGTHS_DIFFER * max(means):
            found.append(f"other lengths: {means[0]:.1f} {words} tokens per request in A, {means[1]:.1f} in B")
    return found


def _validity(name: str, result: Result) -> list[str]:
    found = []
    failed = number(result.get("failed"))
    if failed:
        found.append(f"{name}: {failed:g} requests failed")
    if result.get("client_bound"):
        found.append(f"{name}: the client did not keep up, so its numbers are not the server's")
    if result.get("stopped"):
        found.append(f"{name}: stopped before its end")
    return found
