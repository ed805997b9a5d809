"""The performance lab's documents as JSON: a list of objects, one per serving command with its benchmark block.

Keys: ``model, command, engine_version, hardware`` (``8xH200``), ``workload`` (``dataset`` sharegpt or random,
``input_len, output_len, num_prompts, max_concurrency``) and the figures that ``vllm bench serve`` prints; or
``failure``, the text of a server that did not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.engines import split_command
from autotune.errors import BadInput
from autotune.simulator.fit.formats import Content
from autotune.simulator.fit.loads import Load
from autotune.simulator.fit.raw import Place, RawRow, checked, number, whole

_KEYS = ("command", "engine_version", "hardware", "workload")
_RENAMED = {
    "duration_s": "duration",
    "input_tokens": "total_input_tokens",
    "output_tokens": "total_output_tokens",
    "total_throughput": "total_token_throughput",
    "peak_output_throughput": "max_output_tokens_per_s",
    "peak_concurrency": "max_concurrent_requests",
}
_KEPT = ("completed", "request_throughput", "output_throughput")
_LATENCIES = tuple(f"{s}_{kind}_ms" for kind in ("ttft", "tpot", "itl") for s in ("mean", "median", "p99"))
_NEEDED = ("total_token_throughput", "duration", "mean_ttft_ms", "mean_tpot_ms")
_DATASETS = ("sharegpt", "random")


class PerformanceLab:
    """Rows are labelled by their place in the list, from 0."""

    description = (
        f"the performance lab's JSON: a list of objects with {', '.join(_KEYS)} and total_throughput or failure"
    )

    def recognises(self, content: Content) -> bool:
        first = content.document[0] if isinstance(content.document, list) and content.document else None
        return isinstance(first, dict) and isinstance(first.get("workload"), dict) and "engine_version" in first

    def rows(self, content: Content) -> Iterator[RawRow]:
        for index, entry in enumerate(content.document):
            yield _row(Place(content.path, row=f"row {index} (from 0)"), str(index), entry)


def _row(place: Place, label: str, entry: Any) -> RawRow:
    if not isinstance(entry, dict):
        raise place.wrong("not an object")
    for key in _KEYS:
        if not entry.get(key):
            raise place.wrong(f"no {key}")
    if not isinstance(entry["workload"], dict):
        raise place.wrong("workload is not an object of dataset, lengths and num_prompts")
    failure = entry.get("failure") or None
    given = {name: entry.get(name) for name in (*_KEPT, *_LATENCIES)}
    given.update({ours: entry.get(theirs) for theirs, ours in _RENAMED.items()})
    metrics = {} if failure else checked(place, given, _NEEDED)
    try:
        command = split_command(str(entry["command"]))
    except BadInput as error:
        raise place.wrong(str(error)) from error
    return RawRow(
        label=label,
        place=place,
        command=command,
        engine_version=str(entry["engine_version"]),
        hardware=str(entry["hardware"]),
        load=_load(place, entry["workload"], metrics),
        metrics=metrics,
        failure=None if failure is None else str(failure),
        model=entry.get("model"),
    )


def _load(place: Place, workload: Mapping[str, Any], metrics: Mapping[str, float]) -> Load:
    dataset = workload.get("dataset")
    if dataset not in _DATASETS:
        raise place.wrong(f"workload.dataset is {dataset!r}; known: {', '.join(_DATASETS)}")
    lengths = {name: whole(place, name, workload.get(name)) for name in ("input_len", "output_len")}
    if dataset == "random" and None in lengths.values():
        raise place.wrong("a random workload needs input_len and output_len")
    return Load(
        input_tokens=lengths["input_len"] if dataset == "random" else None,
        output_tokens=lengths["output_len"] if dataset == "random" else None,
        prompts=whole(place, "num_prompts", workload.get("num_prompts")),
        completed=int(metrics["completed"]) if "completed" in metrics else None,
        concurrency=whole(place, "max_concurrency", workload.get("max_concurrency")),
        request_rate=number(place, "request_rate", workload.get("request_rate")),
    )
